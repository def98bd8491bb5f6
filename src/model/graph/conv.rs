//! The short causal convolution over time, one filter per channel, of recurrent layers.

use mlx_rs::Array;
use mlx_rs::ops::{concatenate, conv1d, zeros_dtype};

use super::loader::Loader;
use super::ops::{Function, Result, part};
use crate::decoder::parts;

/// A causal convolution, one filter per channel.
#[derive(Clone, Debug)]
pub struct Conv {
    /// `[channels, kernel, 1]`.
    weight: Array,
    bias: Option<Array>,
    /// Applied to what comes out.
    function: Option<Function>,
    channels: i32,
    kernel: i32,
}

impl Conv {
    /// Loads a convolution.
    pub fn load(from: &mut Loader, conv: &parts::Conv) -> Option<Conv> {
        let parts::Conv { channels, kernel, function, .. } = *conv;
        let (weight, bias) = (from.vector(&conv.name), from.maybe_vector(&conv.bias));
        let weight = weight?;
        let weight = from.made(|| weight.reshape(&[channels, kernel, 1]))?;
        Some(Conv { weight, bias: bias?, function, channels, kernel })
    }

    /// `x` `[tokens, channels]` after the inputs `before` `[kernel - 1, channels]`: what comes out, and
    /// the inputs that the next tokens come after.
    pub fn forward(&self, x: &Array, before: Option<Array>) -> Result<(Array, Array)> {
        let kept = self.kernel - 1;
        let before = match before {
            Some(before) => before,
            None => zeros_dtype(&[kept, self.channels], x.dtype())?,
        };
        let all = concatenate(&[&before, x], 0)?;
        let tokens = x.dim(0) as usize;
        let mut out = conv1d(all.expand_dims(0)?, &self.weight, 1, 0, 1, self.channels)?
            .squeeze_axes(&[0])?;
        if let Some(bias) = &self.bias {
            out = out.add(bias)?;
        }
        if let Some(function) = self.function {
            out = function.of(&out)?;
        }
        // A copy, lest the state hold on to the whole.
        let after = part(&all, 0, &(tokens..tokens + kept as usize))?.contiguous()?;
        Ok((out, after))
    }
}
