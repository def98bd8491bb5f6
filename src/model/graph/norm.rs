//! Norms over the last axis.
//!
//! RMS norm: x × (mean(x²) + eps)^-½ × w (Zhang and Sennrich 2019). Layer norm: the same of x
//! less its mean, and a bias (Ba et al. 2016).

use mlx_rs::{Array, Dtype, fast};

use super::loader::Loader;
use super::ops::Result;
use crate::decoder::parts;

/// A norm.
#[derive(Clone, Debug)]
pub struct Norm {
    weight: Option<Array>,
    bias: Option<Array>,
    eps: f32,
    centred: bool,
}

impl Norm {
    /// Loads a norm; the offset and scale of its weight are worked into it.
    pub fn load(from: &mut Loader, norm: &parts::Norm) -> Option<Norm> {
        let weight = match &norm.weight {
            None => None,
            Some(parts::NormWeight { name, offset, scale }) => {
                let (wide, dtype) = (from.vector_as(name, Dtype::Float32)?, from.dtype);
                Some(from.made(|| {
                    let wide = wide.add(Array::from_f32(*offset as f32))?;
                    let wide = wide.multiply(Array::from_f32(*scale as f32))?;
                    let weight = wide.reshape(&[-1])?.as_dtype(dtype)?;
                    weight.eval()?;
                    Ok(weight)
                })?)
            }
        };
        let bias = from.maybe_vector(&norm.bias)?;
        Some(Norm { weight, bias, eps: norm.eps as f32, centred: norm.centred })
    }

    /// The same where there may be none; `None` is a fault.
    pub fn maybe(from: &mut Loader, norm: &Option<parts::Norm>) -> Option<Option<Norm>> {
        match norm {
            Some(norm) => Norm::load(from, norm).map(Some),
            None => Some(None),
        }
    }

    /// The normalized array.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        match self.centred {
            true => fast::layer_norm(x, self.weight.as_ref(), self.bias.as_ref(), self.eps),
            false => fast::rms_norm(x, self.weight.as_ref(), self.eps),
        }
    }

    /// The weight, where there is one.
    pub fn weight(&self) -> Option<&Array> {
        self.weight.as_ref()
    }
}
