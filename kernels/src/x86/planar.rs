//! Dot products with rows whose elements are decoded a plane at a time.
//!
//! Eight words hold a block, such as 64 elements of 4 bits or 32 of 8. The k-th element of each
//! word is a plane, which a mask decodes at once ([`super::blocks`]); `x` is put in the order of
//! planes beforehand ([`arrange`]). Groups smaller than a block are lanes with a scale of their own
//! ([`super::scales`]). Four rows of a matrix share what is read of a single `x`.

use std::arch::x86_64::*;

use super::Avx2;
use super::blocks::Block;
use super::scales::{All, Halves, Lanes, Power, Powers, Quarters, Stored, Unscaled};
use super::wide::Pair;
use crate::codec::{Bf16, F16, F32, Fp4, Fp8, Scale, Single, Whole};
use crate::rows::{Isa, Target};
use crate::{AHEAD, Form, Instructions, Matrix, Scales};

/// What is done with a form, for its blocks and scales.
trait Visit: Sized {
    type Out;
    /// `together` blocks, at most, share their scales.
    fn visit<B: Block, S: Lanes>(self, together: usize) -> Self::Out;
    /// [`Visit::visit`] where there are pairs too.
    fn pairs<B: Pair, S: Lanes>(self, together: usize) -> Self::Out {
        self.visit::<B, S>(together)
    }

    /// `None` where products with such a matrix are made otherwise.
    fn form(self, form: Form) -> Option<Self::Out> {
        match form {
            Form::F32 => Some(self.visit::<F32, Unscaled>(usize::MAX)),
            Form::F16 => Some(self.visit::<F16, Unscaled>(usize::MAX)),
            Form::Bf16 => Some(self.visit::<Bf16, Unscaled>(usize::MAX)),
            Form::Mxfp4 => Some(self.pairs::<Fp4, Powers>(1)),
            // Bytes are read as fast by vectors of 256 bits, and faster from memory.
            Form::Mxfp8 => Some(self.visit::<Fp8, Power>(1)),
            Form::Nvfp4 => Some(self.pairs::<Fp4, Quarters>(1)),
            Form::Affine { bits, group, scales: Scales::F32 } => self.affine::<Single>(bits, group),
            Form::Affine { bits, group, scales: Scales::Bf16 } => self.affine::<Bf16>(bits, group),
        }
    }

    fn affine<S: Stored>(self, bits: u8, group: usize) -> Option<Self::Out> {
        match bits {
            2 => self.whole::<2, S>(group),
            3 => self.whole::<3, S>(group),
            4 => self.whole::<4, S>(group),
            5 => self.whole::<5, S>(group),
            6 => self.whole::<6, S>(group),
            _ => self.whole::<8, S>(group),
        }
    }

    fn whole<const BITS: usize, S: Stored>(self, group: usize) -> Option<Self::Out> {
        let block = Whole::<BITS>::ELEMENTS;
        if BITS == 8 && group.is_multiple_of(block) {
            Some(self.visit::<Whole<BITS>, All<S>>(group / block))
        } else if group.is_multiple_of(block) {
            Some(self.pairs::<Whole<BITS>, All<S>>(group / block))
        } else if BITS == 4 && 2 * group == block {
            Some(self.pairs::<Whole<BITS>, Halves<S>>(1))
        } else {
            None
        }
    }
}

/// Where `x` is less, it is zero: made as much smaller as some elements are larger, it would be
/// subnormal.
const LEAST: f32 = f32::MIN_POSITIVE * (1 << 28) as f32;

/// `x` in the order of planes, from an element on; `None` where products with such a matrix are
/// made otherwise.
pub fn arrange(x: &[f32], columns: usize, form: Form) -> Option<(Vec<f32>, usize)> {
    if super::chosen() { Arrange { x, columns }.form(form).flatten() } else { None }
}

struct Arrange<'a> {
    x: &'a [f32],
    columns: usize,
}

