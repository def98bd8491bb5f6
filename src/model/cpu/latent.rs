//! Multi-head latent attention (DeepSeek-V2, 2024).
//!
//! Keys and values are projections of one latent vector per token, and only that latent and one
//! rotated key, shared by all heads, are kept. Few queries work on the latents themselves, the
//! projections up worked into queries and output: q·(W_k c) = (W_kᵀ q)·c, and Σ w (W_v c) = W_v Σ w c.
//! For many queries that costs more than making each head's keys and values once, which is done then.

use std::sync::Arc;

use lathe_kernels::{Heads, Sight, in_parallel};

use super::Layer;
use super::attention::{Split, mix};
use super::cache::{Keys, Sizes, Step};
use super::loader::Loader;
use super::matrix::{BLAS, Linear, Matrix};
use super::norm::Norm;
use super::walk::Walk;
use crate::decoder::parts;
use crate::model::pass::{Sees, Stretch};

/// Multi-head latent attention.
#[derive(Clone, Debug)]
pub struct LatentAttention {
    q: Queries,
    kv_down: Linear,
    kv_norm: Norm,
    /// Of each head: latent to keys, `[nope, rank]`, and to values, `[value, rank]`.
    up: Vec<[Matrix; 2]>,
    o: Linear,
    rope: usize,
    scale: f32,
    slot: usize,
    heads: usize,
    rank: usize,
    nope: usize,
    turned: usize,
    value: usize,
}

#[derive(Clone, Debug)]
enum Queries {
    One(Linear),
    Two(Linear, Norm, Linear),
}

impl LatentAttention {
    /// Loads latent attention.
    pub fn load(from: &mut Loader, attention: &parts::LatentAttention) -> Option<LatentAttention> {
        let parts::LatentAttention { heads, rank, nope_dim, rope_dim, value_dim, .. } = *attention;
        let [heads, rank, nope, turned, value] =
            [heads, rank, nope_dim, rope_dim, value_dim].map(|size| size as usize);
        let q = match &attention.q {
            parts::LatentQueries::One(q) => from.linear(q).map(Queries::One),
            parts::LatentQueries::Two(down, norm, up) => {
                let (down, norm, up) = (from.linear(down), Norm::load(from, norm), from.linear(up));
                Some(Queries::Two(down?, norm?, up?))
            }
        };
        let kv_down = from.linear(&attention.kv_down);
        let kv_norm = Norm::load(from, &attention.kv_norm);
        let up = match &attention.up {
            parts::LatentUp::Whole(up) => from.matrix(up).map(|up| {
                let of = |head: usize| {
                    let at = head * (nope + value);
                    [up.part(at, nope), up.part(at + nope, value)]
                };
                (0..heads).map(of).collect()
            }),
            parts::LatentUp::Halves(keys, values) => {
                // Keys are stored as [heads, rank, nope].
                let keys = parts::Matrix { transposed: !keys.transposed, ..keys.clone() };
                let (keys, values) = (from.matrix(&keys), from.matrix(values));
                let (keys, values) = (keys?, values?);
                let one = |of: &Arc<Matrix>, head| of.one(head);
                Some((0..heads).map(|head| [one(&keys, head), one(&values, head)]).collect())
            }
        };
        let o = from.linear(&attention.o);
        let rope = from.rope(&attention.rope);
        let sizes = Sizes { heads: 1, keys: rank + turned, values: 0 };
        let slot = from.slot(Layer::Keys(Keys::new(sizes, None)));
        Some(LatentAttention {
            q: q?,
            kv_down: kv_down?,
            kv_norm: kv_norm?,
            up: up?,
            o: o?,
            rope,
            scale: attention.scale as f32,
            slot,
            heads,
            rank,
            nope,
            turned,
            value,
        })
    }

