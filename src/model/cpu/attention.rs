//! Attention with grouped queries (Vaswani et al. 2017; Ainslie et al. 2023), and what models
//! add to it: biases, norms of queries, keys and values, a sliding window, a soft cap on scores
//! (Gemma 2), sinks (gpt-oss), an output gate, keys that are values too, keys of another layer.
//!
//! Projections work on all rows of a pass; scores are a span's own, as its cache is.

use lathe_kernels::{Angles, Gate, Heads, RowNorm, Sight, Strided, attend};

use super::Layer;
use super::cache::{Keys, Sizes, Step};
use super::loader::Loader;
use super::matrix::{BLAS, Floats, Linear};
use super::norm::Norm;
use super::walk::Walk;
use crate::decoder::parts;
use crate::model::pass::{Sees, Stretch};

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
    gate: Option<OutputGate>,
    o: Linear,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    scale: f32,
    cap: Option<f32>,
    window: Option<usize>,
    sinks: Option<Floats>,
}

#[derive(Clone, Debug)]
struct Own {
    k: Linear,
    /// `None` where values are what the keys' projection gives.
    v: Option<Linear>,
    k_norm: Option<Norm>,
    v_norm: Option<Norm>,
}

#[derive(Clone, Debug)]
struct OutputGate {
    /// Without it each head's query is followed by its gate.
    projection: Option<Linear>,
    function: Gate,
    per_head: bool,
}

/// Queries at position p times 1 + beta × ln(1 + ⌊p / trained⌋) (Llama 4).
#[derive(Clone, Copy, Debug)]
struct LongScale {
    beta: f32,
    trained: f32,
}

/// What is projected, `[tokens, …]`: queries (with gates between them, perhaps), keys, values, gates.
struct Projected {
    q: Vec<f32>,
    k: Option<Vec<f32>>,
    /// `None` where the keys are the values too.
    v: Option<Vec<f32>>,
    gate: Option<Vec<f32>>,
}

