//! Attention of queries over keys and values, `[heads, rows, width]` each.
//!
//! Queries that share keys (Ainslie et al. 2023) are worked on together, a block of positions at
//! a time: scores against just the keys that the block can see, a softmax, and the mix of values.

mod few;

use std::ops::Range;

pub use few::mix_with;

use super::elements::exp;
use super::team::with_scratch;
use super::{Columns, Gemm, in_parallel};

/// Rows of f32 by heads. Rows of a head follow each other without gaps; heads may be apart.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// From the first element to the last.
    pub data: &'a [f32],
    /// Heads.
    pub heads: usize,
    /// Rows of a head.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Elements from a head to the next.
    pub stride: usize,
}

impl<'a> Heads<'a> {
    /// Rows `from..to` of a head.
    fn part(&self, head: usize, from: usize, to: usize) -> &'a [f32] {
        &self.data[head * self.stride + from * self.width..head * self.stride + to * self.width]
    }

    fn check(&self) {
        let last = (self.heads - 1) * self.stride + self.rows * self.width;
        assert!(self.heads > 0 && self.data.len() >= last, "{self:?}");
    }
}

/// What each query sees and how.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// Multiplies scores.
    pub scale: f32,
    /// Bends scores to less than this: cap × tanh(score / cap) (Gemma 2).
    pub cap: Option<f32>,
    /// Query i sees key j up to `first + i`.
    pub first: usize,
    /// At most so many keys, the last ones.
    pub window: Option<usize>,
    /// A score for each head that takes part in the softmax and has no value.
    pub sinks: Option<&'a [f32]>,
}

impl Sight<'_> {
    /// The keys that query `i` sees.
    fn of(&self, i: usize, keys: usize) -> (usize, usize) {
        let end = (self.first + i + 1).min(keys);
        (self.window.map_or(0, |window| (self.first + i + 1).saturating_sub(window)).min(end), end)
    }
}

/// Rows of a block: positions times the heads that share keys.
const BLOCK: usize = 192;

/// Rows of queries below which a BLAS has no advantage.
const MANY: usize = 12;

/// Attention: `out` `[heads of the queries, queries, width of the values]`.
///
/// # Panics
/// When shapes do not fit each other.
pub fn attend(
    queries: Heads,
    keys: Heads,
    values: Heads,
    sight: &Sight,
    out: &mut [f32],
    gemm: Gemm,
) {
    for heads in [&queries, &keys, &values] {
        heads.check();
    }
    assert!(queries.heads.is_multiple_of(keys.heads) && keys.heads == values.heads, "heads");
    assert!(queries.width == keys.width && keys.rows == values.rows, "keys");
    assert!(sight.first + queries.rows <= keys.rows, "positions");
    assert!(sight.sinks.is_none_or(|sinks| sinks.len() == queries.heads), "sinks");
    assert_eq!(out.len(), queries.heads * queries.rows * values.width, "out");
    if queries.heads / keys.heads * queries.rows < MANY {
        return few::attend(&queries, &keys, &values, sight, out);
    }
    let block = (BLOCK / (queries.heads / keys.heads)).clamp(1, 64);
    let blocks = queries.rows.div_ceil(block);
    let out = Columns { start: out.as_mut_ptr(), stride: values.width };
    let work = queries.heads * queries.rows * keys.rows * keys.width;
    in_parallel(blocks * keys.heads, work > 64 * 1024, &|index| {
        // The longest blocks first.
        let (from, kv_head) = ((blocks - 1 - index / keys.heads) * block, index % keys.heads);
        let to = (from + block).min(queries.rows);
        let part = Part { queries, keys, values, sight, kv_head, from, to };
        part.work(&out, gemm);
    });
}

/// The queries of a block of positions that share a head of keys.
struct Part<'a> {
    queries: Heads<'a>,
    keys: Heads<'a>,
    values: Heads<'a>,
    sight: &'a Sight<'a>,
    kv_head: usize,
    from: usize,
    to: usize,
}

