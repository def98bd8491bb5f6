//! The elements of each form, a block and a plane of it at a time ([`super::planar`]).

use std::arch::x86_64::*;

use super::E4M3_IN_HALF;
use crate::codec::{Bf16, E4M3_FACTOR, EXPONENT, F16, F32, Fp4, Fp8, Whole};

/// Elements that are decoded together: `PLANES` vectors of eight.
pub trait Block {
    /// Vectors of a block, at most eight.
    const PLANES: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// What elements are too small by.
    const FACTOR: f32 = 1.0;
    /// Elements of a block.
    const ELEMENTS: usize = 8 * Self::PLANES;
    /// What the planes are made of.
    type Words: Copy;
    /// # Safety
    /// `BYTES` bytes at `from` while the words are used, and AVX2.
    unsafe fn words(from: *const u8) -> Self::Words;
    /// # Safety
    /// AVX2 and F16C, and P is less than `PLANES`.
    unsafe fn plane<const P: usize>(words: Self::Words) -> __m256;
    /// Which element of a block it is that a plane has in a lane, and how much larger than its
    /// value the plane's is.
    fn place(plane: usize, lane: usize) -> (usize, f32) {
        (lane * Self::PLANES + plane, 1.0)
    }
}

/// Whole numbers stay where they are in a word, which makes them 2^shift larger: a mask is all
/// that decodes them, and `x` is made as much smaller beforehand, which is exact. Only those at the
/// top of a word are shifted, as the highest bit would be a sign.
impl<const BITS: usize> Block for Whole<BITS> {
    // Those of 3 and 5 bits or 6 are spread to words of 24 bits, or 20.
    const PLANES: usize = if BITS < 5 { 8 } else { 4 };
    const BYTES: usize = BITS * Self::PLANES;
    type Words = __m256i;

    #[inline(always)]
    unsafe fn words(from: *const u8) -> __m256i {
        // SAFETY: as the caller says: 32 bytes, 16, or else the first 16 and the last.
        unsafe {
            match Self::BYTES {
                32 => return _mm256_loadu_si256(from.cast()),
                16 => return _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())),
                _ => {}
            }
            let first = _mm_loadu_si128(from.cast());
            let last = _mm_loadu_si128(from.add(Self::BYTES - 16).cast());
            let order = if Self::BYTES == 24 {
                _mm256_setr_epi8(
                    0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1, // those from 0 on
                    4, 5, 6, -1, 7, 8, 9, -1, 10, 11, 12, -1, 13, 14, 15,
                    -1, // those from 8 on
                )
            } else {
                _mm256_setr_epi8(
                    0, 1, 2, -1, 2, 3, 4, -1, 5, 6, 7, -1, 7, 8, 9, -1, // those from 0 on
                    6, 7, 8, -1, 8, 9, 10, -1, 11, 12, 13, -1, 13, 14, 15,
                    -1, // those from 4 on
                )
            };
            _mm256_shuffle_epi8(_mm256_set_m128i(last, first), order)
        }
    }

    #[inline(always)]
    unsafe fn plane<const P: usize>(words: __m256i) -> __m256 {
        // SAFETY: as the caller says.
        unsafe {
            let shift = BITS * P;
            let whole = match (shift, BITS) {
                (28, 4) => _mm256_srli_epi32::<28>(words),
                (24, 8) => _mm256_srli_epi32::<24>(words),
                _ => {
                    let even = ((1_i64 << BITS) - 1) << shift;
                    let odd = if BITS == 5 { even << ODD_SHIFT } else { even };
                    _mm256_and_si256(words, _mm256_set1_epi64x(even | odd << 32))
                }
            };
            _mm256_cvtepi32_ps(whole)
        }
    }

    fn place(plane: usize, lane: usize) -> (usize, f32) {
        let at_top = BITS * (plane + 1) == 32;
        let odd = if BITS == 5 { lane % 2 * ODD_SHIFT } else { 0 };
        let shift = if at_top { 0 } else { BITS * plane + odd };
        (lane * Self::PLANES + plane, (1 << shift) as f32)
    }
}

/// Bits before the first element of an odd lane, where elements have 5.
pub const ODD_SHIFT: usize = 4;

/// Two tables give the two bytes that a number has as a bfloat16. Its lanes are those of four
/// bytes of each half of the block's eighths in turn, so that each has elements of one eighth.
impl Block for Fp4 {
    const PLANES: usize = 8;
    const BYTES: usize = 32;
    type Words = __m256i;

