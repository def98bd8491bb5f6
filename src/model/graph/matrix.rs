//! Matrices: linear projections, embeddings, heads, stacked experts; quantized or not.

use mlx_rs::ops::gather_mm;
use mlx_rs::{Array, Dtype};

use super::loader::Loader;
use super::ops::Result;
use crate::decoder::parts;
use crate::dtype::Dtype as Stored;
use crate::mlx::Quantized;
use crate::model::source::Weight;

impl Loader<'_> {
    /// A matrix, quantized or not.
    pub fn matrix(&mut self, matrix: &parts::Matrix) -> Option<Matrix> {
        let (weight, dtype) = (self.read(&matrix.name)?, self.dtype);
        self.made(|| Matrix::new(&weight, matrix.transposed, dtype))
    }
}

/// A matrix `[out, in]`, or stacked ones `[experts, out, in]`.
#[derive(Clone, Debug)]
pub struct Matrix {
    held: Form,
    transposed: bool,
    dtype: Dtype,
}

#[derive(Clone, Debug)]
enum Form {
    /// In the dtype of activations; transposed ones are `[…, in, out]`.
    Plain(Array),
    /// Quantized along the last axis.
    Quantized(Box<Quantized>),
}

impl Matrix {
    /// Takes a weight in: floats in the dtype of activations, and scales too. `transposed` says that
    /// it is `[…, in, out]`.
    pub fn new(weight: &Weight, transposed: bool, dtype: Dtype) -> Result<Matrix> {
        let held = match weight {
            Weight::Float(tensor) => {
                let array = tensor.array()?.as_dtype(dtype)?;
                array.eval()?;
                Form::Plain(array)
            }
            Weight::Quantized(quantized) => {
                let mut packed = quantized.arrays()?;
                // Affine scales and biases are floats; those of the other modes are bytes.
                if let Some(biases) = &packed.biases {
                    packed.biases = Some(biases.as_dtype(dtype)?);
                    packed.scales = packed.scales.as_dtype(dtype)?;
                }
                if let Some(global) = &packed.global_scale {
                    packed.global_scale = Some(global.as_dtype(Dtype::Float32)?);
                }
                let parts = [&packed.biases, &packed.global_scale].into_iter().flatten();
                mlx_rs::transforms::eval(parts.chain([&packed.weight, &packed.scales]))?;
                Form::Quantized(Box::new(packed))
            }
        };
        Ok(Matrix { held, transposed, dtype })
    }

    /// Its rows: the outputs of one that is not stacked and not transposed.
    pub fn rows(&self) -> usize {
        let shape = match &self.held {
            Form::Plain(array) => array.shape(),
            Form::Quantized(packed) => packed.weight.shape(),
        };
        shape.first().map_or(0, |&rows| rows as usize)
    }

    /// `x · Wᵀ`: `[…, in]` to `[…, out]`.
    pub fn apply(&self, x: &Array) -> Result<Array> {
        match &self.held {
            Form::Plain(array) if self.transposed => x.matmul(array),
            Form::Plain(array) => x.matmul(array.t()),
            Form::Quantized(packed) => Ok(packed.matmul(x, !self.transposed)?),
        }
    }

    /// Stacked matrices: `x` `[tokens, 1 or k, 1, in]` and experts `[tokens, k]` give
    /// `[tokens, k, 1, out]`; or `x` `[n, 1, in]` and `n` experts, which ascend if `sorted`, give
    /// `[n, 1, out]`.
    pub fn apply_experts(&self, x: &Array, experts: &Array, sorted: bool) -> Result<Array> {
        match &self.held {
            Form::Plain(array) if self.transposed => gather_mm(x, array, None, experts, sorted),
            Form::Plain(array) => gather_mm(x, array.swap_axes(-1, -2)?, None, experts, sorted),
            Form::Quantized(packed) => {
                Ok(packed.gather_matmul(x, None, Some(experts), !self.transposed, sorted)?)
            }
        }
    }

    /// The rows of the given indices, expanded.
    pub fn rows_of(&self, which: &Array) -> Result<Array> {
        match &self.held {
            Form::Plain(array) => array.take_axis(which, 0),
            Form::Quantized(packed) => Ok(packed.rows(which)?.dequantize(stored(self.dtype))?),
        }
    }

    /// The plain matrix in the layout that it is stored in.
    pub fn plain(&self) -> Result<Array> {
        match &self.held {
            Form::Plain(array) => Ok(array.clone()),
            Form::Quantized(packed) => Ok(packed.dequantize(stored(self.dtype))?),
        }
    }
}

/// The dtype of activations among those that tensors are stored in.
fn stored(dtype: Dtype) -> Stored {
    match dtype {
        Dtype::Bfloat16 => Stored::BF16,
        Dtype::Float16 => Stored::F16,
        _ => Stored::F32,
    }
}

/// A linear projection.
#[derive(Clone, Debug)]
pub struct Linear {
    /// Boxed, so that the structures that hold many stay small.
    matrix: Box<Matrix>,
    bias: Option<Array>,
}

impl Linear {
    /// Loads a projection.
    pub fn load(from: &mut Loader, linear: &parts::Linear) -> Option<Linear> {
        let matrix = from.matrix(&linear.weight);
        let bias = from.maybe_vector(&linear.bias);
        Some(Linear { matrix: Box::new(matrix?), bias: bias? })
    }

    /// The same where there may be none; `None` is a fault.
    pub fn maybe(from: &mut Loader, linear: &Option<parts::Linear>) -> Option<Option<Linear>> {
        match linear {
            Some(linear) => Linear::load(from, linear).map(Some),
            None => Some(None),
        }
    }

    /// Of a matrix that may be held elsewhere too.
    pub fn of(matrix: Matrix) -> Linear {
        Linear { matrix: Box::new(matrix), bias: None }
    }

    /// Elements of what it gives.
    pub fn outputs(&self) -> usize {
        self.matrix.rows()
    }

    /// `x · Wᵀ + b`.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let product = self.matrix.apply(x)?;
        match &self.bias {
            Some(bias) => product.add(bias),
            None => Ok(product),
        }
    }
}
