//! mxfp4 and nvfp4: E2M1 elements (±0, ½, 1, 1½, 2, 3, 4, 6) with a scale a group.
//!
//! MLX takes the nearest value of the table to w / scale, the first of two that are equally near:
//! a tie goes to the smaller magnitude, and what rounds to zero is +0. Here that is seven
//! comparisons of w's bits with seven thresholds, which depend on the scale's code alone and are
//! tabulated once. Where MLX rounds the quotient to the weight's dtype before it looks (nvfp4, whose
//! scale is no power of two), the thresholds lie half a step higher: the same elements pass.

use std::sync::OnceLock;

use super::element::{BF16, Element, F16, F32, Lane};
use super::fp::{TILE, UNUSUAL, divide, e8m0_up, largest, unusual_e8m0};
use super::fp8::{e4m3_bits, e4m3_from_f32, e4m3_to_f32};
use super::pack::pack;
use super::{Out, vectorised};

/// E2M1's values by code.
pub const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The midpoints of its magnitudes; a tie belongs to the smaller.
const MIDPOINTS: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];

const MOST: f32 = 6.0;

/// For each scale code the bits that a magnitude must exceed for code 1, 2, …, 7.
type Thresholds<L> = [[L; 8]; 256];

/// Elements whose threshold tables are kept.
pub trait Tabulated: Element {
    #[doc(hidden)]
    fn tables() -> &'static Tables<Self::Lane>;
}

#[doc(hidden)]
pub struct Tables<L> {
    mx: Thresholds<L>,
    nv: Thresholds<L>,
}

macro_rules! tabulated {
    ($($element:ident)+) => {
        $(impl Tabulated for $element {
            fn tables() -> &'static Tables<Self::Lane> {
                static TABLES: OnceLock<Tables<<$element as Element>::Lane>> = OnceLock::new();
                TABLES.get_or_init(|| Tables {
                    mx: thresholds::<$element>(|code| f64::from(code as i32 - 127).exp2(), false),
                    nv: thresholds::<$element>(|code| e4m3_to_f32(code as u8).into(), true),
                })
            }
        })+
    };
}
tabulated!(F32 F16 BF16);

/// Tabulates the thresholds for every code. With `rounded` the quotient is rounded to `E` before it
/// is compared with a midpoint, so it must exceed the midpoint by half a step (midpoints are even:
/// a tie rounds to them).
fn thresholds<E: Element>(scale: impl Fn(usize) -> f64, rounded: bool) -> Thresholds<E::Lane> {
    let mut table = [[E::Lane::MAX; 8]; 256];
    for (code, row) in table.iter_mut().enumerate() {
        let scale = scale(code);
        // Scale 0 divides everything to infinity or NaN, for which the first entry, 0, is taken:
        // thresholds that nothing exceeds. (NaN is E4M3's code 127, which is never made.)
        if scale == 0.0 || scale.is_nan() || scale < 0.0 {
            continue;
        }
        for (threshold, midpoint) in row.iter_mut().zip(MIDPOINTS) {
            let midpoint = f64::from(midpoint);
            let step = (midpoint.log2().floor() - f64::from(E::MANTISSA)).exp2();
            let half = if rounded { step / 2.0 } else { 0.0 };
            *threshold = truncated::<E>((midpoint + half) * scale);
        }
    }
    table
}

