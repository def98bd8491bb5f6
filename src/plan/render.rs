//! Plans for people and scripts: table, JSON, YAML.

use std::fmt::Write;

use indexmap::IndexMap;

use super::{Op, Plan, Tensor};
use crate::fault::{Code, Fault};
use crate::format::SOURCE;
use crate::table::Table;

/// The plan as a table that fits `width` columns; colour is left to the caller's stream.
pub fn table(plan: &Plan, width: Option<usize>) -> String {
    let mut out = String::new();
    let request = plan.request.format.as_deref().unwrap_or("nothing");
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{} ({}), policy {}, requested {request}\n",
        plan.source.dir, plan.source.architecture, plan.source.policy
    );
    let mut rows =
        Table::new(&["tensor", "operations", "format", "dtype", "shape", "in", "out", "rule"])
            .right(&[5, 6]);
    let mut rules: IndexMap<(String, usize, String), (String, u64)> = IndexMap::new();
    for tensor in plan.tensors() {
        rows.row([
            tensor.name.clone(),
            operations(tensor),
            tensor.format.as_deref().unwrap_or(SOURCE).to_string(),
            tensor.dtype.to_string(),
            shape(&tensor.shape),
            bytes(tensor.bytes_in()),
            bytes(tensor.bytes),
            tensor.rule.id.clone(),
        ]);
        let rule = &tensor.rule;
        let key = (rule.file.clone(), rule.line, rule.id.clone());
        rules.entry(key).or_insert_with(|| (rule.because.clone(), 0)).1 += 1;
    }
    let _ = writeln!(out, "{}\n", rows.text(width));

    let mut rows = Table::new(&["rule", "tensors", "where", "because"]).right(&[1]);
    for ((file, line, id), (because, count)) in &rules {
        let place = if *line == 0 { file.clone() } else { format!("{file}:{line}") };
        rows.row([id.clone(), count.to_string(), place, because.clone()]);
    }
    let _ = writeln!(out, "{}\n", rows.text(width));
    out.push_str(&totals(plan, width));
    out
}

/// The histogram of formats, the sums and the warnings.
pub fn totals(plan: &Plan, width: Option<usize>) -> String {
    let mut out = String::new();
    let header = ["format", "tensors", "weights", "bytes", "share", ""];
    let mut rows = Table::new(&header).right(&[1, 2, 3, 4]);
    for (format, total) in &plan.totals.by_format {
        let share = total.bytes as f64 / plan.totals.bytes_out.max(1) as f64;
        rows.row([
            format.clone(),
            total.tensors.to_string(),
            count(total.elements),
            bytes(total.bytes),
            format!("{:.1} %", share * 100.0),
            "█".repeat((share * 20.0).round() as usize),
        ]);
    }
    let _ = writeln!(out, "{}", rows.text(width));
    let totals = &plan.totals;
    let _ = writeln!(
        out,
        "{} tensors in {} blobs: {} in, {} out, {:.2} bits per weight",
        totals.tensors,
        plan.blobs.len(),
        bytes(totals.bytes_in),
        bytes(totals.bytes_out),
        totals.bits_per_weight
    );
    for warning in &plan.warnings {
        let _ = writeln!(out, "warning [{}]: {}", warning.code, warning.message);
    }
    for note in &plan.notes {
        let _ = writeln!(out, "note [{}]: {}", note.code, note.message);
    }
    out
}

/// The plan as JSON.
pub fn json(plan: &Plan) -> Result<String, Fault> {
    serde_json::to_string_pretty(plan)
        .map_err(|error| Fault::new(Code::Internal, format!("the plan has no JSON form: {error}")))
}

/// The plan as YAML.
pub fn yaml(plan: &Plan) -> Result<String, Fault> {
    serde_yaml::to_string(plan)
        .map_err(|error| Fault::new(Code::Internal, format!("the plan has no YAML form: {error}")))
}

/// Reads a plan that was printed as JSON or YAML, and perhaps edited.
pub fn parse(name: &str, text: &str) -> Result<Plan, Fault> {
    crate::document::Document::parse(name, text)?.decode()
}

/// The operations in a few words: `stack 128, quantize`.
pub fn operations(tensor: &Tensor) -> String {
    let word = |op: &Op| match op {
        Op::Copy => "copy".to_string(),
        Op::Relabel { .. } => "relabel".into(),
        Op::Stack { count } => format!("stack {count}"),
        Op::Split { index, parts, .. } => format!("split {index} of {parts}"),
        Op::Transpose { .. } => "transpose".into(),
        Op::Scalar => "scalar".into(),
        Op::Reciprocal => "reciprocal".into(),
        Op::DecodeFp8 { .. } => "decode-fp8".into(),
        Op::UnpackInt { .. } => "unpack-int".into(),
        Op::AffineInt { .. } => "affine-int".into(),
        Op::Dequantize { .. } => "dequantize".into(),
        Op::Cast { dtype } => format!("cast {dtype}"),
        Op::Quantize { .. } => "quantize".into(),
    };
    tensor.ops.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// `[2, 3]`.
pub fn shape(shape: &[u64]) -> String {
    let axes: Vec<String> = shape.iter().map(u64::to_string).collect();
    format!("[{}]", axes.join(", "))
}

/// Bytes for people: three significant figures, decimal units.
pub fn bytes(bytes: u64) -> String {
    scaled(bytes, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// A count for people: `135 M`.
pub fn count(count: u64) -> String {
    scaled(count, &["", "k", "M", "B", "T"])
}

fn scaled(value: u64, units: &[&str]) -> String {
    let (mut scaled, mut unit) = (value as f64, 0);
    while scaled >= 999.5 && unit + 1 < units.len() {
        scaled /= 1000.0;
        unit += 1;
    }
    let digits = match (unit, scaled) {
        (0, _) => 0,
        (_, small) if small < 9.995 => 2,
        (_, middle) if middle < 99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$} {}", units[unit]).trim_end().to_string()
}
