//! Norms over the last axis: RMS norm (Zhang and Sennrich 2019), layer norm (Ba et al. 2016).

use super::loader::Loader;
use super::matrix::Floats;
use crate::decoder::parts;

/// A norm.
#[derive(Clone, Debug)]
pub struct Norm {
    /// `[width]`; the offset and scale of the description are worked into it.
    pub weight: Option<Floats>,
    bias: Option<Floats>,
    /// What is added to the mean of squares.
    pub eps: f32,
    /// Whether the mean is subtracted first.
    pub centred: bool,
}

impl Norm {
    /// Loads a norm.
    pub fn load(from: &mut Loader, norm: &parts::Norm) -> Option<Norm> {
        let weight = match &norm.weight {
            None => None,
            Some(parts::NormWeight { name, offset, scale }) => {
                let weight = from.vector(name)?;
                let (offset, scale) = (*offset as f32, *scale as f32);
                Some(weight.iter().map(|x| (x + offset) * scale).collect())
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

    /// `x` `[rows, width]`, normalized.
    pub fn forward(&self, x: &[f32], width: usize) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        let weight = self.weight.as_deref();
        match self.centred {
            true => {
                lathe_kernels::layer_norm(
                    x,
                    weight,
                    self.bias.as_deref(),
                    self.eps,
                    width,
                    &mut out,
                );
            }
            false => lathe_kernels::rms_norm(x, weight, self.eps, width, &mut out),
        }
        out
    }
}
