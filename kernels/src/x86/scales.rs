//! The scales of blocks, and the biases of rows ([`super::planar`]).

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::E4M3_IN_HALF;
use crate::codec::{Bf16, E4M3_FACTOR, Scale, Single};

/// Scales and biases of whole numbers, as they are stored.
pub trait Stored: Scale {
    /// # Safety
    /// Eight of them at `from`, and AVX2.
    unsafe fn eight(from: *const u8) -> __m256;
    /// # Safety
    /// One at `from`, and AVX2.
    unsafe fn one(from: *const u8) -> __m256;
}

impl Stored for Single {
    #[inline(always)]
    unsafe fn eight(from: *const u8) -> __m256 {
        // SAFETY: as the caller says.
        unsafe { _mm256_loadu_ps(from.cast()) }
    }

    #[inline(always)]
    unsafe fn one(from: *const u8) -> __m256 {
        // SAFETY: as the caller says.
        unsafe { _mm256_set1_ps(from.cast::<f32>().read_unaligned()) }
    }
}

impl Stored for Bf16 {
    #[inline(always)]
    unsafe fn eight(from: *const u8) -> __m256 {
        // SAFETY: as the caller says.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn one(from: *const u8) -> __m256 {
        // SAFETY: as the caller says.
        unsafe {
            let all = _mm256_set1_epi16(from.cast::<i16>().read_unaligned());
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(all))
        }
    }
}

/// The scales of a block's lanes.
pub trait Lanes {
    /// Bytes of those of a block.
    const BYTES: usize;
    /// How biases are stored, where there are any.
    type Biases: Stored;
    /// What they are too small by.
    const FACTOR: f32 = 1.0;
    /// # Safety
    /// So many bytes at `from`, AVX2 and F16C.
    unsafe fn of(from: *const u8) -> __m256;
    /// Those of two rows, so many bytes apart.
    ///
    /// # Safety
    /// So many bytes at both places, and AVX-512.
    #[inline(always)]
    unsafe fn of_two(from: *const u8, apart: usize) -> __m512 {
        // SAFETY: as the caller says.
        unsafe {
            let first = _mm512_castps256_ps512(Self::of(from));
            _mm512_insertf32x8::<1>(first, Self::of(from.add(apart)))
        }
    }
}

/// None at all.
pub struct Unscaled;
/// One for all lanes.
pub struct All<S>(PhantomData<S>);
/// One for the lower lanes and one for the upper.
pub struct Halves<S>(PhantomData<S>);
/// A power of two for all lanes.
pub struct Power;
/// Powers of two for the lower lanes and the upper.
pub struct Powers;
/// E4M3s, each for two lanes.
pub struct Quarters;

impl<S: Stored> Lanes for All<S> {
    const BYTES: usize = S::BYTES;
    type Biases = S;

    #[inline(always)]
    unsafe fn of(from: *const u8) -> __m256 {
        // SAFETY: as the caller says.
        unsafe { S::one(from) }
    }
}

impl<S: Stored> Lanes for Halves<S> {
    const BYTES: usize = 2 * S::BYTES;
    type Biases = S;

    #[inline(always)]
    unsafe fn of(from: *const u8) -> __m256 {
        // SAFETY: as the caller says.
        unsafe { _mm256_blend_ps::<0xf0>(S::one(from), S::one(from.add(S::BYTES))) }
    }
}

macro_rules! lanes {
    ($($name:ident, $bytes:literal, $factor:expr, |$from:ident| $body:expr $(, $two:item)?;)+) => {$(
        impl Lanes for $name {
            const BYTES: usize = $bytes;
            const FACTOR: f32 = $factor;
            type Biases = Single;

            #[inline(always)]
            unsafe fn of($from: *const u8) -> __m256 {
                // SAFETY: as the caller says.
                unsafe { $body }
            }

            $($two)?
        }
    )+};
}

lanes! {
    Unscaled, 0, 1.0, |_from| _mm256_set1_ps(1.0);
    Power, 1, 1.0, |from| power(_mm256_set1_epi32(i32::from(*from)));
    Powers, 2, 1.0, |from| {
        let both = _mm256_set1_epi16(from.cast::<i16>().read_unaligned());
        let order = _mm256_setr_m128i(_mm_set1_epi32(0x8080_8000_u32.cast_signed()), _mm_set1_epi32(0x8080_8001_u32.cast_signed()));
        power(_mm256_shuffle_epi8(both, order))
    },
    #[inline(always)]
    unsafe fn of_two(from: *const u8, apart: usize) -> __m512 {
        // SAFETY: as the caller says.
        unsafe {
            let [first, second] = [from, from.add(apart)].map(|from| i32::from(from.cast::<u16>().read_unaligned()));
            // Each word's lowest byte is its scale.
            let order = _mm_setr_epi32(
                0x8080_8000_u32.cast_signed(),
                0x8080_8001_u32.cast_signed(),
                0x8080_8002_u32.cast_signed(),
                0x8080_8003_u32.cast_signed(),
            );
            let four = _mm_shuffle_epi8(_mm_cvtsi32_si128(first | second << 16), order);
            let lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
            let spread = _mm512_permutexvar_epi32(lanes, _mm512_castsi128_si512(four));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(spread))
        }
    };
    Quarters, 4, E4M3_FACTOR, |from| {
        let four = _mm_cvtsi32_si128(from.cast::<i32>().read_unaligned());
        // Each in the upper bytes of two halves.
        let order = _mm_setr_epi8(-1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3);
        let spread = _mm_srai_epi16::<1>(_mm_shuffle_epi8(four, order));
        _mm256_cvtph_ps(_mm_and_si128(spread, _mm_set1_epi16(E4M3_IN_HALF)))
    },
    #[inline(always)]
    unsafe fn of_two(from: *const u8, apart: usize) -> __m512 {
        // SAFETY: as the caller says.
        unsafe {
            let [first, second] = [from, from.add(apart)].map(|from| from.cast::<i32>().read_unaligned());
            let eight = _mm256_setr_epi32(first, second, 0, 0, first, second, 0, 0);
            // Each in the upper bytes of two halves.
            let order = _mm256_setr_epi8(
                -1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, // the first row's
                -1, 4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7,
            );
            let spread = _mm256_srai_epi16::<1>(_mm256_shuffle_epi8(eight, order));
            _mm512_cvtph_ps(_mm256_and_si256(spread, _mm256_set1_epi16(E4M3_IN_HALF)))
        }
    };
}

/// 2^(word - 127), and zero where that is below the normal range.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn power(words: __m256i) -> __m256 {
    // SAFETY: as the caller says.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(words)) }
}
