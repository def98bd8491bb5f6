//! [`super::planar`] with vectors of 512 bits: of two rows of a matrix, side by side. Each lane
//! computes what it does with those of 256 bits, so that `x` is arranged alike.

use std::arch::x86_64::*;

use super::E4M3_IN_HALF;
use super::blocks::{Block, ODD_SHIFT};
use super::planar::{Product, Shape, with_biases};
use super::scales::Lanes;
use crate::AHEAD;
use crate::codec::{E2M1, Fp4, Fp8, Whole};
use crate::rows::Isa;

/// Whether this processor has them.
pub fn there() -> bool {
    super::there()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// Blocks of two rows.
pub trait Pair: Block {
    /// # Safety
    /// A block at `from`, another so many bytes later, and AVX-512.
    unsafe fn pair(from: *const u8, apart: usize) -> __m512i;
    /// # Safety
    /// AVX-512, and P is less than `PLANES`.
    unsafe fn plane_of_pair<const P: usize>(words: __m512i) -> __m512;
}

impl<const BITS: usize> Pair for Whole<BITS> {
    #[inline(always)]
    unsafe fn pair(from: *const u8, apart: usize) -> __m512i {
        // SAFETY: as the caller says.
        unsafe {
            let (first, second) = (Self::words(from), Self::words(from.add(apart)));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second)
        }
    }

    #[inline(always)]
    unsafe fn plane_of_pair<const P: usize>(words: __m512i) -> __m512 {
        // SAFETY: as the caller says.
        unsafe {
            let shift = BITS * P;
            let whole = match (shift, BITS) {
                (28, 4) => _mm512_srli_epi32::<28>(words),
                (24, 8) => _mm512_srli_epi32::<24>(words),
                _ => {
                    let even = ((1_i64 << BITS) - 1) << shift;
                    let odd = if BITS == 5 { even << ODD_SHIFT } else { even };
                    _mm512_and_si512(words, _mm512_set1_epi64(even | odd << 32))
                }
            };
            _mm512_cvtepi32_ps(whole)
        }
    }
}

/// Each lane's word has the four bytes of its planes, whose halves are looked up.
impl Pair for Fp4 {
    #[inline(always)]
    unsafe fn pair(from: *const u8, apart: usize) -> __m512i {
        // SAFETY: as the caller says.
        unsafe {
            let words = two(from, apart);
            let order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
            _mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(order))
        }
    }

    #[inline(always)]
    unsafe fn plane_of_pair<const P: usize>(words: __m512i) -> __m512 {
        const TABLE: [f32; 16] = {
            let mut table = [0.0; 16];
            let mut i = 0;
            while i < 8 {
                table[i] = E2M1[i];
                table[i + 8] = -E2M1[i];
                i += 1;
            }
            table
        };
        // SAFETY: as the caller says. The permutation looks at the lowest four bits of each lane.
        unsafe {
            let shifted = match P {
                0 => words,
                1 => _mm512_srli_epi32::<8>(words),
                2 => _mm512_srli_epi32::<16>(words),
                3 => _mm512_srli_epi32::<24>(words),
                4 => _mm512_srli_epi32::<4>(words),
                5 => _mm512_srli_epi32::<12>(words),
                6 => _mm512_srli_epi32::<20>(words),
                _ => _mm512_srli_epi32::<28>(words),
            };
            _mm512_permutexvar_ps(shifted, _mm512_loadu_ps(TABLE.as_ptr()))
        }
    }
}

/// The first 16 bytes of both rows stand before the others.
impl Pair for Fp8 {
    #[inline(always)]
    unsafe fn pair(from: *const u8, apart: usize) -> __m512i {
        // SAFETY: as the caller says.
        unsafe {
            let words = two(from, apart);
            _mm512_shuffle_i64x2::<0b11_01_10_00>(words, words)
        }
    }

    #[inline(always)]
    unsafe fn plane_of_pair<const P: usize>(words: __m512i) -> __m512 {
        // SAFETY: as the caller says.
        unsafe {
            let at_top = if P < 2 { _mm512_slli_epi16::<8>(words) } else { words };
            let kept = _mm512_set1_epi16(E4M3_IN_HALF);
            let halves = _mm512_and_si512(_mm512_srai_epi16::<1>(at_top), kept);
            _mm512_cvtph_ps(match P % 2 {
                0 => _mm512_castsi512_si256(halves),
                _ => _mm512_extracti64x4_epi64::<1>(halves),
            })
        }
    }
}

