//! plan: Inventory, weights and policy in, a [`Plan`] out. A pure function.
//!
//! The plan says for every output tensor where it comes from, what is done to it, which format
//! it gets and which rule decided. Writing decides nothing any more.

mod check;
mod converted;
mod decoder;
mod diff;
mod explain;
mod make;
pub mod picture;
mod reach;
pub mod render;
mod route;
mod stack;

use std::sync::Arc;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::companion;
use crate::decoder::parts::TensorSpec;
use crate::dtype::Dtype;
use crate::fault::Warning;

pub use crate::op::{AffinePart, GlobalScale, IntPacking, Op, Packed, Side, Sign, View, Zero};
pub use crate::rule::RuleRef;
pub use check::{check, recount};
pub use diff::{Change, Diff, diff};
pub use explain::{Explanation, Trial, explain};
pub use make::{
    DRAFT_PREFIX, FILE_MEDIA, JSON_MEDIA, Options, Overrides, Stock, TENSOR_MEDIA, not_run, plan,
    plan_draft,
};

/// Version of the plan's JSON form; changes when a reader of the old form would misread it.
pub const VERSION: u32 = 1;

/// The least version of Ollama that reads what is written here, where neither policy nor Modelfile
/// says another.
pub const LEAST_RUNTIME: &str = "0.14.0";

/// Everything that `create` will do, decided.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`VERSION`].
    pub version: u32,
    /// The model's folder.
    pub source: Source,
    /// The draft's folder, when a draft comes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<Source>,
    /// What was asked for.
    pub request: Request,
    /// The tensor blobs, in the order in which they are written to the manifest.
    pub blobs: Vec<Blob>,
    /// The files that are copied as they are.
    pub files: Vec<File>,
    /// What the manifest's config blob will say.
    pub manifest: Manifest,
    /// Sums.
    pub totals: Totals,
    /// Whether lathe can run what is made, as far as headers and config tell; `warnings` say what
    /// is in the way.
    #[serde(default)]
    pub runs: bool,
    /// What the user should know.
    pub warnings: Vec<Warning>,
    /// What the policy's author should know: rules that decided nothing, tensors that only a
    /// catch-all reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Warning>,
}

impl Plan {
    /// All output tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.blobs.iter().flat_map(|blob| &blob.tensors)
    }

    /// Warns of formats that Ollama cannot read.
    fn warn_of_ollama(&mut self) {
        let formats = crate::format::Formats::built_in();
        let names = self.totals.by_format.keys();
        let foreign: Vec<&str> = names
            .filter(|name| formats.get(name).is_some_and(|format| !format.ollama))
            .map(String::as_str)
            .collect();
        if !foreign.is_empty() {
            let message =
                format!("Ollama cannot read {}; lathe and mlx-lm can", foreign.join(", "));
            self.warnings.push(Warning::new(crate::fault::Code::OllamaCannotRead, message));
        }
    }
}

/// A folder that the plan was made from.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The folder, as given.
    pub dir: String,
    /// The architecture, as the config names it.
    pub architecture: String,
    /// Name of the policy that decided.
    pub policy: String,
    /// Digest of the headers; a plan is refused for a folder with another.
    pub digest: String,
}

/// What was asked for.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Format asked for (`--quantize`), in its canonical name; null when none was.
    pub format: Option<String>,
    /// Format asked for the draft (`--quantize-draft`).
    #[serde(default)]
    pub draft_format: Option<String>,
    /// Whether quantized weights may be quantized again (`--requantize`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requantize: bool,
}

/// One safetensors blob of the store.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Blob {
    /// Name in the manifest: the tensor's, or the expert group's.
    pub name: String,
    /// Media type in the manifest.
    pub media_type: String,
    /// The blob's `__metadata__`.
    pub metadata: IndexMap<String, String>,
    /// The tensors in it, in the order of its header.
    pub tensors: Vec<Tensor>,
}

/// One output tensor. With `quantize` among its operations it becomes `name`, `name.scale` and,
/// as the format has it, `name.bias`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Output name.
    pub name: String,
    /// Source tensors, in the order in which the operations take them.
    pub sources: Vec<SourceTensor>,
    /// What is done to them, first to last.
    pub ops: Vec<Op>,
    /// Format of the result, also of a kept quantized layout; null at source precision.
    pub format: Option<String>,
    /// dtype before quantization.
    pub dtype: Dtype,
    /// Shape before quantization.
    pub shape: Vec<u64>,
    /// Bytes written for it, scales and biases included.
    pub bytes: u64,
    /// The producer's layout it was recognised by.
    pub layout: Arc<str>,
    /// The program that quantized the source, when one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer: Option<Arc<str>>,
    /// The rule that decided.
    pub rule: Arc<RuleRef>,
}

