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
use super::build::Builder;
use super::linear::Linear;
use super::norm::Norm;
use super::ops::{Result, join_rows, last_axis, row};
use super::rope::Rope;
use super::scores::Scores;
use crate::cache::LayerCache;
use crate::cache::keys::{KeyCache, Seen};
use crate::decoder::description;

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
    fn build(
        to: &mut Builder,
        attention: &description::LatentAttention,
        [heads, rank, nope_dim, value_dim]: [i64; 4],
    ) -> Option<Up> {
        let halves = [&attention.q_to_latent, &attention.latent_to_v];
        if let [Some(keys), Some(values)] = halves
            && to.find(keys).is_some()
        {
            let keys = Up::half(to, keys, [heads, rank, nope_dim]);
            let values = Up::half(to, values, [heads, value_dim, rank]);
            return Some(Up { to_keys: keys?, to_values: values? });
        }
        let rows = heads * (nope_dim + value_dim);
        let up = Linear::build_sized(to, &attention.kv_up, false, rows)?;
        let [heads, rank, nope_dim, value_dim] =
            [heads, rank, nope_dim, value_dim].map(|size| size as i32);
        to.made(|| {
            let up = up.matrix().plain()?.reshape(&[heads, nope_dim + value_dim, rank])?;
            let to_keys = up.try_index((.., ..nope_dim, ..))?.contiguous()?;
            let to_values = up.try_index((.., nope_dim.., ..))?.swap_axes(1, 2)?.contiguous()?;
            mlx_rs::transforms::eval([&to_keys, &to_values])?;
            Ok(Up { to_keys, to_values })
        })
    }

    /// One of the two tensors, with its last axes exchanged.
    fn half(to: &mut Builder, name: &str, wanted: [i64; 3]) -> Option<Array> {
        let full = to.weight_name(name)?;
        let matrix = to.matrix(&full, false)?;
        let axes = ["heads", "rows", "columns"];
        let found = matrix.shape();
        to.expect(name, "axes", found.len() as i64, 3)?;
        for ((what, found), wanted) in axes.into_iter().zip(found).zip(wanted) {
            to.expect(name, what, i64::from(found), wanted)?;
        }
        to.made(|| {
            let half = matrix.plain()?.swap_axes(1, 2)?.contiguous()?;
            half.eval()?;
            Ok(half)
        })
    }
}

impl LatentAttention {
    /// Reads latent attention.
    pub fn build(
        to: &mut Builder,
        attention: &description::LatentAttention,
    ) -> Option<LatentAttention> {
        to.under(&attention.path, |to| LatentAttention::build_here(to, attention))
    }

    fn build_here(
        to: &mut Builder,
        attention: &description::LatentAttention,
    ) -> Option<LatentAttention> {
        let heads = to.int(&attention.heads, "heads")?;
        let rank = to.int(&attention.rank, "rank")?;
        let nope_dim = to.int(&attention.nope_dim, "nope_dim")?;
        let rope_dim = to.int(&attention.rope_dim, "rope_dim")?;
        let value_dim = to.int(&attention.value_dim, "value_dim")?;
        let bias = to.holds(&attention.bias, false);
        let rows = heads * (nope_dim + rope_dim);
        let in_two = to.holds(&attention.q_in_two, attention.q_down.is_some());
        let q = match (&attention.q, &attention.q_down, &attention.q_norm, &attention.q_up) {
            (_, Some(down), Some(norm), Some(up)) if in_two => {
                let down = Linear::build(to, down, bias);
                let norm = Norm::build(to, norm, false);
                let up = Linear::build_sized(to, up, false, rows);
                Some(Queries::Two(down?, norm?, up?))
            }
            (Some(q), ..) if !in_two => Linear::build_sized(to, q, false, rows).map(Queries::One),
            _ => {
                to.fault("latent attention names neither q nor q_down, q_norm and q_up");
                None
            }
        };
        let kv_down = Linear::build_sized(to, &attention.kv_down, bias, rank + rope_dim);
        let kv_norm = Norm::build(to, &attention.kv_norm, false);
        let up = Up::build(to, attention, [heads, rank, nope_dim, value_dim]);
        let o = Linear::build(to, &attention.o, bias);
        let rope = Rope::build(to, &attention.rope, rope_dim);
        let slot = to.slot(LayerCache::Keys(KeyCache::new(None)));
        let (heads, rank, nope_dim) = (heads as i32, rank as i32, nope_dim as i32);
        let (Up { to_keys, to_values }, rope) = (up?, rope?);
        let scale = (f64::from(nope_dim) + rope_dim as f64).powf(-0.5) * rope.rotation.score_factor;
        let scale = to.float_or(&attention.scale, scale)? as f32;
        Some(LatentAttention {
            q: q?,
            kv_down: kv_down?,
            kv_norm: kv_norm?,
            to_keys,
            to_values,
            o: o?,
            rope,
            scores: Scores {
                scale,
                window: None,
                cap: None,
                sinks: None,
                on_cpu: to.compute.on_cpu,
            },
            slot,
            heads,
            rank,
            nope_dim,
            rope_dim: rope_dim as i32,
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
