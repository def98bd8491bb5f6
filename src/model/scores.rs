//! Scores of queries with keys, and what is mixed of values by them: a sliding window, a soft cap
//! (Gemma 2), sinks (gpt-oss).

use mlx_rs::fast::{ScaledDotProductAttentionMask as Mask, scaled_dot_product_attention};
use mlx_rs::ops::{concatenate, select, softmax_axis};
use mlx_rs::{Array, Dtype};

use super::batch::Pass;
use super::native::{self, Seeing};
use super::ops::{Result, last_axis, soft_cap, times};
use crate::cache::keys::Seen;

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
    /// Whether lathe's own kernels do it.
    pub on_cpu: bool,
}

impl Scores {
    /// Attention of one row: queries `[1, heads, tokens, dim]`, the first at `position`.
    pub fn attend(
        &self,
        queries: &Array,
        seen: &Seen,
        position: usize,
        pass: &mut Pass,
    ) -> Result<Array> {
        let (tokens, keys) = (queries.dim(2) as usize, seen.keys.dim(2) as usize);
        // The last token sees the first key, and so every key up to itself: causal is enough.
        let whole = self.window.is_none_or(|window| position + tokens - 1 - seen.start < window);
        if self.cap.is_some() {
            return self.attend_capped(queries, seen, position, pass);
        }
        let arrays = [queries, &seen.keys, &seen.values];
        let singles = arrays.iter().all(|array| array.dtype() == Dtype::Float32);
        if self.on_cpu && singles && self.sinks.is_none() {
            let first = position - seen.start;
            let seeing = Seeing { scale: self.scale, first, window: self.window };
            return native::attention(arrays, seeing);
        }
        let array;
        let mask = match (tokens, whole) {
            (1, _) => None,
            (_, true) => Some(Mask::Causal),
            (_, false) => {
                array = pass.mask(position, tokens, seen.start, keys, self.window)?;
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
        position: usize,
        pass: &mut Pass,
    ) -> Result<Array> {
        let (heads, tokens, dim) = (queries.dim(1), queries.dim(2), queries.dim(3));
        let (kv_heads, keys) = (seen.keys.dim(1), seen.keys.dim(2));
        let grouped = queries.reshape(&[1, kv_heads, heads / kv_heads * tokens, dim])?;
        let scores = times(&grouped, self.scale)?.matmul(seen.keys.swap_axes(-1, -2)?)?;
        let mut scores = scores.reshape(&[1, heads, tokens, keys])?;
        if let Some(cap) = self.cap {
            scores = soft_cap(&scores, cap)?;
        }
        if tokens > 1 {
            let mask =
                pass.mask(position, tokens as usize, seen.start, keys as usize, self.window)?;
            let never = Array::from_f32(f32::NEG_INFINITY).as_dtype(scores.dtype())?;
            scores = select(&mask, &scores, &never)?;
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
