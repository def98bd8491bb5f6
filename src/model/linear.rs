//! Matrices: linear projections, embeddings, heads, stacked experts; quantized or not.

use mlx_rs::error::Exception;
use mlx_rs::ops::gather_mm;
use mlx_rs::{Array, Dtype};

use super::build::Builder;
use super::description::LinearOrName;
use super::native::{Native, Projection};
use super::ops::Result;
use super::source::{Quantized, Weight};

/// A matrix `[out, in]`, or stacked ones `[experts, out, in]`.
#[derive(Clone, Debug)]
pub struct Matrix {
    stored: Stored,
    /// Whether it is stored as `[…, in, out]`.
    transposed: bool,
    dtype: Dtype,
    /// On the CPU, where lathe's own kernels can multiply with it.
    native: Option<Box<Native>>,
}

#[derive(Clone, Debug)]
enum Stored {
    Plain(Array),
    Quantized(Quantized),
}

impl Matrix {
    /// Takes a weight in: floats in the compute dtype, and scales too. What the kernels of the CPU
    /// multiply with stays as it is stored.
    pub fn new(weight: Weight, transposed: bool, dtype: Dtype, on_cpu: bool) -> Result<Matrix> {
        let native = on_cpu && !transposed;
        let (stored, native) = match weight {
            Weight::Float(array) => {
                let native = native.then(|| Native::of_floats(&array)).flatten().map(Box::new);
                let dtype = if native.is_some() { array.dtype() } else { dtype };
                (Stored::Plain(array.as_dtype(dtype)?), native)
            }
            Weight::Quantized(mut quantized) => {
                // Affine scales and biases are floats; those of the other modes are bytes.
                if let Some(biases) = &quantized.biases {
                    quantized.biases = Some(biases.as_dtype(dtype)?);
                    quantized.scales = quantized.scales.as_dtype(dtype)?;
                }
                if let Some(global) = &quantized.global_scale {
                    quantized.global_scale = Some(global.as_dtype(Dtype::Float32)?);
                }
                let native =
                    native.then(|| Native::of_quantized(&quantized)).flatten().map(Box::new);
                (Stored::Quantized(quantized), native)
            }
        };
        Ok(Matrix { stored, transposed, dtype, native })
    }

    /// The logical shape, `[…, out, in]`.
    pub fn shape(&self) -> Vec<i32> {
        let mut shape = match &self.stored {
            Stored::Plain(array) => array.shape().to_vec(),
            Stored::Quantized(quantized) => {
                let mut shape = quantized.weight.shape().to_vec();
                if let Some(last) = shape.last_mut() {
                    *last = quantized.columns();
                }
                shape
            }
        };
        if self.transposed && shape.len() >= 2 {
            let last = shape.len() - 1;
            shape.swap(last - 1, last);
        }
        shape
    }

    /// `x · Wᵀ`: `[…, in]` to `[…, out]`.
    pub fn apply(&self, x: &Array) -> Result<Array> {
        if let Some(native) = &self.native {
            return native.apply(x);
        }
        match &self.stored {
            Stored::Plain(array) if self.transposed => x.matmul(array),
            Stored::Plain(array) => x.matmul(array.t()),
            Stored::Quantized(quantized) => {
                let product = quantized.matmul(x, !self.transposed)?;
                match &quantized.global_scale {
                    Some(global) => product.multiply(global.as_dtype(product.dtype())?),
                    None => Ok(product),
                }
            }
        }
    }

    /// Stacked matrices: `x` `[tokens, 1 or k, 1, in]` and experts `[tokens, k]` give
    /// `[tokens, k, 1, out]`.
    pub fn apply_experts(&self, x: &Array, experts: &Array) -> Result<Array> {
        if let Some(native) = &self.native {
            return native.apply_experts(x, experts);
        }
        match &self.stored {
            Stored::Plain(array) if self.transposed => gather_mm(x, array, None, experts, None),
            Stored::Plain(array) => gather_mm(x, array.swap_axes(-1, -2)?, None, experts, None),
            Stored::Quantized(quantized) => {
                let product = quantized.gather(x, experts, !self.transposed)?;
                let Some(global) = &quantized.global_scale else { return Ok(product) };
                let global = global.as_dtype(product.dtype())?;
                if global.size() == 1 {
                    return product.multiply(global.reshape(&[1])?);
                }
                let global = global.flatten(None, None)?.take(experts)?;
                product.multiply(global.expand_dims_axes(&[-1, -2])?)
            }
        }
    }

