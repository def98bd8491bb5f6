//! Dot products with 4- and 8-bit rows, whose elements are decoded a plane at a time.
//!
//! Eight words of 32 bits hold a block: 64 elements of 4 bits or 32 of 8. The k-th element of each
//! word is a plane, which a shift by the same number of bits decodes at once; `x` is put in the
//! order of planes beforehand ([`arrange`]). Lane l of a plane belongs to the l-th eighth of the
//! block, so that groups smaller than a block are lanes with a scale of their own.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use crate::codec::{Bf16, E4M3_FACTOR, Scale, Single};
use crate::rows::Target;
use crate::{Form, Matrix, Scales};

/// Bytes by which weights are fetched ahead.
const AHEAD: usize = 4096;

/// Elements of a block, where products with this form are made so.
fn block(form: Form) -> Option<usize> {
    match form {
        Form::Affine { bits: 4, group, .. } if group == 32 || group % 64 == 0 => Some(64),
        Form::Affine { bits: 8, group, .. } if group % 32 == 0 => Some(32),
        Form::Mxfp4 | Form::Nvfp4 => Some(64),
        Form::Mxfp8 => Some(32),
        _ => None,
    }
}

/// `x` in the order of planes; `None` where products with such a matrix are made otherwise.
pub fn arrange(x: &[f32], columns: usize, form: Form) -> Option<Vec<f32>> {
    let block = block(form).filter(|block| columns.is_multiple_of(*block))?;
    if !super::there() {
        return None;
    }
    let planes = block / 8;
    let mut arranged = Vec::with_capacity(x.len());
    for block in x.chunks_exact(block) {
        for plane in 0..planes {
            arranged.extend((0..8).map(|lane| block[lane * planes + plane]));
        }
    }
    Some(arranged)
}

/// At most four rows of arranged `x` times the rows of a matrix, each to its place.
///
/// # Safety
/// `x` is [`arrange`]d for the matrix, whose lengths are checked; AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn product(x: &[f32], sums: &[f32], matrix: &Matrix, to: Target) {
    // SAFETY: as the caller says.
    unsafe {
        match x.len() / matrix.columns {
            1 => by_form::<1>(x, sums, matrix, to),
            2 => by_form::<2>(x, sums, matrix, to),
            3 => by_form::<3>(x, sums, matrix, to),
            _ => by_form::<4>(x, sums, matrix, to),
        }
    }
}

/// # Safety
/// As [`product`], with N rows of `x`.
#[inline(always)]
unsafe fn by_form<const N: usize>(x: &[f32], sums: &[f32], m: &Matrix, to: Target) {
    // SAFETY: as the caller says.
    unsafe {
        match m.form {
            Form::Affine { scales: Scales::F32, .. } => affine::<N, Single>(x, sums, m, to),
            Form::Affine { scales: Scales::Bf16, .. } => affine::<N, Bf16>(x, sums, m, to),
            Form::Mxfp4 => rows::<N, Fp4, Powers2>(x, sums, m, 1, to),
            Form::Nvfp4 => rows::<N, Fp4, Fp8Scales4>(x, sums, m, 1, to),
            _ => rows::<N, Fp8, Powers1>(x, sums, m, 1, to),
        }
    }
}

/// # Safety
/// As [`product`], with N rows of `x`.
#[inline(always)]
unsafe fn affine<const N: usize, S: Stored>(x: &[f32], sums: &[f32], m: &Matrix, to: Target) {
    let group = m.form.group().map_or(m.columns, |(group, _)| group);
    // SAFETY: as the caller says.
    unsafe {
        match (m.form.bits(), group) {
            (4, 32) => rows::<N, Whole4, Two<S>>(x, sums, m, 1, to),
            (4, _) => rows::<N, Whole4, All<S>>(x, sums, m, group / 64, to),
            _ => rows::<N, Whole8, All<S>>(x, sums, m, group / 32, to),
        }
    }
}

/// A block's elements by their planes.
trait Block {
    /// What elements are too small by.
    const FACTOR: f32;
    /// Planes of a block.
    const PLANES: usize;
    /// So many vectors.
    type Planes: AsRef<[__m256]>;
    /// # Safety
    /// AVX2.
    unsafe fn planes(words: __m256i) -> Self::Planes;
}