impl Attention {
    /// Loads attention.
    pub fn load(from: &mut Loader, attention: &parts::Attention) -> Option<Attention> {
        let parts::Attention { heads, kv_heads, head_dim, fused, .. } = *attention;
        let [heads, kv_heads, dim] = [heads, kv_heads, head_dim].map(|size| size as usize);
        let q = from.linear(&attention.q);
        let (own, slot) = match &attention.keys {
            parts::Keys::Of(layer) => (Some(None), from.slot_of(*layer)),
            parts::Keys::Own { k, v, k_norm, v_norm, layer, shared } => {
                let sizes = Sizes { heads: kv_heads, keys: dim, values: dim };
                let slot = from.slot(Layer::Keys(Keys::new(sizes, attention.window)));
                if *shared {
                    from.shares(*layer, slot);
                }
                let (k, v) = (from.maybe_linear(k), from.maybe_linear(v));
                let norms = (Norm::maybe(from, k_norm), Norm::maybe(from, v_norm));
                let own = match (k?, v?, norms.0?, norms.1?) {
                    (Some(k), v, k_norm, v_norm) => Some(Own { k, v, k_norm, v_norm }),
                    (None, _, k_norm, v_norm) => {
                        // Queries, keys and values are one projection, one above the other.
                        let (all, kv) = (q.as_ref()?, kv_heads * dim);
                        let rows = all.outputs() - 2 * kv;
                        let (k, v) = (all.part(rows, kv), Some(all.part(rows + kv, kv)));
                        Some(Own { k, v, k_norm, v_norm })
                    }
                };
                (Some(own), Some(slot))
            }
        };
        let q = q.map(|q| match fused {
            true => q.part(0, q.outputs() - 2 * kv_heads * dim),
            false => q,
        });
        let gate = match &attention.gate {
            Some(gate) => Some(OutputGate {
                projection: from.maybe_linear(&gate.projection)?,
                function: gate.function.gate(),
                per_head: gate.per_head,
            }),
            None => None,
        };
        let o = from.linear(&attention.o);
        let q_norm = Norm::maybe(from, &attention.q_norm);
        let sinks = from.maybe_vector(&attention.sinks);
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
            o: o?,
            heads,
            kv_heads,
            dim,
            scale: attention.scale as f32,
            cap: attention.soft_cap.map(|cap| cap as f32),
            window: attention.window,
            sinks: sinks?,
        })
    }

    /// `[tokens, hidden]` to the same.
    pub fn forward(&self, x: &[f32], walk: &mut Walk) -> Vec<f32> {
        let projected = self.project(x);
        let tokens = x.len() / self.q.matrix.columns;
        let width = self.heads * self.dim;
        let mut mixed = vec![0.0; tokens * width];
        for span in walk.spans.clone() {
            let to = &mut mixed[span.rows.start * width..span.rows.end * width];
            self.mix(&projected, &span, walk, to);
        }
        let Some(OutputGate { function, projection, per_head }) = &self.gate else {
            return self.o.forward(&mixed);
        };
        let mut opened: Vec<f32> = match (projection, projected.gate) {
            (Some(_), Some(gate)) if *per_head => {
                gate.iter().flat_map(|&gate| std::iter::repeat_n(gate, self.dim)).collect()
            }
            (Some(_), Some(gate)) => gate,
            _ => {
                let heads = projected.q.chunks_exact(self.of_head());
                heads.flat_map(|head| &head[self.dim..]).copied().collect()
            }
        };
        function.apply(&mut opened, &mixed);
        self.o.forward(&opened)
    }

    /// Elements that are projected for a head of queries.
    fn of_head(&self) -> usize {
        self.q.outputs() / self.heads
    }

    fn project(&self, x: &[f32]) -> Projected {
        let own = self.own.as_ref();
        let gate = self.gate.as_ref().and_then(|gate| gate.projection.as_ref());
        let all = [Some(&self.q), own.map(|own| &own.k), own.and_then(|own| own.v.as_ref()), gate];
        let given: Vec<&Linear> = all.iter().flatten().copied().collect();
        let mut made = Linear::forward_all(&given, x).into_iter();
        let mut next = |there: Option<&Linear>| there.and_then(|_| made.next());
        let [q, mut k, v, gate] = all.map(&mut next);
        let mut q = q.unwrap_or_default();
        if self.norm_all_heads {
            if let Some(norm) = &self.q_norm {
                q = norm.forward(&q, self.heads * self.dim);
            }
            if let (Some(norm), Some(k)) = (own.and_then(|own| own.k_norm.as_ref()), &mut k) {
                // Where keys are the values too, these are not normalized: that keeps no such model.
                *k = norm.forward(k, self.kv_heads * self.dim);
            }
        }
        Projected { q, k, v, gate }
    }

    /// Writes a span's keys and values, and mixes the values that its queries see: `out` `[tokens,
    /// heads × dim]`.
    fn mix(&self, projected: &Projected, span: &Stretch, walk: &mut Walk, out: &mut [f32]) {
        let Attention { heads, kv_heads, dim, .. } = *self;
        let tokens = span.rows.len();
        let angles = self.rope.map(|rope| walk.angles(rope, span.place));
        let turn = angles.as_ref().map(|angles| angles.turn());
        let per_head = |norm| if self.norm_all_heads { None } else { norm };
        let of_span = |data, heads, step, norm, turn| {
            let width = heads * step;
            Split { data, from: 0, width, heads, step, dim, norm, turn }
        };
        let q_norm = per_head(self.q_norm.as_ref());
        let mut queries = of_span(&projected.q, heads, self.of_head(), q_norm, turn).rows(span);
        if let Some(long) = self.long_scale {
            long.apply(&mut queries, span, dim);
        }
        if let (Some(own), Some(k)) = (&self.own, &projected.k) {
            let k_norm = per_head(own.k_norm.as_ref());
            let keys = of_span(k, kv_heads, dim, k_norm, turn).rows(span);
            let v = projected.v.as_ref().unwrap_or(k);
            let values = of_span(v, kv_heads, dim, own.v_norm.as_ref(), None).rows(span);
            let step = Step { keys: &keys, values: &values, tokens };
            walk.keys(span.index, self.slot).append(step);
        }
        let (keys, values, start) = walk.keys(span.index, self.slot).seen(span.place.position);
        let sight = Sight {
            scale: self.scale,
            cap: self.cap,
            first: span.place.position - start,
            causal: span.sees == Sees::Causal,
            window: self.window,
            sinks: self.sinks.as_deref(),
        };
        let queries =
            Heads { data: &queries, heads, rows: tokens, width: dim, stride: tokens * dim };
        mix(queries, &keys, &values, &sight, out);
    }
}

