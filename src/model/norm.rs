//! Norms over the last axis.
//!
//! RMS norm: x × (mean(x²) + eps)^-½ × w (Zhang and Sennrich 2019). Layer norm: the same of x
//! less its mean, and a bias (Ba et al. 2016).

use mlx_rs::Array;
use mlx_rs::fast;

use super::loader::Loader;
use super::native::{self, RmsNorm};
use super::ops::Result;
use crate::decoder::parts;

/// A norm.
#[derive(Clone, Debug)]
pub struct Norm {
    weight: Option<Array>,
    bias: Option<Array>,
    eps: f32,
    centred: bool,
    /// On the CPU, where lathe's own kernels have it.
    native: Option<Box<RmsNorm>>,
}

impl Norm {
    /// Loads a norm; the offset and scale of its weight are worked into it.
    pub fn load(from: &mut Loader, norm: &parts::Norm) -> Option<Norm> {
        let weight = match &norm.weight {
            None => None,
            Some(parts::NormWeight { name, offset, scale }) => {
                let weight = from.vector(name)?;
                Some(if *offset == 0.0 && *scale == 1.0 {
                    weight
                } else {
                    from.made(|| {
                        let wide = weight.as_dtype(mlx_rs::Dtype::Float32)?;
                        let wide = wide.add(Array::from_f32(*offset as f32))?;
                        wide.multiply(Array::from_f32(*scale as f32))?.as_dtype(weight.dtype())
                    })?
                })
            }
        };
        let bias = from.maybe_vector(&norm.bias)?;
        let (eps, centred) = (norm.eps as f32, norm.centred);
        let plain = weight.as_ref().is_none_or(|weight| weight.ndim() == 1);
        let native = if from.compute.on_cpu && !centred && plain {
            let weight = from.made(|| weight.as_ref().map(native::floats).transpose())?;
            Some(Box::new(RmsNorm { weight, eps }))
        } else {
            None
        };
        Some(Norm { weight, bias, eps, centred, native })
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
        match &self.native {
            Some(native) => native.forward(x),
            None if self.centred => {
                fast::layer_norm(x, self.weight.as_ref(), self.bias.as_ref(), self.eps)
            }
            None => fast::rms_norm(x, self.weight.as_ref(), self.eps),
        }
    }

    /// The same for lathe's own kernels, where they have it.
    pub fn native(&self) -> Option<&RmsNorm> {
        self.native.as_deref()
    }

    /// The weight, where there is one.
    pub fn weight(&self) -> Option<&Array> {
        self.weight.as_ref()
    }
}
