//! classify: an [`Inventory`] in, the model's [`Weight`]s out.
//!
//! For each tensor it decides, from evidence (companions, dtypes, shape relations) and not from
//! the config's claims, which producer's layout it has. The layouts are `policies/sources/*.yaml`;
//! this room interprets them. Companions are folded into their weight, so what leaves is one
//! [`Weight`] for each thing that the plan may decide about.

mod claims;
mod dims;
pub mod file;
mod groups;
pub mod hostile;
pub mod layout;
mod make;
mod matching;
mod paths;
mod quantizers;
mod sides;
mod sorting;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use indexmap::IndexMap;

use crate::dtype::Dtype;
use crate::fault::{Faults, Warning};
use crate::op::{Op, View};
use crate::read::Inventory;

pub use layout::Layouts;

/// Where a decision comes from: a rule of a policy, or of a source layout.
pub use crate::rule::RuleRef;

/// One logical weight: a float tensor, or a quantized one with its companions.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Output name: the source's own, with the layout's weight suffix made `.weight`.
    pub name: String,
    /// Name of the layout, e.g. `float`, `compressed-tensors-nvfp4`.
    pub layout: Arc<str>,
    /// The producer as `show --quant` names it, when the layout has one.
    pub producer: Option<Arc<str>>,
    /// dtype of the values: the source's for floats, BF16 for what is decoded, the scales' dtype
    /// or BF16 for what is kept quantized.
    pub dtype: Dtype,
    /// Logical shape, unpacked: `[out, in]`, `[experts, out, in]`.
    pub shape: Vec<u64>,
    /// What becomes of it.
    pub kind: WeightKind,
}

/// What a weight is, as far as the plan is concerned.
#[derive(Clone, Debug)]
pub enum WeightKind {
    /// A plain tensor: copied, or quantized when the policy says so.
    Plain(Part),
    /// A producer's quantized weight that cannot be stored as it is: decoded to floats, then
    /// quantized to `default` (or to what was asked for).
    Decode {
        /// How to get the floats.
        decode: Part,
        /// The format it takes when none is asked for, a name of `formats.toml`.
        default: Arc<str>,
    },
    /// A producer's quantized weight whose bytes are kept, perhaps relabelled.
    Keep {
        /// The format that it is in, a name of `formats.toml`.
        format: Arc<str>,
        /// The blob metadata that says so.
        metadata: Arc<IndexMap<String, String>>,
        /// The tensors to write: the weight first, then its companions.
        parts: Vec<Part>,
        /// How to get the floats, for `--requantize`.
        decode: Part,
    },
}

/// One tensor to be made from source tensors.
#[derive(Clone, Debug)]
pub struct Part {
    /// What is added to the weight's name: empty, `.scale`, `.bias`, `.global_scale`.
    pub suffix: &'static str,
    /// What is read, in the order in which `ops` takes them.
    pub sources: Vec<Input>,
    /// What is done to them.
    pub ops: Vec<Op>,
    /// dtype of the result.
    pub dtype: Dtype,
    /// Shape of the result.
    pub shape: Vec<u64>,
}

impl Part {
    /// One part made of the same part of several weights (experts), stacked on a new first axis.
    /// `Op::Stack` comes first, so that the other steps see whole stacks; numbers become a vector.
    pub fn stacked(parts: &[&Part]) -> Part {
        let count = parts.len() as u64;
        let first = parts[0];
        // Stacking gives a vector of numbers already.
        let needless = |op: &&Op| matches!(op, Op::Copy | Op::Scalar);
        let ops = first.ops.iter().filter(|op| !needless(op)).map(|op| deeper(op, count));
        Part {
            suffix: first.suffix,
            sources: parts.iter().flat_map(|part| part.sources.iter().cloned()).collect(),
            ops: std::iter::once(Op::Stack { count }).chain(ops).collect(),
            dtype: first.dtype,
            shape: deeper_shape(&first.shape, count),
        }
    }
}

/// The same step on a stack of `count`.
fn deeper(op: &Op, count: u64) -> Op {
    match op {
        Op::Relabel { dtype, shape } => {
            Op::Relabel { dtype: *dtype, shape: deeper_shape(shape, count) }
        }
        Op::Split { axis, parts, index } => {
            Op::Split { axis: axis + 1, parts: *parts, index: *index }
        }
        Op::Transpose { axes } => {
            Op::Transpose { axes: std::iter::once(0).chain(axes.iter().map(|a| a + 1)).collect() }
        }
        other => other.clone(),
    }
}

fn deeper_shape(shape: &[u64], count: u64) -> Vec<u64> {
    let numbers = shape.iter().product::<u64>() == 1 && shape.len() < 2;
    std::iter::once(count).chain(if numbers { &[][..] } else { shape }.iter().copied()).collect()
}

/// A source tensor, or a run of its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Index into [`crate::read::Inventory::tensors`].
    pub tensor: u32,
    /// The elements that are taken, when not all of them are.
    pub view: Option<View>,
}

/// What classify hands to plan.
#[derive(Clone, Debug, Default)]
pub struct Classified {
    /// Every weight, in the order of the inventory.
    pub weights: Vec<Weight>,
    /// Config claims that the evidence contradicts, strays that were dropped.
    pub warnings: Vec<Warning>,
}

/// Classifies every tensor of a folder by the built-in layouts.
///
/// # Errors
/// Every weight that has no layout, at once: missing companions, scales of the wrong dtype or
/// shape, companions without a weight, layouts that are refused by name.
pub fn classify(inventory: &Inventory) -> Result<Classified, Faults> {
    classify_by(Layouts::built_in(), inventory)
}

/// Classifies by given layouts.
///
/// # Errors
/// As [`classify`].
pub fn classify_by(layouts: &Layouts, inventory: &Inventory) -> Result<Classified, Faults> {
    let mut sorting = sorting::Sorting::new(layouts, inventory);
    for group in groups::groups(layouts, inventory) {
        sorting.group(&group);
    }
    quantizers::judge(&layouts.quantizers, inventory, sorting.finish())
}
