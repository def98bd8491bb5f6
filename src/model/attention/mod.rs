//! Attention with grouped queries (Vaswani et al. 2017; Ainslie et al. 2023), and what models
//! add to it: biases, norms of queries, keys and values, a sliding window, a soft cap on scores
//! (Gemma 2), sinks (gpt-oss), an output gate, keys that are values too, keys of another layer.
//!
//! Projections work on the whole batch; scores are per row, since each row has its own cache and
//! its own length.

mod natively;

use std::sync::Arc;

use mlx_rs::Array;

use super::batch::{Pass, Span};
use super::build::Builder;
use super::linear::Linear;
use super::native;
use super::norm::Norm;
use super::ops::{Function, Result, heads_first, heads_last, join_rows, last_axis, row};
use super::rope::Rope;
use super::scores::Scores;
use crate::cache::keys::KeyCache;
use crate::cache::{Cache, LayerCache};
use crate::decoder::description;

/// Attention.
#[derive(Clone, Debug)]
pub struct Attention {
    q: Projections,
    o: Linear,
    q_norm: Option<Norm>,
    norm_all_heads: bool,
    keys: Keys,
    rope: Option<Rope>,
    long_scale: Option<LongScale>,
    gate: Option<Gate>,
    scores: Scores,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    /// All of it, where lathe's own kernels have it.
    native: Option<Arc<native::Attention>>,
}

/// How queries, keys and values are projected.
#[derive(Clone, Debug)]
enum Projections {
    /// Each by itself; keys and values stand in [`Keys::Own`].
    Split(Linear),
    /// All in one.
    Fused(Linear),
}

/// Where keys and values come from.
#[derive(Clone, Debug)]
enum Keys {
    /// This layer's own, kept in a slot of the cache.
    Own {
        k: Option<Linear>,
        v: Option<Linear>,
        k_norm: Option<Norm>,
        v_norm: Option<Norm>,
        slot: usize,
        layer: usize,
        /// Whether later layers read them too.
        shared: bool,
    },
    /// Another layer's.
    Of(usize),
}

/// Queries, and this layer's own keys and values: `[rows, heads, tokens, dim]`.
#[derive(Clone)]
struct Heads {
    queries: Array,
    own: Option<(Array, Array)>,
}

/// Those of all rows before they are turned.
struct Split {
    heads: Heads,
    /// `[rows, tokens, heads, dim]`.
    gate: Option<Array>,
}

#[derive(Clone, Debug)]
struct Gate {
    projection: Option<Linear>,
    function: Function,
    per_head: bool,
}

/// Queries at position p times 1 + beta × ln(1 + ⌊p / trained⌋) (Llama 4).
#[derive(Clone, Copy, Debug)]
struct LongScale {
    beta: f32,
    trained: f32,
}

impl LongScale {
    /// The factors of tokens from `position` on; `None` when they are all 1.
    fn factors(self, position: usize, tokens: usize) -> Option<Vec<f32>> {
        let factor = |at: usize| 1.0 + self.beta * (1.0 + (at as f32 / self.trained).floor()).ln();
        let beyond = position + tokens > self.trained as usize;
        beyond.then(|| (position..position + tokens).map(factor).collect())
    }

    fn apply(self, queries: &Array, position: usize) -> Result<Array> {
        let tokens = queries.dim(-2);
        let Some(factors) = self.factors(position, tokens as usize) else {
            return Ok(queries.clone());
        };
        let factors = Array::from_slice(&factors, &[tokens, 1]);
        queries.multiply(factors.as_dtype(queries.dtype())?)
    }
}

impl Attention {
    /// Reads attention in layer `layer`.
    pub fn build(
        to: &mut Builder,
        attention: &description::Attention,
        layer: usize,
    ) -> Option<Attention> {
        to.under(&attention.path, |to| Attention::build_here(to, attention, layer))
    }

