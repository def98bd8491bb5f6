//! Small functions of arrays that modules share.

use lathe_kernels::Gate;
use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{concatenate, logaddexp, maximum, sigmoid, tanh};

pub use crate::decoder::parts::Function;
use crate::mlx::slice;

/// What operations give.
pub type Result<T> = std::result::Result<T, Exception>;

/// `x × by`, in the dtype of x.
pub fn times(x: &Array, by: f32) -> Result<Array> {
    x.multiply(Array::from_f32(by).as_dtype(x.dtype())?)
}

/// Elements `from..to` of the last axis.
pub fn last_axis(x: &Array, from: i32, to: i32) -> Result<Array> {
    let last = x.ndim().saturating_sub(1);
    Ok(slice::part(x, last, from..to)?)
}

/// `[rows, tokens, heads, dim]` as `[rows, heads, tokens, dim]`.
pub fn heads_first(x: &Array) -> Result<Array> {
    match x.dim(1) {
        // The same elements in the same order: the cheaper operation.
        1 => x.reshape(&[x.dim(0), x.dim(2), 1, x.dim(3)]),
        _ => x.swap_axes(1, 2),
    }
}

/// `[rows, heads, tokens, dim]` as `[rows, tokens, heads, dim]`.
pub fn heads_last(x: &Array) -> Result<Array> {
    match x.dim(2) {
        1 => x.reshape(&[x.dim(0), 1, x.dim(1), x.dim(3)]),
        _ => x.swap_axes(1, 2),
    }
}

/// One row's true tokens of an array `[rows, …, tokens, …]` with the tokens on `axis` (1 or 2).
pub fn row(x: &Array, row: usize, tokens: usize, axis: usize) -> Result<Array> {
    if x.dim(0) == 1 && x.dim(axis as i32) as usize == tokens {
        return Ok(x.clone());
    }
    let (row, tokens) = (row as i32, tokens as i32);
    match axis {
        1 => x.try_index((row..row + 1, 0..tokens)),
        _ => x.try_index((row..row + 1, .., 0..tokens)),
    }
}

/// The rows of a batch together again: each `[1, …, tokens, …]` is filled up with zeros to
/// `longest` tokens on `axis`.
pub fn join_rows(mut rows: Vec<Array>, longest: usize, axis: usize) -> Result<Array> {
    for row in &mut rows {
        let missing = longest as i32 - row.dim(axis as i32);
        if missing > 0 {
            let mut shape = row.shape().to_vec();
            shape[axis] = missing;
            let filler = mlx_rs::ops::zeros_dtype(&shape, row.dtype())?;
            *row = concatenate(&[&*row, &filler], axis as i32)?;
        }
    }
    match rows.len() {
        1 => Ok(rows.remove(0)),
        _ => concatenate(&rows, 0),
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
    /// The same as a gate of the kernels, where they have it.
    pub fn of_gate(self) -> Option<Gate> {
        match self {
            Function::Silu => Some(Gate::Silu),
            Function::GeluTanh => Some(Gate::GeluTanh),
            Function::Sigmoid => Some(Gate::Sigmoid),
            Function::Relu => Some(Gate::Relu),
            Function::Gelu | Function::Relu2 | Function::Softplus => None,
        }
    }

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
