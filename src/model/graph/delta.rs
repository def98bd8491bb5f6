//! Gated delta net (Yang, Kautz and Hatamizadeh 2024), as in Qwen3-Next.
//!
//! A state S per value head, `[key_dim, value_dim]` in f32, is decayed, corrected and read at
//! each token: S ← e^g S; S ← S + k ⊗ β (v - kᵀS); out = qᵀS. Queries and keys are normalized,
//! queries scaled by key_dim^-½; g = -e^A softplus(a + dt) and β = sigmoid(b).

use mlx_rs::ops::{concatenate, sigmoid};
use mlx_rs::{Array, Dtype, fast};

use super::Layer;
use super::cache::{Carry, State};
use super::conv::Conv;
use super::loader::Loader;
use super::matrix::Linear;
use super::norm::Norm;
use super::ops::{Function, Result, join, last_axis, softplus, times};
use super::recurrence::{Inputs, Recurrence};
use super::walk::Walk;
use crate::decoder::parts;

/// A gated delta net.
#[derive(Clone, Debug)]
pub struct GatedDelta {
    entry: Entry,
    conv: Conv,
    dt_bias: Array,
    /// -e^A, `[value_heads]`.
    decay: Array,
    norm: Norm,
    out: Linear,
    gate: Function,
    recurrence: Recurrence,
    slot: usize,
    key_heads: i32,
    value_heads: i32,
    key_dim: i32,
    value_dim: i32,
}

#[derive(Clone, Debug)]
enum Entry {
    Split {
        qkv: Linear,
        z: Linear,
        b: Linear,
        a: Linear,
    },
    /// Grouped by key head: each group's queries, keys, values and gates; each group's b and a.
    Grouped {
        qkvz: Linear,
        ba: Linear,
    },
}

/// What a layer's projections give of all rows.
struct Projected {
    /// Queries, keys and values, `[tokens, channels]`.
    qkv: Array,
    /// Output gate, `[tokens, value_heads × value_dim]`.
    z: Array,
    /// `[tokens, value_heads]`.
    b: Array,
    /// `[tokens, value_heads]`.
    a: Array,
}

impl GatedDelta {
    /// Loads a gated delta net.
    pub fn load(from: &mut Loader, delta: &parts::GatedDelta) -> Option<GatedDelta> {
        let entry = match &delta.entry {
            parts::DeltaEntry::Grouped { qkvz, ba } => {
                let (qkvz, ba) = (Linear::load(from, qkvz), Linear::load(from, ba));
                Some(Entry::Grouped { qkvz: qkvz?, ba: ba? })
            }
            parts::DeltaEntry::Split { qkv, z, b, a } => {
                let [qkv, z, b, a] = [qkv, z, b, a].map(|part| Linear::load(from, part));
                Some(Entry::Split { qkv: qkv?, z: z?, b: b?, a: a? })
            }
        };
        let conv = Conv::load(from, &delta.conv);
        let dt_bias = from.vector_as(&delta.dt_bias, Dtype::Float32);
        let a_log = from.vector_as(&delta.a_log, Dtype::Float32);
        let norm = Norm::load(from, &delta.norm);
        let out = Linear::load(from, &delta.out);
        let slot = from.slot(Layer::State(State::default()));
        let a_log = a_log?;
        Some(GatedDelta {
            entry: entry?,
            conv: conv?,
            dt_bias: dt_bias?,
            decay: from.made(|| a_log.exp()?.negative())?,
            norm: norm?,
            out: out?,
            gate: delta.gate,
            recurrence: Recurrence::new(true),
            slot,
            key_heads: delta.key_heads,
            value_heads: delta.value_heads,
            key_dim: delta.key_dim,
            value_dim: delta.value_dim,
        })
    }

