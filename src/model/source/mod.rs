//! Where a model's weights come from: a store's blobs, or a folder as it was downloaded.

mod blobs;
mod file;
mod folder;

pub use blobs::Blobs;
pub use folder::Folder;

use mlx_rs::Array;

use crate::fault::Fault;
use crate::format::Mode;

/// A tensor as it is stored.
#[derive(Clone, Debug)]
pub enum Weight {
    /// Not quantized, in the dtype of the file.
    Float(Array),
    /// Quantized along its last axis.
    Quantized(Quantized),
}

/// A quantized tensor: MLX's arrays and how to read them.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// Packed elements, U32, `[…, out, in × bits / 32]`.
    pub weight: Array,
    /// Scales, `[…, out, in / group]`.
    pub scales: Array,
    /// Biases (affine only), as the scales.
    pub biases: Option<Array>,
    /// Multiplies the whole tensor, F32: `[]`, `[1]`, or `[experts]` for stacked ones.
    pub global_scale: Option<Array>,
    /// MLX's mode.
    pub mode: Mode,
    /// Bits of an element.
    pub bits: i32,
    /// Elements that share a scale.
    pub group: i32,
}

/// Where weights come from. Names are those of whole tensors, without the companions of
/// quantized ones.
pub trait TensorSource {
    /// Every tensor's name.
    fn names(&self) -> Vec<String>;
    /// A tensor by name; `None` when there is none.
    fn tensor(&self, name: &str) -> Result<Option<Weight>, Fault>;
}
