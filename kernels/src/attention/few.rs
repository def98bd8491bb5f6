//! Attention of few queries, those of one token mostly: reading keys and values is all there is to
//! it, so all threads read, each some of the keys, and what they find is put together (Dao et al.
//! 2023, "Flash-Decoding").

use super::super::codec::Eight;
use super::super::elements::exp;
use super::super::rows::{Isa, Portable, Rows};
use super::super::team::{threads, with_scratch};
use super::super::{AHEAD, Columns, Form, Matrix, in_parallel};
use super::{Blocks, Heads, Sight, Stretch, exponentials, scaled};

/// Keys that are worth a piece of their own, at least.
const LEAST: usize = 64;

/// As [`super::attend`], which has checked what is given.
pub fn attend(queries: &Heads, blocks: &Blocks, sight: &Sight, out: &mut [f32]) {
    let group = queries.heads / blocks.heads;
    let rows = group * queries.rows;
    let (low, _) = sight.of(0, blocks.rows);
    let (_, high) = sight.of(queries.rows - 1, blocks.rows);
    let parts = parts(blocks, low, high);
    let (width, out_width) = (queries.width, blocks.out_width);
    // Of each head of keys and part: the largest score and the sum of each row, and what is mixed.
    let size = rows * (2 + out_width);
    let mut found = vec![0.0; blocks.heads * parts.len() * size];
    let all = Columns { start: found.as_mut_ptr(), stride: 0 };
    let work = rows * (high - low) * width * blocks.heads;
    in_parallel(blocks.heads * parts.len(), work > 32 * 1024, &|index| {
        let (head, part) = (index / parts.len(), parts[index % parts.len()]);
        let (from, to) = (part.at, part.at + part.rows);
        // SAFETY: `found` has `size` elements for each index, which no other piece has.
        let found = unsafe { std::slice::from_raw_parts_mut(all.at(index * size), size) };
        let (ends, mixed) = found.split_at_mut(2 * rows);
        with_scratch(rows * (width + part.rows), |scratch| {
            let (q, scores) = scratch.split_at_mut(rows * width);
            scaled(queries, head * group, 0..queries.rows, sight.scale, q);
            scores_of(q, part.keys(head), width, scores);
            let by_row = scores.chunks_exact_mut(part.rows).zip(ends.chunks_exact_mut(2));
            for (row, (scores, ends)) in by_row.enumerate() {
                let (start, end) = sight.of(row % queries.rows, blocks.rows);
                let (start, end) = (start.clamp(from, to) - from, end.clamp(from, to) - from);
                scores[..start].fill(0.0);
                scores[end..].fill(0.0);
                super::bend(&mut scores[start..end], sight.cap);
                let (most, sum) = exponentials(&mut scores[start..end], None);
                ends.copy_from_slice(&[most, sum]);
            }
            mix(scores, part.values(head), rows, mixed);
        });
    });
    let parts = parts.len();
    for (index, out) in out.chunks_exact_mut(out_width).enumerate() {
        let (query_head, row) = (index / queries.rows, index % queries.rows);
        let (head, row) = (query_head / group, query_head % group * queries.rows + row);
        let part = |part: usize| &found[(head * parts + part) * size..][..size];
        let sink = sight.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[query_head]);
        let most = (0..parts).map(|i| part(i)[2 * row]).fold(sink, f32::max);
        let shares = (0..parts).map(|i| exp(part(i)[2 * row] - most));
        let sums = shares.clone().enumerate().map(|(i, share)| share * part(i)[2 * row + 1]);
        let factor = 1.0 / (sums.sum::<f32>() + exp(sink - most));
        out.fill(0.0);
        for (i, share) in shares.enumerate() {
            let mixed = &part(i)[2 * rows + row * out_width..][..out_width];
            let share = share * factor;
            out.iter_mut().zip(mixed).for_each(|(out, mixed)| *out += share * mixed);
        }
    }
}

/// Rows `low..high`, in parts that lie in one block each: the blocks' own where they are enough for
/// all threads.
fn parts<'a>(blocks: &Blocks<'a>, low: usize, high: usize) -> Vec<Stretch<'a>> {
    let whole: Vec<Stretch> = blocks.stretches(low, high).collect();
    let wanted = if blocks.heads >= 4 * threads() { 1 } else { threads() };
    let cut = |stretch: Stretch<'a>| {
        let pieces = wanted.div_ceil(whole.len()).min(stretch.rows / LEAST).max(1);
        let bound = move |piece: usize| stretch.rows * piece / pieces;
        (0..pieces).map(move |piece| Stretch {
            at: stretch.at + bound(piece),
            from: stretch.from + bound(piece),
            rows: bound(piece + 1) - bound(piece),
            ..stretch
        })
    };
    whole.iter().copied().flat_map(cut).collect()
}

/// Products of rows of queries with all keys, `[rows, keys]`.
pub fn scores_of(q: &[f32], k: &[f32], width: usize, scores: &mut [f32]) {
    let seen = k.len() / width;
    // SAFETY: floats are bytes.
    let bytes = unsafe { std::slice::from_raw_parts(k.as_ptr().cast(), size_of_val(k)) };
    let matrix = Matrix {
        form: Form::F32,
        rows: seen,
        columns: width,
        weight: bytes,
        scales: &[],
        biases: &[],
        factor: 1.0,
    };
    assert_eq!(scores.len(), q.len() / width * seen, "scores");
    let out = Columns { start: scores.as_mut_ptr(), stride: seen };
    // SAFETY: as long as it must be, and lent to this alone.
    unsafe { Rows::new(q, width, Form::F32).product(&matrix, out, 0) };
}

