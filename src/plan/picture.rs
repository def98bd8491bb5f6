//! A plan as one self-contained page: a treemap by bytes, coloured by format, with the rule and
//! reason of each tensor on hover.

use indexmap::IndexMap;
use serde::Serialize;

use super::render::{operations, shape};
use super::{Plan, RuleRef};
use crate::fault::{Code, Fault};
use crate::format::SOURCE;

const PAGE: &str = include_str!("picture.html");

#[derive(Serialize)]
struct Data<'p> {
    title: &'p str,
    architecture: &'p str,
    policy: &'p str,
    requested: &'p str,
    bytes_in: u64,
    bytes_out: u64,
    bits_per_weight: f64,
    formats: Vec<FormatRow<'p>>,
    rules: Vec<RuleRow<'p>>,
    tensors: Vec<TensorRow<'p>>,
    warnings: Vec<&'p str>,
}

#[derive(Serialize)]
struct FormatRow<'p> {
    format: &'p str,
    tensors: u64,
    bytes: u64,
    bytes_in: u64,
}

#[derive(Serialize)]
struct RuleRow<'p> {
    id: &'p str,
    file: &'p str,
    line: usize,
    because: &'p str,
    tensors: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct TensorRow<'p> {
    name: &'p str,
    group: String,
    format: &'p str,
    dtype: &'p str,
    shape: String,
    ops: String,
    #[serde(rename = "in")]
    bytes_in: u64,
    out: u64,
    rule: usize,
}

/// The page.
pub fn html(plan: &Plan) -> Result<String, Fault> {
    let mut rules: IndexMap<&RuleRef, (u64, u64)> = IndexMap::new();
    let mut bytes_in: IndexMap<&str, u64> = IndexMap::new();
    let mut tensors = Vec::new();
    for tensor in plan.tensors() {
        let format = tensor.format.as_deref().unwrap_or(SOURCE);
        *bytes_in.entry(format).or_default() += tensor.bytes_in();
        let entry = rules.entry(&*tensor.rule);
        let rule = entry.index();
        let sums = entry.or_default();
        sums.0 += 1;
        sums.1 += tensor.bytes;
        tensors.push(TensorRow {
            name: &tensor.name,
            group: group(&tensor.name),
            format,
            dtype: tensor.dtype.as_str(),
            shape: shape(&tensor.shape),
            ops: operations(tensor),
            bytes_in: tensor.bytes_in(),
            out: tensor.bytes,
            rule,
        });
    }
    let data = Data {
        title: &plan.source.dir,
        architecture: &plan.source.architecture,
        policy: &plan.source.policy,
        requested: plan.request.format.as_deref().unwrap_or("nothing"),
        bytes_in: plan.totals.bytes_in,
        bytes_out: plan.totals.bytes_out,
        bits_per_weight: plan.totals.bits_per_weight,
        formats: plan
            .totals
            .by_format
            .iter()
            .map(|(format, row)| FormatRow {
                format,
                tensors: row.tensors,
                bytes: row.bytes,
                bytes_in: bytes_in.get(format.as_str()).copied().unwrap_or(0),
            })
            .collect(),
        rules: rules
            .iter()
            .map(|(rule, (tensors, bytes))| RuleRow {
                id: &rule.id,
                file: &rule.file,
                line: rule.line,
                because: &rule.because,
                tensors: *tensors,
                bytes: *bytes,
            })
            .collect(),
        tensors,
        warnings: plan
            .warnings
            .iter()
            .chain(&plan.notes)
            .map(|warning| warning.message.as_str())
            .collect(),
    };
    let json = serde_json::to_string(&data)
        .map_err(|error| Fault::new(Code::Internal, format!("the plan has no picture: {error}")))?;
    // A name must not be able to end the element that holds the data.
    Ok(PAGE.replace("/*DATA*/", &json.replace("</", "<\\/").replace("<!--", "<\\u0021--")))
}

fn number(segment: &str) -> bool {
    !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit())
}

/// Layers by number (`model layers 3`), everything else by its module.
fn group(name: &str) -> String {
    let segments: Vec<&str> = name.split('.').collect();
    let layer = segments.windows(2).position(|pair| number(pair[1]) && !number(pair[0]));
    match layer {
        // What holds the layers is not told: `model`, `language_model` and towers alike.
        Some(at) => {
            let tower = at.checked_sub(1).and_then(|before| segments.get(before));
            let of = tower.map_or_else(String::new, |tower| format!("{tower} "));
            format!("{of}{} {}", segments[at], segments[at + 1])
        }
        None => segments[..segments.len() - 1].last().unwrap_or(&name).to_string(),
    }
}
