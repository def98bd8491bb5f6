//! Mamba-2 (Dao and Gu 2024), as in Nemotron-H.
//!
//! A state S per head, `[head_dim, state]` in f32: S ← e^(dt A) S + (dt x) ⊗ B; y = S C + D x.
//! B and C are shared by the heads of a group; dt = softplus(dt + bias), at least `dt_min`.

use lathe_kernels::{Band, Gate};

use super::Layer;
use super::cache::{Carry, State};
use super::conv::Conv;
use super::loader::Loader;
use super::matrix::{BLAS, Floats, Linear};
use super::norm::Norm;
use super::walk::Walk;
use crate::decoder::parts;

/// Mamba-2.
#[derive(Clone, Debug)]
pub struct Mamba2 {
    in_proj: Linear,
    conv: Conv,
    dt_bias: Floats,
    /// -e^A, `[heads]`.
    decay: Floats,
    /// `[heads]`.
    d: Floats,
    /// Normalizes each group only.
    norm: Norm,
    /// Of the norm, `[heads × head_dim]`.
    weight: Floats,
    out: Linear,
    dt_min: f32,
    slot: usize,
    heads: usize,
    dim: usize,
    groups: usize,
    state: usize,
}

impl Mamba2 {
    /// Loads a Mamba-2 mixer.
    pub fn load(from: &mut Loader, mamba: &parts::Mamba2) -> Option<Mamba2> {
        let (in_proj, conv) = (from.linear(&mamba.in_proj), Conv::load(from, &mamba.conv));
        let [dt_bias, a_log, d] =
            [&mamba.dt_bias, &mamba.a_log, &mamba.d].map(|name| from.vector(name));
        let weight = Norm::load(from, &mamba.norm);
        let norm = Norm::load(from, &parts::Norm { weight: None, ..mamba.norm.clone() });
        let out = from.linear(&mamba.out);
        let slot = from.slot(Layer::State(State::default()));
        let [heads, dim, groups, state] =
            [mamba.heads, mamba.head_dim, mamba.groups, mamba.state].map(|size| size as usize);
        Some(Mamba2 {
            in_proj: in_proj?,
            conv: conv?,
            dt_bias: dt_bias?,
            decay: a_log?.iter().map(|a| -a.exp()).collect(),
            d: d?,
            norm: norm?,
            weight: weight?.weight?,
            out: out?,
            dt_min: mamba.dt_min as f32,
            slot,
            heads,
            dim,
            groups,
            state,
        })
    }

    /// `[tokens, hidden]` to the same.
    pub fn forward(&self, x: &[f32], walk: &mut Walk) -> Vec<f32> {
        let (inner, channels) = (self.heads * self.dim, self.conv.channels);
        let all = self.in_proj.forward(x);
        // A gate, what is convolved, and the time steps.
        let rows = || all.chunks_exact(inner + channels + self.heads);
        let inputs: Vec<f32> = rows().flat_map(|row| &row[inner..]).copied().collect();
        let width = channels + self.heads;
        let mut out = Vec::new();
        for span in walk.spans.clone() {
            let inputs = &inputs[span.rows.start * width..span.rows.end * width];
            let size = self.heads * self.dim * self.state;
            let empty = || Carry { conv: self.conv.empty(), state: vec![0.0; size] };
            let state = walk.state(span.index, self.slot);
            out.extend(state.run(inputs, width, empty, |held, rows| self.step(held, rows)));
        }
        let mut gated: Vec<f32> = rows().flat_map(|row| &row[..inner]).copied().collect();
        Gate::Silu.apply(&mut gated, &out);
        let mut normalized = self.norm.forward(&gated, inner / self.groups);
        for row in normalized.chunks_exact_mut(inner) {
            row.iter_mut().zip(&self.weight[..]).for_each(|(x, weight)| *x *= weight);
        }
        self.out.forward(&normalized)
    }

    /// The recurrence over rows of inputs, which changes the state: `[tokens, heads × dim]`.
    fn step(&self, held: &mut Carry, inputs: &[f32]) -> Vec<f32> {
        let (inner, channels) = (self.heads * self.dim, self.conv.channels);
        let width = channels + self.heads;
        let rows = || inputs.chunks_exact(width);
        let convolved = self.conv.forward(Band::new(inputs, width, 0..channels), &mut held.conv);
        let mut dt: Vec<f32> = rows()
            .flat_map(|row| row[channels..].iter().zip(&self.dt_bias[..]))
            .map(|(dt, bias)| dt + bias)
            .collect();
        Gate::Softplus.of(&mut dt);
        dt.iter_mut().for_each(|dt| *dt = dt.max(self.dt_min));
        let shared = self.groups * self.state;
        let band = |columns| Band::new(&convolved, channels, columns);
        let given = lathe_kernels::Mamba2 {
            heads: self.heads,
            groups: self.groups,
            x: band(0..inner),
            b: band(inner..inner + shared),
            c: band(inner + shared..channels),
            dt: &dt,
            a: &self.decay,
            d: &self.d,
        };
        let mut out = vec![0.0; dt.len() * self.dim];
        lathe_kernels::mamba2(&given, &mut held.state, &mut out, BLAS);
        out
    }
}
