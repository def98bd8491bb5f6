//! Small functions of arrays that modules share.

use std::ops::Range;

use mlx_rs::error::Exception;
use mlx_rs::ops::{concatenate, logaddexp, maximum, sigmoid, tanh};
use mlx_rs::{Array, Dtype};

pub use crate::decoder::parts::Function;
use crate::mlx::slice;

/// What operations give.
pub type Result<T> = std::result::Result<T, Exception>;

/// `x × by`, in the dtype of x.
pub fn times(x: &Array, by: f32) -> Result<Array> {
    x.multiply(Array::from_f32(by).as_dtype(x.dtype())?)
}

/// `x × by` with a factor that is not rounded to the dtype of x, which the result has.
pub fn times_exactly(x: &Array, by: &Array) -> Result<Array> {
    x.as_dtype(Dtype::Float32)?.multiply(by)?.as_dtype(x.dtype())
}

/// Elements `from..to` of the last axis.
pub fn last_axis(x: &Array, from: i32, to: i32) -> Result<Array> {
    let last = x.ndim().saturating_sub(1);
    Ok(slice::part(x, last, from..to)?)
}

/// Elements `range` of an axis; `x` itself where these are all.
pub fn part(x: &Array, axis: usize, range: &Range<usize>) -> Result<Array> {
    let range = range.start as i32..range.end as i32;
    match range == (0..x.dim(axis as i32)) {
        true => Ok(x.clone()),
        false => Ok(slice::part(x, axis, range)?),
    }
}

/// Arrays one after the other on an axis.
pub fn join(mut parts: Vec<Array>, axis: i32) -> Result<Array> {
    match parts.len() {
        1 => Ok(parts.remove(0)),
        _ => concatenate(&parts, axis),
    }
}

/// `cap × tanh(x / cap)`.
pub fn soft_cap(x: &Array, cap: f32) -> Result<Array> {
    times(&tanh(times(x, 1.0 / cap)?)?, cap)
}

/// `ln(1 + e^x)`.
pub fn softplus(x: &Array) -> Result<Array> {
    logaddexp(x, Array::from_f32(0.0).as_dtype(x.dtype())?)
}

impl Function {
    /// The function of each element.
    pub fn of(self, x: &Array) -> Result<Array> {
        match self {
            Function::Silu => x.multiply(sigmoid(x)?),
            Function::Gelu => {
                let erf = mlx_rs::ops::erf(times(x, std::f32::consts::FRAC_1_SQRT_2)?)?;
                times(x, 0.5)?.multiply(one_more(&erf)?)
            }
            Function::GeluTanh => {
                let inner = x.add(times(&x.square()?.multiply(x)?, 0.044715)?)?;
                let tanh = tanh(times(&inner, (2.0 / std::f32::consts::PI).sqrt())?)?;
                times(x, 0.5)?.multiply(one_more(&tanh)?)
            }
            Function::Relu => positive(x),
            Function::Relu2 => positive(x)?.square(),
            Function::Sigmoid => sigmoid(x),
            Function::Softplus => softplus(x),
        }
    }
}

/// `x + 1`, in the dtype of x.
pub fn one_more(x: &Array) -> Result<Array> {
    x.add(Array::from_f32(1.0).as_dtype(x.dtype())?)
}

fn positive(x: &Array) -> Result<Array> {
    maximum(x, Array::from_f32(0.0).as_dtype(x.dtype())?)
}
