//! Scores of queries with keys, and what is mixed of values by them: a sliding window, a soft cap
//! (Gemma 2), sinks (gpt-oss).

use mlx_rs::Array;
use mlx_rs::fast::{ScaledDotProductAttentionMask as Mask, scaled_dot_product_attention};
use mlx_rs::ops::{concatenate, select, softmax_axis};

use super::cache::Seen;
use super::ops::{Result, last_axis, soft_cap, times};
use super::walk::{Sight, Walk};
use crate::model::pass::{Sees, Stretch};

/// How scores are made and used.
#[derive(Clone, Debug)]
pub struct Scores {
    /// Multiplies them.
    pub scale: f32,
    /// A token sees so many, itself included.
    pub window: Option<usize>,
    /// Soft cap.
    pub cap: Option<f32>,
    /// A learned score per head, `[heads]`.
    pub sinks: Option<Array>,
}

impl Scores {
    /// Attention of one span: queries `[1, heads, tokens, dim]` to the same of what is mixed of the
    /// values.
    pub fn attend(
        &self,
        queries: &Array,
        seen: &Seen,
        span: &Stretch,
        walk: &mut Walk,
    ) -> Result<Array> {
        let tokens = span.place.tokens;
        let first = span.place.position - seen.start;
        // Whether the last token sees the first key, and so all of them every key before itself.
        let all = self.window.is_none_or(|window| first + tokens <= window);
        let causal = tokens > 1 && span.sees == Sees::Causal;
        let window = self.window.filter(|_| !all && tokens > 1);
        let sight = Sight { first, tokens, keys: seen.keys.dim(2) as usize, causal, window };
        if let Some(cap) = self.cap {
            return self.attend_capped(queries, seen, sight, cap, walk);
        }
        let array;
        let mask = match (causal, window) {
            (false, None) => None,
            (true, None) => Some(Mask::Causal),
            _ => {
                array = walk.mask(sight)?;
                Some(Mask::Array(&array))
            }
        };
        let sinks = self.sinks.as_ref();
        scaled_dot_product_attention(queries, &seen.keys, &seen.values, self.scale, mask, sinks)
    }

    /// The same with a soft cap, which the fused operation lacks.
    fn attend_capped(
        &self,
        queries: &Array,
        seen: &Seen,
        sight: Sight,
        cap: f32,
        walk: &mut Walk,
    ) -> Result<Array> {
        let (heads, tokens, dim) = (queries.dim(1), queries.dim(2), queries.dim(3));
        let (kv_heads, keys) = (seen.keys.dim(1), seen.keys.dim(2));
        let grouped = queries.reshape(&[1, kv_heads, heads / kv_heads * tokens, dim])?;
        let scores = times(&grouped, self.scale)?.matmul(seen.keys.swap_axes(-1, -2)?)?;
        let mut scores = soft_cap(&scores.reshape(&[1, heads, tokens, keys])?, cap)?;
        if sight.causal || sight.window.is_some() {
            let never = Array::from_f32(f32::NEG_INFINITY).as_dtype(scores.dtype())?;
            scores = select(walk.mask(sight)?, &scores, &never)?;
        }
        if let Some(sinks) = &self.sinks {
            let sinks = sinks.as_dtype(scores.dtype())?.reshape(&[1, heads, 1, 1])?;
            let sinks = mlx_rs::ops::broadcast_to(&sinks, &[1, heads, tokens, 1])?;
            scores = concatenate(&[scores, sinks], -1)?;
        }
        let weights = last_axis(&softmax_axis(&scores, -1, true)?, 0, keys)?;
        let weights = weights.reshape(&[1, kv_heads, heads / kv_heads * tokens, keys])?;
        let out = weights.matmul(&seen.values)?;
        out.reshape(&[1, heads, tokens, seen.values.dim(3)])
    }
}
