//! Attention of queries over keys and values, `[heads, rows, width]` each.
//!
//! Queries that share keys (Ainslie et al. 2023) are worked on together, a block of positions at
//! a time: scores against just the keys that the block can see, a softmax, and the mix of values.

mod few;

use std::ops::Range;

pub use few::{mix, mix_with, scores_of};

use super::elements::exp;
use super::team::with_scratch;
use super::{Columns, Gemm, in_parallel};

/// Rows of f32 by heads. Rows of a head follow each other without gaps; heads may be apart.
/// Keys and values are given as such blocks, each the rows that follow the last one's.
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
    /// Position of the first query among the keys.
    pub first: usize,
    /// Whether query i sees keys up to `first + i` only, and not those of all queries.
    pub causal: bool,
    /// At most so many keys up to its own, itself included (Beltagy et al. 2020).
    pub window: Option<usize>,
    /// A score for each head that takes part in the softmax and has no value.
    pub sinks: Option<&'a [f32]>,
}

impl Sight<'_> {
    /// The keys that query `i` sees.
    fn of(&self, i: usize, keys: usize) -> (usize, usize) {
        let end = if self.causal { (self.first + i + 1).min(keys) } else { keys };
        (self.window.map_or(0, |window| (self.first + i + 1).saturating_sub(window)).min(end), end)
    }
}

/// Rows of a block: positions times the heads that share keys.
const BLOCK: usize = 192;

/// Rows of queries below which a BLAS has no advantage.
const MANY: usize = 12;

/// Attention: `out` `[heads of the queries, queries, width of the values]`. Keys and values lie in
/// the same number of blocks, of as many rows each.
///
/// # Panics
/// When shapes do not fit each other.
pub fn attend(
    queries: Heads,
    keys: &[Heads],
    values: &[Heads],
    sight: &Sight,
    out: &mut [f32],
    gemm: Gemm,
) {
    let blocks = Blocks::new(keys, values);
    queries.check();
    assert!(queries.heads.is_multiple_of(blocks.heads) && queries.width == blocks.width, "heads");
    assert!(sight.first + queries.rows <= blocks.rows, "positions");
    assert!(sight.sinks.is_none_or(|sinks| sinks.len() == queries.heads), "sinks");
    assert_eq!(out.len(), queries.heads * queries.rows * blocks.out_width, "out");
    let group = queries.heads / blocks.heads;
    if group * queries.rows < MANY {
        return few::attend(&queries, &blocks, sight, out);
    }
    let block = (BLOCK / group).clamp(1, 64);
    let parts = queries.rows.div_ceil(block);
    let out = Columns { start: out.as_mut_ptr(), stride: blocks.out_width };
    let work = queries.heads * queries.rows * blocks.rows * blocks.width;
    in_parallel(parts * blocks.heads, work > 64 * 1024, &|index| {
        // The longest blocks first.
        let (from, kv_head) = ((parts - 1 - index / blocks.heads) * block, index % blocks.heads);
        let to = (from + block).min(queries.rows);
        let part = Task { queries, blocks: &blocks, sight, kv_head, from, to };
        part.work(&out, gemm);
    });
}

/// Keys and values in blocks, one of each for the same rows.
struct Blocks<'a> {
    keys: &'a [Heads<'a>],
    values: &'a [Heads<'a>],
    heads: usize,
    /// Of all blocks.
    rows: usize,
    width: usize,
    out_width: usize,
}

/// Some rows of a block, which a query sees.
#[derive(Clone, Copy)]
struct Stretch<'a> {
    keys: &'a Heads<'a>,
    values: &'a Heads<'a>,
    /// The first of them among all rows.
    at: usize,
    /// The first of them in the block.
    from: usize,
    rows: usize,
}

impl<'a> Blocks<'a> {
    fn new(keys: &'a [Heads<'a>], values: &'a [Heads<'a>]) -> Blocks<'a> {
        assert!(!keys.is_empty() && keys.len() == values.len(), "blocks");
        let (heads, width, out_width) = (keys[0].heads, keys[0].width, values[0].width);
        for (keys, values) in keys.iter().zip(values) {
            keys.check();
            values.check();
            let shape = [keys.heads, keys.width, keys.rows, values.heads, values.width];
            assert_eq!(shape, [heads, width, values.rows, heads, out_width], "a block");
        }
        let rows = keys.iter().map(|keys| keys.rows).sum();
        Blocks { keys, values, heads, rows, width, out_width }
    }

    /// What rows `low..high` are in each block.
    fn stretches(&self, low: usize, high: usize) -> impl Iterator<Item = Stretch<'a>> {
        let mut start = 0;
        self.keys.iter().zip(self.values).filter_map(move |(keys, values)| {
            let (block, end) = (start, start + keys.rows);
            start = end;
            let (at, to) = (low.max(block), high.min(end));
            (at < to).then(|| Stretch { keys, values, at, from: at - block, rows: to - at })
        })
    }
}

