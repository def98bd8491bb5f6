//! The short causal convolution over time, one filter per channel, of recurrent layers.

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{concatenate, zeros_dtype};

use super::loader::Loader;
use super::ops::{Function, Result};
use crate::decoder::parts;

/// A causal convolution, one filter per channel.
#[derive(Clone, Debug)]
pub struct Conv {
    /// `[kernel, channels]`.
    taps: Vec<Array>,
    bias: Option<Array>,
    /// Applied to what comes out.
    function: Option<Function>,
}

impl Conv {
    /// Loads a convolution.
    pub fn load(from: &mut Loader, conv: &parts::Conv) -> Option<Conv> {
        let weight = from.vector(&conv.name)?;
        let taps = from.made(|| {
            let weight = weight.reshape(&[conv.channels, conv.kernel])?;
            let taps: Result<Vec<Array>> =
                (0..conv.kernel).map(|tap| weight.try_index((.., tap))?.contiguous()).collect();
            let taps = taps?;
            mlx_rs::transforms::eval(&taps)?;
            Ok(taps)
        })?;
        let bias = from.maybe_vector(&conv.bias)?;
        Some(Conv { taps, bias, function: conv.function })
    }

    /// `x` `[1, tokens, channels]` after `before` `[1, kernel - 1, channels]`: what comes out, and
    /// both put together, from which [`Conv::state_after`] cuts states.
    pub fn forward(&self, x: &Array, before: Option<&Array>) -> Result<(Array, Array)> {
        let kept = self.taps.len() as i32 - 1;
        let before = match before {
            Some(before) => before.clone(),
            None => zeros_dtype(&[1, kept, x.dim(2)], x.dtype())?,
        };
        let all = concatenate(&[&before, x], 1)?;
        let tokens = x.dim(1);
        let mut sum: Option<Array> = self.bias.clone();
        for (at, tap) in self.taps.iter().enumerate() {
            let at = at as i32;
            let part = all.try_index((.., at..at + tokens))?.multiply(tap)?;
            sum = Some(match sum {
                Some(sum) => sum.add(part)?,
                None => part,
            });
        }
        let sum = sum.unwrap_or(before);
        let out = match self.function {
            Some(function) => function.of(&sum)?,
            None => sum,
        };
        Ok((out, all))
    }

    /// The inputs to keep after the first `tokens` of `all`.
    pub fn state_after(&self, all: &Array, tokens: usize) -> Result<Array> {
        let (from, kept) = (tokens as i32, self.taps.len() as i32 - 1);
        // A copy, lest the state hold on to the whole.
        all.try_index((.., from..from + kept))?.contiguous()
    }
}
