//! Mamba-2 (Dao and Gu 2024), as in Nemotron-H.
//!
//! A state S per head, `[state, head_dim]` in f32: S ← e^(dt A) S + B ⊗ (dt x); y = C S + D x.
//! B and C are shared by the heads of a group; dt = softplus(dt + bias), at least `dt_min`.

use mlx_rs::ops::maximum;
use mlx_rs::{Array, Dtype};

use super::Layer;
use super::cache::{Carry, State};
use super::conv::Conv;
use super::loader::Loader;
use super::matrix::Linear;
use super::norm::Norm;
use super::ops::{Function, Result, join, last_axis, softplus};
use super::recurrence::{Inputs, Recurrence};
use super::walk::Walk;
use crate::decoder::parts;

/// Mamba-2.
#[derive(Clone, Debug)]
pub struct Mamba2 {
    in_proj: Linear,
    conv: Conv,
    dt_bias: Array,
    /// -e^A, `[heads]`.
    decay: Array,
    /// `[heads, 1]`.
    d: Array,
    /// Normalizes only; the weight, of the whole width, is apart.
    norm: Norm,
    norm_weight: Array,
    out: Linear,
    dt_min: f32,
    recurrence: Recurrence,
    slot: usize,
    heads: i32,
    head_dim: i32,
    groups: i32,
    state: i32,
}

impl Mamba2 {
    /// Loads a Mamba-2 mixer.
    pub fn load(from: &mut Loader, mamba: &parts::Mamba2) -> Option<Mamba2> {
        let in_proj = Linear::load(from, &mamba.in_proj);
        let conv = Conv::load(from, &mamba.conv);
        let [dt_bias, a_log, d] = [&mamba.dt_bias, &mamba.a_log, &mamba.d]
            .map(|name| from.vector_as(name, Dtype::Float32));
        let weight = Norm::load(from, &mamba.norm);
        let norm = Norm::load(from, &parts::Norm { weight: None, ..mamba.norm.clone() });
        let out = Linear::load(from, &mamba.out);
        let slot = from.slot(Layer::State(State::default()));
        let (a_log, d) = (a_log?, d?);
        Some(Mamba2 {
            in_proj: in_proj?,
            conv: conv?,
            dt_bias: dt_bias?,
            decay: from.made(|| a_log.exp()?.negative())?,
            d: from.made(|| d.reshape(&[-1, 1]))?,
            norm: norm?,
            norm_weight: weight?.weight().cloned()?,
            out: out?,
            dt_min: mamba.dt_min as f32,
            recurrence: Recurrence::new(false),
            slot,
            heads: mamba.heads,
            head_dim: mamba.head_dim,
            groups: mamba.groups,
            state: mamba.state,
        })
    }

    /// `[tokens, hidden]` to the same.
    pub fn forward(&self, x: &Array, walk: &mut Walk) -> Result<Array> {
        let tokens = x.dim(0);
        let (inner, shared) = (self.heads * self.head_dim, 2 * self.groups * self.state);
        let all = self.in_proj.forward(x)?;
        let gate = last_axis(&all, 0, inner)?;
        let convolved = last_axis(&all, inner, 2 * inner + shared)?;
        let dt = last_axis(&all, 2 * inner + shared, 2 * inner + shared + self.heads)?;
        let dt = softplus(&dt.as_dtype(Dtype::Float32)?.add(&self.dt_bias)?)?;
        let dt = maximum(&dt, Array::from_f32(self.dt_min))?;
        let mut outs = Vec::with_capacity(walk.spans.len());
        for span in walk.spans.clone() {
            let inputs = vec![walk.rows(&convolved, &span)?, walk.rows(&dt, &span)?];
            let state = walk.state(span.index, self.slot)?;
            outs.push(
                state.run(inputs, |before, inputs| self.mix(before, &inputs[0], &inputs[1]))?,
            );
        }
        let out = join(outs, 0)?.reshape(&[tokens, inner])?;
        let gate = Function::Silu.of(&gate.as_dtype(Dtype::Float32)?)?;
        let out = out.multiply(gate)?;
        let grouped = out.reshape(&[tokens, self.groups, inner / self.groups])?;
        let out = self.norm.forward(&grouped)?.reshape(&[tokens, inner])?;
        self.out.forward(&out.as_dtype(x.dtype())?.multiply(&self.norm_weight)?)
    }

    /// A span's tokens through convolution and recurrence: the state after them, and `[tokens, heads,
    /// head_dim]` in f32.
    fn mix(&self, before: Option<Carry>, convolved: &Array, dt: &Array) -> Result<(Carry, Array)> {
        let (before, state) = before.map_or((None, None), |held| (Some(held.conv), held.state));
        let (convolved, conv) = self.conv.forward(convolved, before)?;
        let convolved = convolved.as_dtype(Dtype::Float32)?;
        let tokens = convolved.dim(0);
        let (inner, shared) = (self.heads * self.head_dim, self.groups * self.state);
        let x = last_axis(&convolved, 0, inner)?.reshape(&[tokens, self.heads, self.head_dim])?;
        let per_group = |from: i32| -> Result<Array> {
            let part = last_axis(&convolved, from, from + shared)?;
            part.reshape(&[tokens, self.groups, self.state])
        };
        let inputs = Inputs {
            keys: per_group(inner)?,
            queries: per_group(inner + shared)?,
            values: x.multiply(dt.expand_dims(-1)?)?,
            decay: dt.multiply(&self.decay)?,
            write: None,
        };
        let (out, state) = self.recurrence.run(&inputs, state)?;
        let out = out.add(x.multiply(&self.d)?)?;
        Ok((Carry { conv, state: Some(state) }, out))
    }
}
