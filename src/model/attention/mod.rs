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
use super::linear::Linear;
use super::loader::Loader;
use super::native;
use super::norm::Norm;
use super::ops::{Function, Result, heads_first, heads_last, join_rows, last_axis, row};
use super::rope::Rope;
use super::scores::Scores;
use crate::cache::keys::KeyCache;
use crate::cache::{Cache, LayerCache};
use crate::decoder::parts;

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
    /// Loads attention.
    pub fn load(from: &mut Loader, attention: &parts::Attention) -> Option<Attention> {
        let projection = match attention.fused {
            true => Projections::Fused,
            false => Projections::Split,
        };
        let q = Linear::load(from, &attention.q).map(projection);
        let keys = Keys::load(from, &attention.keys, attention.window);
        let o = Linear::load(from, &attention.o);
        let q_norm = Norm::maybe(from, &attention.q_norm);
        let rope = attention.rope.as_ref().map(|rope| Rope::load(from, rope));
        let gate = match &attention.gate {
            Some(gate) => Some(Gate::load(from, gate)?),
            None => None,
        };
        let long_scale = attention
            .long_scale
            .map(|(beta, trained)| LongScale { beta: beta as f32, trained: trained as f32 });
        let sinks = from.maybe_vector(&attention.sinks)?;
        let on_cpu = from.compute.on_cpu;
        let scores = Scores {
            scale: attention.scale as f32,
            window: attention.window,
            cap: attention.soft_cap.map(|cap| cap as f32),
            sinks,
            on_cpu,
        };
        let mut loaded = Attention {
            q: q?,
            o: o?,
            q_norm: q_norm?,
            norm_all_heads: attention.norm_all_heads,
            keys: keys?,
            rope,
            long_scale,
            gate,
            scores,
            heads: attention.heads,
            kv_heads: attention.kv_heads,
            head_dim: attention.head_dim,
            native: None,
        };
        if on_cpu {
            loaded.native = from.made(|| loaded.natively())?.map(Arc::new);
        }
        Some(loaded)
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
    fn load(from: &mut Loader, keys: &parts::Keys, window: Option<usize>) -> Option<Keys> {
        let (k, v, k_norm, v_norm, layer, shared) = match keys {
            parts::Keys::Of(layer) => return Some(Keys::Of(*layer)),
            parts::Keys::Own { k, v, k_norm, v_norm, layer, shared } => {
                (k, v, k_norm, v_norm, *layer, *shared)
            }
        };
        let slot = from.slot(LayerCache::Keys(KeyCache::new(window)));
        let mut linear = |part: &Option<parts::Linear>| match part {
            Some(part) => Linear::load(from, part).map(Some),
            None => Some(None),
        };
        let (k, v) = (linear(k), linear(v));
        let (k_norm, v_norm) = (Norm::maybe(from, k_norm), Norm::maybe(from, v_norm));
        Some(Keys::Own { k: k?, v: v?, k_norm: k_norm?, v_norm: v_norm?, slot, layer, shared })
    }
}

impl Gate {
    fn load(from: &mut Loader, gate: &parts::AttentionGate) -> Option<Gate> {
        let projection = match &gate.projection {
            Some(projection) => Some(Linear::load(from, projection)?),
            None => None,
        };
        Some(Gate { projection, function: gate.function, per_head: gate.per_head })
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