    fn build_here(
        to: &mut Builder,
        attention: &description::Attention,
        layer: usize,
    ) -> Option<Attention> {
        let heads = to.int(&attention.heads, "heads")?;
        let kv_heads = to.int_or(&attention.kv_heads, heads)?;
        let head_dim = to.int(&attention.head_dim, "head_dim")?;
        if kv_heads < 1 || heads % kv_heads != 0 || head_dim < 1 {
            to.fault(format!("{heads} heads of {head_dim} do not share {kv_heads} key heads"));
            return None;
        }
        let bias = to.holds(&attention.bias, false);
        let out_bias = to.holds(&attention.out_bias, false);
        let keys_of = to.int_or(&attention.keys_of, -1)?;
        let window = to.int_or(&attention.window, 0)?;
        let window = usize::try_from(window).ok().filter(|&window| window > 0);

        let gate = match &attention.gate {
            Some(gate) if to.holds(&gate.when, true) => Some(Gate::build(to, gate, heads)?),
            _ => None,
        };
        let gate_in_q = gate.as_ref().is_some_and(|gate| gate.projection.is_none());
        let q_rows = heads * head_dim * if gate_in_q { 2 } else { 1 };
        let fused = attention.qkv.as_ref().filter(|name| to.find(name).is_some());
        let q = match (fused, &attention.q) {
            (Some(name), _) => {
                let rows = q_rows + 2 * kv_heads * head_dim;
                Linear::build_sized(to, name, bias, rows).map(Projections::Fused)
            }
            (None, Some(name)) => {
                Linear::build_sized(to, name, bias, q_rows).map(Projections::Split)
            }
            (None, None) => {
                to.fault("attention names neither q, k and v nor qkv");
                None
            }
        };
        let keys = if let Ok(other) = usize::try_from(keys_of) {
            to.read_by_others.insert(other);
            // Published files carry what such a layer would make its own keys of (Gemma 4 E2B).
            let norms =
                [&attention.k_norm, &attention.v_norm].map(|norm| norm.as_ref()?.tensor.as_ref());
            let left =
                [attention.k.as_ref(), attention.v.as_ref()].into_iter().chain(norms).flatten();
            for name in left {
                to.pass_over(name);
            }
            Some(Keys::Of(other))
        } else {
            let slot = to.slot(LayerCache::Keys(KeyCache::new(window)));
            Keys::build(to, attention, kv_heads * head_dim, bias, fused.is_some(), slot, layer)
        };
        let o = Linear::build(to, &attention.o, out_bias);
        let q_norm = match &attention.q_norm {
            Some(norm) => Norm::build(to, norm, false),
            None => None,
        };
        let rope = match &attention.rope {
            Some(rope) => Rope::build(to, rope, head_dim),
            None => None,
        };
        let long_scale = match &attention.long_scale {
            Some(long) => {
                let beta = to.maybe_float(&Some(long.beta.clone()))?.unwrap_or(0.0);
                let trained = to.maybe_float(&Some(long.trained.clone()))?.unwrap_or(0.0);
                let wanted = beta != 0.0 && trained > 0.0;
                wanted.then_some(LongScale { beta: beta as f32, trained: trained as f32 })
            }
            None => None,
        };
        let scale = to.float_or(&attention.scale, (head_dim as f64).powf(-0.5))?;
        let cap = to.maybe_float(&attention.soft_cap)?.filter(|&cap| cap != 0.0);
        let sinks = match &attention.sinks {
            Some(name) => {
                let name = to.full_name(name);
                Some(to.vector(&name)?)
            }
            None => None,
        };
        let cap = cap.map(|cap| cap as f32);
        let on_cpu = to.compute.on_cpu;
        let scores = Scores { scale: scale as f32, window, cap, sinks, on_cpu };
        let mut built = Attention {
            q: q?,
            o: o?,
            q_norm,
            norm_all_heads: to.holds(&attention.norm_all_heads, false),
            keys: keys?,
            rope,
            long_scale,
            gate,
            scores,
            heads: heads as i32,
            kv_heads: kv_heads as i32,
            head_dim: head_dim as i32,
            native: None,
        };
        if on_cpu {
            built.native = to.made(|| built.natively())?.map(Arc::new);
        }
        Some(built)
    }

    /// Notes that later layers read this layer's keys, if it is one of `layers`.
    pub fn share(&mut self, layers: &std::collections::BTreeSet<usize>) {
        if let Keys::Own { layer, shared, .. } = &mut self.keys {
            *shared = layers.contains(layer);
        }
    }

    /// `[rows, tokens, hidden]` to the same.
    pub fn forward(&self, x: &Array, pass: &mut Pass) -> Result<Array> {
        self.o.forward(&self.mixed(x, pass)?)
    }

