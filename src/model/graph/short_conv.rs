//! The gated short convolution of LFM2 (Liquid AI 2025).
//!
//! out(c × conv(b × x)), where b, c and x are three projections of the input and the convolution
//! is causal, one filter per channel.

use mlx_rs::Array;

use super::Layer;
use super::cache::{Carry, State};
use super::conv::Conv;
use super::loader::Loader;
use super::matrix::Linear;
use super::ops::{Result, join, last_axis};
use super::walk::Walk;
use crate::decoder::parts;

/// A gated short convolution.
#[derive(Clone, Debug)]
pub struct ShortConv {
    in_proj: Linear,
    conv: Conv,
    out: Linear,
    slot: usize,
}

impl ShortConv {
    /// Loads a gated short convolution.
    pub fn load(from: &mut Loader, short: &parts::ShortConv) -> Option<ShortConv> {
        let in_proj = Linear::load(from, &short.in_proj);
        let (conv, out) = (Conv::load(from, &short.conv), Linear::load(from, &short.out));
        let slot = from.slot(Layer::State(State::default()));
        Some(ShortConv { in_proj: in_proj?, conv: conv?, out: out?, slot })
    }

    /// `[tokens, hidden]` to the same.
    pub fn forward(&self, x: &Array, walk: &mut Walk) -> Result<Array> {
        let all = self.in_proj.forward(x)?;
        let hidden = all.dim(-1) / 3;
        let before_gate = last_axis(&all, 0, hidden)?;
        let after_gate = last_axis(&all, hidden, 2 * hidden)?;
        let gated = last_axis(&all, 2 * hidden, 3 * hidden)?.multiply(before_gate)?;
        let mut outs = Vec::with_capacity(walk.spans.len());
        for span in walk.spans.clone() {
            let gated = walk.rows(&gated, &span)?;
            let state = walk.state(span.index, self.slot)?;
            outs.push(state.run(vec![gated], |before, inputs| {
                let before = before.map(|held| held.conv);
                let (out, conv) = self.conv.forward(&inputs[0], before)?;
                Ok((Carry { conv, state: None }, out))
            })?);
        }
        self.out.forward(&join(outs, 0)?.multiply(after_gate)?)
    }
}