    /// `[tokens, hidden]` to the same.
    pub fn forward(&self, x: &[f32], walk: &mut Walk) -> Vec<f32> {
        let q = match &self.q {
            Queries::One(q) => q.forward(x),
            Queries::Two(down, norm, up) => {
                up.forward(&norm.forward(&down.forward(x), down.outputs()))
            }
        };
        let down = self.kv_down.forward(x);
        let (kept, rank) = (self.rank + self.turned, self.rank);
        let latents: Vec<f32> =
            down.chunks_exact(kept).flat_map(|row| &row[..rank]).copied().collect();
        let latents = self.kv_norm.forward(&latents, rank);
        let width = self.heads * self.value;
        let mut out = vec![0.0; down.len() / kept * width];
        for span in walk.spans.clone() {
            let angles = walk.angles(self.rope, span.place);
            let turn = Some(angles.turn());
            let split = |data, from, heads, step, dim, turn| {
                let width = heads * step;
                Split { data, from, width, heads, step, dim, norm: None, turn }.rows(&span)
            };
            let turned_keys = split(&down, rank, 1, kept, self.turned, turn);
            let of_span = &latents[span.rows.start * rank..span.rows.end * rank];
            let rows = of_span.chunks_exact(rank).zip(turned_keys.chunks_exact(self.turned));
            let keys: Vec<f32> =
                rows.flat_map(|(latent, key)| latent.iter().chain(key)).copied().collect();
            let tokens = span.rows.len();
            let step = Step { keys: &keys, values: &[], tokens };
            walk.keys(span.index, self.slot).append(step);

            let per_head = self.nope + self.turned;
            let still = split(&q, 0, self.heads, per_head, self.nope, None);
            let turned = split(&q, self.nope, self.heads, per_head, self.turned, turn);
            let (keys, _, start) = walk.keys(span.index, self.slot).seen(span.place.position);
            let sight = Sight {
                scale: self.scale,
                cap: None,
                first: span.place.position - start,
                causal: span.sees == Sees::Causal,
                window: None,
                sinks: None,
            };
            let queries = [still, turned];
            let out = &mut out[span.rows.start * width..span.rows.end * width];
            match self.expands(tokens) {
                true => self.of_expanded(queries, &keys, &sight, &span, out),
                false => self.of_latents(queries, &keys, &sight, &span, out),
            }
        }
        self.o.forward(&out)
    }

    /// Whether making keys and values for so many queries costs less than working on latents: by the
    /// products for each key and head.
    fn expands(&self, tokens: usize) -> bool {
        let LatentAttention { rank, nope, turned, value, .. } = *self;
        rank * (nope + value) + tokens * (nope + turned + value) < tokens * (2 * rank + turned)
    }

    fn of_latents(
        &self,
        [still, turned]: [Vec<f32>; 2],
        keys: &[Heads],
        sight: &Sight,
        span: &Stretch,
        out: &mut [f32],
    ) {
        let (tokens, rank, kept) = (span.rows.len(), self.rank, self.rank + self.turned);
        let mut queries = vec![0.0; self.heads * tokens * kept];
        // Each head's queries by its projection to keys.
        each_part(&mut queries, tokens * kept, &|head, queries: &mut [f32]| {
            let [to_keys, _] = &self.up[head];
            let weights = to_keys.expand();
            let still = &still[head * tokens * self.nope..][..tokens * self.nope];
            let mut made = vec![0.0; tokens * rank];
            // SAFETY: `still` is [tokens, nope], the weights [nope, rank], `made` [tokens, rank].
            unsafe {
                let (a, b, c) = (still.as_ptr(), weights.as_ptr(), made.as_mut_ptr());
                BLAS.0(tokens, rank, self.nope, a, b, false, c, rank);
            }
            let turned = &turned[head * tokens * self.turned..][..tokens * self.turned];
            let rows = made.chunks_exact(rank).zip(turned.chunks_exact(self.turned));
            for (query, (still, turned)) in queries.chunks_exact_mut(kept).zip(rows) {
                query[..rank].copy_from_slice(still);
                query[rank..].copy_from_slice(turned);
            }
        });
        let queries = Heads {
            data: &queries,
            heads: self.heads,
            rows: tokens,
            width: kept,
            stride: tokens * kept,
        };
        // Keys are the values too; what is mixed of their turned part is left.
        let mut mixed = vec![0.0; self.heads * tokens * kept];
        lathe_kernels::attend(queries, keys, keys, sight, &mut mixed, BLAS);
        let mut by_head = vec![0.0; self.heads * tokens * self.value];
        each_part(&mut by_head, tokens * self.value, &|head, out: &mut [f32]| {
            let mixed = mixed[head * tokens * kept..].chunks_exact(kept).take(tokens);
            let latents: Vec<f32> = mixed.flat_map(|row| &row[..rank]).copied().collect();
            lathe_kernels::product(&latents, &self.up[head][1].of(0), out, BLAS);
        });
        for (at, row) in by_head.chunks_exact(self.value).enumerate() {
            let place = (at % tokens * self.heads + at / tokens) * self.value;
            out[place..place + self.value].copy_from_slice(row);
        }
    }

