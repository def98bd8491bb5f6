//! What is done with each element or row between products: norms, rotations, gates, sums.
//!
//! What is smaller than a bound on the way becomes zero, so that nothing is subnormal.

mod functions;
mod gates;
mod heads;
mod norms;
mod sums;

pub use functions::{exp, sigmoid, silu};
pub use gates::{Gate, clamped_gate, soft_cap};
pub use heads::{Angles, RowNorm, Strided, heads};
pub use norms::{layer_norm, rms_norm};
pub use sums::{add_all, add_bias, multiply_rows, scale, scale_rows};

use crate::codec::Eight;
use crate::vectorized::at_least;
use crate::{Columns, in_parallel};

/// Elements from which on several threads share the work.
const MANY: usize = 64 * 1024;

/// The sum over all elements, in eight parts.
#[inline(always)]
pub fn sum(x: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut sums: Eight = [0.0; 8];
    let chunks = x.chunks_exact(8);
    for (sum, &x) in sums.iter_mut().zip(chunks.remainder()) {
        *sum += of(x);
    }
    for chunk in chunks {
        for (sum, &x) in sums.iter_mut().zip(chunk) {
            *sum += of(x);
        }
    }
    sums.iter().sum()
}

/// The sum of squares, those aside that are nothing beside what is added to their mean.
#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f32 {
    sum(x, |x| x * at_least(1.0 / (1_u64 << 51) as f32, x))
}

/// Calls `work` with each row of `out` `[rows, width]`.
fn by_rows(out: &mut [f32], width: usize, work: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    by_rows_of(out, width, out.len(), work);
}

/// The same where the rows are made of so many elements.
pub fn by_rows_of(
    out: &mut [f32],
    width: usize,
    elements: usize,
    work: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    let rows = out.len() / width;
    // Some rows at a time, so that a piece is worth taking.
    let together = (MANY / 4 * rows / elements.max(1)).max(1);
    let out = Columns { start: out.as_mut_ptr(), stride: width };
    in_parallel(rows.div_ceil(together), elements >= MANY, &|piece| {
        for row in piece * together..((piece + 1) * together).min(rows) {
            // SAFETY: a row of `out`, which no other piece has.
            let out = unsafe { std::slice::from_raw_parts_mut(out.below(row).at(0), width) };
            work(row, out);
        }
    });
}

/// Calls `work` with parts of `x`, each short enough to share, and where they begin.
fn by_parts(x: &mut [f32], work: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    let part = MANY / 4;
    let whole = x.len() - x.len() % part;
    let (parts, rest) = x.split_at_mut(whole);
    by_rows(parts, part, &|row, x| work(row * part, x));
    if !rest.is_empty() {
        work(whole, rest);
    }
}
