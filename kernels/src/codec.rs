//! What the bits of each form mean, eight elements at a time.
//!
//! Nothing that is decoded is subnormal: products with subnormal numbers lose bits, and Intel's
//! processors compute them a hundred times more slowly. What a form itself holds below the normal
//! range of singles is zero, as it is where a processor flushes.

use half::f16;

/// Eight numbers.
pub type Eight = [f32; 8];

/// The magnitudes of E2M1, by their three bits.
pub const E2M1: Eight = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// What an E4M3 whose bits stand in the place of a half's is too small by.
pub const E4M3_FACTOR: f32 = 256.0;

/// The bits of a single's exponent: all zero in what is subnormal.
pub const EXPONENT: u32 = 0x7f80_0000;

/// A single, and zero where it would be subnormal.
#[inline(always)]
pub fn normal(bits: u32) -> f32 {
    f32::from_bits(if bits & EXPONENT == 0 { 0 } else { bits })
}

/// An E4M3, too small by [`E4M3_FACTOR`].
#[inline(always)]
fn small_e4m3(byte: u8) -> f32 {
    const LEAST: f32 = 1.0 / (512.0 * E4M3_FACTOR);
    let size = u32::from(byte & 0x7f);
    // Without an exponent it is a multiple of the least; the others' is 7 more than it says, a
    // single's 127.
    let fraction = (size as i32 as f32 * LEAST).to_bits();
    let bits = if size < 8 { fraction } else { (size << 20) + ((127 - 7 - 8) << 23) };
    f32::from_bits(bits | u32::from(byte & 0x80) << 24)
}

/// A form's elements, before their scales.
pub trait Codec {
    /// Bytes of eight elements.
    const BYTES: usize;
    /// Eight elements.
    fn eight(bytes: &[u8]) -> Eight;
}

/// IEEE single.
pub struct F32;
/// IEEE half.
pub struct F16;
/// bfloat16.
pub struct Bf16;
/// Whole numbers.
pub struct Whole<const BITS: usize>;
/// E2M1.
pub struct Fp4;
/// E4M3, too small by [`E4M3_FACTOR`].
pub struct Fp8;

#[inline(always)]
fn single(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn pair(bytes: &[u8], at: usize) -> [u8; 2] {
    [bytes[2 * at], bytes[2 * at + 1]]
}

impl Codec for F32 {
    const BYTES: usize = 32;
    fn eight(bytes: &[u8]) -> Eight {
        std::array::from_fn(|i| normal(single(&bytes[4 * i..])))
    }
}

impl Codec for F16 {
    const BYTES: usize = 16;
    fn eight(bytes: &[u8]) -> Eight {
        std::array::from_fn(|i| f16::from_le_bytes(pair(bytes, i)).to_f32())
    }
}

impl Codec for Bf16 {
    const BYTES: usize = 16;
    fn eight(bytes: &[u8]) -> Eight {
        std::array::from_fn(|i| normal(u32::from(u16::from_le_bytes(pair(bytes, i))) << 16))
    }
}

impl<const BITS: usize> Codec for Whole<BITS> {
    const BYTES: usize = BITS;
    fn eight(bytes: &[u8]) -> Eight {
        let mut word = [0; 8];
        word[..BITS].copy_from_slice(&bytes[..BITS]);
        let word = u64::from_le_bytes(word);
        std::array::from_fn(|i| ((word >> (BITS * i)) & ((1 << BITS) - 1)) as i32 as f32)
    }
}

impl Codec for Fp4 {
    const BYTES: usize = 4;
    fn eight(bytes: &[u8]) -> Eight {
        std::array::from_fn(|i| {
            let bits = usize::from(bytes[i / 2]) >> (4 * (i % 2));
            if bits & 8 == 0 { E2M1[bits & 7] } else { -E2M1[bits & 7] }
        })
    }
}

impl Codec for Fp8 {
    const BYTES: usize = 8;
    fn eight(bytes: &[u8]) -> Eight {
        std::array::from_fn(|i| small_e4m3(bytes[i]))
    }
}

/// A group's scale, as it is stored.
pub trait Scale {
    /// Bytes of one.
    const BYTES: usize;
    /// The number.
    fn of(bytes: &[u8]) -> f32;
}

/// A single.
pub struct Single;
/// A power of two.
pub struct E8m0;
/// E4M3.
pub struct E4m3;
/// None at all: 1.
pub struct One;

impl Scale for Single {
    const BYTES: usize = 4;
    #[inline(always)]
    fn of(bytes: &[u8]) -> f32 {
        f32::from_bits(single(bytes))
    }
}

impl Scale for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn of(bytes: &[u8]) -> f32 {
        f32::from_bits(u32::from(bytes[0]) << 16 | u32::from(bytes[1]) << 24)
    }
}

impl Scale for E8m0 {
    const BYTES: usize = 1;
    #[inline(always)]
    fn of(bytes: &[u8]) -> f32 {
        // The least, 2^-127, is below the normal range; groups of nothing but zeros have it.
        f32::from_bits(u32::from(bytes[0]) << 23)
    }
}

impl Scale for E4m3 {
    const BYTES: usize = 1;
    #[inline(always)]
    fn of(bytes: &[u8]) -> f32 {
        small_e4m3(bytes[0]) * E4M3_FACTOR
    }
}

impl Scale for One {
    const BYTES: usize = 0;
    #[inline(always)]
    fn of(_: &[u8]) -> f32 {
        1.0
    }
}
