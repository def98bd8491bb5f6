//! The gated short convolution of LFM2 (Liquid AI 2025).
//!
//! out(c × conv(b × x)), where b, c and x are three projections of the input and the convolution
//! is causal, one filter per channel.

use mlx_rs::{Array, Dtype};

use super::batch::Pass;
use super::conv::Conv;
use super::delta::state_in;
use super::linear::Linear;
use super::loader::Loader;
use super::ops::{Result, join_rows, last_axis, row};
use crate::cache::LayerCache;
use crate::cache::state::{State, StateCache};
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
        let out = Linear::load(from, &short.out);
        let conv = Conv::load(from, &short.conv);
        let slot = from.slot(LayerCache::State(StateCache::default()));
        Some(ShortConv { in_proj: in_proj?, conv: conv?, out: out?, slot })
    }

    /// `[rows, tokens, hidden]` to the same.
    pub fn forward(&self, x: &Array, pass: &mut Pass) -> Result<Array> {
        let (batch, longest) = (x.dim(0), x.dim(1));
        let all = self.in_proj.forward(x)?;
        let hidden = all.dim(-1) / 3;
        let before_gate = last_axis(&all, 0, hidden)?;
        let after_gate = last_axis(&all, hidden, 2 * hidden)?;
        let gated = last_axis(&all, 2 * hidden, 3 * hidden)?.multiply(before_gate)?;
        let mut rows = Vec::with_capacity(batch as usize);
        for index in 0..batch as usize {
            let batch_row = &pass.batch.rows[index];
            let tokens = batch_row.tokens.len();
            let cache = state_in(pass.caches[index], self.slot)?;
            let before = cache.current().cloned();
            let gated = row(&gated, index, tokens, 1)?;
            let (out, all) = self.conv.forward(&gated, before.as_ref().map(|state| &state.conv))?;
            // The convolution's last inputs are the whole state.
            let none = mlx_rs::ops::zeros_dtype(&[1], Dtype::Float32)?;
            let after = |token: usize| -> Result<State> {
                Ok(State { conv: self.conv.state_after(&all, token)?, state: none.clone() })
            };
            let mut marks = Vec::new();
            for &offset in &batch_row.snapshots {
                match (offset.checked_sub(batch_row.position), &before) {
                    (Some(0), Some(before)) => marks.push((offset, before.clone())),
                    (Some(token), _) if token > 0 && token < tokens => {
                        marks.push((offset, after(token)?));
                    }
                    _ => {}
                }
            }
            cache.write(tokens, after(tokens)?, marks);
            rows.push(out);
        }
        let out = join_rows(rows, longest as usize, 1)?;
        self.out.forward(&out.multiply(after_gate)?)
    }
}