/// The bits of the largest finite `E` that is not above `value`.
fn truncated<E: Element>(value: f64) -> E::Lane {
    let (mut low, mut high) = (0, E::INFINITY.wide() - 1);
    while low < high {
        let middle = low + (high - low + 1) / 2;
        if f64::from(E::value(E::Lane::narrow(middle as u32))) <= value {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    E::Lane::narrow(low as u32)
}

/// Quantizes whole groups of 32 with E8M0 scales.
pub fn mxfp4<E: Tabulated>(input: &[u8], out: Out<'_>) {
    quantize::<E, Mx, 32>(&E::tables().mx, input, out);
}

/// Quantizes whole groups of 16 with E4M3 scales.
pub fn nvfp4<E: Tabulated>(input: &[u8], out: Out<'_>) {
    quantize::<E, Nv, 16>(&E::tables().nv, input, out);
}

/// How a format finds its scales.
trait Scales {
    /// The code of a scale, or [`UNUSUAL`].
    fn code(scale: f32) -> u16;
    /// Divisor and code of an unusual group.
    fn unusual<E: Element>(largest: E::Lane) -> (f32, u8);
}

struct Mx;
struct Nv;

impl Scales for Mx {
    #[inline(always)]
    fn code(scale: f32) -> u16 {
        e8m0_up(scale)
    }
    fn unusual<E: Element>(largest: E::Lane) -> (f32, u8) {
        unusual_e8m0::<E>(largest, MOST)
    }
}

impl Scales for Nv {
    #[inline(always)]
    fn code(scale: f32) -> u16 {
        // Beyond the largest scale elements exceed 6 by so much that the differences that MLX
        // compares are rounded alike.
        if scale > 448.0 { UNUSUAL } else { e4m3_bits(scale.to_bits()) as u16 }
    }
    fn unusual<E: Element>(largest: E::Lane) -> (f32, u8) {
        let code = e4m3_from_f32(E::round(E::value(largest) / MOST));
        (e4m3_to_f32(code), code)
    }
}

vectorised! {
    fn quantize<E: Element, S: Scales; const GROUP: usize>(
        table: &Thresholds<E::Lane>,
        input: &[u8],
        out: Out<'_>,
    ) {
        let (input, _) = E::split(input);
        let (groups, _) = input.as_chunks::<GROUP>();
        let tiles = groups.chunks(TILE).zip(out.scales.chunks_mut(TILE));
        for ((groups, scales), packed) in tiles.zip(out.weight.chunks_mut(TILE * GROUP / 2)) {
            let mut most = [E::Lane::default(); TILE];
            for (most, group) in most.iter_mut().zip(groups) {
                *most = largest::<E, GROUP>(group);
            }
            let mut codes = [0u16; TILE];
            for (code, &most) in codes.iter_mut().zip(&most) {
                let scale = E::round_positive(E::value(most) / MOST);
                *code = if most >= E::INFINITY { UNUSUAL } else { S::code(scale) };
            }
            let packed = packed.chunks_exact_mut(GROUP / 2);
            for ((((group, packed), scale), &code), &most) in
                groups.iter().zip(packed).zip(scales).zip(&codes).zip(&most)
            {
                if code == UNUSUAL {
                    let (divisor, code) = S::unusual::<E>(most);
                    one_by_one::<E, GROUP>(group, packed, |value| divide::<E>(value, divisor));
                    *scale = code;
                } else {
                    encode::<E, GROUP>(group, &table[code as usize & 255], packed);
                    *scale = code as u8;
                }
            }
        }
    }
}

#[inline(always)]
fn encode<E: Element, const GROUP: usize>(
    group: &[E::Bytes; GROUP],
    thresholds: &[E::Lane; 8],
    packed: &mut [u8],
) {
    let mut codes = [0u8; GROUP];
    for (code, &bytes) in codes.iter_mut().zip(group) {
        let bits = E::lane(bytes);
        let magnitude = bits.magnitude();
        let mut found = E::Lane::default();
        for &threshold in &thresholds[..7] {
            found += E::Lane::from(magnitude > threshold);
        }
        let zero = E::Lane::default();
        let negative = E::Lane::from(bits < zero && found > zero);
        *code = found.byte() | negative.byte() << 3;
    }
    pack::<4>(&codes, packed);
}

/// MLX's own steps, for the groups that the thresholds cannot say: the distance of `quotient` to
/// each value of the table, in F32; the first of the least wins.
fn one_by_one<E: Element, const GROUP: usize>(
    group: &[E::Bytes; GROUP],
    packed: &mut [u8],
    quotient: impl Fn(f32) -> f32,
) {
    let mut codes = [0u8; GROUP];
    for (code, &bytes) in codes.iter_mut().zip(group) {
        let at = quotient(E::load(bytes));
        let mut best = (at - E2M1[0]).abs();
        for (candidate, value) in E2M1.iter().enumerate() {
            let distance = (at - value).abs();
            if distance < best {
                best = distance;
                *code = candidate as u8;
            }
        }
    }
    pack::<4>(&codes, packed);
}

/// nvfp4 under a global scale; see [`super::quantize_nvfp4_global`].
pub fn nvfp4_global<E: Element>(global: f32, input: &[u8], out: Out<'_>) {
    let factor = 448.0 * 6.0 / global;
    let (input, _) = E::split(input);
    let (groups, _) = input.as_chunks::<16>();
    for ((group, packed), scale) in
        groups.iter().zip(out.weight.chunks_exact_mut(8)).zip(out.scales)
    {
        let most = E::value(largest::<E, 16>(group));
        *scale = e4m3_from_f32(E::round(most / MOST) * factor);
        let divisor = e4m3_to_f32(*scale);
        one_by_one::<E, 16>(group, packed, |value| divide::<E>(value, divisor) * factor);
    }
}