struct Whole4;
struct Whole8;
struct Fp4;
struct Fp8;

macro_rules! planes {
    ($($name:ident, $planes:literal, $factor:expr, |$words:ident| $body:expr;)+) => {$(
        impl Block for $name {
            const FACTOR: f32 = $factor;
            const PLANES: usize = $planes;
            type Planes = [__m256; $planes];
            #[inline(always)]
            unsafe fn planes($words: __m256i) -> [__m256; $planes] {
                // SAFETY: as the caller says.
                unsafe { $body }
            }
        }
    )+};
}

macro_rules! whole {
    ($words:ident, $mask:ident, $($shift:literal)+) => {
        [$(_mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32::<$shift>($words), $mask)),)+]
    };
}

planes! {
    Whole4, 8, 1.0, |words| {
        let mask = _mm256_set1_epi32(15);
        whole!(words, mask, 0 4 8 12 16 20 24 28)
    };
    Whole8, 4, 1.0, |words| {
        let mask = _mm256_set1_epi32(255);
        whole!(words, mask, 0 8 16 24)
    };
    // Bytes of twice each number, from a table, and then made words with their sign.
    Fp4, 8, 0.5, |words| {
        let table = _mm256_broadcastsi128_si256(_mm_setr_epi8(
            0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,
        ));
        let mask = _mm256_set1_epi8(15);
        let even = _mm256_shuffle_epi8(table, _mm256_and_si256(words, mask));
        let odd = _mm256_and_si256(_mm256_srli_epi32::<4>(words), mask);
        let odd = _mm256_shuffle_epi8(table, odd);
        [
            byte::<24>(even), byte::<24>(odd), byte::<16>(even), byte::<16>(odd),
            byte::<8>(even), byte::<8>(odd), byte::<0>(even), byte::<0>(odd),
        ]
    };
    // The sign at its place, and exponent and fraction in a single's, too small by 2^120.
    Fp8, 4, E4M3_FACTOR, |words| {
        [eighth::<24>(words), eighth::<16>(words), eighth::<8>(words), eighth::<0>(words)]
    };
}

/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn byte<const LEFT: i32>(words: __m256i) -> __m256 {
    // SAFETY: as the caller says.
    unsafe { _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(_mm256_slli_epi32::<LEFT>(words))) }
}

/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn eighth<const LEFT: i32>(words: __m256i) -> __m256 {
    // SAFETY: as the caller says.
    unsafe {
        let spread = _mm256_srai_epi32::<4>(_mm256_slli_epi32::<LEFT>(words));
        let kept = _mm256_set1_epi32(0x87f0_0000_u32.cast_signed());
        _mm256_castsi256_ps(_mm256_and_si256(spread, kept))
    }
}

