//! The gated short convolution of LFM2 (Liquid AI 2025).
//!
//! out(c × conv(b × x)), where b, c and x are three projections of the input and the convolution
//! is causal, one filter per channel.

use lathe_kernels::Band;

use super::Layer;
use super::cache::{Carry, State};
use super::conv::Conv;
use super::loader::Loader;
use super::matrix::Linear;
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
        let (in_proj, out) = (from.linear(&short.in_proj), from.linear(&short.out));
        let conv = Conv::load(from, &short.conv);
        let slot = from.slot(Layer::State(State::default()));
        Some(ShortConv { in_proj: in_proj?, conv: conv?, out: out?, slot })
    }

    /// `[tokens, hidden]` to the same.
    pub fn forward(&self, x: &[f32], walk: &mut Walk) -> Vec<f32> {
        let all = self.in_proj.forward(x);
        let width = self.conv.channels;
        let rows = || all.chunks_exact(3 * width);
        let of = |row: &[f32], at| row[at] * row[2 * width + at];
        let gated: Vec<f32> =
            rows().flat_map(|row| (0..width).map(move |at| of(row, at))).collect();
        let mut out = Vec::with_capacity(gated.len());
        for span in walk.spans.clone() {
            let inputs = &gated[span.rows.start * width..span.rows.end * width];
            let state = walk.state(span.index, self.slot);
            // The convolution's last inputs are the whole state.
            let empty = || Carry { conv: self.conv.empty(), state: Vec::new() };
            let step = |held: &mut Carry, inputs: &[f32]| {
                self.conv.forward(Band::whole(inputs, width), &mut held.conv)
            };
            out.extend(state.run(inputs, width, empty, step));
        }
        for (out, row) in out.chunks_exact_mut(width).zip(rows()) {
            out.iter_mut().zip(&row[width..]).for_each(|(out, gate)| *out *= gate);
        }
        self.out.forward(&out)
    }
}
