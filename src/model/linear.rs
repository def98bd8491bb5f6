//! Matrices: linear projections, embeddings, heads, stacked experts; quantized or not.

use std::sync::Arc;

use mlx_rs::error::Exception;
use mlx_rs::ops::gather_mm;
use mlx_rs::{Array, Dtype};

use super::loader::Loader;
use super::native::{Memory, Native};
use super::ops::Result;
use super::source::Weight;
use crate::decoder::parts;
use crate::dtype::Dtype as Stored;
use crate::mlx::Quantized;

/// A matrix `[out, in]`, or stacked ones `[experts, out, in]`.
#[derive(Clone, Debug)]
pub struct Matrix {
    held: Held,
    dtype: Dtype,
}

#[derive(Clone, Debug)]
enum Held {
    /// On the CPU, where lathe's own kernels can multiply with it: as it is stored.
    Native(Arc<Native>),
    /// In the compute dtype; transposed ones are `[…, in, out]`.
    Plain { array: Array, transposed: bool },
    /// Quantized along the last axis.
    Quantized { packed: Box<Quantized>, transposed: bool },
}

impl Matrix {
    /// Takes a weight in: floats in the compute dtype, and scales too. What the kernels of the CPU
    /// multiply with stays as it is stored. `transposed` says that it is `[…, in, out]`.
    pub fn new(weight: &Weight, transposed: bool, dtype: Dtype, on_cpu: bool) -> Result<Matrix> {
        let native = match weight {
            _ if transposed || !on_cpu => None,
            Weight::Float(tensor) => Native::of_floats(tensor),
            Weight::Quantized(quantized) => Native::of_quantized(quantized),
        };
        let held = match (native, weight) {
            (Some(native), _) => Held::Native(Arc::new(native)),
            (None, Weight::Float(tensor)) => {
                let array = tensor.array()?.as_dtype(dtype)?;
                array.eval()?;
                Held::Plain { array, transposed }
            }
            (None, Weight::Quantized(quantized)) => {
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
                Held::Quantized { packed: Box::new(packed), transposed }
            }
        };
        Ok(Matrix { held, dtype })
    }

    /// The same for products with every token; one that only single rows are read of may do without.
    pub fn read_often(self, memory: &mut Memory) -> Matrix {
        match &self.held {
            Held::Native(native) => {
                Matrix { held: Held::Native(Arc::new(native.read_often(memory))), ..self }
            }
            _ => self,
        }
    }

    /// Bytes that it takes outside MLX's arrays.
    pub fn bytes(&self) -> usize {
        match &self.held {
            Held::Native(native) => native.bytes(),
            Held::Plain { .. } | Held::Quantized { .. } => 0,
        }
    }

    /// Whether lathe's own kernels multiply with it.
    pub fn is_native(&self) -> bool {
        matches!(self.held, Held::Native(_))
    }

    /// The logical shape, `[…, out, in]`.
    pub fn shape(&self) -> Vec<i32> {
        let (mut shape, transposed) = match &self.held {
            Held::Native(native) => return native.shape(),
            Held::Plain { array, transposed } => (array.shape().to_vec(), *transposed),
            Held::Quantized { packed, transposed } => {
                let mut shape = packed.weight.shape().to_vec();
                if let Some(last) = shape.last_mut() {
                    *last = packed.scales.dim(-1) * packed.packing.group;
                }
                (shape, *transposed)
            }
        };
        if transposed && shape.len() >= 2 {
            let last = shape.len() - 1;
            shape.swap(last - 1, last);
        }
        shape
    }

    /// `x · Wᵀ`: `[…, in]` to `[…, out]`.
    pub fn apply(&self, x: &Array) -> Result<Array> {
        match &self.held {
            Held::Native(native) => native.apply(x),
            Held::Plain { array, transposed: true } => x.matmul(array),
            Held::Plain { array, transposed: false } => x.matmul(array.t()),
            Held::Quantized { packed, transposed } => Ok(packed.matmul(x, !transposed)?),
        }
    }

    /// Stacked matrices: `x` `[tokens, 1 or k, 1, in]` and experts `[tokens, k]` give
    /// `[tokens, k, 1, out]`.
    pub fn apply_experts(&self, x: &Array, experts: &Array) -> Result<Array> {
        match &self.held {
            Held::Native(native) => native.apply_experts(x, experts),
            Held::Plain { array, transposed: true } => gather_mm(x, array, None, experts, None),
            Held::Plain { array, transposed: false } => {
                gather_mm(x, array.swap_axes(-1, -2)?, None, experts, None)
            }
            Held::Quantized { packed, transposed } => {
                Ok(packed.gather_matmul(x, None, Some(experts), !transposed, false)?)
            }
        }
    }

    /// The rows of the given indices, expanded.
    pub fn rows(&self, which: &Array) -> Result<Array> {
        match &self.held {
            Held::Native(native) => native.rows(which),
            Held::Plain { array, .. } => array.take_axis(which, 0),
            Held::Quantized { packed, .. } => {
                Ok(packed.rows(which)?.dequantize(stored(self.dtype))?)
            }
        }
    }

    /// The plain matrix in the layout that it is stored in.
    pub fn plain(&self) -> Result<Array> {
        match &self.held {
            Held::Native(native) => Ok(native.expand()),
            Held::Plain { array, .. } => Ok(array.clone()),
            Held::Quantized { packed, .. } => Ok(packed.dequantize(stored(self.dtype))?),
        }
    }
}

/// A compute dtype among those that tensors are stored in.
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
    /// On the CPU, where lathe's own kernels have it: the matrix and the bias.
    native: Option<Arc<Native>>,
}

impl Linear {
    /// Loads a projection.
    pub fn load(from: &mut Loader, linear: &parts::Linear) -> Option<Linear> {
        let weight = from.matrix(&linear.weight);
        let bias = from.maybe_vector(&linear.bias);
        let (weight, bias) = (weight?, bias?);
        from.made(|| Linear::of(weight, bias))
    }

    /// From a matrix that may be held elsewhere too.
    pub fn of(matrix: Matrix, bias: Option<Array>) -> Result<Linear> {
        let native = match (&matrix.held, &bias) {
            (Held::Native(native), None) => Some(native.clone()),
            (Held::Native(native), Some(bias)) => {
                Some(Arc::new(Native::clone(native).with_bias(bias)?))
            }
            _ => None,
        };
        Ok(Linear { matrix: Box::new(matrix), bias, native })
    }

    /// `x · Wᵀ + b`.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        if let Some(native) = &self.native {
            return native.apply(x);
        }
        let product = self.matrix.apply(x)?;
        match &self.bias {
            Some(bias) => product.add(bias),
            None => Ok(product),
        }
    }

    /// What several projections give of the same `x`.
    pub fn forward_all<const N: usize>(all: [&Linear; N], x: &Array) -> Result<[Array; N]> {
        let natives: Option<Vec<&Arc<Native>>> = all.iter().map(|linear| linear.native()).collect();
        let given = match natives {
            Some(natives) => Native::apply_all(&natives, x)?,
            None => all.iter().map(|linear| linear.forward(x)).collect::<Result<_>>()?,
        };
        given.try_into().map_err(|_| Exception::custom("a product is missing"))
    }

    /// The matrix and the bias, where lathe's own kernels have them.
    pub fn native(&self) -> Option<&Arc<Native>> {
        self.native.as_ref()
    }
}
