//! The three float types that weights come in, as the kernels see them.

use std::fmt::Debug;
use std::ops::AddAssign;

use crate::dtype::Dtype;

/// A dtype that can be quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    /// 32 bits.
    F32,
    /// 16 bits, 5 of them exponent (IEEE 754 binary16).
    F16,
    /// The upper half of an F32.
    BF16,
}

impl TryFrom<Dtype> for Float {
    type Error = ();

    fn try_from(dtype: Dtype) -> Result<Self, ()> {
        match dtype {
            Dtype::F32 => Ok(Float::F32),
            Dtype::F16 => Ok(Float::F16),
            Dtype::BF16 => Ok(Float::BF16),
            _ => Err(()),
        }
    }
}

impl From<Float> for Dtype {
    fn from(float: Float) -> Dtype {
        match float {
            Float::F32 => Dtype::F32,
            Float::F16 => Dtype::F16,
            Float::BF16 => Dtype::BF16,
        }
    }
}

/// An integer as wide as an element: comparing the bits of two positive floats compares them.
pub trait Lane:
    Copy + Debug + Default + Ord + AddAssign + From<bool> + Send + Sync + 'static
{
    /// The low byte.
    fn byte(self) -> u8;
    /// The value, sign-extended.
    fn wide(self) -> i32;
    /// The low bits of `bits`.
    fn narrow(bits: u32) -> Self;
    /// With the sign bit cleared.
    fn magnitude(self) -> Self;
    /// The largest value.
    const MAX: Self;
}

macro_rules! lane {
    ($type:ty) => {
        impl Lane for $type {
            #[inline(always)]
            fn byte(self) -> u8 {
                self as u8
            }
            #[inline(always)]
            fn wide(self) -> i32 {
                self.into()
            }
            #[inline(always)]
            fn narrow(bits: u32) -> Self {
                bits as $type
            }
            #[inline(always)]
            fn magnitude(self) -> Self {
                self & <$type>::MAX
            }
            const MAX: Self = <$type>::MAX;
        }
    };
}
lane!(i16);
lane!(i32);

/// A float type of weights: how to read it, write it and round to it.
pub trait Element: Copy + Send + Sync + 'static {
    /// Its bytes, little-endian.
    type Bytes: Copy + Debug;
    /// Its bits as an integer.
    type Lane: Lane;
    /// Bytes of one.
    const BYTES: usize;
    /// Bits of infinity: everything above is a NaN.
    const INFINITY: Self::Lane;
    /// Explicit bits of the significand.
    const MANTISSA: u32;

    /// The elements of `bytes`, and what is left over.
    fn split(bytes: &[u8]) -> (&[Self::Bytes], &[u8]);
    /// The same for writing.
    fn split_mut(bytes: &mut [u8]) -> (&mut [Self::Bytes], &mut [u8]);
    /// The bits.
    fn lane(bytes: Self::Bytes) -> Self::Lane;
    /// The value of the bits.
    fn value(lane: Self::Lane) -> f32;
    /// `value` rounded to this type, nearest and ties to even, as a float. NaNs become what MLX
    /// makes of them on x86-64.
    fn round(value: f32) -> f32;
    /// `value`, positive and in range, rounded; without branches.
    fn round_positive(value: f32) -> f32;
    /// Rounds and writes.
    fn store(value: f32) -> Self::Bytes;

    /// The value of the bytes.
    #[inline(always)]
    fn load(bytes: Self::Bytes) -> f32 {
        Self::value(Self::lane(bytes))
    }
}

/// 32-bit floats.
#[derive(Clone, Copy)]
pub struct F32;
/// 16-bit floats of IEEE 754.
#[derive(Clone, Copy)]
pub struct F16;
/// The upper halves of 32-bit floats.
#[derive(Clone, Copy)]
pub struct BF16;

impl Element for F32 {
    type Bytes = [u8; 4];
    type Lane = i32;
    const BYTES: usize = 4;
    const INFINITY: i32 = 0x7f80_0000;
    const MANTISSA: u32 = 23;

