//! Where a model's weights come from: a store's blobs, or a folder as it was downloaded.
//!
//! What leaves are bytes of mapped files: nothing is copied before something computes with it.

mod blobs;
mod file;
mod folder;
mod known;

pub use blobs::Blobs;
pub use folder::Folder;
pub use known::Known;

use bytes::Bytes;
use mlx_rs::Array;
use mlx_rs::error::Exception;

use crate::decoder::parts::TensorSpec;
use crate::dtype::Dtype;
use crate::fault::Fault;
use crate::mlx::{self, Packing};

/// A tensor's elements, row-major and little-endian, wherever they are.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Of an element.
    pub dtype: Dtype,
    /// Elements of each axis.
    pub shape: Vec<i32>,
    /// As many as dtype and shape need.
    pub bytes: Bytes,
}

impl Tensor {
    /// An array of MLX, which has a copy of the elements.
    ///
    /// # Errors
    /// For a dtype that MLX lacks.
    pub fn array(&self) -> Result<Array, Exception> {
        let shape: Vec<u64> = self.shape.iter().map(|&axis| axis.unsigned_abs().into()).collect();
        Ok(mlx::from_bytes(&self.bytes, self.dtype, &shape)?)
    }

    /// Whether it holds floats, all of them zero (of either sign).
    pub fn is_zero(&self) -> bool {
        let size = self.dtype.bytes() as usize;
        let zero = |element: &[u8]| {
            element
                .split_last()
                .is_some_and(|(last, rest)| last & 0x7f == 0 && rest.iter().all(|&byte| byte == 0))
        };
        self.dtype.is_float() && self.bytes.chunks(size).all(zero)
    }

    /// Elements of the last axis; 0 of a tensor without axes.
    pub fn last(&self) -> i32 {
        self.shape.last().copied().unwrap_or(0)
    }
}

/// A tensor as it is stored.
#[derive(Clone, Debug)]
pub enum Weight {
    /// Not quantized, in the dtype of the file.
    Float(Tensor),
    /// Quantized along its last axis.
    Quantized(Box<QuantizedTensor>),
}

/// The parts of a quantized tensor; see [`mlx::Quantized`].
#[derive(Clone, Debug)]
pub struct QuantizedTensor {
    /// Packed elements, U32, `[…, out, in × bits / 32]`.
    pub weight: Tensor,
    /// Scales, `[…, out, in / group]`.
    pub scales: Tensor,
    /// Biases (affine only), as the scales.
    pub biases: Option<Tensor>,
    /// Multiplies the whole tensor, F32: `[]`, `[1]`, or `[experts]` for stacked ones.
    pub global_scale: Option<Tensor>,
    /// How it is packed.
    pub packing: Packing,
}

impl QuantizedTensor {
    /// The same as arrays of MLX.
    ///
    /// # Errors
    /// For what MLX lacks.
    pub fn arrays(&self) -> Result<mlx::Quantized, Exception> {
        let maybe = |tensor: &Option<Tensor>| tensor.as_ref().map(Tensor::array).transpose();
        Ok(mlx::Quantized {
            weight: self.weight.array()?,
            scales: self.scales.array()?,
            biases: maybe(&self.biases)?,
            global_scale: maybe(&self.global_scale)?,
            packing: self.packing,
        })
    }

    /// Elements of the last axis.
    pub fn columns(&self) -> i32 {
        self.scales.last() * self.packing.group
    }
}

/// Where weights come from. Names are those of whole tensors, without the companions of
/// quantized ones.
pub trait TensorSource {
    /// Every tensor's name.
    fn names(&self) -> Vec<String>;
    /// A tensor by name; `None` when there is none.
    ///
    /// # Errors
    /// What is wrong with a tensor that is there.
    fn tensor(&self, name: &str) -> Result<Option<Weight>, Fault>;

    /// What headers tell of a tensor: its logical shape, and whether it is quantized.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`].
    fn held(&self, name: &str) -> Result<Option<TensorSpec>, Fault> {
        Ok(self.tensor(name)?.map(|weight| weight.held()))
    }
}

impl Weight {
    /// Its logical shape, and whether it is quantized.
    pub fn held(&self) -> TensorSpec {
        let (tensor, columns) = match self {
            Weight::Float(tensor) => (tensor, None),
            Weight::Quantized(quantized) => (&quantized.weight, Some(quantized.columns())),
        };
        let mut shape: Vec<u64> =
            tensor.shape.iter().map(|&axis| axis.unsigned_abs().into()).collect();
        if let (Some(last), Some(columns)) = (shape.last_mut(), columns) {
            *last = columns.unsigned_abs().into();
        }
        TensorSpec { shape, quantized: columns.is_some() }
    }
}