impl Part<'_> {
    fn work(&self, out: &Columns, gemm: Gemm) {
        let Part { queries, keys, values, sight, kv_head, from, to } = *self;
        let group = queries.heads / keys.heads;
        let positions = to - from;
        let rows = group * positions;
        let (low, _) = sight.of(from, keys.rows);
        let (_, high) = sight.of(to - 1, keys.rows);
        let seen = high - low;
        let (width, out_width) = (keys.width, values.width);
        let k = keys.part(kv_head, low, high);
        let v = values.part(kv_head, low, high);
        with_scratch(rows * (width + seen + out_width), |scratch| {
            let (q, scratch) = scratch.split_at_mut(rows * width);
            let (scores, mixed) = scratch.split_at_mut(rows * seen);
            scaled(&queries, kv_head * group, from..to, sight.scale, q);
            // SAFETY: `q` is [rows, width], `k` [seen, width], `scores` [rows, seen].
            unsafe {
                let (q, k) = (q.as_ptr(), k.as_ptr());
                gemm.0(rows, seen, width, q, k, true, scores.as_mut_ptr(), seen);
            }
            for (row, scores) in scores.chunks_exact_mut(seen).enumerate() {
                let (start, end) = sight.of(from + row % positions, keys.rows);
                let head = kv_head * group + row / positions;
                let sink = sight.sinks.map(|sinks| sinks[head]);
                scores[..start - low].fill(0.0);
                scores[end - low..].fill(0.0);
                let scores = &mut scores[start - low..end - low];
                bend(scores, sight.cap);
                let (most, sum) = exponentials(scores, sink);
                let factor = 1.0 / (sum + sink.map_or(0.0, |sink| exp(sink - most)));
                scores.iter_mut().for_each(|score| *score *= factor);
            }
            // SAFETY: `scores` is [rows, seen], `v` [seen, out_width], `mixed` [rows, out_width].
            unsafe {
                let (p, v) = (scores.as_ptr(), v.as_ptr());
                gemm.0(rows, out_width, seen, p, v, false, mixed.as_mut_ptr(), out_width);
            }
            for (row, mixed) in mixed.chunks_exact(out_width).enumerate() {
                let head = kv_head * group + row / positions;
                let to = head * queries.rows + from + row % positions;
                for (column, &value) in mixed.iter().enumerate() {
                    // SAFETY: inside [heads × queries, out_width]; no other part has this row.
                    unsafe { out.set(to, column, value) };
                }
            }
        });
    }
}

/// Some rows of the heads from one on, as many as `out` has room for, times a scale.
fn scaled(queries: &Heads, from: usize, rows: Range<usize>, scale: f32, out: &mut [f32]) {
    for (head, out) in out.chunks_exact_mut(rows.len() * queries.width).enumerate() {
        let given = queries.part(from + head, rows.start, rows.end);
        out.iter_mut().zip(given).for_each(|(out, given)| *out = given * scale);
    }
}

/// cap × tanh(score / cap) of each score.
fn bend(scores: &mut [f32], cap: Option<f32>) {
    let Some(cap) = cap else { return };
    for score in scores {
        let small = exp(-2.0 * (*score / cap).abs());
        *score = (cap * (1.0 - small) / (1.0 + small)).copysign(*score);
    }
}

/// [`exponentials_with`] with what the processor has.
fn exponentials(scores: &mut [f32], sink: Option<f32>) -> (f32, f32) {
    #[cfg(target_arch = "x86_64")]
    if super::x86::chosen() {
        // SAFETY: the instruction set is there.
        return unsafe { super::x86::exponentials(scores, sink) };
    }
    exponentials_with(scores, sink)
}

