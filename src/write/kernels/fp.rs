//! What the three floating formats share: a group's largest magnitude, and its scale.

use super::element::{Element, Lane};

/// Groups whose scales are found together, so that this vectorises too.
pub const TILE: usize = 32;

/// The largest magnitude of a group, as bits (NaNs count as the largest of all).
#[inline(always)]
pub fn largest<E: Element, const GROUP: usize>(group: &[E::Bytes; GROUP]) -> E::Lane {
    let mut lanes = [E::Lane::default(); 16];
    let (blocks, _) = group.as_chunks::<16>();
    for block in blocks {
        for i in 0..16 {
            lanes[i] = lanes[i].max(E::lane(block[i]).magnitude());
        }
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] = lanes[i].max(lanes[i + half]);
        }
    }
    lanes[0]
}

/// Index of the code for the unusual groups, which are done one by one.
pub const UNUSUAL: u16 = 256;

/// The E8M0 code of a group whose largest magnitude over the format's largest value is `scale`,
/// rounded up so that nothing saturates; [`UNUSUAL`] for denormal scales. No scale is 2^0.
#[inline(always)]
pub fn e8m0_up(scale: f32) -> u16 {
    let bits = scale.to_bits();
    let up = ((bits + 0x7f_ffff) >> 23) as u16;
    let denormal = bits < 0x80_0000;
    // Above 2^126 the inverse of the scale would be denormal.
    let code = if denormal || up > 253 { UNUSUAL } else { up };
    if bits == 0 { 127 } else { code }
}

/// The divisor and the code of an unusual group, by MLX's own steps. `E8M0` has no such value for
/// exponents below -127: MLX's code wraps around, and so does ours.
pub fn unusual_e8m0<E: Element>(largest: E::Lane, most: f32) -> (f32, u8) {
    if largest >= E::INFINITY {
        // The exponent of an infinity or NaN becomes the least integer, and 2^that is 0. Its low
        // byte differs because F32 takes another way to an integer.
        return (0.0, if E::BYTES == 4 { 128 } else { 0 });
    }
    let scale = E::round(E::value(largest) / most);
    if scale == 0.0 {
        return (1.0, 127);
    }
    let exponent = ceil_log2(scale);
    let divisor = E::round(f64::from(exponent).exp2() as f32);
    (divisor, (exponent + 127) as u8)
}

/// ⌈log2 x⌉ of a positive float, denormals too, exactly.
fn ceil_log2(x: f32) -> i32 {
    // A float is normal as a double, so its exponent is explicit there.
    let bits = f64::from(x).to_bits();
    (bits >> 52) as i32 - 1023 + i32::from(bits & ((1 << 52) - 1) != 0)
}

/// `value / divisor` in the element's precision, with the NaNs of x86-64.
pub fn divide<E: Element>(value: f32, divisor: f32) -> f32 {
    let quotient = value / divisor;
    if quotient.is_nan() && !value.is_nan() {
        // 0/0 and ∞/∞ give a negative NaN there; ARM's is positive.
        return E::round(-f32::NAN.abs());
    }
    E::round(quotient)
}