    /// The rows of the given indices, expanded.
    pub fn rows(&self, which: &Array) -> Result<Array> {
        match &self.stored {
            Stored::Plain(array) => array.take_axis(which, 0)?.as_dtype(self.dtype),
            Stored::Quantized(quantized) => {
                let rows = quantized.rows(which)?.dequantize(self.dtype)?;
                match &quantized.global_scale {
                    Some(global) => rows.multiply(global.as_dtype(self.dtype)?),
                    None => Ok(rows),
                }
            }
        }
    }

    /// The plain matrix in the layout that it is stored in.
    pub fn plain(&self) -> Result<Array> {
        match &self.stored {
            Stored::Plain(array) => array.as_dtype(self.dtype),
            Stored::Quantized(quantized) => {
                let plain = quantized.dequantize(self.dtype)?;
                match &quantized.global_scale {
                    None => Ok(plain),
                    Some(global) if global.size() == 1 => {
                        plain.multiply(global.reshape(&[1])?.as_dtype(self.dtype)?)
                    }
                    Some(global) => {
                        plain.multiply(global.reshape(&[-1, 1, 1])?.as_dtype(self.dtype)?)
                    }
                }
            }
        }
    }

    /// Its arrays, to be evaluated.
    pub fn arrays(&self) -> Vec<&Array> {
        match &self.stored {
            Stored::Plain(array) => vec![array],
            Stored::Quantized(q) => {
                [Some(&q.weight), Some(&q.scales), q.biases.as_ref(), q.global_scale.as_ref()]
                    .into_iter()
                    .flatten()
                    .collect()
            }
        }
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
    /// Reads a projection by name, with its bias if it has one.
    pub fn build(to: &mut Builder, name: &str, bias: bool) -> Option<Linear> {
        let weight = to.weight_name(name).and_then(|name| to.matrix(&name, false));
        let bias = if bias {
            let name = to.full_name(&format!("{name}.bias"));
            Some(to.vector(&name)?)
        } else {
            None
        };
        Some(Linear { matrix: Box::new(weight?), bias })
    }

    /// The same, and a fault unless it gives `outputs` elements.
    pub fn build_sized(to: &mut Builder, name: &str, bias: bool, outputs: i64) -> Option<Linear> {
        let linear = Linear::build(to, name, bias)?;
        to.expect(name, "rows", i64::from(linear.outputs()), outputs)?;
        Some(linear)
    }

    /// Reads a projection that may be given by name alone.
    pub fn build_named(to: &mut Builder, linear: &LinearOrName) -> Option<Linear> {
        match linear {
            LinearOrName::Name(name) => Linear::build(to, name, false),
            LinearOrName::Full(linear) => {
                let bias = to.holds(&linear.bias, false);
                Linear::build(to, &linear.tensor, bias)
            }
        }
    }

    /// From a matrix that is held elsewhere too.
    pub fn of(matrix: Matrix, bias: Option<Array>) -> Linear {
        Linear { matrix: Box::new(matrix), bias }
    }

    /// `x · Wᵀ + b`.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let product = self.matrix.apply(x)?;
        match &self.bias {
            Some(bias) => product.add(bias),
            None => Ok(product),
        }
    }

    /// What several projections give of the same `x`.
    pub fn forward_all<const N: usize>(all: [&Linear; N], x: &Array) -> Result<[Array; N]> {
        let natives: Option<Vec<&Native>> =
            all.iter().map(|linear| linear.matrix.native.as_deref()).collect();
        let products = match natives {
            Some(natives) => Native::apply_all(&natives, x)?,
            None => all.iter().map(|linear| linear.matrix.apply(x)).collect::<Result<_>>()?,
        };
        let given = all.iter().zip(products).map(|(linear, product)| match &linear.bias {
            Some(bias) => product.add(bias),
            None => Ok(product),
        });
        let given: Vec<Array> = given.collect::<Result<_>>()?;
        given.try_into().map_err(|_| Exception::custom("a product is missing"))
    }

    /// `to + x · Wᵀ + b`.
    pub fn forward_onto(&self, x: &Array, to: &Array) -> Result<Array> {
        match (&self.matrix.native, &self.bias) {
            (Some(native), None) => native.apply_onto(x, to),
            _ => to.add(self.forward(x)?),
        }
    }

    /// The matrix and the bias, where lathe's own kernels multiply with it.
    pub fn native(&self) -> Option<Projection<'_>> {
        Some((self.matrix.native.as_deref()?, self.bias.as_ref()))
    }

    /// The matrix.
    pub fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// Elements of what it gives.
    pub fn outputs(&self) -> i32 {
        let shape = self.matrix.shape();
        shape.get(shape.len().wrapping_sub(2)).copied().unwrap_or(0)
    }
}
