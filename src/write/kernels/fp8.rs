//! 8-bit floats: E4M3 and E8M0 one by one, and mxfp8 by the group.
//!
//! E4M3 (OCP 8-bit floating point specification) has bias 7, three explicit bits, no infinities, NaN
//! at 0x7f and 448 as its largest value. E8M0 is the exponent of a power of two, 2^(b-127).

use super::element::Element;
use super::fp::{TILE, UNUSUAL, divide, e8m0_up, largest, unusual_e8m0};
use super::{Out, vectorised};

/// E4M3's largest value.
const MOST: f32 = 448.0;

/// The E4M3 code (without sign) of the positive float with these bits: nearest, ties to even,
/// saturating, NaN included.
#[inline(always)]
pub fn e4m3_bits(bits: u32) -> u8 {
    // Normal results: round at bit 20, then move the exponent's bias from 127 to 7.
    let normal = (bits.wrapping_add(0x7_ffff + ((bits >> 20) & 1)) >> 20).wrapping_sub(120 << 3);
    // Below 2^-6 the step is 2^-9: adding 2^14 rounds to it and leaves the code in the low bits.
    let denormal = (f32::from_bits(bits) + 16384.0).to_bits().wrapping_sub(16384f32.to_bits());
    let code = if bits < (127 - 6) << 23 { denormal } else { normal };
    (if bits >= MOST.to_bits() { 0x7e } else { code }) as u8
}

/// Nearest E4M3, ties to even; beyond ±448, infinities and NaNs become ±448, as in MLX.
#[inline(always)]
pub fn e4m3_from_f32(value: f32) -> u8 {
    let bits = value.to_bits();
    e4m3_bits(bits & 0x7fff_ffff) | (bits >> 24) as u8 & 0x80
}

/// The value of an E4M3 code; 0x7f and 0xff are NaN.
#[inline(always)]
pub fn e4m3_to_f32(code: u8) -> f32 {
    let sign = u32::from(code & 0x80) << 24;
    // Exponent and significand put where a float has them are too small by 2^120, exactly.
    let small = f32::from_bits(u32::from(code & 0x7f) << 20);
    let value = if code & 0x7f == 0x7f { f32::NAN } else { small * f32::from_bits(247 << 23) };
    f32::from_bits(value.to_bits() | sign)
}

/// The value of an E8M0 code; 255 is NaN.
pub fn e8m0_to_f32(code: u8) -> f32 {
    match code {
        255 => f32::NAN,
        0 => f32::from_bits(1 << 22),
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

const GROUP: usize = 32;

vectorised! {
    /// Quantizes whole groups of 32 with E8M0 scales.
    pub fn mxfp8<E: Element>(input: &[u8], out: Out<'_>) {
        let (input, _) = E::split(input);
        let (groups, _) = input.as_chunks::<GROUP>();
        let (weight, _) = out.weight.as_chunks_mut::<GROUP>();
        let tiles = groups.chunks(TILE).zip(out.scales.chunks_mut(TILE));
        for ((groups, scales), encoded) in tiles.zip(weight.chunks_mut(TILE)) {
            let mut most = [E::Lane::default(); TILE];
            for (most, group) in most.iter_mut().zip(groups) {
                *most = largest::<E, GROUP>(group);
            }
            let mut codes = [0u16; TILE];
            for (code, &most) in codes.iter_mut().zip(&most) {
                let scale = E::round_positive(E::value(most) / MOST);
                *code = if most >= E::INFINITY { UNUSUAL } else { e8m0_up(scale) };
            }
            for ((((group, encoded), scale), &code), &most) in
                groups.iter().zip(encoded).zip(scales).zip(&codes).zip(&most)
            {
                if code == UNUSUAL {
                    *scale = one_by_one::<E>(group, most, encoded);
                } else {
                    // 2^-(code-127): dividing by a power of two is multiplying by its inverse.
                    let inverse = f32::from_bits((254 - u32::from(code)) << 23);
                    for (out, &bytes) in encoded.iter_mut().zip(group) {
                        *out = e4m3_from_f32(E::load(bytes) * inverse);
                    }
                    *scale = code as u8;
                }
            }
        }
    }
}

/// MLX's own steps for the groups with infinities, NaNs or nothing but denormals.
fn one_by_one<E: Element>(
    group: &[E::Bytes; GROUP],
    most: E::Lane,
    encoded: &mut [u8; GROUP],
) -> u8 {
    let (divisor, code) = unusual_e8m0::<E>(most, MOST);
    for (out, &bytes) in encoded.iter_mut().zip(group) {
        *out = e4m3_from_f32(divide::<E>(E::load(bytes), divisor));
    }
    code
}
