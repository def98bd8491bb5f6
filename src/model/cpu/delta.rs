//! Gated delta net (Yang, Kautz and Hatamizadeh 2024), as in Qwen3-Next.
//!
//! A state S per value head, in f32, is decayed, corrected and read at each token: S ← e^g S;
//! S ← S + k ⊗ β (v - kᵀS); out = qᵀS. Queries and keys are normalized, queries scaled by
//! key_dim^-½; g = -e^A softplus(a + dt) and β = sigmoid(b).

use lathe_kernels::{Band, Gate};

use super::Layer;
use super::cache::{Carry, State};
use super::conv::Conv;
use super::loader::Loader;
use super::matrix::{BLAS, Floats, Linear};
use super::norm::Norm;
use super::walk::Walk;
use crate::decoder::parts;

/// A gated delta net.
#[derive(Clone, Debug)]
pub struct GatedDelta {
    entry: Entry,
    conv: Conv,
    dt_bias: Floats,
    /// -e^A, `[value_heads]`.
    decay: Floats,
    norm: Norm,
    out: Linear,
    gate: Gate,
    slot: usize,
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
}

#[derive(Clone, Debug)]
enum Entry {
    Split([Linear; 4]),
    /// Grouped by key head: each group's queries, keys, values and gates; each group's b and a.
    Grouped([Linear; 2]),
}

/// What a layer's projections give, for all rows.
struct Inputs {
    /// What the recurrence is run on: queries, keys and values, then b, then a.
    rows: Vec<f32>,
    /// Output gate, `[tokens, value_heads × value_dim]`.
    z: Vec<f32>,
}

impl GatedDelta {
    /// Loads a gated delta net.
    pub fn load(from: &mut Loader, delta: &parts::GatedDelta) -> Option<GatedDelta> {
        let entry = match &delta.entry {
            parts::DeltaEntry::Grouped { qkvz, ba } => {
                let (qkvz, ba) = (from.linear(qkvz), from.linear(ba));
                Some(Entry::Grouped([qkvz?, ba?]))
            }
            parts::DeltaEntry::Split { qkv, z, b, a } => {
                let [qkv, z, b, a] = [qkv, z, b, a].map(|part| from.linear(part));
                Some(Entry::Split([qkv?, z?, b?, a?]))
            }
        };
        let conv = Conv::load(from, &delta.conv);
        let (dt_bias, a_log) = (from.vector(&delta.dt_bias), from.vector(&delta.a_log));
        let norm = Norm::load(from, &delta.norm);
        let out = from.linear(&delta.out);
        let slot = from.slot(Layer::State(State::default()));
        let [key_heads, value_heads, key_dim, value_dim] =
            [delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim]
                .map(|size| size as usize);
        Some(GatedDelta {
            entry: entry?,
            conv: conv?,
            dt_bias: dt_bias?,
            decay: a_log?.iter().map(|a| -a.exp()).collect(),
            norm: norm?,
            out: out?,
            gate: delta.gate.gate(),
            slot,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
        })
    }

    /// `[tokens, hidden]` to the same.
    pub fn forward(&self, x: &[f32], walk: &mut Walk) -> Vec<f32> {
        let Inputs { rows, z } = self.project(x);
        let width = self.conv.channels + 2 * self.value_heads;
        let mut out = Vec::with_capacity(z.len());
        for span in walk.spans.clone() {
            let inputs = &rows[span.rows.start * width..span.rows.end * width];
            let size = self.value_heads * self.key_dim * self.value_dim;
            let empty = || Carry { conv: self.conv.empty(), state: vec![0.0; size] };
            let state = walk.state(span.index, self.slot);
            out.extend(state.run(inputs, width, empty, |held, rows| self.step(held, rows)));
        }
        let mut out = self.norm.forward(&out, self.value_dim);
        let mut gate = z;
        self.gate.apply(&mut gate, &out);
        std::mem::swap(&mut out, &mut gate);
        self.out.forward(&out)
    }

    /// The recurrence over rows of inputs, which changes the state: `[tokens, value_heads ×
    /// value_dim]`.
    fn step(&self, held: &mut Carry, inputs: &[f32]) -> Vec<f32> {
        let (channels, heads) = (self.conv.channels, self.value_heads);
        let width = channels + 2 * heads;
        let rows = || inputs.chunks_exact(width);
        let qkv = self.conv.forward(Band::new(inputs, width, 0..channels), &mut held.conv);
        let mut write: Vec<f32> =
            rows().flat_map(|row| &row[channels..channels + heads]).copied().collect();
        Gate::Sigmoid.of(&mut write);
        let mut forget: Vec<f32> = rows()
            .flat_map(|row| row[channels + heads..].iter().zip(&self.dt_bias[..]))
            .map(|(a, dt)| a + dt)
            .collect();
        Gate::Softplus.of(&mut forget);
        for row in forget.chunks_exact_mut(heads) {
            row.iter_mut().zip(&self.decay[..]).for_each(|(g, decay)| *g *= decay);
        }
        let mut out = vec![0.0; forget.len() * self.value_dim];
        let keys = self.key_heads * self.key_dim;
        let band = |columns| Band::new(&qkv, channels, columns);
        let given = lathe_kernels::GatedDelta {
            key_heads: self.key_heads,
            value_heads: heads,
            q: band(0..keys),
            k: band(keys..2 * keys),
            v: band(2 * keys..channels),
            decay: &forget,
            write: &write,
        };
        lathe_kernels::gated_delta(&given, &mut held.state, &mut out, BLAS);
        out
    }

    fn project(&self, x: &[f32]) -> Inputs {
        let (channels, heads) = (self.conv.channels, self.value_heads);
        match &self.entry {
            Entry::Split([qkv, z, b, a]) => {
                let mut made = Linear::forward_all(&[qkv, z, b, a], x);
                let z = std::mem::take(&mut made[1]);
                let [qkv, b, a] = [(0, channels), (2, heads), (3, heads)]
                    .map(|(at, width)| made[at].chunks_exact(width));
                let rows = qkv.zip(b).zip(a);
                let rows = rows.flat_map(|((qkv, b), a)| qkv.iter().chain(b).chain(a)).copied();
                Inputs { rows: rows.collect(), z }
            }
            Entry::Grouped([qkvz, ba]) => {
                let made = Linear::forward_all(&[qkvz, ba], x);
                let (keys, group) = (self.key_dim, heads / self.key_heads);
                let values = group * self.value_dim;
                let (mut rows, mut z) = (Vec::new(), Vec::new());
                for (grouped, ba) in made[0]
                    .chunks_exact(self.key_heads * (2 * keys + 2 * values))
                    .zip(made[1].chunks_exact(2 * heads))
                {
                    let part = |to: &mut Vec<f32>, from: usize, count: usize| {
                        for grouped in grouped.chunks_exact(2 * keys + 2 * values) {
                            to.extend_from_slice(&grouped[from..from + count]);
                        }
                    };
                    part(&mut rows, 0, keys);
                    part(&mut rows, keys, keys);
                    part(&mut rows, 2 * keys, values);
                    part(&mut z, 2 * keys + values, values);
                    for from in [0, group] {
                        for ba in ba.chunks_exact(2 * group) {
                            rows.extend_from_slice(&ba[from..from + group]);
                        }
                    }
                }
                Inputs { rows, z }
            }
        }
    }
}
