//! Plans for people and scripts: table, JSON, YAML.

use std::fmt::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};
use indexmap::IndexMap;

use super::{Op, Plan, Tensor};
use crate::fault::{Code, Fault};
use crate::format::SOURCE;

/// The plan as a table that fits `width` columns; colour is left to the caller's stream.
pub fn table(plan: &Plan, width: Option<u16>) -> String {
    let mut out = String::new();
    let request = plan.request.format.as_deref().unwrap_or("nothing");
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{} ({}), policy {}, requested {request}\n",
        plan.source.dir, plan.source.architecture, plan.source.policy
    );
    let mut rows =
        grid(width, &["tensor", "operations", "format", "dtype", "shape", "in", "out", "rule"]);
    let mut rules: IndexMap<(String, usize, String), (String, u64)> = IndexMap::new();
    for tensor in plan.tensors() {
        rows.add_row([
            Cell::new(&tensor.name),
            Cell::new(operations(tensor)),
            Cell::new(tensor.format.as_deref().unwrap_or(SOURCE)),
            Cell::new(tensor.dtype),
            Cell::new(shape(&tensor.shape)),
            Cell::new(bytes(tensor.bytes_in())).set_alignment(CellAlignment::Right),
            Cell::new(bytes(tensor.bytes)).set_alignment(CellAlignment::Right),
            Cell::new(&tensor.rule.id),
        ]);
        let rule = &tensor.rule;
        let key = (rule.file.clone(), rule.line, rule.id.clone());
        rules.entry(key).or_insert_with(|| (rule.because.clone(), 0)).1 += 1;
    }
    let _ = writeln!(out, "{rows}\n");

    let mut rows = grid(width, &["rule", "tensors", "where", "because"]);
    for ((file, line, id), (because, count)) in &rules {
        let place = if *line == 0 { file.clone() } else { format!("{file}:{line}") };
        let count = Cell::new(count).set_alignment(CellAlignment::Right);
        rows.add_row([Cell::new(id), count, Cell::new(place), Cell::new(because)]);
    }
    let _ = writeln!(out, "{rows}\n");
    out.push_str(&totals(plan, width));
    out
}

/// The histogram of formats, the sums and the warnings.
pub fn totals(plan: &Plan, width: Option<u16>) -> String {
    let mut out = String::new();
    let mut rows = grid(width, &["format", "tensors", "weights", "bytes", "share", ""]);
    for (format, total) in &plan.totals.by_format {
        let share = total.bytes as f64 / plan.totals.bytes_out.max(1) as f64;
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        rows.add_row([
            Cell::new(format),
            right(total.tensors.to_string()),
            right(count(total.elements)),
            right(bytes(total.bytes)),
            right(format!("{:.1} %", share * 100.0)),
            Cell::new("█".repeat((share * 20.0).round() as usize)),
        ]);
    }
    let _ = writeln!(out, "{rows}");
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

fn grid(width: Option<u16>, header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.iter().copied());
    match width {
        Some(width) => {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        None => {
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
    }
    table
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
