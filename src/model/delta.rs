//! Gated delta net (Yang, Kautz and Hatamizadeh 2024), as in Qwen3-Next.
//!
//! A state S per value head, `[key_dim, value_dim]` in f32, is decayed, corrected and read at
//! each token: S ← e^g S; S ← S + k ⊗ β (v - kᵀS); out = qᵀS. Queries and keys are normalized,
//! queries scaled by key_dim^-½; g = -e^A softplus(a + dt) and β = sigmoid(b).

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{concatenate, sigmoid, stack, zeros_dtype};
use mlx_rs::{Array, Dtype};

use super::batch::Pass;
use super::conv::Conv;
use super::linear::Linear;
use super::loader::Loader;
use super::norm::Norm;
use super::ops::{Function, Result, join_rows, last_axis, row, softplus, times};
use crate::cache::state::{State, StateCache};
use crate::cache::{Cache, LayerCache};
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

/// What a layer's projections give, for all rows.
struct Inputs {
    /// Queries, keys and values, `[rows, tokens, channels]`.
    qkv: Array,
    /// Output gate, `[rows, tokens, value_heads × value_dim]`.
    z: Array,
    /// `[rows, tokens, value_heads]`.
    b: Array,
    /// `[rows, tokens, value_heads]`.
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
        let slot = from.slot(LayerCache::State(StateCache::default()));
        let a_log = a_log?;
        Some(GatedDelta {
            entry: entry?,
            conv: conv?,
            dt_bias: dt_bias?,
            decay: from.made(|| a_log.exp()?.negative())?,
            norm: norm?,
            out: out?,
            gate: delta.gate,
            slot,
            key_heads: delta.key_heads,
            value_heads: delta.value_heads,
            key_dim: delta.key_dim,
            value_dim: delta.value_dim,
        })
    }

    /// `[rows, tokens, hidden]` to the same.
    pub fn forward(&self, x: &Array, pass: &mut Pass) -> Result<Array> {
        let (batch, longest) = (x.dim(0), x.dim(1));
        let inputs = self.project(x)?;
        let g = softplus(&inputs.a.as_dtype(Dtype::Float32)?.add(&self.dt_bias)?)?;
        let forget = g.multiply(&self.decay)?.exp()?;
        let write = sigmoid(inputs.b.as_dtype(Dtype::Float32)?)?;
        let mut rows = Vec::with_capacity(batch as usize);
        for index in 0..batch as usize {
            let batch_row = &pass.batch.rows[index];
            let tokens = batch_row.tokens.len();
            let cache = state_in(pass.caches[index], self.slot)?;
            let before = cache.current().cloned();
            let qkv = row(&inputs.qkv, index, tokens, 1)?;
            let (qkv, all) = self.conv.forward(&qkv, before.as_ref().map(|state| &state.conv))?;
            let steps = Steps {
                qkv: self.split(&qkv)?,
                forget: row(&forget, index, tokens, 1)?,
                write: row(&write, index, tokens, 1)?,
            };
            let marked = |offset: usize| batch_row.snapshots.contains(&offset);
            let mut marks = Vec::new();
            if let Some(before) = before.clone().filter(|_| marked(batch_row.position)) {
                marks.push((batch_row.position, before));
            }
            let mut state = match before {
                Some(before) => before.state,
                None => {
                    let shape = [self.value_heads, self.key_dim, self.value_dim];
                    zeros_dtype(&shape, Dtype::Float32)?
                }
            };
            let mut outs = Vec::with_capacity(tokens);
            for token in 0..tokens {
                let (next, out) = steps.step(&state, token as i32)?;
                state = next;
                outs.push(out);
                let offset = batch_row.position + token + 1;
                if token + 1 < tokens && marked(offset) {
                    let conv = self.conv.state_after(&all, token + 1)?;
                    marks.push((offset, State { conv, state: state.clone() }));
                }
            }
            let conv = self.conv.state_after(&all, tokens)?;
            cache.write(tokens, State { conv, state }, marks);
            // [tokens, value_heads, 1, value_dim]
            let out = stack(&outs, 0)?;
            rows.push(out.reshape(&[1, tokens as i32, self.value_heads, self.value_dim])?);
        }
        let out = join_rows(rows, longest as usize, 1)?.as_dtype(x.dtype())?;
        let z = self.gate.of(&inputs.z)?.reshape(out.shape())?;
        let out = self.norm.forward(&out)?.multiply(z)?;
        self.out.forward(&out.reshape(&[batch, longest, -1])?)
    }

    fn project(&self, x: &Array) -> Result<Inputs> {
        match &self.entry {
            Entry::Split { qkv, z, b, a } => Ok(Inputs {
                qkv: qkv.forward(x)?,
                z: z.forward(x)?,
                b: b.forward(x)?,
                a: a.forward(x)?,
            }),
            Entry::Grouped { qkvz, ba } => {
                let lead = [x.dim(0), x.dim(1)];
                let group = self.value_heads / self.key_heads;
                let per_head = 2 * self.key_dim + 2 * group * self.value_dim;
                let grouped =
                    qkvz.forward(x)?.reshape(&[lead[0], lead[1], self.key_heads, per_head])?;
                let mut at = 0;
                let mut part = |width: i32| -> Result<Array> {
                    at += width;
                    last_axis(&grouped, at - width, at)?.reshape(&[lead[0], lead[1], -1])
                };
                let (q, k) = (part(self.key_dim)?, part(self.key_dim)?);
                let v = part(group * self.value_dim)?;
                let z = part(group * self.value_dim)?;
                let ba = ba.forward(x)?.reshape(&[lead[0], lead[1], self.key_heads, 2 * group])?;
                let b = last_axis(&ba, 0, group)?.reshape(&[lead[0], lead[1], -1])?;
                let a = last_axis(&ba, group, 2 * group)?.reshape(&[lead[0], lead[1], -1])?;
                Ok(Inputs { qkv: concatenate(&[q, k, v], -1)?, z, b, a })
            }
        }
    }

    /// Queries, keys and values of one row in f32, `[tokens, value_heads, dim]`, normalized and
    /// scaled.
    fn split(&self, qkv: &Array) -> Result<[Array; 3]> {
        let qkv = qkv.as_dtype(Dtype::Float32)?;
        let tokens = qkv.dim(1);
        let keys = self.key_heads * self.key_dim;
        let unit = |from: i32| -> Result<Array> {
            let x = last_axis(&qkv, from, from + keys)?;
            let x = x.reshape(&[tokens, self.key_heads, 1, self.key_dim])?;
            let square = x.square()?.sum_axes(&[-1], true)?.add(Array::from_f32(1e-6))?;
            let x = x.multiply(square.rsqrt()?)?;
            let group = self.value_heads / self.key_heads;
            let shape = [tokens, self.key_heads, group, self.key_dim];
            mlx_rs::ops::broadcast_to(&x, &shape)?.reshape(&[
                tokens,
                self.value_heads,
                self.key_dim,
            ])
        };
        let q = times(&unit(0)?, (self.key_dim as f32).powf(-0.5))?;
        let k = unit(keys)?;
        let v = last_axis(&qkv, 2 * keys, 2 * keys + self.value_heads * self.value_dim)?;
        Ok([q, k, v.reshape(&[tokens, self.value_heads, self.value_dim])?])
    }
}

