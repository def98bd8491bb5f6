//! Where a stored model came from, tensor by tensor: what each was in the source, which producer
//! made it, and which rule decided what it is now. A layer of the manifest, so that a model can
//! always be traced.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;
use crate::plan::{Plan, Tensor, render};

/// The origin of a model's tensors, as JSON in a blob of [`super::media::ORIGIN`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// Output tensors by name; companions (`.scale`, …) stand with their weight.
    pub tensors: IndexMap<String, TensorOrigin>,
}

/// The origin of one tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorOrigin {
    /// The layout by which it was recognised, a name of `policies/sources`.
    pub layout: String,
    /// The program that quantized it, as its config or its layout tells; none for plain floats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer: Option<String>,
    /// dtype of its (first) source tensor.
    pub dtype: Dtype,
    /// Shape of its (first) source tensor.
    pub shape: Vec<u64>,
    /// Source tensors that it was made of: the stacked experts and their companions.
    pub sources: usize,
    /// What was done to them, in a few words.
    pub operations: String,
    /// The rule that decided, with its file and line.
    pub rule: String,
}

impl Origin {
    /// What a plan says.
    pub fn of(plan: &Plan) -> Origin {
        let weights = plan.tensors().filter(|tensor| !tensor.is_companion());
        Origin { tensors: weights.filter_map(|t| Some((t.name.clone(), origin(t)?))).collect() }
    }
}

fn origin(tensor: &Tensor) -> Option<TensorOrigin> {
    let first = tensor.sources.first()?;
    let rule = &tensor.rule;
    Some(TensorOrigin {
        layout: tensor.layout.to_string(),
        producer: tensor.producer.as_deref().map(str::to_string),
        dtype: first.dtype,
        shape: first.shape.clone(),
        sources: tensor.sources.len(),
        operations: render::operations(tensor),
        rule: match rule.line {
            0 => rule.id.clone(),
            line => format!("{} ({}:{line})", rule.id, rule.file),
        },
    })
}
