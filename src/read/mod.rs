//! read: a source folder in, an [`Inventory`] out.
//!
//! Only headers are read, never weights. What leaves this room is known to be whole: every header
//! is valid, every range lies in its file, every indexed tensor is there. Faults are reported all
//! at once, each naming its file and tensor.

use std::ops::Range;
use std::path::PathBuf;

use serde_json::Value;

use crate::dtype::Dtype;
use crate::fault::Warning;

/// All that is known of a model folder without reading a weight.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// The folder (or the inventory file it was described by).
    pub dir: PathBuf,
    /// `config.json`, read leniently (NaN, Infinity, comments, trailing commas).
    pub config: Value,
    /// The safetensors files that hold the weights, in the order in which they are read.
    pub shards: Vec<Shard>,
    /// Every tensor, shard by shard, in the order of the header's offsets... see `order`.
    pub tensors: Vec<TensorInfo>,
    /// Every other file of the folder that a model may carry, by name, sorted.
    pub files: Vec<SideFile>,
    /// The chat template, from `chat_template.jinja` or `tokenizer_config.json`.
    pub chat_template: Option<String>,
    /// Producer's claims beside the config (`hf_quant_config.json`), when there.
    pub quant_config: Option<Value>,
    /// SHA-256 over names, dtypes, shapes and sizes: what a plan is checked against.
    pub digest: String,
    /// What the reader should know: strays that were passed over, what was taken.
    pub warnings: Vec<Warning>,
}

/// A safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// File name, relative to the folder.
    pub name: std::sync::Arc<str>,
    /// Size in bytes.
    pub size: u64,
    /// Modification time, to notice a source that changes while it is read; `None` for an
    /// inventory file, which has no weights.
    pub modified: Option<std::time::SystemTime>,
}

/// A file that is not weights: JSON, templates, vocabularies, licences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideFile {
    /// File name, relative to the folder.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
}

/// A tensor in a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, as in the header.
    pub name: String,
    /// Its dtype.
    pub dtype: Dtype,
    /// Its shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Index into [`Inventory::shards`].
    pub shard: u32,
    /// Bytes in the file, from its start (the header included).
    pub range: Range<u64>,
}

impl TensorInfo {
    /// Number of elements (1 for a scalar).
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.elements() * self.dtype.bytes()
    }
}
