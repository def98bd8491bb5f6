//! Attention with grouped queries (Vaswani et al. 2017; Ainslie et al. 2023), and what models
//! add to it: biases, norms of queries, keys and values, a sliding window, a soft cap on scores
//! (Gemma 2), sinks (gpt-oss), an output gate, keys that are values too, keys of another layer.
//!
//! Projections, norms and rotations work on all rows of a pass; scores are a span's own, as its
//! cache is.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::Layer;
use super::cache::Keys;
use super::loader::Loader;
use super::matrix::Linear;
use super::norm::Norm;
use super::ops::{Function, Result, join, last_axis, part, times_exactly};
use super::scores::Scores;
use super::walk::Walk;
use crate::decoder::parts;
use crate::model::pass::Stretch;

/// Attention.
#[derive(Clone, Debug)]
pub struct Attention {
    q: Linear,
    q_norm: Option<Norm>,
    /// This layer's own keys and values.
    own: Option<Own>,
    /// The slot of the keys that are read.
    slot: usize,
    norm_all_heads: bool,
    rope: Option<usize>,
    long_scale: Option<LongScale>,
    gate: Option<Gate>,
    scores: Scores,
    o: Linear,
    heads: i32,
    kv_heads: i32,
    dim: i32,
}

#[derive(Clone, Debug)]
struct Own {
    /// `None` where queries, keys and values are one projection.
    k: Option<Linear>,
    /// `None` there, and where values are what the keys' projection gives.
    v: Option<Linear>,
    k_norm: Option<Norm>,
    v_norm: Option<Norm>,
}

#[derive(Clone, Debug)]
struct Gate {
    /// Without it each head's query is followed by its gate.
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

/// What is projected of all rows, `[tokens, heads, 1, dim]`: normalized and turned.
struct Projected {
    queries: Array,
    own: Option<(Array, Array)>,
    gate: Option<Array>,
}

impl Attention {
    /// Loads attention.
    pub fn load(from: &mut Loader, attention: &parts::Attention) -> Option<Attention> {
        let q = Linear::load(from, &attention.q);
        let (own, slot) = match &attention.keys {
            parts::Keys::Of(layer) => (Some(None), from.slot_of(*layer)),
            parts::Keys::Own { k, v, k_norm, v_norm, layer, shared } => {
                let slot = from.slot(Layer::Keys(Keys::new(attention.window)));
                if *shared {
                    from.shares(*layer, slot);
                }
                let (k, v) = (Linear::maybe(from, k), Linear::maybe(from, v));
                let norms = (Norm::maybe(from, k_norm), Norm::maybe(from, v_norm));
                let own = Own { k: k?, v: v?, k_norm: norms.0?, v_norm: norms.1? };
                (Some(Some(own)), Some(slot))
            }
        };
        let o = Linear::load(from, &attention.o);
        let q_norm = Norm::maybe(from, &attention.q_norm);
        let gate = match &attention.gate {
            Some(gate) => Some(Gate::load(from, gate)?),
            None => None,
        };
        let sinks = from.maybe_vector(&attention.sinks);
        let scores = Scores {
            scale: attention.scale as f32,
            window: attention.window,
            cap: attention.soft_cap.map(|cap| cap as f32),
            sinks: sinks?,
        };
        let long = attention.long_scale;
        Some(Attention {
            q: q?,
            q_norm: q_norm?,
            own: own?,
            slot: slot?,
            norm_all_heads: attention.norm_all_heads,
            rope: attention.rope.as_ref().map(|rope| from.rope(rope)),
            long_scale: long
                .map(|(beta, trained)| LongScale { beta: beta as f32, trained: trained as f32 }),
            gate,
            scores,
            o: o?,
            heads: attention.heads,
            kv_heads: attention.kv_heads,
            dim: attention.head_dim,
        })
    }

    /// `[tokens, hidden]` to the same.
    pub fn forward(&self, x: &Array, walk: &mut Walk) -> Result<Array> {
        let projected = self.project(x, walk)?;
        let spans = walk.spans.clone();
        let mixed = spans.iter().map(|span| self.mix(&projected, span, walk));
        // [tokens, heads, 1, dim]
        let mixed = join(mixed.collect::<Result<_>>()?, 0)?;
        let mixed = match &self.gate {
            Some(gate) => gate.apply(x, projected.gate, &mixed)?,
            None => mixed,
        };
        self.o.forward(&mixed.reshape(&[x.dim(0), self.heads * self.dim])?)
    }