/// Attention whose result is `[tokens, heads, width]`.
pub fn mix(queries: Heads, keys: &[Heads], values: &[Heads], sight: &Sight, out: &mut [f32]) {
    let (heads, tokens) = (queries.heads, queries.rows);
    if tokens == 1 || heads == 1 {
        attend(queries, keys, values, sight, out, BLAS);
        return;
    }
    let width = values[0].width;
    let mut by_head = vec![0.0; out.len()];
    attend(queries, keys, values, sight, &mut by_head, BLAS);
    for (at, row) in by_head.chunks_exact(width).enumerate() {
        let place = (at % tokens * heads + at / tokens) * width;
        out[place..place + width].copy_from_slice(row);
    }
}

/// Heads among what is projected: the first `dim` of each `step` elements of a row, from one on.
pub struct Split<'a> {
    /// All rows of a pass.
    pub data: &'a [f32],
    /// The first element of a row that is a head's.
    pub from: usize,
    /// Elements of a row.
    pub width: usize,
    /// How many heads.
    pub heads: usize,
    /// Elements from a head to the next.
    pub step: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Over each head.
    pub norm: Option<&'a Norm>,
    /// By each row's angles.
    pub turn: Option<Angles<'a>>,
}

impl Split<'_> {
    /// A span's, normalized and turned, `[heads, tokens, dim]`.
    pub fn rows(self, span: &Stretch) -> Vec<f32> {
        let Split { data, from, width, heads, step, dim, norm, turn } = self;
        let tokens = span.rows.len();
        let data = &data[span.rows.start * width + from..span.rows.end * width];
        let centred = norm.filter(|norm| norm.centred);
        let normalized;
        let (data, step, width) = match centred {
            Some(norm) => {
                let starts = (0..tokens * heads).map(|at| at / heads * width + at % heads * step);
                let heads_of: Vec<f32> =
                    starts.flat_map(|start| &data[start..start + dim]).copied().collect();
                normalized = norm.forward(&heads_of, dim);
                (&normalized[..], dim, heads * dim)
            }
            None => (data, step, width),
        };
        let norm = norm.filter(|norm| !norm.centred);
        let norm = norm.map(|norm| RowNorm { weight: norm.weight.as_deref(), eps: norm.eps });
        let strided = Strided { data, shape: [heads, tokens, dim], strides: [step, width, 1] };
        let mut made = vec![0.0; heads * tokens * dim];
        lathe_kernels::heads(&strided, norm, turn, &mut made);
        made
    }
}

impl LongScale {
    /// Scales queries `[heads, tokens, dim]`.
    fn apply(self, queries: &mut [f32], span: &Stretch, dim: usize) {
        let (position, tokens) = (span.place.position, span.place.tokens);
        if position + tokens <= self.trained as usize {
            return;
        }
        let factor = |at: usize| 1.0 + self.beta * (1.0 + (at as f32 / self.trained).floor()).ln();
        for (row, query) in queries.chunks_exact_mut(dim).enumerate() {
            let factor = factor(position + row % tokens);
            query.iter_mut().for_each(|x| *x *= factor);
        }
    }
}