/// 32 bytes of each of two rows.
///
/// # Safety
/// They are there, and AVX-512.
#[inline(always)]
unsafe fn two(from: *const u8, apart: usize) -> __m512i {
    // SAFETY: as the caller says.
    unsafe {
        let first = _mm512_castsi256_si512(_mm256_loadu_si256(from.cast()));
        _mm512_inserti64x4::<1>(first, _mm256_loadu_si256(from.add(apart).cast()))
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
    /// All rows of the matrix, M pairs at a time, times N rows of `x`, in C sums that do not wait
    /// for each other.
    ///
    /// # Safety
    /// They are [`there`], and there are so many rows of `x`.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    pub unsafe fn in_pairs<const M: usize, const N: usize, const C: usize, B: Pair, S: Lanes>(
        self,
        shape: Shape,
    ) {
        let rows = self.matrix.rows;
        let (most, even) = (rows - rows % (2 * M), rows - rows % 2);
        // SAFETY: as the caller says, and these are rows of the matrix.
        unsafe {
            for row in (0..most).step_by(2 * M) {
                self.some_pairs::<M, N, C, B, S>(row, &shape);
            }
            for row in (most..even).step_by(2) {
                self.some_pairs::<1, N, C, B, S>(row, &shape);
            }
            if even < rows {
                self.some::<1, N, C, B, S>(even, &shape);
            }
        }
    }

    /// M pairs of rows from `row` on.
    ///
    /// # Safety
    /// As [`Product::in_pairs`], and these are rows of the matrix.
    #[expect(clippy::needless_range_loop, reason = "iterators keep the vectors out of registers")]
    #[inline(always)]
    unsafe fn some_pairs<const M: usize, const N: usize, const C: usize, B: Pair, S: Lanes>(
        &self,
        row: usize,
        shape: &Shape,
    ) {
        let Product { x, sums, matrix, to } = self;
        let (arranged, row_bytes) = (shape.blocks * B::ELEMENTS, shape.blocks * B::BYTES);
        let row_scales = shape.scales * S::BYTES;
        let groups = sums.len() / N;
        // SAFETY: as in `Product::some`.
        unsafe {
            let mut weights = matrix.weight.as_ptr().add(row * row_bytes);
            let mut scales = matrix.scales.as_ptr().add(row * row_scales);
            let mut ahead = weights.wrapping_add(AHEAD.next_multiple_of(2 * M * row_bytes));
            let mut x = x.as_ptr();
            let mut totals = [[_mm512_setzero_ps(); N]; M];
            for _ in 0..shape.scales {
                let mut chains = [[[_mm512_setzero_ps(); C]; N]; M];
                for _ in 0..shape.together {
                    let mut words = [_mm512_setzero_si512(); M];
                    for j in 0..M {
                        words[j] = B::pair(weights.add(2 * j * row_bytes), row_bytes);
                    }
                    for line in 0..(2 * M * B::BYTES).div_ceil(64) {
                        super::Avx2::fetch(ahead.wrapping_add(64 * line));
                    }
                    steps!((words, x, arranged, &mut chains) 0 1 2 3 4 5 6 7);
                    weights = weights.add(B::BYTES);
                    ahead = ahead.wrapping_add(2 * M * B::BYTES);
                    x = x.add(B::ELEMENTS);
                }
                for j in 0..M {
                    let scale = S::of_two(scales.add(2 * j * row_scales), row_scales);
                    for i in 0..N {
                        let mut sum = chains[j][i][0];
                        for c in 1..C {
                            sum = _mm512_add_ps(sum, chains[j][i][c]);
                        }
                        totals[j][i] = _mm512_fmadd_ps(sum, scale, totals[j][i]);
                    }
                }
                scales = scales.add(S::BYTES);
            }
            let factor = B::FACTOR * S::FACTOR * matrix.factor;
            let row_biases = groups * size_of_biases::<S>();
            for j in 0..M {
                let row = row + 2 * j;
                let biases = matrix.biases.as_ptr().wrapping_add(row * row_biases);
                for i in 0..N {
                    let sums = sums.as_ptr().add(i * groups);
                    let both = totals[j][i];
                    let halves = [_mm512_castps512_ps256(both), _mm512_extractf32x8_ps::<1>(both)];
                    for (side, half) in halves.into_iter().enumerate() {
                        let biases = biases.wrapping_add(side * row_biases);
                        let total = with_biases::<S::Biases>(half, biases, sums, groups);
                        to.put(i, row + side, super::Avx2::sum(total) * factor);
                    }
                }
            }
        }
    }
}

/// Bytes of a bias.
const fn size_of_biases<S: Lanes>() -> usize {
    <S::Biases as crate::codec::Scale>::BYTES
}

/// Plane P of M pairs of blocks times those of N rows of `x`.
///
/// # Safety
/// `x` goes on so far; AVX-512.
#[expect(clippy::needless_range_loop, reason = "iterators keep the vectors out of registers")]
#[inline(always)]
unsafe fn step<const M: usize, const N: usize, const C: usize, const P: usize, B: Pair>(
    words: [__m512i; M],
    x: *const f32,
    arranged: usize,
    chains: &mut [[[__m512; C]; N]; M],
) {
    // SAFETY: as the caller says.
    unsafe {
        for j in 0..M {
            let elements = B::plane_of_pair::<P>(words[j]);
            for i in 0..N {
                let x = _mm512_broadcast_f32x8(_mm256_loadu_ps(x.add(i * arranged + 8 * P)));
                chains[j][i][P % C] = _mm512_fmadd_ps(elements, x, chains[j][i][P % C]);
            }
        }
    }
}