/// Scales and biases of whole numbers, as they are stored.
trait Stored: Scale {
    /// # Safety
    /// Eight of them at `from`, and AVX2.
    unsafe fn eight(from: *const u8) -> __m256;
    /// # Safety
    /// One at `from`, and AVX2.
    unsafe fn one(from: *const u8) -> __m256;
    /// The first in the lower lanes, the second in the upper ones.
    ///
    /// # Safety
    /// Two at `from`, and AVX2.
    #[inline(always)]
    unsafe fn two(from: *const u8) -> __m256 {
        // SAFETY: as the caller says.
        unsafe { _mm256_blend_ps::<0xf0>(Self::one(from), Self::one(from.add(Self::BYTES))) }
    }
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

/// The scales of a block, lane by lane.
trait Lanes {
    /// Bytes of those of a block.
    const BYTES: usize;
    /// How biases are stored, where there are any.
    type Biases: Stored;
    /// # Safety
    /// So many bytes at `from`, and AVX2.
    unsafe fn of(from: *const u8) -> __m256;
}

struct All<S>(PhantomData<S>);
struct Two<S>(PhantomData<S>);

impl<S: Stored> Lanes for All<S> {
    const BYTES: usize = S::BYTES;
    type Biases = S;
    #[inline(always)]
    unsafe fn of(from: *const u8) -> __m256 {
        // SAFETY: as the caller says.
        unsafe { S::one(from) }
    }
}

impl<S: Stored> Lanes for Two<S> {
    const BYTES: usize = 2 * S::BYTES;
    type Biases = S;
    #[inline(always)]
    unsafe fn of(from: *const u8) -> __m256 {
        // SAFETY: as the caller says.
        unsafe { S::two(from) }
    }
}

struct Powers1;
struct Powers2;
struct Fp8Scales4;

macro_rules! scales {
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

scales! {
    Powers1, 1, |from| {
        let word = _mm256_set1_epi32(i32::from(*from));
        power(word)
    };
    Powers2, 2, |from| {
        let (first, second) = (i32::from(*from), i32::from(*from.add(1)));
        power(_mm256_setr_m128i(_mm_set1_epi32(first), _mm_set1_epi32(second)))
    };
    Fp8Scales4, 4, |from| {
        let four = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(from.cast::<i32>().read_unaligned()));
        let spread = _mm_srai_epi32::<4>(_mm_slli_epi32::<24>(four));
        let small = _mm_and_si128(spread, _mm_set1_epi32(0x87f0_0000_u32.cast_signed()));
        let four = _mm_mul_ps(_mm_castsi128_ps(small), _mm_set1_ps(E4M3_FACTOR));
        let order = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
        _mm256_permutevar8x32_ps(_mm256_castps128_ps256(four), order)
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

/// `together` blocks share their scales.
///
/// # Safety
/// As [`product`], with N rows of `x`.
#[inline(always)]
unsafe fn rows<const N: usize, B: Block, S: Lanes>(
    x: &[f32],
    sums: &[f32],
    matrix: &Matrix,
    together: usize,
    to: Target,
) {
    let columns = matrix.columns;
    let blocks = columns / (8 * B::PLANES);
    let groups = sums.len() / N;
    let factor = B::FACTOR * matrix.factor;
    let mut weights: *const u8 = matrix.weight.as_ptr();
    let mut scales: *const u8 = matrix.scales.as_ptr();
    let mut biases: *const u8 = matrix.biases.as_ptr();
    for row in 0..matrix.rows {
        // SAFETY: a row has so many blocks of 32 bytes, scales for each `together`, and biases for
        // each group; N rows of `x` have as many elements, and of `sums` as many groups.
        unsafe {
            let mut totals = [_mm256_setzero_ps(); N];
            let mut from = x.as_ptr();
            for _ in 0..blocks / together {
                let mut chains = [[_mm256_setzero_ps(); 2]; N];
                for _ in 0..together {
                    let words = _mm256_loadu_si256(weights.cast());
                    // The hardware's own prefetching stops at each page.
                    _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(AHEAD).cast());
                    for (plane, &elements) in B::planes(words).as_ref().iter().enumerate() {
                        for (i, chain) in chains.iter_mut().enumerate() {
                            let x = _mm256_loadu_ps(from.add(i * columns + 8 * plane));
                            let sum = &mut chain[plane % 2];
                            *sum = _mm256_fmadd_ps(elements, x, *sum);
                        }
                    }
                    weights = weights.add(32);
                    from = from.add(8 * B::PLANES);
                }
                let scale = S::of(scales);
                scales = scales.add(S::BYTES);
                for i in 0..N {
                    let sum = _mm256_add_ps(chains[i][0], chains[i][1]);
                    totals[i] = _mm256_fmadd_ps(sum, scale, totals[i]);
                }
            }
            for (i, total) in totals.into_iter().enumerate() {
                let sums = sums.as_ptr().add(i * groups);
                let total = sum_of(with_biases::<S::Biases>(total, biases, sums, groups));
                to.put(i, row, total * factor);
            }
            biases = biases.add(S::Biases::BYTES * groups);
        }
    }
}

/// The lanes' sums and those of each group's bias times the sum of its `x`.
///
/// # Safety
/// So many biases and sums, and AVX2.
#[inline(always)]
unsafe fn with_biases<S: Stored>(
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

/// # Safety
/// AVX.
#[inline(always)]
unsafe fn sum_of(value: __m256) -> f32 {
    // SAFETY: as the caller says.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}