impl Visit for Arrange<'_> {
    type Out = Option<(Vec<f32>, usize)>;

    fn visit<B: Block, S: Lanes>(self, _: usize) -> Self::Out {
        if !self.columns.is_multiple_of(B::ELEMENTS) {
            return None;
        }
        let mut places = [(0, 0.0); 64];
        for (i, place) in places[..B::ELEMENTS].iter_mut().enumerate() {
            let (element, larger) = B::place(i / 8, i % 8);
            *place = (element, 1.0 / larger);
        }
        let blocks = self.x.chunks_exact(B::ELEMENTS);
        // A vector that lies across two lines of a cache is read twice.
        let mut arranged = vec![0.0; blocks.len() * B::ELEMENTS + 8];
        let start = arranged.as_ptr().align_offset(32).min(8);
        arranged.truncate(start + blocks.len() * B::ELEMENTS);
        for (from, to) in blocks.zip(arranged[start..].chunks_exact_mut(B::ELEMENTS)) {
            for (to, &(element, factor)) in to.iter_mut().zip(&places) {
                let x = from[element];
                *to = if x.abs() < LEAST { 0.0 } else { x * factor };
            }
        }
        Some((arranged, start))
    }
}

/// At most four rows of arranged `x` times the rows of a matrix, each to its place.
///
/// # Safety
/// `x` is [`arrange`]d for the matrix, whose lengths are checked, and `sums` are those of its
/// groups where it has biases; AVX2, FMA and F16C.
pub unsafe fn product(x: &[f32], sums: &[f32], matrix: &Matrix, to: Target) {
    Product { x, sums, matrix, to }.form(matrix.form);
}

/// Only [`product`] makes one, whose caller has promised what it needs.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    pub x: &'a [f32],
    pub sums: &'a [f32],
    pub matrix: &'a Matrix<'a>,
    pub to: Target,
}

impl Visit for Product<'_> {
    type Out = ();

    fn pairs<B: Pair, S: Lanes>(self, together: usize) {
        if Instructions::chosen() != Instructions::Avx512 {
            return self.visit::<B, S>(together);
        }
        let shape = Shape::new::<B>(self.matrix, together);
        // SAFETY: as the type says, and they are chosen.
        unsafe {
            match self.x.len() / (shape.blocks * B::ELEMENTS) {
                1 => self.in_pairs::<2, 1, 2, B, S>(shape),
                2 => self.in_pairs::<2, 2, 2, B, S>(shape),
                3 => self.in_pairs::<1, 3, 2, B, S>(shape),
                _ => self.in_pairs::<1, 4, 2, B, S>(shape),
            }
        }
    }

    fn visit<B: Block, S: Lanes>(self, together: usize) {
        let shape = Shape::new::<B>(self.matrix, together);
        let arranged = shape.blocks * B::ELEMENTS;
        // SAFETY: as the type says.
        unsafe {
            match self.x.len() / arranged {
                1 => self.rows::<4, 1, 1, B, S>(shape),
                2 => self.rows::<1, 2, 2, B, S>(shape),
                3 => self.rows::<1, 3, 2, B, S>(shape),
                _ => self.rows::<1, 4, 2, B, S>(shape),
            }
        }
    }
}

/// Of a row.
#[derive(Clone, Copy)]
pub struct Shape {
    pub blocks: usize,
    /// Blocks that share scales.
    pub together: usize,
    /// How often there are scales for so many.
    pub scales: usize,
}

impl Shape {
    fn new<B: Block>(matrix: &Matrix, together: usize) -> Shape {
        let blocks = matrix.columns / B::ELEMENTS;
        let together = together.min(blocks);
        Shape { blocks, together, scales: blocks / together }
    }
}

/// [`step`] for each plane of a block.
macro_rules! steps {
    ($arguments:tt $($plane:literal)+) => {$(
        if $plane < B::PLANES {
            step::<M, N, C, $plane, B> $arguments;
        }
    )+};
}