    #[inline(always)]
    unsafe fn words(from: *const u8) -> __m256i {
        // SAFETY: as the caller says.
        unsafe { _mm256_shuffle_epi32::<0b11_01_10_00>(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn plane<const P: usize>(words: __m256i) -> __m256 {
        // SAFETY: as the caller says.
        unsafe {
            let upper = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                0, 63, 63, 63, 64, 64, 64, 64, -128, -65, -65, -65, -64, -64, -64, -64,
            ));
            let lower = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64,
            ));
            let fours = if P < 4 { words } else { _mm256_srli_epi32::<4>(words) };
            let fours = _mm256_and_si256(fours, _mm256_set1_epi8(15));
            let (upper, lower) =
                (_mm256_shuffle_epi8(upper, fours), _mm256_shuffle_epi8(lower, fours));
            let both = if P % 4 < 2 {
                _mm256_unpacklo_epi8(lower, upper)
            } else {
                _mm256_unpackhi_epi8(lower, upper)
            };
            half_of(both, P % 2 == 1)
        }
    }

    fn place(plane: usize, lane: usize) -> (usize, f32) {
        let byte = lane / 2 * 8 + plane % 4 / 2 * 4 + lane % 2 * 2 + plane % 2;
        (2 * byte + plane / 4, 1.0)
    }
}

/// In the place of a half, too small by 2^8: the even bytes are planes 0 and 1, the odd ones 2
/// and 3.
impl Block for Fp8 {
    const PLANES: usize = 4;
    const BYTES: usize = 32;
    const FACTOR: f32 = E4M3_FACTOR;
    type Words = __m256i;

    #[inline(always)]
    unsafe fn words(from: *const u8) -> __m256i {
        // SAFETY: as the caller says.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn plane<const P: usize>(words: __m256i) -> __m256 {
        // SAFETY: as the caller says.
        unsafe {
            let at_top = if P < 2 { _mm256_slli_epi16::<8>(words) } else { words };
            let kept = _mm256_set1_epi16(E4M3_IN_HALF);
            let halves = _mm256_and_si256(_mm256_srai_epi16::<1>(at_top), kept);
            _mm256_cvtph_ps(match P % 2 {
                0 => _mm256_castsi256_si128(halves),
                _ => _mm256_extracti128_si256::<1>(halves),
            })
        }
    }

    fn place(plane: usize, lane: usize) -> (usize, f32) {
        (plane % 2 * 16 + lane * 2 + plane / 2, 1.0)
    }
}

/// The lower halves of words are the even elements, and the upper ones the odd.
impl Block for Bf16 {
    const PLANES: usize = 4;
    const BYTES: usize = 64;
    type Words = *const u8;

    #[inline(always)]
    unsafe fn words(from: *const u8) -> *const u8 {
        from
    }

    #[inline(always)]
    unsafe fn plane<const P: usize>(from: *const u8) -> __m256 {
        // SAFETY: as the caller says.
        unsafe {
            let words = _mm256_loadu_si256(from.add(P / 2 * 32).cast());
            let exponent = _mm256_set1_epi16((EXPONENT >> 16) as i16);
            let exponents = _mm256_and_si256(words, exponent);
            let subnormal = _mm256_cmpeq_epi16(exponents, _mm256_setzero_si256());
            half_of(_mm256_andnot_si256(subnormal, words), P % 2 == 1)
        }
    }

    fn place(plane: usize, lane: usize) -> (usize, f32) {
        (plane / 2 * 16 + lane * 2 + plane % 2, 1.0)
    }
}

impl Block for F16 {
    const PLANES: usize = 4;
    const BYTES: usize = 64;
    type Words = *const u8;

    #[inline(always)]
    unsafe fn words(from: *const u8) -> *const u8 {
        from
    }

    #[inline(always)]
    unsafe fn plane<const P: usize>(from: *const u8) -> __m256 {
        // SAFETY: as the caller says.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.add(P * 16).cast())) }
    }

    fn place(plane: usize, lane: usize) -> (usize, f32) {
        (8 * plane + lane, 1.0)
    }
}

impl Block for F32 {
    const PLANES: usize = 4;
    const BYTES: usize = 128;
    type Words = *const u8;

    #[inline(always)]
    unsafe fn words(from: *const u8) -> *const u8 {
        from
    }

    #[inline(always)]
    unsafe fn plane<const P: usize>(from: *const u8) -> __m256 {
        // SAFETY: as the caller says.
        unsafe { super::normal(_mm256_loadu_si256(from.add(P * 32).cast())) }
    }

    fn place(plane: usize, lane: usize) -> (usize, f32) {
        (8 * plane + lane, 1.0)
    }
}

/// The bfloat16s in the upper halves of words, or in the lower ones.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn half_of(words: __m256i, upper: bool) -> __m256 {
    // SAFETY: as the caller says.
    unsafe {
        _mm256_castsi256_ps(if upper {
            _mm256_and_si256(words, _mm256_set1_epi32(0xffff_0000_u32.cast_signed()))
        } else {
            _mm256_slli_epi32::<16>(words)
        })
    }
}