    fn of_expanded(
        &self,
        [still, turned]: [Vec<f32>; 2],
        keys: &[Heads],
        sight: &Sight,
        span: &Stretch,
        out: &mut [f32],
    ) {
        let LatentAttention { rank, nope, value, .. } = *self;
        let (tokens, width) = (span.rows.len(), nope + self.turned);
        let kept = rank + self.turned;
        let rows = || keys.iter().flat_map(|keys| keys.data[..keys.rows * kept].chunks_exact(kept));
        let latents: Vec<f32> = rows().flat_map(|row| &row[..rank]).copied().collect();
        let seen = latents.len() / rank;
        for head in 0..self.heads {
            let [to_keys, to_values] = &self.up[head];
            let (mut still_keys, mut values) = (vec![0.0; seen * nope], vec![0.0; seen * value]);
            let mut both = [
                lathe_kernels::Product { matrix: to_keys.of(0), out: &mut still_keys },
                lathe_kernels::Product { matrix: to_values.of(0), out: &mut values },
            ];
            lathe_kernels::products(&latents, &mut both, BLAS);
            let join = |still: &[f32], turned: &mut dyn Iterator<Item = &[f32]>| -> Vec<f32> {
                let rows = still.chunks_exact(nope).zip(turned);
                rows.flat_map(|(still, turned)| still.iter().chain(turned)).copied().collect()
            };
            let keys = join(&still_keys, &mut rows().map(|row| &row[rank..]));
            let of_head = |data: &'_ [f32], width: usize| {
                data[head * tokens * width..(head + 1) * tokens * width].to_vec()
            };
            let turned = of_head(&turned, self.turned);
            let queries = join(&of_head(&still, nope), &mut turned.chunks_exact(self.turned));
            let one =
                |data, rows, width| Heads { data, heads: 1, rows, width, stride: rows * width };
            let mut made = vec![0.0; tokens * value];
            let (keys, values) = ([one(&keys, seen, width)], [one(&values, seen, value)]);
            mix(one(&queries, tokens, width), &keys, &values, sight, &mut made);
            for (token, made) in made.chunks_exact(value).enumerate() {
                let place = (token * self.heads + head) * value;
                out[place..place + value].copy_from_slice(made);
            }
        }
    }
}

/// Calls `work` with each part of `out`, of so many elements, on all threads.
fn each_part(out: &mut [f32], part: usize, work: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    let parts: Vec<std::sync::Mutex<&mut [f32]>> =
        out.chunks_exact_mut(part).map(std::sync::Mutex::new).collect();
    in_parallel(parts.len(), true, &|index| {
        if let Ok(mut part) = parts[index].lock() {
            work(index, &mut part);
        }
    });
}