impl Product<'_> {
    /// All rows of the matrix, M at a time, times N rows of `x`, in C sums that do not wait for each
    /// other.
    ///
    /// # Safety
    /// AVX2, FMA and F16C, and there are so many rows of `x`.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn rows<const M: usize, const N: usize, const C: usize, B: Block, S: Lanes>(
        self,
        shape: Shape,
    ) {
        let rows = self.matrix.rows;
        // SAFETY: as the caller says, and these are rows of the matrix.
        unsafe {
            for row in (0..rows - rows % M).step_by(M) {
                self.some::<M, N, C, B, S>(row, &shape);
            }
            for row in rows - rows % M..rows {
                self.some::<1, N, C, B, S>(row, &shape);
            }
        }
    }

    /// M rows from `row` on.
    ///
    /// # Safety
    /// As [`Product::rows`], and these are rows of the matrix.
    #[expect(clippy::needless_range_loop, reason = "iterators keep the vectors out of registers")]
    #[inline(always)]
    pub unsafe fn some<const M: usize, const N: usize, const C: usize, B: Block, S: Lanes>(
        &self,
        row: usize,
        shape: &Shape,
    ) {
        let Product { x, sums, matrix, to } = self;
        let (arranged, row_bytes) = (shape.blocks * B::ELEMENTS, shape.blocks * B::BYTES);
        let row_scales = shape.scales * S::BYTES;
        let groups = sums.len() / N;
        // SAFETY: a row has so many blocks, scales for each `together`, and biases for each group;
        // N rows of `x` have as many elements, and of `sums` as many groups.
        unsafe {
            let mut weights = matrix.weight.as_ptr().add(row * row_bytes);
            let mut scales = matrix.scales.as_ptr().add(row * row_scales);
            // Of the M rows that come so much later, in the order of these.
            let mut ahead = weights.wrapping_add(AHEAD.next_multiple_of(M * row_bytes));
            let mut x = x.as_ptr();
            let mut totals = [[_mm256_setzero_ps(); N]; M];
            for _ in 0..shape.scales {
                let mut chains = [[[_mm256_setzero_ps(); C]; N]; M];
                for _ in 0..shape.together {
                    let mut words = [B::words(weights); M];
                    for j in 0..M {
                        words[j] = B::words(weights.add(j * row_bytes));
                    }
                    for line in 0..(M * B::BYTES).div_ceil(64) {
                        Avx2::fetch(ahead.wrapping_add(64 * line));
                    }
                    steps!((words, x, arranged, &mut chains) 0 1 2 3 4 5 6 7);
                    weights = weights.add(B::BYTES);
                    ahead = ahead.wrapping_add(M * B::BYTES);
                    x = x.add(B::ELEMENTS);
                }
                for j in 0..M {
                    let scale = S::of(scales.add(j * row_scales));
                    for i in 0..N {
                        let mut sum = chains[j][i][0];
                        for c in 1..C {
                            sum = _mm256_add_ps(sum, chains[j][i][c]);
                        }
                        totals[j][i] = _mm256_fmadd_ps(sum, scale, totals[j][i]);
                    }
                }
                scales = scales.add(S::BYTES);
            }
            let factor = B::FACTOR * S::FACTOR * matrix.factor;
            for j in 0..M {
                let row = row + j;
                let biases = matrix.biases.as_ptr().add(row * groups * S::Biases::BYTES);
                for i in 0..N {
                    let sums = sums.as_ptr().add(i * groups);
                    let total = with_biases::<S::Biases>(totals[j][i], biases, sums, groups);
                    to.put(i, row, Avx2::sum(total) * factor);
                }
            }
        }
    }
}

/// Plane P of M blocks times those of N rows of `x`.
///
/// # Safety
/// The words' blocks are there, and `x` goes on so far; AVX2, FMA and F16C.
#[expect(clippy::needless_range_loop, reason = "iterators keep the vectors out of registers")]
#[inline(always)]
unsafe fn step<const M: usize, const N: usize, const C: usize, const P: usize, B: Block>(
    words: [B::Words; M],
    x: *const f32,
    arranged: usize,
    chains: &mut [[[__m256; C]; N]; M],
) {
    // SAFETY: as the caller says.
    unsafe {
        for j in 0..M {
            let elements = B::plane::<P>(words[j]);
            for i in 0..N {
                let x = _mm256_loadu_ps(x.add(i * arranged + 8 * P));
                chains[j][i][P % C] = _mm256_fmadd_ps(elements, x, chains[j][i][P % C]);
            }
        }
    }
}

/// The lanes' sums and those of each group's bias times the sum of its `x`.
///
/// # Safety
/// So many biases and sums, and AVX2.
#[inline(always)]
pub unsafe fn with_biases<S: Stored>(
    mut total: __m256,
    biases: *const u8,
    sums: *const f32,
    groups: usize,
) -> __m256 {
    // SAFETY: as the caller says.
    unsafe {
        let whole = groups - groups % 8;
        for at in (0..whole).step_by(8) {
            let biases = S::eight(biases.add(S::BYTES * at));
            total = _mm256_fmadd_ps(biases, _mm256_loadu_ps(sums.add(at)), total);
        }
        let mut rest = 0.0;
        for at in whole..groups {
            let bias = std::slice::from_raw_parts(biases.add(S::BYTES * at), S::BYTES);
            rest += S::of(bias) * *sums.add(at);
        }
        _mm256_add_ps(total, _mm256_castps128_ps256(_mm_set_ss(rest)))
    }
}
