//! Quantizing and decoding on the CPU: whole groups of numbers in, the bytes that MLX makes out.
//!
//! MLX's own CPU back end encodes fp4 at some 0.03 GB/s and 8 bits at 0.35 to 0.6 GB/s a core; these
//! kernels are limited by memory instead. Their bytes are the same, also for infinities, NaNs and
//! denormals, so a model is the same whichever device made it.
//!
//! Everything here is plain Rust that the compiler vectorises, compiled once for the least
//! processor and once for AVX2 (see [`vectorised`]). Nothing is fused: a multiplication and an
//! addition stay two roundings on every processor.

mod affine;
mod decode;
mod element;
mod fp;
mod fp4;
mod fp8;
mod pack;

pub use decode::{Quantized, decode_fp8, dequantize};
pub use element::Float;
pub use fp8::{e4m3_from_f32, e4m3_to_f32, e8m0_to_f32};
pub use pack::{pack_any as pack, unpack};

use crate::format::{Format, Mode};

use element::{BF16, F16, F32};
use fp4::Tabulated;

/// Where a quantized run of groups goes: three slices of exactly the lengths that the format says.
pub struct Out<'a> {
    /// Packed elements, little-endian: `elements * bits / 8` bytes.
    pub weight: &'a mut [u8],
    /// One scale a group: in the input's dtype for affine, else one byte.
    pub scales: &'a mut [u8],
    /// One bias a group in the input's dtype for affine, else empty.
    pub biases: &'a mut [u8],
}

/// Quantizes `input`, a whole number of groups of little-endian `dtype`, as `mlx.core.quantize`
/// does on the CPU.
///
/// # Panics
/// When the lengths do not fit each other: that is the caller's bug, and no file can cause it.
pub fn quantize(format: &Format, dtype: Float, input: &[u8], out: Out<'_>) {
    match dtype {
        Float::F32 => typed::<F32>(format, input, out),
        Float::F16 => typed::<F16>(format, input, out),
        Float::BF16 => typed::<BF16>(format, input, out),
    }
}

/// Quantizes to nvfp4 under a global scale (the tensor's absolute maximum), as
/// `mlx.core.quantize(…, global_scale=…)` does: the E4M3 scales are multiplied by 2688 / global.
/// For small inputs; it is not tuned.
pub fn quantize_nvfp4_global(dtype: Float, global: f32, input: &[u8], out: Out<'_>) {
    match dtype {
        Float::F32 => fp4::nvfp4_global::<F32>(global, input, out),
        Float::F16 => fp4::nvfp4_global::<F16>(global, input, out),
        Float::BF16 => fp4::nvfp4_global::<BF16>(global, input, out),
    }
}

fn typed<E: Tabulated>(format: &Format, input: &[u8], out: Out<'_>) {
    let group = format.group as usize;
    let elements = input.len() / E::BYTES;
    assert!(elements * E::BYTES == input.len() && elements.is_multiple_of(group), "whole groups");
    assert_eq!(out.weight.len(), elements * format.bits as usize / 8, "room for the weight");
    let scale = if format.has_bias() { E::BYTES } else { 1 };
    assert_eq!(out.scales.len(), elements / group * scale, "room for the scales");
    assert_eq!(out.biases.len(), if format.has_bias() { out.scales.len() } else { 0 });
    match format.mode {
        Mode::Affine => affine::quantize::<E>(format.bits, group, input, out),
        Mode::Mxfp4 => fp4::mxfp4::<E>(input, out),
        Mode::Nvfp4 => fp4::nvfp4::<E>(input, out),
        Mode::Mxfp8 => fp8::mxfp8::<E>(input, out),
    }
}

/// Declares a function whose body is compiled twice on x86-64: for the least processor and for
/// AVX2, chosen when it is called. Inlined functions follow along. Elsewhere (NEON is in every
/// 64-bit ARM) once is enough. FMA is never enabled, so results cannot differ.
macro_rules! vectorised {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<$($generic:ident: $bound:ident),* $(; const $n:ident: usize)?>
     ($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        $vis fn $name<$($generic: $bound,)* $(const $n: usize)?>($($arg: $ty),*) {
            #[inline(always)]
            fn plain<$($generic: $bound,)* $(const $n: usize)?>($($arg: $ty),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2<$($generic: $bound,)* $(const $n: usize)?>($($arg: $ty),*) {
                    plain::<$($generic,)* $($n)?>($($arg),*)
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: this processor has AVX2, the only feature that `avx2` needs.
                    return unsafe { avx2::<$($generic,)* $($n)?>($($arg),*) };
                }
            }
            plain::<$($generic,)* $($n)?>($($arg),*)
        }
    };
}
use vectorised;

#[cfg(test)]
mod tests;
