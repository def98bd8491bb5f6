//! Mamba-2 (Dao and Gu 2024), as in Nemotron-H.
//!
//! A state S per head, `[head_dim, state]` in f32: S ← e^(dt A) S + (dt x) ⊗ B; y = S C + D x.
//! B and C are shared by the heads of a group; dt = softplus(dt + bias), at least `dt_min`.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{maximum, stack, zeros_dtype};
use mlx_rs::{Array, Dtype};

use super::batch::Pass;
use super::conv::Conv;
use super::delta::state_in;
use super::linear::Linear;
use super::loader::Loader;
use super::norm::Norm;
use super::ops::{Function, Result, join_rows, last_axis, row, softplus};
use crate::cache::LayerCache;
use crate::cache::state::{State, StateCache};
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
        let slot = from.slot(LayerCache::State(StateCache::default()));
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
            slot,
            heads: mamba.heads,
            head_dim: mamba.head_dim,
            groups: mamba.groups,
            state: mamba.state,
        })
    }

    /// `[rows, tokens, hidden]` to the same.
    pub fn forward(&self, x: &Array, pass: &mut Pass) -> Result<Array> {
        let (batch, longest) = (x.dim(0), x.dim(1));
        let (inner, shared) = (self.heads * self.head_dim, 2 * self.groups * self.state);
        let all = self.in_proj.forward(x)?;
        let gate = last_axis(&all, 0, inner)?;
        let convolved = last_axis(&all, inner, 2 * inner + shared)?;
        let dt = last_axis(&all, 2 * inner + shared, 2 * inner + shared + self.heads)?;
        let dt = softplus(&dt.as_dtype(Dtype::Float32)?.add(&self.dt_bias)?)?;
        let dt = maximum(&dt, Array::from_f32(self.dt_min))?;
        let forget = dt.multiply(&self.decay)?.exp()?;
        let mut rows = Vec::with_capacity(batch as usize);
        for index in 0..batch as usize {
            let batch_row = &pass.batch.rows[index];
            let tokens = batch_row.tokens.len();
            let cache = state_in(pass.caches[index], self.slot)?;
            let before = cache.current().cloned();
            let convolved = row(&convolved, index, tokens, 1)?;
            let before_conv = before.as_ref().map(|state| &state.conv);
            let (convolved, all) = self.conv.forward(&convolved, before_conv)?;
            let steps = self.steps(
                &convolved.as_dtype(Dtype::Float32)?,
                &row(&dt, index, tokens, 1)?,
                row(&forget, index, tokens, 1)?,
            )?;
            let marked = |offset: usize| batch_row.snapshots.contains(&offset);
            let mut marks = Vec::new();
            if let Some(before) = before.clone().filter(|_| marked(batch_row.position)) {
                marks.push((batch_row.position, before));
            }
            let mut state = match before {
                Some(before) => before.state,
                None => zeros_dtype(&[self.heads, self.head_dim, self.state], Dtype::Float32)?,
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
            // [tokens, heads, head_dim, 1]
            let out = stack(&outs, 0)?.squeeze_axes(&[-1])?;
            let out = out.add(steps.x.multiply(&self.d)?)?;
            rows.push(out.reshape(&[1, tokens as i32, inner])?);
        }
        let out = join_rows(rows, longest as usize, 1)?;
        let gate = Function::Silu.of(&gate.as_dtype(Dtype::Float32)?)?;
        let out = out.multiply(gate)?;
        let grouped = out.reshape(&[batch, longest, self.groups, inner / self.groups])?;
        let out = self.norm.forward(&grouped)?.reshape(&[batch, longest, inner])?;
        let out = out.as_dtype(x.dtype())?.multiply(&self.norm_weight)?;
        self.out.forward(&out)
    }

    /// One row's inputs of the recurrence.
    fn steps(&self, convolved: &Array, dt: &Array, forget: Array) -> Result<Steps> {
        let tokens = convolved.dim(1);
        let (inner, shared) = (self.heads * self.head_dim, self.groups * self.state);
        let x = last_axis(convolved, 0, inner)?.reshape(&[tokens, self.heads, self.head_dim])?;
        let per_head = |from: i32| -> Result<Array> {
            let group = self.heads / self.groups;
            let part = last_axis(convolved, from, from + shared)?;
            let part = part.reshape(&[tokens, self.groups, 1, self.state])?;
            let shape = [tokens, self.groups, group, self.state];
            mlx_rs::ops::broadcast_to(&part, &shape)?.reshape(&[tokens, self.heads, self.state])
        };
        let input = x.multiply(dt.reshape(&[tokens, self.heads, 1])?)?;
        Ok(Steps { b: per_head(inner)?, c: per_head(inner + shared)?, x, input, forget })
    }
}

struct Steps {
    /// `[tokens, heads, head_dim]`.
    x: Array,
    /// dt x, as x.
    input: Array,
    /// `[tokens, heads, state]`.
    b: Array,
    /// `[tokens, heads, state]`.
    c: Array,
    /// e^(dt A), `[1, tokens, heads]`.
    forget: Array,
}

impl Steps {
    /// The state after a token, and what is read from it, `[heads, head_dim, 1]`.
    fn step(&self, state: &Array, token: i32) -> Result<(Array, Array)> {
        let forget = self.forget.try_index((0, token))?.reshape(&[-1, 1, 1])?;
        let input = self.input.try_index(token)?.expand_dims(2)?;
        let b = self.b.try_index(token)?.expand_dims(1)?;
        let state = state.multiply(forget)?.add(input.multiply(b)?)?;
        let out = state.matmul(self.c.try_index(token)?.expand_dims(2)?)?;
        Ok((state, out))
    }
}
