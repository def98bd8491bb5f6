//! The short causal convolution over time, one filter for each channel.

use std::ops::Range;

use super::Band;
use crate::elements::silu;
use crate::vectorized::vectorized;
use crate::{Columns, in_parallel};

/// A filter for each channel, over a token and those before it.
#[derive(Clone, Copy, Debug)]
pub struct Conv<'a> {
    /// Tokens of a filter, 1 to 8.
    pub kernel: usize,
    /// `[kernel, channels]`, what the oldest token is multiplied with first.
    pub weight: &'a [f32],
    /// `[channels]`.
    pub bias: Option<&'a [f32]>,
    /// Whether x × sigmoid(x) is applied to the sums.
    pub silu: bool,
}

/// Channels of a piece of work: rows of them stay in the first cache.
const WIDE: usize = 512;

/// Tokens of a piece of work.
const LONG: usize = 64;

static ZEROS: [f32; WIDE] = [0.0; WIDE];

/// `out` `[tokens, channels]`: bias + Σ weight[j] × x[token - kernel + 1 + j], where `before`
/// `[kernel - 1, channels]` comes before the first token of `x`: zeros when a sequence begins. Then
/// `before` is what comes before the next token.
///
/// # Panics
/// When lengths do not fit each other, or the kernel is longer than 8.
pub fn conv(conv: &Conv, x: Band, before: &mut [f32], out: &mut [f32]) {
    let (tokens, channels, kept) = (x.rows(), x.width(), conv.kernel.saturating_sub(1));
    assert!((1..=8).contains(&conv.kernel), "a kernel of {}", conv.kernel);
    assert_eq!(conv.weight.len(), conv.kernel * channels, "weight");
    assert!(conv.bias.is_none_or(|bias| bias.len() == channels), "bias");
    assert_eq!(before.len(), kept * channels, "before");
    assert_eq!(out.len(), tokens * channels, "out");
    let across = channels.div_ceil(WIDE);
    let to = Columns { start: out.as_mut_ptr(), stride: channels };
    let past = &*before;
    in_parallel(across * tokens.div_ceil(LONG), out.len() >= 16 * 1024, &|piece| {
        let (token, channel) = (piece / across * LONG, piece % across * WIDE);
        let tokens = token..(token + LONG).min(tokens);
        let channels = channel..(channel + WIDE).min(channels);
        block(conv, x, past, tokens, channels, to);
    });
    if tokens >= kept {
        for (row, before) in before.chunks_exact_mut(channels.max(1)).enumerate() {
            before.copy_from_slice(x.row(tokens - kept + row));
        }
    } else {
        before.copy_within(tokens * channels.., 0);
        let newest = before[(kept - tokens) * channels..].chunks_exact_mut(channels.max(1));
        newest.enumerate().for_each(|(row, before)| before.copy_from_slice(x.row(row)));
    }
}

vectorized! {
    /// Some channels of some tokens of `out`, which no other thread writes.
    fn block(
        conv: &Conv,
        x: Band,
        before: &[f32],
        tokens: Range<usize>,
        channels: Range<usize>,
        out: Columns,
    ) {
        match conv.kernel {
            1 => block_of::<1>(conv, x, before, tokens, channels, out),
            2 => block_of::<2>(conv, x, before, tokens, channels, out),
            3 => block_of::<3>(conv, x, before, tokens, channels, out),
            4 => block_of::<4>(conv, x, before, tokens, channels, out),
            5 => block_of::<5>(conv, x, before, tokens, channels, out),
            6 => block_of::<6>(conv, x, before, tokens, channels, out),
            7 => block_of::<7>(conv, x, before, tokens, channels, out),
            _ => block_of::<8>(conv, x, before, tokens, channels, out),
        }
    }
}

#[inline(always)]
fn block_of<const K: usize>(
    conv: &Conv,
    x: Band,
    before: &[f32],
    tokens: Range<usize>,
    channels: Range<usize>,
    out: Columns,
) {
    let (all, count) = (x.width(), channels.len());
    let weights: [&[f32]; K] =
        std::array::from_fn(|tap| &conv.weight[tap * all + channels.start..][..count]);
    let bias = conv.bias.map_or(&ZEROS[..count], |bias| &bias[channels.start..][..count]);
    for token in tokens {
        let rows: [&[f32]; K] = std::array::from_fn(|tap| match (token + tap).checked_sub(K - 1) {
            Some(row) => &x.row(row)[channels.start..][..count],
            None => &before[(token + tap) * all + channels.start..][..count],
        });
        // SAFETY: the piece's own part of this row, which is inside.
        let out =
            unsafe { std::slice::from_raw_parts_mut(out.below(token).at(channels.start), count) };
        for (channel, out) in out.iter_mut().enumerate() {
            let mut sum = bias[channel];
            for tap in 0..K {
                sum += weights[tap][channel] * rows[tap][channel];
            }
            *out = sum;
        }
        if conv.silu {
            out.iter_mut().for_each(|x| *x = silu(*x));
        }
    }
}
