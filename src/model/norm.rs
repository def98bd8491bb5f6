//! Norms over the last axis.
//!
//! RMS norm: x × (mean(x²) + eps)^-½ × w (Zhang and Sennrich 2019). Layer norm: the same of x
//! less its mean, and a bias (Ba et al. 2016).

use mlx_rs::Array;
use mlx_rs::fast;

use super::build::Builder;
use super::native::{self, RmsNorm};
use super::ops::Result;
use crate::decoder::description::{self, NormOrName};

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
    /// Reads a norm; the offset and scale of its weight are worked into it. `None` when its
    /// condition does not hold (or it is faulty).
    pub fn build(to: &mut Builder, norm: &description::Norm, centred: bool) -> Option<Norm> {
        if !to.holds(&norm.when, true) {
            return None;
        }
        let defaults = to.norms.clone();
        let eps = norm.eps.clone().or(defaults.eps);
        let eps = match &eps {
            Some(eps) => to.float(eps, "eps")?,
            None => 1e-6,
        };
        let weight = match &norm.tensor {
            None => None,
            Some(name) => {
                let offset = norm.offset.clone().or(defaults.offset);
                let offset = to.float_or(&offset, 0.0)?;
                let scale = to.float_or(&norm.scale, 1.0)?;
                let name = to.weight_name(name)?;
                let weight = to.vector(&name)?;
                Some(if offset == 0.0 && scale == 1.0 {
                    weight
                } else {
                    to.made(|| {
                        let wide = weight.as_dtype(mlx_rs::Dtype::Float32)?;
                        let wide = wide.add(Array::from_f32(offset as f32))?;
                        wide.multiply(Array::from_f32(scale as f32))?.as_dtype(weight.dtype())
                    })?
                })
            }
        };
        let bias = match &norm.tensor {
            Some(name) if centred && to.holds(&norm.bias, false) => {
                let name = to.full_name(&format!("{name}.bias"));
                Some(to.vector(&name)?)
            }
            _ => None,
        };
        let eps = eps as f32;
        let plain = weight.as_ref().is_none_or(|weight| weight.ndim() == 1);
        let native = if to.compute.on_cpu && !centred && plain {
            let weight = to.made(|| weight.as_ref().map(native::floats).transpose())?;
            Some(Box::new(RmsNorm { weight, eps }))
        } else {
            None
        };
        Some(Norm { weight, bias, eps, centred, native })
    }

    /// Reads a norm that may be given by name alone.
    pub fn build_named(to: &mut Builder, norm: &NormOrName, centred: bool) -> Option<Norm> {
        match norm {
            NormOrName::Full(norm) => Norm::build(to, norm, centred),
            NormOrName::Name(name) => {
                let norm = description::Norm { tensor: Some(name.clone()), ..Default::default() };
                Norm::build(to, &norm, centred)
            }
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
