//! The scales of blocks, and the biases of rows ([`super::planar`]).

use std::arch::x86_64::*;
use std::marker::PhantomData;

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
    /// # Safety
    /// So many bytes at `from`, and AVX2.
    unsafe fn of(from: *const u8) -> __m256;
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
    ($($name:ident, $bytes:literal, |$from:ident| $body:expr;)+) => {$(
        impl Lanes for $name {
            const BYTES: usize = $bytes;
            type Biases = Single;

            #[inline(always)]
            unsafe fn of($from: *const u8) -> __m256 {
                // SAFETY: as the caller says.
                unsafe { $body }
            }
        }
    )+};
}

lanes! {
    Unscaled, 0, |_from| _mm256_set1_ps(1.0);
    Power, 1, |from| power(_mm256_set1_epi32(i32::from(*from)));
    Powers, 2, |from| {
        let both = _mm256_set1_epi16(from.cast::<i16>().read_unaligned());
        let order = _mm256_setr_m128i(_mm_set1_epi32(0x8080_8000_u32.cast_signed()), _mm_set1_epi32(0x8080_8001_u32.cast_signed()));
        power(_mm256_shuffle_epi8(both, order))
    };
    Quarters, 4, |from| {
        let all = _mm256_set1_epi32(from.cast::<i32>().read_unaligned());
        // Each at the top of its words.
        let order = _mm256_add_epi32(_mm256_set1_epi32(0x0080_8080), _mm256_setr_epi32(0, 0, 1 << 24, 1 << 24, 2 << 24, 2 << 24, 3 << 24, 3 << 24));
        let spread = _mm256_srai_epi32::<4>(_mm256_shuffle_epi8(all, order));
        let small = _mm256_and_si256(spread, _mm256_set1_epi32(0x87f0_0000_u32.cast_signed()));
        _mm256_mul_ps(_mm256_castsi256_ps(small), _mm256_set1_ps(E4M3_FACTOR))
    };
}

/// 2^(word - 127).
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn power(words: __m256i) -> __m256 {
    // SAFETY: as the caller says.
    unsafe {
        // 2^-127 is the one that a single writes otherwise, and less than the others.
        let bits = _mm256_slli_epi32::<23>(words);
        _mm256_castsi256_ps(_mm256_max_epi32(bits, _mm256_set1_epi32(1 << 22)))
    }
}
