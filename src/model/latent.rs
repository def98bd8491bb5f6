//! Multi-head latent attention (DeepSeek-V2, 2024).
//!
//! Keys and values are projections of one latent vector per token, and only that latent and one
//! rotated key, shared by all heads, are kept. The projection up is worked into the queries and
//! into the output, so that attention runs on the latents themselves:
//! q·(W_k c) = (W_kᵀ q)·c, and Σ w (W_v c) = W_v Σ w c.

use mlx_rs::Array;
use mlx_rs::ops::concatenate;
use mlx_rs::ops::indexing::TryIndexOp;

use super::attention::keys_in;
use super::batch::Pass;
use super::linear::Linear;
use super::loader::Loader;
use super::norm::Norm;
use super::ops::{Result, join_rows, last_axis, row};
use super::rope::Rope;
use super::scores::Scores;
use crate::cache::LayerCache;
use crate::cache::keys::{KeyCache, Seen};
use crate::decoder::parts;

/// Multi-head latent attention.
#[derive(Clone, Debug)]
pub struct LatentAttention {
    q: Queries,
    kv_down: Linear,
    kv_norm: Norm,
    /// Latent to keys, `[heads, nope_dim, rank]`.
    to_keys: Array,
    /// Values to latent, `[heads, rank, value_dim]`.
    to_values: Array,
    o: Linear,
    rope: Rope,
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
struct Up {
    /// `[heads, nope_dim, rank]`.
    to_keys: Array,
    /// `[heads, rank, value_dim]`.
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
        let rope = Rope::load(from, &attention.rope);
        let slot = from.slot(LayerCache::Keys(KeyCache::new(None)));
        let Up { to_keys, to_values } = up?;
        Some(LatentAttention {
            q: q?,
            kv_down: kv_down?,
            kv_norm: kv_norm?,
            to_keys,
            to_values,
            o: o?,
            rope,
            scores: Scores {
                scale: attention.scale as f32,
                window: None,
                cap: None,
                sinks: None,
                on_cpu: from.compute.on_cpu,
            },
            slot,
            heads: attention.heads,
            rank: attention.rank,
            nope_dim: attention.nope_dim,
            rope_dim: attention.rope_dim,
        })
    }

    /// `[rows, tokens, hidden]` to the same.
    pub fn forward(&self, x: &Array, pass: &mut Pass) -> Result<Array> {
        let (batch, longest) = (x.dim(0), x.dim(1));
        let q = match &self.q {
            Queries::One(q) => q.forward(x)?,
            Queries::Two(down, norm, up) => up.forward(&norm.forward(&down.forward(x)?)?)?,
        };
        let dim = self.nope_dim + self.rope_dim;
        let q = q.reshape(&[batch, longest, self.heads, dim])?.swap_axes(1, 2)?;
        let down = self.kv_down.forward(x)?;
        let latent = self.kv_norm.forward(&last_axis(&down, 0, self.rank)?)?;
        let key = last_axis(&down, self.rank, self.rank + self.rope_dim)?;
        let mut rows = Vec::with_capacity(batch as usize);
        for index in 0..batch as usize {
            let span = pass.batch.rows[index].span();
            let (tokens, position) = (span.tokens, span.position);
            let q = row(&q, index, tokens, 2)?;
            let turned = last_axis(&q, self.nope_dim, dim)?;
            let turned = self.rope.apply(&turned, span, pass)?;
            let still = last_axis(&q, 0, self.nope_dim)?.matmul(&self.to_keys)?;
            let queries = concatenate(&[still, turned], -1)?;

            let latent = row(&latent, index, tokens, 1)?.expand_dims(1)?;
            let key = row(&key, index, tokens, 1)?.expand_dims(1)?;
            let key = self.rope.apply(&key, span, pass)?;
            let kept = concatenate(&[latent, key], -1)?;
            let seen = keys_in(pass.caches[index], self.slot)?.append(&kept, None)?;
            let values = last_axis(&seen.keys, 0, self.rank)?;
            let seen = Seen { values, ..seen };
            let out = self.scores.attend(&queries, &seen, position, pass)?;
            rows.push(out.matmul(&self.to_values)?);
        }
        let out = join_rows(rows, longest as usize, 2)?.swap_axes(1, 2)?;
        self.o.forward(&out.reshape(&[batch, longest, -1])?)
    }
}
