//! The short causal convolution over time, one filter per channel, of recurrent layers.

use super::loader::Loader;
use super::matrix::Floats;
use crate::decoder::parts;
use lathe_kernels::{Band, Gate};

/// A causal convolution, one filter per channel.
#[derive(Clone, Debug)]
pub struct Conv {
    /// `[kernel, channels]`.
    taps: Floats,
    bias: Option<Floats>,
    /// Applied to what comes out, where that is not done on the way.
    function: Option<Gate>,
    silu: bool,
    /// Filters.
    pub channels: usize,
    /// Inputs that each result is of.
    kernel: usize,
}

impl Conv {
    /// Loads a convolution.
    pub fn load(from: &mut Loader, conv: &parts::Conv) -> Option<Conv> {
        let (channels, kernel) = (conv.channels as usize, conv.kernel as usize);
        let weight = from.vector(&conv.name)?;
        let by_tap =
            (0..kernel * channels).map(|at| weight[at % channels * kernel + at / channels]);
        let bias = from.maybe_vector(&conv.bias)?;
        let silu = conv.function == Some(parts::Function::Silu);
        let function = conv.function.filter(|_| !silu).map(parts::Function::gate);
        Some(Conv { taps: by_tap.collect(), bias, function, silu, channels, kernel })
    }

    /// What stands before the first token.
    pub fn empty(&self) -> Vec<f32> {
        vec![0.0; (self.kernel - 1) * self.channels]
    }

    /// `x` `[tokens, channels]` after the inputs `before`, which become those before the next.
    pub fn forward(&self, x: Band, before: &mut [f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.rows() * self.channels];
        let conv = lathe_kernels::Conv {
            kernel: self.kernel,
            weight: &self.taps,
            bias: self.bias.as_deref(),
            silu: self.silu,
        };
        lathe_kernels::conv(&conv, x, before, &mut out);
        if let Some(function) = self.function {
            function.of(&mut out);
        }
        out
    }
}