/// e^(score - most) of each, where `most` is the largest of them and of the sink; `most`, and the
/// sum of all.
#[inline(always)]
pub fn exponentials_with(scores: &mut [f32], sink: Option<f32>) -> (f32, f32) {
    let most = scores.iter().copied().fold(sink.unwrap_or(f32::NEG_INFINITY), f32::max);
    let mut sums = [0.0; 8];
    let mut chunks = scores.chunks_exact_mut(8);
    for chunk in &mut chunks {
        for i in 0..8 {
            chunk[i] = exp(chunk[i] - most);
            sums[i] += chunk[i];
        }
    }
    for (score, sum) in chunks.into_remainder().iter_mut().zip(&mut sums) {
        *score = exp(*score - most);
        *sum += *score;
    }
    (most, sums.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Random, plain};
    use super::*;

    /// By its definition, in f64.
    fn slowly(q: &Heads, k: &Heads, v: &Heads, sight: &Sight) -> Vec<f32> {
        let group = q.heads / k.heads;
        let mut out = Vec::new();
        for head in 0..q.heads {
            for i in 0..q.rows {
                let query = q.part(head, i, i + 1);
                let (start, end) = sight.of(i, k.rows);
                let dot = |a: &[f32], b: &[f32]| {
                    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
                };
                let scores = (start..end).map(|j| dot(query, k.part(head / group, j, j + 1)));
                let scores = scores.map(|s| s * f64::from(sight.scale));
                let bend = |s: f64| match sight.cap.map(f64::from) {
                    Some(cap) => cap * (s / cap).tanh(),
                    None => s,
                };
                let weights: Vec<f64> = scores.map(|s| bend(s).exp()).collect();
                let sink = sight.sinks.map_or(0.0, |sinks| f64::from(sinks[head]).exp());
                let sum = weights.iter().sum::<f64>() + sink;
                out.extend((0..v.width).map(|column| {
                    let terms = weights.iter().zip(start..end);
                    let mixed =
                        terms.map(|(w, j)| w * f64::from(v.part(head / group, j, j + 1)[column]));
                    (mixed.sum::<f64>() / sum) as f32
                }));
            }
        }
        out
    }

    #[test]
    fn attention_is_what_it_is_defined_to_be() {
        let mut random = Random(5);
        for (heads, kv_heads, rows, past, width, out_width) in [
            (6, 2, 1, 9, 16, 16),
            (4, 4, 3, 0, 8, 24),
            (6, 3, 150, 20, 16, 16),
            (2, 1, 70, 0, 7, 5),
            (4, 2, 2, 9, 64, 75),
            // Few queries and many keys: several threads for one head.
            (9, 3, 1, 480, 64, 64),
            (4, 2, 3, 300, 16, 12),
        ] {
            let keys = rows + past;
            // Heads of keys are apart, as in a cache with room.
            let (k_stride, v_stride) = ((keys + 3) * width, (keys + 5) * out_width);
            let mut floats =
                |count: usize| (0..count).map(|_| random.float()).collect::<Vec<f32>>();
            let data = (
                floats(heads * rows * width),
                floats(kv_heads * k_stride),
                floats(kv_heads * v_stride),
            );
            let q = Heads { data: &data.0, heads, rows, width, stride: rows * width };
            let k = Heads { data: &data.1, heads: kv_heads, rows: keys, width, stride: k_stride };
            let v = Heads {
                data: &data.2,
                heads: kv_heads,
                rows: keys,
                width: out_width,
                stride: v_stride,
            };
            let sinks = floats(heads);
            for (window, sinks, cap) in [
                (None, None, None),
                (Some(8), None, None),
                (Some(1), None, Some(0.5)),
                (None, Some(&sinks[..]), None),
                (Some(90), Some(&sinks[..]), Some(2.0)),
                (Some(300), None, None),
                (None, None, Some(1.0)),
            ] {
                let sight = Sight { scale: 0.7, cap, first: past, window, sinks };
                let mut out = vec![f32::NAN; heads * rows * out_width];
                attend(q, k, v, &sight, &mut out, Gemm(plain));
                for (i, (found, wanted)) in out.iter().zip(slowly(&q, &k, &v, &sight)).enumerate() {
                    assert!(
                        (found - wanted).abs() < 2e-5,
                        "{heads}/{kv_heads}, {rows}+{past}, {window:?}: {i}: {found}, not {wanted}"
                    );
                }
            }
        }
    }
}