impl Tensor {
    /// What it is to whoever runs it: its shape, unpacked, and whether it is quantized.
    pub fn held(&self) -> TensorSpec {
        let mut shape = self.shape.clone();
        let kept =
            self.format.as_ref().filter(|_| self.ops.iter().all(|op| op.quantizes().is_none()));
        let kept = kept.and_then(|format| crate::format::Formats::built_in().get(format));
        if let (Some(format), Some(last)) = (kept, shape.last_mut()) {
            *last = *last * self.dtype.bytes() * 8 / u64::from(format.bits);
        }
        TensorSpec { shape, quantized: self.format.is_some() }
    }

    /// Bytes read for it.
    pub fn bytes_in(&self) -> u64 {
        self.sources.iter().map(SourceTensor::bytes).sum()
    }

    /// Elements of `shape`.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Whether it is the scale, bias or global scale of a kept quantized weight.
    pub fn is_companion(&self) -> bool {
        // What is packed is U32, and what lies beside it never is.
        self.format.is_some()
            && self.dtype != Dtype::U32
            && self.ops.iter().all(|op| op.quantizes().is_none())
            && companion::ALL.into_iter().any(|suffix| self.name.ends_with(suffix))
    }

    /// Weights in it: its elements, unpacked; none for a companion.
    pub fn weights(&self) -> u64 {
        let kept = match &self.format {
            Some(format) if self.ops.iter().all(|op| op.quantizes().is_none()) => {
                crate::format::Formats::built_in().get(format)
            }
            _ => None,
        };
        match kept {
            Some(_) if self.is_companion() => 0,
            Some(format) => self.bytes * 8 / u64::from(format.bits),
            None => self.elements(),
        }
    }
}

/// A tensor of a source folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceTensor {
    /// Its name there.
    pub name: String,
    /// The shard it is in.
    pub file: Arc<str>,
    /// Its dtype there.
    pub dtype: Dtype,
    /// Its shape there.
    pub shape: Vec<u64>,
    /// The run of elements that is taken, when not all of them are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<View>,
    /// Whether it is in the draft's folder.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draft: bool,
}

impl SourceTensor {
    /// Shape of what is taken: of the view when there is one.
    pub fn taken(&self) -> &[u64] {
        self.view.as_ref().map_or(&self.shape, |view| &view.shape)
    }

    /// Size in bytes of what is taken.
    pub fn bytes(&self) -> u64 {
        self.taken().iter().product::<u64>() * self.dtype.bytes()
    }
}

/// A file of the folder that becomes a blob as it is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Name in the manifest (`tokenizer.json`, `draft/config.json`).
    pub name: String,
    /// Name in the folder.
    pub source: String,
    /// Media type in the manifest.
    pub media_type: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether it is in the draft's folder.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draft: bool,
}

/// What the manifest's config blob says about the model.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// `completion`, `tools`, `thinking`, `vision`, `audio`.
    pub capabilities: Vec<String>,
    /// Parser of the model's answers.
    pub parser: Option<String>,
    /// Renderer of conversations.
    pub renderer: Option<String>,
    /// Least version of the runtime.
    pub requires: Option<String>,
    /// The format asked for or kept; `mixed` where kept layouts differ; empty for none.
    pub file_type: String,
    /// The draft that comes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<Draft>,
}

/// What the config blob says about a draft.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Draft {
    /// `safetensors`.
    pub model_format: String,
    /// The draft's architecture.
    pub architecture: String,
    /// What its tensors' names begin with: `draft.`.
    pub tensor_prefix: String,
    /// Its config among the manifest's files: `draft/config.json`.
    pub config: String,
}

/// Sums over a plan.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Output tensors.
    pub tensors: u64,
    /// Bytes of source tensors.
    pub bytes_in: u64,
    /// Bytes of output tensors.
    pub bytes_out: u64,
    /// Output bits per element, over all tensors.
    pub bits_per_weight: f64,
    /// By format (`source` for what stays as it is).
    pub by_format: IndexMap<String, FormatTotal>,
}

impl Totals {
    /// Sums over tensors.
    pub fn of<'t>(tensors: impl Iterator<Item = &'t Tensor>) -> Totals {
        let mut totals = Totals::default();
        let mut weights = 0;
        for tensor in tensors {
            let row = tensor.format.as_deref().unwrap_or(crate::format::SOURCE);
            let row = totals.by_format.entry(row.to_string()).or_default();
            row.tensors += u64::from(!tensor.is_companion());
            row.elements += tensor.weights();
            row.bytes += tensor.bytes;
            totals.tensors += 1;
            totals.bytes_in += tensor.bytes_in();
            totals.bytes_out += tensor.bytes;
            weights += tensor.weights();
        }
        if weights > 0 {
            totals.bits_per_weight = totals.bytes_out as f64 * 8.0 / weights as f64;
        }
        totals
    }
}

/// One row of the histogram of formats.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FormatTotal {
    /// Output tensors.
    pub tensors: u64,
    /// Elements in them, before quantization.
    pub elements: u64,
    /// Bytes written.
    pub bytes: u64,
}
