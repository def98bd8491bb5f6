//! Two plans side by side: what changes between two policies or two requests, and what it costs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Plan, Tensor};
use crate::format::SOURCE;

/// What differs between two plans.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// Tensors whose format, shape or place differ, by name.
    pub changed: Vec<Change>,
    /// Tensors that only the first plan has.
    pub only_first: Vec<String>,
    /// Tensors that only the second plan has.
    pub only_second: Vec<String>,
    /// Bytes out of both.
    pub bytes: (u64, u64),
    /// Bits per weight of both.
    pub bits_per_weight: (f64, f64),
}

/// A tensor that both plans have, differently.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Its name.
    pub tensor: String,
    /// Its formats.
    pub format: (String, String),
    /// Its bytes.
    pub bytes: (u64, u64),
    /// The rules that decided.
    pub rule: (String, String),
    /// The blobs it is in, when they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blob: Option<(String, String)>,
}

/// Compares two plans by the names of their tensors.
pub fn diff(first: &Plan, second: &Plan) -> Diff {
    let (a, b) = (by_name(first), by_name(second));
    let mut changed = Vec::new();
    for (name, (blob, tensor)) in &a {
        let Some((other_blob, other)) = b.get(name) else { continue };
        let blob = (blob != other_blob).then(|| (blob.to_string(), other_blob.to_string()));
        let sources = tensor.sources == other.sources;
        if format(tensor) != format(other)
            || tensor.bytes != other.bytes
            || blob.is_some()
            || !sources
        {
            changed.push(Change {
                tensor: name.to_string(),
                format: (format(tensor).into(), format(other).into()),
                bytes: (tensor.bytes, other.bytes),
                rule: (tensor.rule.id.clone(), other.rule.id.clone()),
                blob,
            });
        }
    }
    let only = |one: &Map, other: &Map| {
        one.keys().filter(|name| !other.contains_key(*name)).map(|name| name.to_string()).collect()
    };
    Diff {
        changed,
        only_first: only(&a, &b),
        only_second: only(&b, &a),
        bytes: (first.totals.bytes_out, second.totals.bytes_out),
        bits_per_weight: (first.totals.bits_per_weight, second.totals.bits_per_weight),
    }
}

type Map<'p> = BTreeMap<&'p str, (&'p str, &'p Tensor)>;

fn by_name(plan: &Plan) -> Map<'_> {
    plan.blobs
        .iter()
        .flat_map(|blob| blob.tensors.iter().map(|t| (t.name.as_str(), (blob.name.as_str(), t))))
        .collect()
}

fn format(tensor: &Tensor) -> &str {
    tensor.format.as_deref().unwrap_or(SOURCE)
}