    /// Whether its keys are another layer's.
    pub fn reads_another(&self) -> bool {
        matches!(self.keys, Keys::Of(_))
    }

    /// What is mixed of the values, before the last projection: `[rows, tokens, heads × dim]`.
    fn mixed(&self, x: &Array, pass: &mut Pass) -> Result<Array> {
        let (batch, longest) = (x.dim(0), x.dim(1));
        let split = self.split(x)?;
        let mut rows = Vec::with_capacity(batch as usize);
        let mut seen_rows = Vec::new();
        for index in 0..batch as usize {
            let position = pass.batch.rows[index].position;
            let heads = self.heads_of_row(&split, index, pass)?;
            let mut queries = heads.queries;
            if let Some(long) = self.long_scale {
                queries = long.apply(&queries, position)?;
            }
            let seen = match (&self.keys, &heads.own) {
                (Keys::Own { slot, .. }, Some((keys, values))) => {
                    keys_in(pass.caches[index], *slot)?.append(keys, Some(values))?
                }
                (Keys::Of(layer), _) => pass.seen_of(*layer, index).cloned().ok_or_else(no_keys)?,
                _ => return Err(no_keys()),
            };
            rows.push(self.scores.attend(&queries, &seen, position, pass)?);
            seen_rows.push(seen);
        }
        if let Keys::Own { shared: true, layer, .. } = &self.keys {
            pass.seen.insert(*layer, seen_rows);
        }
        let out = join_rows(rows, longest as usize, 2)?;
        let width = [batch, longest, self.heads * self.head_dim];
        let Some(gate) = &self.gate else {
            return match longest {
                1 => out.reshape(&width),
                _ => heads_last(&out)?.reshape(&width),
            };
        };
        gate.apply(x, split.gate, &heads_last(&out)?)?.reshape(&width)
    }

    /// Elements of what is projected to queries, and their gate where it comes with them.
    fn q_rows(&self) -> usize {
        (self.heads * self.head_dim) as usize * if self.gate_in_q() { 2 } else { 1 }
    }

    /// Whether the gate comes with the queries.
    fn gate_in_q(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.projection.is_none())
    }

    /// All rows' queries, keys and values, and the gate that comes with queries.
    fn split(&self, x: &Array) -> Result<Split> {
        let (batch, longest) = (x.dim(0), x.dim(1));
        let (mut q, k, v) = self.project(x)?;
        let mut gate = None;
        if self.gate_in_q() {
            // Each head's row holds its query and then its gate.
            let both = q.reshape(&[batch, longest, self.heads, 2 * self.head_dim])?;
            gate = Some(last_axis(&both, self.head_dim, 2 * self.head_dim)?);
            q = last_axis(&both, 0, self.head_dim)?;
        }
        let queries = self.heads_of(&q, self.q_norm.as_ref(), self.heads)?;
        let own = match &self.keys {
            Keys::Own { k_norm, v_norm, .. } => {
                let (Some(k), Some(v)) = (k, v) else { return Err(no_keys()) };
                let keys = self.heads_of(&k, k_norm.as_ref(), self.kv_heads)?;
                let values = v.reshape(&[batch, longest, self.kv_heads, self.head_dim])?;
                let values = match v_norm {
                    Some(norm) => norm.forward(&values)?,
                    None => values,
                };
                Some((keys, heads_first(&values)?))
            }
            Keys::Of(_) => None,
        };
        Ok(Split { heads: Heads { queries, own }, gate })
    }

    /// One row's, turned.
    fn heads_of_row(&self, split: &Split, index: usize, pass: &mut Pass) -> Result<Heads> {
        let span = pass.batch.rows[index].span();
        let tokens = span.tokens;
        let queries = self.rotate(&row(&split.heads.queries, index, tokens, 2)?, span, pass)?;
        let own = match &split.heads.own {
            Some((keys, values)) => {
                let keys = self.rotate(&row(keys, index, tokens, 2)?, span, pass)?;
                Some((keys, row(values, index, tokens, 2)?))
            }
            None => None,
        };
        Ok(Heads { queries, own })
    }

    /// Queries, keys and values, `[rows, tokens, heads × head_dim]`.
    fn project(&self, x: &Array) -> Result<(Array, Option<Array>, Option<Array>)> {
        match &self.q {
            Projections::Fused(qkv) => {
                let all = qkv.forward(x)?;
                let kv = self.kv_heads * self.head_dim;
                let q = all.dim(-1) - 2 * kv;
                let (k, v) = (last_axis(&all, q, q + kv)?, last_axis(&all, q + kv, q + 2 * kv)?);
                Ok((last_axis(&all, 0, q)?, Some(k), Some(v)))
            }
            Projections::Split(q) => {
                let Keys::Own { k: Some(k), v, .. } = &self.keys else {
                    return Ok((q.forward(x)?, None, None));
                };
                let (q, k, v) = match v {
                    Some(v) => Linear::forward_all([q, k, v], x)?.into(),
                    None => {
                        let [q, k] = Linear::forward_all([q, k], x)?;
                        (q, k.clone(), k)
                    }
                };
                Ok((q, Some(k), Some(v)))
            }
        }
    }

    /// `[rows, heads, tokens, head_dim]`, normalized.
    fn heads_of(&self, x: &Array, norm: Option<&Norm>, heads: i32) -> Result<Array> {
        let shape = [x.dim(0), x.dim(1), heads, self.head_dim];
        let split = match norm {
            Some(norm) if self.norm_all_heads => norm.forward(x)?.reshape(&shape)?,
            Some(norm) => norm.forward(&x.reshape(&shape)?)?,
            None => x.reshape(&shape)?,
        };
        heads_first(&split)
    }

    fn rotate(&self, x: &Array, span: Span, pass: &mut Pass) -> Result<Array> {
        match &self.rope {
            Some(rope) => rope.apply(x, span, pass),
            None => Ok(x.clone()),
        }
    }
}

