//! The way back: FP8 checkpoints and quantized weights decoded to floats, in F32, rounded once.

use super::element::{BF16, Element, F16, F32, Float};
use super::fp4::E2M1;
use super::fp8::{e4m3_to_f32, e8m0_to_f32};
use super::pack::unpack;
use super::vectorised;
use crate::format::{Format, Mode};

/// Decodes E4M3 `codes` of one row to BF16. `scales[i]` multiplies the i-th run of `columns` codes;
/// the last run may be shorter.
pub fn decode_fp8(codes: &[u8], scales: &[f32], columns: usize, out: &mut [u8]) {
    for ((codes, &scale), out) in
        codes.chunks(columns).zip(scales).zip(out.chunks_mut(columns * BF16::BYTES))
    {
        scaled_e4m3::<BF16>(codes, scale, out);
    }
}

vectorised! {
    fn scaled_e4m3<E: Element>(codes: &[u8], scale: f32, out: &mut [u8]) {
        let (out, _) = E::split_mut(out);
        for (out, &code) in out.iter_mut().zip(codes) {
            *out = E::store(e4m3_to_f32(code) * scale);
        }
    }
}

/// A quantized run of whole groups, as [`super::quantize`] makes it.
pub struct Quantized<'a> {
    /// Packed elements.
    pub weight: &'a [u8],
    /// One scale a group.
    pub scales: &'a [u8],
    /// One bias a group, for affine.
    pub biases: &'a [u8],
    /// dtype of the scales and biases, for affine.
    pub scale_dtype: Float,
    /// What an nvfp4 tensor's values are multiplied by besides (`.global_scale`).
    pub global: Option<f32>,
}

/// Decodes whole groups to `dtype`: scale * q + bias (never fused) or scale * element, in F32,
/// rounded once. `out` has room for exactly the elements.
pub fn dequantize(format: &Format, from: &Quantized<'_>, dtype: Float, out: &mut [u8]) {
    match dtype {
        Float::F32 => typed::<F32>(format, from, out),
        Float::F16 => typed::<F16>(format, from, out),
        Float::BF16 => typed::<BF16>(format, from, out),
    }
}

fn typed<E: Element>(format: &Format, from: &Quantized<'_>, out: &mut [u8]) {
    let group = format.group as usize;
    let packed = group * format.bits as usize / 8;
    let mut codes = vec![0u8; group];
    let (out, _) = E::split_mut(out);
    let runs = from.weight.chunks_exact(packed).zip(out.chunks_exact_mut(group));
    for (index, (weight, out)) in runs.enumerate() {
        unpack(format.bits, weight, &mut codes);
        let scale = scale(format.mode, from, index);
        let bias = match format.mode {
            Mode::Affine => stored(from.scale_dtype, from.biases, index),
            _ => 0.0,
        };
        for (out, &code) in out.iter_mut().zip(&codes) {
            let value = match format.mode {
                Mode::Affine => f32::from(code) * scale + bias,
                Mode::Mxfp4 | Mode::Nvfp4 => E2M1[usize::from(code & 15)] * scale,
                Mode::Mxfp8 => e4m3_to_f32(code) * scale,
            };
            *out = E::store(value);
        }
    }
}

fn scale(mode: Mode, from: &Quantized<'_>, index: usize) -> f32 {
    match mode {
        Mode::Affine => stored(from.scale_dtype, from.scales, index),
        Mode::Mxfp4 | Mode::Mxfp8 => e8m0_to_f32(from.scales[index]),
        Mode::Nvfp4 => e4m3_to_f32(from.scales[index]) * from.global.unwrap_or(1.0),
    }
}

fn stored(dtype: Float, bytes: &[u8], index: usize) -> f32 {
    fn at<E: Element>(bytes: &[u8], index: usize) -> f32 {
        E::load(E::split(bytes).0[index])
    }
    match dtype {
        Float::F32 => at::<F32>(bytes, index),
        Float::F16 => at::<F16>(bytes, index),
        Float::BF16 => at::<BF16>(bytes, index),
    }
}