    /// `[tokens, hidden]` to the same.
    pub fn forward(&self, x: &Array, walk: &mut Walk) -> Result<Array> {
        let Projected { qkv, z, b, a } = self.project(x)?;
        let decay = softplus(&a.as_dtype(Dtype::Float32)?.add(&self.dt_bias)?)?;
        let decay = decay.multiply(&self.decay)?;
        let write = sigmoid(b.as_dtype(Dtype::Float32)?)?;
        let mut outs = Vec::with_capacity(walk.spans.len());
        for span in walk.spans.clone() {
            let inputs = [&qkv, &decay, &write].map(|input| walk.rows(input, &span));
            let inputs = inputs.into_iter().collect::<Result<_>>()?;
            let state = walk.state(span.index, self.slot)?;
            outs.push(state.run(inputs, |before, inputs| self.mix(before, inputs))?);
        }
        // [tokens, value_heads, value_dim]
        let out = join(outs, 0)?.as_dtype(x.dtype())?;
        let z = self.gate.of(&z)?.reshape(out.shape())?;
        let out = self.norm.forward(&out)?.multiply(z)?;
        self.out.forward(&out.reshape(&[x.dim(0), -1])?)
    }

    fn project(&self, x: &Array) -> Result<Projected> {
        match &self.entry {
            Entry::Split { qkv, z, b, a } => Ok(Projected {
                qkv: qkv.forward(x)?,
                z: z.forward(x)?,
                b: b.forward(x)?,
                a: a.forward(x)?,
            }),
            Entry::Grouped { qkvz, ba } => {
                let tokens = x.dim(0);
                let group = self.value_heads / self.key_heads;
                let per_head = 2 * self.key_dim + 2 * group * self.value_dim;
                let grouped = qkvz.forward(x)?.reshape(&[tokens, self.key_heads, per_head])?;
                let mut at = 0;
                let mut part = |width: i32| -> Result<Array> {
                    at += width;
                    last_axis(&grouped, at - width, at)?.reshape(&[tokens, -1])
                };
                let (q, k) = (part(self.key_dim)?, part(self.key_dim)?);
                let v = part(group * self.value_dim)?;
                let z = part(group * self.value_dim)?;
                let ba = ba.forward(x)?.reshape(&[tokens, self.key_heads, 2 * group])?;
                let b = last_axis(&ba, 0, group)?.reshape(&[tokens, -1])?;
                let a = last_axis(&ba, group, 2 * group)?.reshape(&[tokens, -1])?;
                Ok(Projected { qkv: concatenate(&[q, k, v], -1)?, z, b, a })
            }
        }
    }

    /// A span's tokens through convolution and recurrence: the state after them, and `[tokens,
    /// value_heads, value_dim]` in f32.
    fn mix(&self, before: Option<Carry>, inputs: &[Array]) -> Result<(Carry, Array)> {
        let (before, state) = before.map_or((None, None), |held| (Some(held.conv), held.state));
        let (qkv, conv) = self.conv.forward(&inputs[0], before)?;
        let qkv = qkv.as_dtype(Dtype::Float32)?;
        let tokens = qkv.dim(0);
        let keys = self.key_heads * self.key_dim;
        // x / |x| is a norm by the root of the mean square, times key_dim^-½.
        let size = self.key_dim as f32;
        let unit = |from: i32, scale: f32| -> Result<Array> {
            let x = last_axis(&qkv, from, from + keys)?;
            let x = x.reshape(&[tokens, self.key_heads, self.key_dim])?;
            times(&fast::rms_norm(x, None, 1e-6 / size)?, scale)
        };
        let values = last_axis(&qkv, 2 * keys, 2 * keys + self.value_heads * self.value_dim)?;
        let inputs = Inputs {
            queries: unit(0, 1.0 / size)?,
            keys: unit(keys, size.powf(-0.5))?,
            values: values.reshape(&[tokens, self.value_heads, self.value_dim])?,
            decay: inputs[1].clone(),
            write: Some(inputs[2].clone()),
        };
        let (out, state) = self.recurrence.run(&inputs, state)?;
        Ok((Carry { conv, state: Some(state) }, out))
    }
}