impl<'a> Stretch<'a> {
    fn keys(&self, head: usize) -> &'a [f32] {
        self.keys.part(head, self.from, self.from + self.rows)
    }

    fn values(&self, head: usize) -> &'a [f32] {
        self.values.part(head, self.from, self.from + self.rows)
    }
}

/// The queries of a block of positions that share a head of keys.
struct Task<'a> {
    queries: Heads<'a>,
    blocks: &'a Blocks<'a>,
    sight: &'a Sight<'a>,
    kv_head: usize,
    from: usize,
    to: usize,
}

impl Task<'_> {
    fn work(&self, out: &Columns, gemm: Gemm) {
        let Task { queries, blocks, sight, kv_head, from, to } = *self;
        let group = queries.heads / blocks.heads;
        let positions = to - from;
        let rows = group * positions;
        let (low, _) = sight.of(from, blocks.rows);
        let (_, high) = sight.of(to - 1, blocks.rows);
        let seen = high - low;
        let (width, out_width) = (blocks.width, blocks.out_width);
        let stretches: Vec<Stretch> = blocks.stretches(low, high).collect();
        // Values in one piece, for the one product that mixes them.
        let gathered = if stretches.len() > 1 { seen * out_width } else { 0 };
        with_scratch(rows * (width + seen + out_width) + gathered, |scratch| {
            let (q, scratch) = scratch.split_at_mut(rows * width);
            let (scores, scratch) = scratch.split_at_mut(rows * seen);
            let (mixed, gathered) = scratch.split_at_mut(rows * out_width);
            scaled(&queries, kv_head * group, from..to, sight.scale, q);
            for stretch in &stretches {
                let (q, k) = (q.as_ptr(), stretch.keys(kv_head).as_ptr());
                // SAFETY: `q` is [rows, width], the keys [so many rows, width], and `scores`
                // [rows, seen], of which this writes the columns of these keys.
                unsafe {
                    let to = scores.as_mut_ptr().add(stretch.at - low);
                    gemm.0(rows, stretch.rows, width, q, k, true, to, seen);
                }
            }
            for (row, scores) in scores.chunks_exact_mut(seen).enumerate() {
                let (start, end) = sight.of(from + row % positions, blocks.rows);
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
            let v = match &stretches[..] {
                [one] => one.values(kv_head),
                _ => {
                    for stretch in &stretches {
                        let at = (stretch.at - low) * out_width;
                        let to = &mut gathered[at..at + stretch.rows * out_width];
                        to.copy_from_slice(stretch.values(kv_head));
                    }
                    gathered
                }
            };
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

    /// The same rows in blocks of so many.
    fn in_blocks<'a>(all: &Heads<'a>, block: usize) -> Vec<Heads<'a>> {
        let starts = (0..all.rows).step_by(block);
        let of = |from: usize| Heads {
            data: &all.data[from * all.width..],
            rows: block.min(all.rows - from),
            ..*all
        };
        starts.map(of).collect()
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
                for (causal, block) in [(true, keys), (true, 3), (true, 64), (false, 50)] {
                    let sight = Sight { scale: 0.7, cap, first: past, causal, window, sinks };
                    let (k_blocks, v_blocks) = (in_blocks(&k, block), in_blocks(&v, block));
                    let mut out = vec![f32::NAN; heads * rows * out_width];
                    attend(q, &k_blocks, &v_blocks, &sight, &mut out, Gemm(plain));
                    let wanted = slowly(&q, &k, &v, &sight);
                    for (i, (found, wanted)) in out.iter().zip(wanted).enumerate() {
                        assert!(
                            (found - wanted).abs() < 2e-5,
                            "{heads}/{kv_heads}, {rows}+{past}, {window:?}, {causal}, blocks of \
                             {block}: {i}: {found}, not {wanted}"
                        );
                    }
                }
            }
        }
    }
}
