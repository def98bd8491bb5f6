//! AVX2, FMA and F16C: every x86 since 2013.

mod blocks;
pub mod planar;
mod scales;
pub mod wide;

use std::arch::x86_64::*;

use super::codec::{Bf16, Codec, E2M1, EXPONENT, Eight, F16, F32, Fp4, Fp8, Whole};
use super::rows::{self, Decodes, DecodesAll, Isa, Work};
use super::{Instructions, Matrix, attention};

/// Whether this processor has them.
pub fn there() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// Whether they are used, with wider ones or without.
pub fn chosen() -> bool {
    matches!(Instructions::chosen(), Instructions::Avx2 | Instructions::Avx512)
}

/// [`rows::by_form`] with them.
///
/// # Safety
/// They must be [`there`].
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn by_form(matrix: &Matrix, work: Work) {
    // SAFETY: as the caller says.
    unsafe { rows::by_form::<Avx2>(matrix, work) }
}

/// [`attention::mix_with`] with them.
///
/// # Safety
/// They must be [`there`]; else as that.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn mix(weights: &[f32], values: &[f32], rows: usize, out: &mut [f32]) {
    // SAFETY: as the caller says.
    unsafe { attention::mix_with::<Avx2>(weights, values, rows, out) }
}

/// [`attention::exponentials_with`], for whose loops the compiler uses them.
///
/// # Safety
/// They must be [`there`].
#[target_feature(enable = "avx2,fma")]
pub unsafe fn exponentials(scores: &mut [f32], sink: Option<f32>) -> (f32, f32) {
    attention::exponentials_with(scores, sink)
}

/// Vectors of 256 bits.
pub struct Avx2;

// SAFETY: each function says what it needs by the trait's contract.
unsafe impl Isa for Avx2 {
    type V = __m256;
    #[inline(always)]
    unsafe fn all(value: f32) -> __m256 {
        // SAFETY: the trait's contract, here and below.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: &Eight) -> __m256 {
        // SAFETY: eight floats, read unaligned.
        unsafe { _mm256_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn store(value: __m256, to: &mut Eight) {
        // SAFETY: eight floats, written unaligned.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), value) }
    }
    #[inline(always)]
    unsafe fn fused(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn sum(value: __m256) -> f32 {
        // SAFETY: see above.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn fetch(from: *const u8) {
        // SAFETY: this reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
}

macro_rules! decodes {
    ($($codec:ty: |$bytes:ident| $body:expr;)+) => {$(
        // SAFETY: the bytes read are those of eight elements, checked by the slice below.
        unsafe impl Decodes<$codec> for Avx2 {
            #[inline(always)]
            unsafe fn eight(bytes: &[u8]) -> __m256 {
                let $bytes = bytes[..<$codec as Codec>::BYTES].as_ptr();
                // SAFETY: the trait's contract, and the length above.
                unsafe { $body }
            }
        }
    )+};
}

decodes! {
    F32: |p| normal(_mm256_loadu_si256(p.cast()));
    F16: |p| _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
    Bf16: |p| {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
        normal(_mm256_slli_epi32(wide, 16))
    };
    Whole<4>: |p| {
        let shifted = nibbles(p);
        _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(15)))
    };
    Whole<8>: |p| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())));
    Fp4: |p| {
        // The permutation looks at the lowest three bits of each lane.
        let shifted = nibbles(p);
        let magnitude = _mm256_permutevar8x32_ps(_mm256_loadu_ps(E2M1.as_ptr()), shifted);
        let sign = _mm256_and_si256(_mm256_slli_epi32(shifted, 28), _mm256_set1_epi32(i32::MIN));
        _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign))
    };
    Fp8: |p| {
        let wide = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm_loadl_epi64(p.cast())));
        // The sign stands twice.
        _mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16(E4M3_IN_HALF)))
    };
    Whole<2>: |p| eighths::<2>(word16(p));
    Whole<3>: |p| eighths::<3>(word16(p) | u64::from(p.add(2).read()) << 16);
    Whole<5>: |p| eighths::<5>(word32(p) | u64::from(p.add(4).read()) << 32);
    Whole<6>: |p| eighths::<6>(word32(p) | word16(p.add(4)) << 32);
}

impl DecodesAll for Avx2 {}

/// The bits of a half that an E4M3 takes.
const E4M3_IN_HALF: i16 = 0xbf80_u16.cast_signed();

/// Singles, and zeros where they would be subnormal.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn normal(bits: __m256i) -> __m256 {
    // SAFETY: as the caller says.
    unsafe {
        let exponents = _mm256_and_si256(bits, _mm256_set1_epi32(EXPONENT.cast_signed()));
        let subnormal = _mm256_cmpeq_epi32(exponents, _mm256_setzero_si256());
        _mm256_castsi256_ps(_mm256_andnot_si256(subnormal, bits))
    }
}

/// Four bytes in each lane, shifted so that lane i's lowest bits are nibble i.
///
/// # Safety
/// Four bytes at `p`, and AVX2.
#[inline(always)]
unsafe fn nibbles(p: *const u8) -> __m256i {
    // SAFETY: as the caller says.
    unsafe {
        let word = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
        _mm256_srlv_epi32(word, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28))
    }
}

/// # Safety
/// Two bytes at `p`.
#[inline(always)]
unsafe fn word16(p: *const u8) -> u64 {
    // SAFETY: as the caller says.
    u64::from(unsafe { p.cast::<u16>().read_unaligned() })
}

/// # Safety
/// Four bytes at `p`.
#[inline(always)]
unsafe fn word32(p: *const u8) -> u64 {
    // SAFETY: as the caller says.
    u64::from(unsafe { p.cast::<u32>().read_unaligned() })
}

/// Eight whole numbers of so many bits each, from the lowest bits of a word.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn eighths<const BITS: i64>(word: u64) -> __m256 {
    // SAFETY: as the caller says.
    unsafe {
        let all = _mm256_set1_epi64x(word.cast_signed());
        let mask = _mm256_set1_epi64x((1 << BITS) - 1);
        let low = _mm256_srlv_epi64(all, _mm256_setr_epi64x(0, BITS, 2 * BITS, 3 * BITS));
        let high = _mm256_setr_epi64x(4 * BITS, 5 * BITS, 6 * BITS, 7 * BITS);
        let high = _mm256_srlv_epi64(all, high);
        let (low, high) = (_mm256_and_si256(low, mask), _mm256_and_si256(high, mask));
        // The first four are the even lanes now, and the others the odd ones.
        let both = _mm256_or_si256(low, _mm256_slli_epi64(high, 32));
        let order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
        _mm256_cvtepi32_ps(_mm256_permutevar8x32_epi32(both, order))
    }
}