/// Sums of rows of values by so many rows of weights.
pub fn mix(weights: &[f32], values: &[f32], rows: usize, out: &mut [f32]) {
    assert_eq!(values.len() * rows * rows, weights.len() * out.len(), "values");
    assert!(weights.len().is_multiple_of(rows) && out.len().is_multiple_of(rows), "rows");
    #[cfg(target_arch = "x86_64")]
    if super::super::x86::chosen() {
        // SAFETY: the instruction set is there, and lengths are checked.
        return unsafe { super::super::x86::mix(weights, values, rows, out) };
    }
    // SAFETY: needs nothing, and lengths are checked.
    unsafe { mix_with::<Portable>(weights, values, rows, out) }
}

/// [`mix`] with an instruction set. Three rows at a time share what is read of the values.
///
/// # Safety
/// It must be there, and with n weights and m elements of `out` for each of the rows `values` be
/// `[n, m]`.
#[inline(always)]
pub unsafe fn mix_with<I: Isa>(weights: &[f32], values: &[f32], rows: usize, out: &mut [f32]) {
    let (seen, width) = (weights.len() / rows, out.len() / rows);
    for row in (0..rows).step_by(3) {
        let count = (rows - row).min(3);
        let weights = &weights[row * seen..(row + count) * seen];
        let out = &mut out[row * width..(row + count) * width];
        // SAFETY: as the caller says, and there are so many rows.
        unsafe {
            match count {
                1 => mix_rows::<I, 1>(weights, values, out),
                2 => mix_rows::<I, 2>(weights, values, out),
                _ => mix_rows::<I, 3>(weights, values, out),
            }
        }
    }
}

/// R rows.
///
/// # Safety
/// As [`mix_with`].
#[inline(always)]
unsafe fn mix_rows<I: Isa, const R: usize>(weights: &[f32], values: &[f32], out: &mut [f32]) {
    let (seen, width) = (weights.len() / R, out.len() / R);
    let mut column = 0;
    // SAFETY: as the caller says; each call has so many columns.
    unsafe {
        while column + 32 <= width {
            mix_columns::<I, R, 4>(weights, values, out, column);
            column += 32;
        }
        while column + 8 <= width {
            mix_columns::<I, R, 1>(weights, values, out, column);
            column += 8;
        }
    }
    for row in 0..R {
        let weights = &weights[row * seen..(row + 1) * seen];
        for column in column..width {
            let column_of = |key: usize| values[key * width + column];
            out[row * width + column] =
                weights.iter().enumerate().map(|(key, weight)| weight * column_of(key)).sum();
        }
    }
}

/// N times eight columns of R rows, whose sums stay in registers.
///
/// # Safety
/// As [`mix_with`], and so many columns from `column` on.
#[expect(clippy::needless_range_loop, reason = "iterators keep the vectors out of registers")]
#[inline(always)]
unsafe fn mix_columns<I: Isa, const R: usize, const N: usize>(
    weights: &[f32],
    values: &[f32],
    out: &mut [f32],
    column: usize,
) {
    let (seen, width) = (weights.len() / R, out.len() / R);
    // SAFETY: as the caller says.
    unsafe {
        let mut sums = [[I::all(0.0); N]; R];
        let mut from = values.as_ptr().wrapping_add(column);
        for key in 0..seen {
            let mut parts = [I::all(0.0); N];
            let ahead = from.cast::<u8>().wrapping_add(AHEAD);
            for line in (0..N * size_of::<Eight>()).step_by(64) {
                I::fetch(ahead.wrapping_add(line));
            }
            for i in 0..N {
                parts[i] = I::load(&*from.wrapping_add(8 * i).cast::<Eight>());
            }
            for row in 0..R {
                let weight = I::all(*weights.get_unchecked(row * seen + key));
                for i in 0..N {
                    sums[row][i] = I::fused(weight, parts[i], sums[row][i]);
                }
            }
            from = from.wrapping_add(width);
        }
        for row in 0..R {
            for i in 0..N {
                let to = out.as_mut_ptr().add(row * width + column + 8 * i);
                I::store(sums[row][i], &mut *to.cast::<Eight>());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::Random;
    use super::*;

    #[test]
    fn values_are_mixed_alike_on_any_processor() {
        let mut random = Random(6);
        for width in [5, 8, 64, 139] {
            for rows in 1..6 {
                let weights: Vec<f32> = (0..rows * 33).map(|_| random.float()).collect();
                let values: Vec<f32> = (0..33 * width).map(|_| random.float()).collect();
                let (mut fast, mut portable) =
                    (vec![f32::NAN; rows * width], vec![f32::NAN; rows * width]);
                mix(&weights, &values, rows, &mut fast);
                // SAFETY: needs nothing, and lengths fit.
                unsafe { mix_with::<Portable>(&weights, &values, rows, &mut portable) };
                for (a, b) in fast.iter().zip(&portable) {
                    assert!((a - b).abs() < 1e-5, "{rows} of {width}: {fast:?} {portable:?}");
                }
            }
        }
    }
}
