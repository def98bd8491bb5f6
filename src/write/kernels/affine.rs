//! Affine quantization: integers with a scale and a bias a group, w ≈ scale * q + bias.
//!
//! The rule is MLX's. The end of the group's range that is farther from zero is its `edge`; the
//! scale is the range over the number of steps, signed so that q runs away from the edge, then
//! adjusted so that zero falls on a step: with q0 = round(edge / scale), scale = edge / q0 and
//! bias = edge. When q0 is 0 the bias is 0 too. All of it in F32; scale and bias are stored in the
//! dtype of the weight, but the integers come from the unrounded ones.

use super::element::Element;
use super::pack::pack_any;
use super::{Out, vectorised};

/// The largest group.
const MOST: usize = 128;

/// The least scale: what MLX takes for a constant group.
const EPSILON: f32 = 1e-7;

vectorised! {
    /// Quantizes whole groups of `group` (a multiple of 32, at most 128) to `bits` bits.
    pub fn quantize<E: Element>(bits: u32, group: usize, input: &[u8], out: Out<'_>) {
        let steps = ((1u32 << bits) - 1) as f32;
        let (input, _) = E::split(input);
        let (scales, _) = E::split_mut(out.scales);
        let (biases, _) = E::split_mut(out.biases);
        let mut values = [0f32; MOST];
        let mut codes = [0u8; MOST];
        let groups = input.chunks_exact(group).zip(out.weight.chunks_exact_mut(group * bits as usize / 8));
        for (((input, packed), scale_out), bias_out) in groups.zip(scales).zip(biases) {
            let values = &mut values[..group];
            let (low, high) = load::<E>(input, values);
            let (scale, bias) = scale_and_bias(low, high, steps);
            let codes = &mut codes[..group];
            encode(values, scale, bias, steps, codes);
            pack_any(bits, codes, packed);
            *scale_out = E::store(scale);
            *bias_out = E::store(bias);
        }
    }
}

/// Reads a group; the least and the greatest of it. NaNs are passed over.
#[inline(always)]
fn load<E: Element>(input: &[E::Bytes], values: &mut [f32]) -> (f32, f32) {
    for (value, &bytes) in values.iter_mut().zip(input) {
        *value = E::load(bytes);
    }
    let mut low = [f32::INFINITY; 32];
    let mut high = [f32::NEG_INFINITY; 32];
    let (blocks, _) = values.as_chunks::<32>();
    for block in blocks {
        for i in 0..32 {
            low[i] = if block[i] < low[i] { block[i] } else { low[i] };
            high[i] = if block[i] > high[i] { block[i] } else { high[i] };
        }
    }
    for half in [16, 8, 4, 2, 1] {
        for i in 0..half {
            low[i] = if low[i + half] < low[i] { low[i + half] } else { low[i] };
            high[i] = if high[i + half] > high[i] { high[i + half] } else { high[i] };
        }
    }
    (low[0], high[0])
}

#[inline(always)]
fn scale_and_bias(low: f32, high: f32, steps: f32) -> (f32, f32) {
    let below = low.abs() > high.abs();
    let range = (high - low) / steps;
    let least = if range < EPSILON { EPSILON } else { range };
    let scale = if below { least } else { -least };
    let edge = if below { low } else { high };
    let first = (edge / scale).round_ties_even();
    if first != 0.0 { (edge / first, edge) } else { (scale, 0.0) }
}

/// 2^23: adding it to a float in 0..2^22 rounds to an integer, ties to even, and leaves that
/// integer in the low bits.
const ROUND: f32 = 8_388_608.0;

#[inline(always)]
fn encode(values: &[f32], scale: f32, bias: f32, steps: f32, codes: &mut [u8]) {
    let (values, _) = values.as_chunks::<32>();
    let (codes, _) = codes.as_chunks_mut::<32>();
    for (values, codes) in values.iter().zip(codes) {
        for i in 0..32 {
            let at = (values[i] - bias) / scale;
            // A NaN becomes 0, as it does in MLX.
            let at = if at > 0.0 { at } else { 0.0 };
            let at = if at < steps { at } else { steps };
            codes[i] = (at + ROUND).to_bits() as u8;
        }
    }
}
