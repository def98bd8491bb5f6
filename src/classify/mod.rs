//! classify: an [`Inventory`] in, the model's [`Weight`]s out.
//!
//! For each tensor it decides, from evidence (companions, dtypes, shape relations) and not from
//! the config's claims, which producer's layout it has. The layouts are `policies/sources/*.yaml`;
//! this room interprets them. Companions are folded into their weight, so what leaves is one
//! [`Weight`] for each thing that the plan may decide about.

use std::sync::Arc;

use crate::dtype::Dtype;
use crate::fault::Warning;
use crate::plan::Op;

/// Where a decision comes from: a rule of a policy, or of a source layout.
pub use crate::plan::RuleRef;

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
    /// Indices into [`crate::read::Inventory::tensors`], in the order in which `ops` takes them.
    pub sources: Vec<u32>,
    /// What is done to them.
    pub ops: Vec<Op>,
    /// dtype of the result.
    pub dtype: Dtype,
    /// Shape of the result.
    pub shape: Vec<u64>,
}

/// What classify hands to plan.
#[derive(Clone, Debug, Default)]
pub struct Classified {
    /// Every weight, in the order of the inventory.
    pub weights: Vec<Weight>,
    /// Config claims that the evidence contradicts, strays that were dropped.
    pub warnings: Vec<Warning>,
}

/// Classifies every tensor of a folder.
///
/// # Errors
/// Dtypes that no layout has.
pub fn classify(inventory: &crate::read::Inventory) -> Result<Classified, crate::fault::Faults> {
    let layout: Arc<str> = "float".into();
    let weights = inventory.tensors.iter().enumerate().map(|(index, tensor)| Weight {
        name: tensor.name.clone(),
        layout: layout.clone(),
        producer: None,
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        kind: WeightKind::Plain(Part {
            suffix: "",
            sources: vec![index as u32],
            ops: vec![Op::Copy],
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
        }),
    });
    Ok(Classified { weights: weights.collect(), warnings: Vec::new() })
}