impl Keys {
    fn build(
        to: &mut Builder,
        attention: &description::Attention,
        rows: i64,
        bias: bool,
        fused: bool,
        slot: usize,
        layer: usize,
    ) -> Option<Keys> {
        let (mut k, mut v) = (None, None);
        if !fused {
            let Some(name) = &attention.k else {
                to.fault("attention names no keys");
                return None;
            };
            let keys = Linear::build_sized(to, name, bias, rows);
            if !to.holds(&attention.values_are_keys, false) {
                let Some(name) = &attention.v else {
                    to.fault("attention names no values");
                    return None;
                };
                v = Some(Linear::build_sized(to, name, bias, rows)?);
            }
            k = Some(keys?);
        }
        let k_norm = match &attention.k_norm {
            Some(norm) => Norm::build(to, norm, false),
            None => None,
        };
        let v_norm = match &attention.v_norm {
            Some(norm) => Norm::build(to, norm, false),
            None => None,
        };
        Some(Keys::Own { k, v, k_norm, v_norm, slot, layer, shared: false })
    }
}

impl Gate {
    fn build(to: &mut Builder, gate: &description::AttentionGate, heads: i64) -> Option<Gate> {
        let function = to.function(&gate.activation)?;
        let projection = match &gate.tensor {
            Some(name) => Some(Linear::build(to, name, false)?),
            None => None,
        };
        let per_head =
            projection.as_ref().is_some_and(|projection| i64::from(projection.outputs()) == heads);
        Some(Gate { projection, function, per_head })
    }

    /// Multiplies `[rows, tokens, heads, head_dim]`.
    fn apply(&self, x: &Array, from_q: Option<Array>, out: &Array) -> Result<Array> {
        let gate = match (&self.projection, from_q) {
            (Some(projection), _) => projection.forward(x)?,
            (None, Some(gate)) => gate,
            (None, None) => return Ok(out.clone()),
        };
        let gate = self.function.of(&gate)?;
        match self.per_head {
            true => out.multiply(gate.expand_dims(-1)?),
            false => out.multiply(gate.reshape(out.shape())?),
        }
    }
}

/// A row's keys in a slot.
pub fn keys_in(cache: &mut Cache, slot: usize) -> Result<&mut KeyCache> {
    match cache.layer_mut(slot) {
        LayerCache::Keys(keys) => Ok(keys),
        LayerCache::State(_) => Err(no_keys()),
    }
}

fn no_keys() -> mlx_rs::error::Exception {
    mlx_rs::error::Exception::custom("attention without keys: this cache is another model's")
}