/// One row's inputs of the recurrence.
struct Steps {
    /// `[tokens, value_heads, dim]`.
    qkv: [Array; 3],
    /// e^g, `[1, tokens, value_heads]`.
    forget: Array,
    /// β, `[1, tokens, value_heads]`.
    write: Array,
}

impl Steps {
    /// The state after a token, and what is read from it, `[value_heads, 1, value_dim]`.
    fn step(&self, state: &Array, token: i32) -> Result<(Array, Array)> {
        let at = |x: &Array| x.try_index(token)?.expand_dims(1);
        let [q, k, v] = &self.qkv;
        let (q, k, v) = (at(q)?, at(k)?, at(v)?);
        let per_head = |x: &Array| x.try_index((0, token))?.reshape(&[-1, 1, 1]);
        let state = state.multiply(per_head(&self.forget)?)?;
        let missing = v.subtract(k.matmul(&state)?)?.multiply(per_head(&self.write)?)?;
        let state = state.add(k.swap_axes(1, 2)?.multiply(missing)?)?;
        let out = q.matmul(&state)?;
        Ok((state, out))
    }
}

/// A row's state in a slot.
pub fn state_in(cache: &mut Cache, slot: usize) -> Result<&mut StateCache> {
    match cache.layer_mut(slot) {
        LayerCache::State(state) => Ok(state),
        LayerCache::Keys(_) => Err(mlx_rs::error::Exception::custom(
            "a recurrent layer without a state: this cache is another model's",
        )),
    }
}
