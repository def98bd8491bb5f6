//! Multi-head latent attention (DeepSeek-V2, 2024).
//!
//! Keys and values are projections of one latent vector per token, and only that latent and one
//! rotated key, shared by all heads, are kept. The projection up is worked into the queries and
//! into the output, so that attention runs on the latents themselves:
//! q·(W_k c) = (W_kᵀ q)·c, and Σ w (W_v c) = W_v Σ w c.

use mlx_rs::Array;
use mlx_rs::ops::concatenate;
use mlx_rs::ops::indexing::TryIndexOp;

use super::Layer;
use super::cache::{Keys, Seen};
use super::loader::Loader;
use super::matrix::Linear;
use super::norm::Norm;
use super::ops::{Result, join, last_axis, part};
use super::scores::Scores;
use super::walk::Walk;
use crate::decoder::parts;

/// Multi-head latent attention.
#[derive(Clone, Debug)]
pub struct LatentAttention {
    q: Queries,
    kv_down: Linear,
    kv_norm: Norm,
    up: Up,
    o: Linear,
    rope: usize,
    scores: Scores,
    slot: usize,
    heads: i32,
    rank: i32,
    nope_dim: i32,
    rope_dim: i32,
}

#[derive(Clone, Debug)]
enum Queries {
    One(Linear),
    Two(Linear, Norm, Linear),
}

/// The way from the latent to keys and values.
#[derive(Clone, Debug)]
struct Up {
    /// Latent to keys, `[heads, nope_dim, rank]`.
    to_keys: Array,
    /// Values to latent, `[heads, rank, value_dim]`.
    to_values: Array,
}

impl Up {
    fn load(from: &mut Loader, attention: &parts::LatentAttention) -> Option<Up> {
        let parts::LatentAttention { heads, rank, nope_dim, value_dim, .. } = *attention;
        match &attention.up {
            parts::LatentUp::Halves(keys, values) => {
                let (to_keys, to_values) = (Up::half(from, keys), Up::half(from, values));
                Some(Up { to_keys: to_keys?, to_values: to_values? })
            }
            parts::LatentUp::Whole(up) => {
                let up = from.matrix(up)?;
                from.made(|| {
                    let up = up.plain()?.reshape(&[heads, nope_dim + value_dim, rank])?;
                    let to_keys = up.try_index((.., ..nope_dim, ..))?.contiguous()?;
                    let values = up.try_index((.., nope_dim.., ..))?;
                    let to_values = values.swap_axes(1, 2)?.contiguous()?;
                    mlx_rs::transforms::eval([&to_keys, &to_values])?;
                    Ok(Up { to_keys, to_values })
                })
            }
        }
    }

    /// One of the two tensors, with its last axes exchanged.
    fn half(from: &mut Loader, matrix: &parts::Matrix) -> Option<Array> {
        let matrix = from.matrix(matrix)?;
        from.made(|| {
            let half = matrix.plain()?.swap_axes(1, 2)?.contiguous()?;
            half.eval()?;
            Ok(half)
        })
    }
}

impl LatentAttention {
    /// Loads latent attention.
    pub fn load(from: &mut Loader, attention: &parts::LatentAttention) -> Option<LatentAttention> {
        let q = match &attention.q {
            parts::LatentQueries::One(q) => Linear::load(from, q).map(Queries::One),
            parts::LatentQueries::Two(down, norm, up) => {
                let (down, norm) = (Linear::load(from, down), Norm::load(from, norm));
                let up = Linear::load(from, up);
                Some(Queries::Two(down?, norm?, up?))
            }
        };
        let kv_down = Linear::load(from, &attention.kv_down);
        let kv_norm = Norm::load(from, &attention.kv_norm);
        let up = Up::load(from, attention);
        let o = Linear::load(from, &attention.o);
        let scale = attention.scale as f32;
        Some(LatentAttention {
            q: q?,
            kv_down: kv_down?,
            kv_norm: kv_norm?,
            up: up?,
            o: o?,
            rope: from.rope(&attention.rope),
            scores: Scores { scale, window: None, cap: None, sinks: None },
            slot: from.slot(Layer::Keys(Keys::new(None))),
            heads: attention.heads,
            rank: attention.rank,
            nope_dim: attention.nope_dim,
            rope_dim: attention.rope_dim,
        })
    }

    /// `[tokens, hidden]` to the same.
    pub fn forward(&self, x: &Array, walk: &mut Walk) -> Result<Array> {
        let tokens = x.dim(0);
        let queries = self.queries(x, walk)?;
        let down = self.kv_down.forward(x)?;
        let latent = self.kv_norm.forward(&last_axis(&down, 0, self.rank)?)?;
        let key = last_axis(&down, self.rank, self.rank + self.rope_dim)?;
        let key = walk.rotate(self.rope, &key.reshape(&[tokens, 1, 1, self.rope_dim])?)?;
        let kept =
            concatenate(&[latent.reshape(&[1, 1, tokens, self.rank])?, key.swap_axes(0, 2)?], -1)?;
        let mut mixed = Vec::with_capacity(walk.spans.len());
        for span in walk.spans.clone() {
            let keys = walk.keys(span.index, self.slot)?;
            keys.append(&part(&kept, 2, &span.rows)?, None)?;
            let seen = keys.seen(span.place.position)?;
            let values = last_axis(&seen.keys, 0, self.rank)?;
            let seen = Seen { values, ..seen };
            let queries = part(&queries, 2, &span.rows)?;
            mixed.push(self.scores.attend(&queries, &seen, &span, walk)?);
        }
        // [1, heads, tokens, value_dim]
        let values = join(mixed, 2)?.matmul(&self.up.to_values)?;
        self.o.forward(&values.swap_axes(1, 2)?.reshape(&[tokens, -1])?)
    }

    /// Queries of latents and rotated keys, `[1, heads, tokens, rank + rope_dim]`.
    fn queries(&self, x: &Array, walk: &mut Walk) -> Result<Array> {
        let q = match &self.q {
            Queries::One(q) => q.forward(x)?,
            Queries::Two(down, norm, up) => up.forward(&norm.forward(&down.forward(x)?)?)?,
        };
        let dim = self.nope_dim + self.rope_dim;
        let q = q.reshape(&[x.dim(0), self.heads, 1, dim])?;
        let turned = walk.rotate(self.rope, &last_axis(&q, self.nope_dim, dim)?)?;
        let still = last_axis(&q, 0, self.nope_dim)?.swap_axes(0, 2)?;
        concatenate(&[still.matmul(&self.up.to_keys)?, turned.swap_axes(0, 2)?], -1)
    }
}
