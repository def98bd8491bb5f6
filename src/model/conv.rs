//! The short causal convolution over time, one filter per channel, of recurrent layers.

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{concatenate, zeros_dtype};

use super::build::Builder;
use super::ops::{Function, Result};

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
    /// Reads a convolution stored as `[channels, 1, kernel]`, or as MLX has it, `[channels, kernel,
    /// 1]`: the same numbers in the same order.
    pub fn build(
        to: &mut Builder,
        name: &str,
        bias: bool,
        function: Option<Function>,
        (channels, kernel): (i64, i64),
    ) -> Option<Conv> {
        let full = to.weight_name(name)?;
        let weight = to.vector(&full)?;
        to.expect(name, "channels", i64::from(weight.dim(0)), channels)?;
        let taps = weight.shape()[1..].iter().map(|&axis| i64::from(axis)).product();
        to.expect(name, "taps", taps, kernel)?;
        let taps = to.made(|| {
            let weight = weight.reshape(&[channels as i32, kernel as i32])?;
            let taps: Result<Vec<Array>> =
                (0..kernel as i32).map(|tap| weight.try_index((.., tap))?.contiguous()).collect();
            let taps = taps?;
            mlx_rs::transforms::eval(&taps)?;
            Ok(taps)
        })?;
        let bias = if bias {
            let name = to.full_name(&format!("{name}.bias"));
            Some(to.vector(&name)?)
        } else {
            None
        };
        Some(Conv { taps, bias, function })
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