    /// Writes a span's keys and values, and mixes the values that its queries see: `[tokens, heads, 1,
    /// dim]`.
    fn mix(&self, projected: &Projected, span: &Stretch, walk: &mut Walk) -> Result<Array> {
        // `[1, heads, tokens, dim]`
        let of_span = |x: &Array| part(x, 0, &span.rows)?.swap_axes(0, 2);
        let keys = walk.keys(span.index, self.slot)?;
        if let Some((new, values)) = &projected.own {
            keys.append(&of_span(new)?, Some(&of_span(values)?))?;
        }
        let seen = keys.seen(span.place.position)?;
        let queries = of_span(&projected.queries)?;
        self.scores.attend(&queries, &seen, span, walk)?.swap_axes(0, 2)
    }

    fn project(&self, x: &Array, walk: &mut Walk) -> Result<Projected> {
        let (tokens, dim) = (x.dim(0), self.dim);
        let mut q = self.q.forward(x)?;
        let (mut k, mut v) = (None, None);
        match &self.own {
            Some(Own { k: Some(keys), v: values, .. }) => {
                let keys = keys.forward(x)?;
                v = Some(values.as_ref().map_or(Ok(keys.clone()), |values| values.forward(x))?);
                k = Some(keys);
            }
            Some(Own { k: None, .. }) => {
                // Queries, keys and values are one projection, one above the other.
                let kv = self.kv_heads * dim;
                let rows = q.dim(-1) - 2 * kv;
                k = Some(last_axis(&q, rows, rows + kv)?);
                v = Some(last_axis(&q, rows + kv, rows + 2 * kv)?);
                q = last_axis(&q, 0, rows)?;
            }
            None => {}
        }
        let mut gate = None;
        if self.gate.as_ref().is_some_and(|gate| gate.projection.is_none()) {
            // Each head's row holds its query and then its gate.
            let both = q.reshape(&[tokens, self.heads, 1, 2 * dim])?;
            gate = Some(last_axis(&both, dim, 2 * dim)?);
            q = last_axis(&both, 0, dim)?;
        }
        let mut queries = self.heads_of(&q, self.q_norm.as_ref(), self.heads)?;
        let rotate = |x: &Array, walk: &mut Walk| match self.rope {
            Some(rope) => walk.rotate(rope, x),
            None => Ok(x.clone()),
        };
        queries = rotate(&queries, walk)?;
        if let Some(factors) = self.long_scale.and_then(|long| long.factors(&walk.spans)) {
            queries = times_exactly(&queries, &factors)?;
        }
        let own = match (&self.own, k, v) {
            (Some(own), Some(k), Some(v)) => {
                let keys = self.heads_of(&k, own.k_norm.as_ref(), self.kv_heads)?;
                let values = v.reshape(&[tokens, self.kv_heads, 1, dim])?;
                let values = match &own.v_norm {
                    Some(norm) => norm.forward(&values)?,
                    None => values,
                };
                Some((rotate(&keys, walk)?, values))
            }
            _ => None,
        };
        Ok(Projected { queries, own, gate })
    }

    /// `[tokens, heads, 1, dim]`, normalized.
    fn heads_of(&self, x: &Array, norm: Option<&Norm>, heads: i32) -> Result<Array> {
        let shape = [x.dim(0), heads, 1, self.dim];
        match norm {
            Some(norm) if self.norm_all_heads => norm.forward(x)?.reshape(&shape),
            Some(norm) => norm.forward(&x.reshape(&shape)?),
            None => x.reshape(&shape),
        }
    }
}

impl LongScale {
    /// The factors of the queries of all rows, f32 `[tokens, 1, 1, 1]`; `None` when they are all 1.
    fn factors(self, spans: &[Stretch]) -> Option<Array> {
        let positions = spans.iter().flat_map(|span| {
            let position = span.place.position;
            position..position + span.place.tokens
        });
        let grown = |at: usize| self.beta * (1.0 + (at as f32 / self.trained).floor()).ln();
        let factors: Vec<f32> = positions.map(|at| 1.0 + grown(at)).collect();
        let shape = [factors.len() as i32, 1, 1, 1];
        factors.iter().any(|&factor| factor != 1.0).then(|| Array::from_slice(&factors, &shape))
    }
}

impl Gate {
    fn load(from: &mut Loader, gate: &parts::AttentionGate) -> Option<Gate> {
        let projection = Linear::maybe(from, &gate.projection)?;
        Some(Gate { projection, function: gate.function, per_head: gate.per_head })
    }

    /// Multiplies `[tokens, heads, 1, dim]`.
    fn apply(&self, x: &Array, from_q: Option<Array>, out: &Array) -> Result<Array> {
        let gate = match (&self.projection, from_q) {
            (Some(projection), _) => projection.forward(x)?,
            (None, Some(gate)) => gate,
            (None, None) => return Err(Exception::custom("attention without its gate")),
        };
        let gate = self.function.of(&gate)?;
        match self.per_head {
            true => out.multiply(gate.reshape(&[out.dim(0), out.dim(1), 1, 1])?),
            false => out.multiply(gate.reshape(out.shape())?),
        }
    }
}