    #[inline(always)]
    fn split(bytes: &[u8]) -> (&[[u8; 4]], &[u8]) {
        bytes.as_chunks()
    }
    #[inline(always)]
    fn split_mut(bytes: &mut [u8]) -> (&mut [[u8; 4]], &mut [u8]) {
        bytes.as_chunks_mut()
    }
    #[inline(always)]
    fn lane(bytes: [u8; 4]) -> i32 {
        i32::from_le_bytes(bytes)
    }
    #[inline(always)]
    fn value(lane: i32) -> f32 {
        f32::from_bits(lane as u32)
    }
    #[inline(always)]
    fn round(value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn round_positive(value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn store(value: f32) -> [u8; 4] {
        value.to_le_bytes()
    }
}

impl Element for BF16 {
    type Bytes = [u8; 2];
    type Lane = i16;
    const BYTES: usize = 2;
    const INFINITY: i16 = 0x7f80;
    const MANTISSA: u32 = 7;

    #[inline(always)]
    fn split(bytes: &[u8]) -> (&[[u8; 2]], &[u8]) {
        bytes.as_chunks()
    }
    #[inline(always)]
    fn split_mut(bytes: &mut [u8]) -> (&mut [[u8; 2]], &mut [u8]) {
        bytes.as_chunks_mut()
    }
    #[inline(always)]
    fn lane(bytes: [u8; 2]) -> i16 {
        i16::from_le_bytes(bytes)
    }
    #[inline(always)]
    fn value(lane: i16) -> f32 {
        f32::from_bits((lane as u16 as u32) << 16)
    }
    #[inline(always)]
    fn round(value: f32) -> f32 {
        // MLX's NaN is positive, whatever it was.
        if value.is_nan() { f32::NAN } else { bf16_nearest(value) }
    }
    #[inline(always)]
    fn round_positive(value: f32) -> f32 {
        bf16_nearest(value)
    }
    #[inline(always)]
    fn store(value: f32) -> [u8; 2] {
        ((Self::round(value).to_bits() >> 16) as u16).to_le_bytes()
    }
}

/// Nearest BF16, ties to even; `value` is not a NaN.
#[inline(always)]
pub fn bf16_nearest(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits(bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

impl Element for F16 {
    type Bytes = [u8; 2];
    type Lane = i16;
    const BYTES: usize = 2;
    const INFINITY: i16 = 0x7c00;
    const MANTISSA: u32 = 10;

    #[inline(always)]
    fn split(bytes: &[u8]) -> (&[[u8; 2]], &[u8]) {
        bytes.as_chunks()
    }
    #[inline(always)]
    fn split_mut(bytes: &mut [u8]) -> (&mut [[u8; 2]], &mut [u8]) {
        bytes.as_chunks_mut()
    }
    #[inline(always)]
    fn lane(bytes: [u8; 2]) -> i16 {
        i16::from_le_bytes(bytes)
    }
    #[inline(always)]
    fn value(lane: i16) -> f32 {
        // The exponent is rebased by an exact multiplication, which makes denormals normal too.
        let magnitude = (lane as u32 & 0x7fff) << 13;
        let rebased = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
        let special = if magnitude >= 0x7c00 << 13 { 0x7f80_0000 } else { 0 };
        f32::from_bits(rebased | special | ((lane as u32 & 0x8000) << 16))
    }
    #[inline(always)]
    fn round(value: f32) -> f32 {
        // half keeps the sign of a NaN, as MLX does here.
        half::f16::from_f32(value).to_f32()
    }
    #[inline(always)]
    fn round_positive(value: f32) -> f32 {
        let bits = value.to_bits();
        let normal = f32::from_bits((bits + 0xfff + ((bits >> 13) & 1)) & !0x1fff);
        // Below 2^-14 the step is 2^-24: adding 1/2 leaves just those bits.
        let denormal = (value + 0.5) - 0.5;
        if value < f32::from_bits((127 - 14) << 23) { denormal } else { normal }
    }
    #[inline(always)]
    fn store(value: f32) -> [u8; 2] {
        if value.is_nan() {
            let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
            return (sign | MLX_F16_NAN).to_le_bytes();
        }
        half::f16::from_f32(value).to_le_bytes()
    }
}

/// The NaN that MLX's software conversion to F16 makes (on x86-64; hardware makes 0x7e00).
const MLX_F16_NAN: u16 = 0x7d00;
