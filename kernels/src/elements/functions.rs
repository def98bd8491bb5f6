//! Functions of one number, written so that compilers make vectors of them: whatever is chosen
//! between is computed.

use crate::codec::{Eight, normal};
use crate::vectorized::at_least;

/// An e^x that is less is zero: beside the 1 that it is added to it is nothing, and its products
/// with the smallest of what it opens or weights would be subnormal. About e^-55.
const LEAST: f32 = 1.299_5e-24;

/// e^x for x ≤ 0, to about one unit in the last place: 2^n × e^r with |r| ≤ ln 2 / 2, e^r by its
/// series (written so that compilers make vectors of it). Zero of what is less than [`LEAST`].
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const ROUNDER: f32 = 12_582_912.0; // 1.5 × 2^23: adding it leaves the nearest whole number
    const SERIES: Eight =
        [1.0, 1.0, 0.5, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0, 1.0 / 5040.0];
    // So that the power of two below is one: NaN stays what it is.
    let x = if x < -56.0 { -56.0 } else { x };
    let rounded = x * std::f32::consts::LOG2_E + ROUNDER;
    let n = rounded - ROUNDER;
    // ln 2 in two parts, the first of them exact in products with n.
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let mut sum = SERIES[7];
    for factor in SERIES[..7].iter().rev() {
        sum = sum * r + factor;
    }
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(0x3f80_0000));
    // The result is asked and not x: were it x, compilers would see that the bound above changes
    // nothing that is used, leave it out, and meet what is subnormal on the way.
    let whole = sum * power;
    if whole < LEAST { 0.0 } else { whole }
}

/// Added to a size that is squared, so that no square is subnormal: 1e-12. Nothing is chosen
/// instead: compilers would square before they choose.
const SOME: f32 = 1.0 / (1_u64 << 40) as f32;

/// 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let small = exp(-x.abs());
    let of_size = 1.0 / (1.0 + small);
    if x >= 0.0 { of_size } else { small * of_size }
}

/// x × sigmoid(x).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    normal((x * sigmoid(x)).to_bits())
}

/// ln(1 + e^x), to a few units in the last place of it, however small.
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    // ln(1 + y) = 2 artanh(y / (2 + y)) = 2 (s + s³/3 + s⁵/5 + …), s up to 1/3.
    let y = exp(-x.abs());
    let s = y / (2.0 + y);
    let square = (s + SOME) * (s + SOME);
    let mut sum = 1.0 / 15.0;
    for divisor in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = sum * square + 1.0 / divisor;
    }
    let positive = if x < 0.0 { 0.0 } else { x };
    positive + 2.0 * s * sum
}

/// To a few units in the last place.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    /// Of tanh(x) = x + x³ P(x²) up to 0.63, the best in relative error (2e-9).
    const SERIES: [f32; 6] = [
        -3.333_333_3e-1,
        1.333_33e-1,
        -5.395_846_6e-2,
        2.176_253_3e-2,
        -8.323_273e-3,
        2.269_587_5e-3,
    ];
    /// What is less is zero: 8e-31.
    const LEAST: f32 = SOME * SOME * SOME * (1 << 20) as f32;
    let size = x.abs();
    let small = if size > 0.63 { 0.63 } else { size } + SOME;
    let square = small * small;
    let mut sum = SERIES[5];
    for factor in SERIES[..5].iter().rev() {
        sum = sum * square + factor;
    }
    let near = size + small * square * sum;
    let power = exp(-2.0 * size);
    let far = (1.0 - power) / (1.0 + power);
    at_least(LEAST, if size < 0.63 { near } else { far }).copysign(x)
}

/// x × Φ(x), where Φ is the normal distribution's.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    /// Of 1 - Φ(a) = e^(-a²/2) t P(t) with t = 1 / (1 + 0.3 a), the best in relative error (3e-9).
    const SERIES: [f32; 10] = [
        1.196_840_3e-1,
        1.196_192_7e-1,
        1.098_718_4e-1,
        7.996_327e-2,
        9.191_043e-2,
        -7.200_184e-2,
        1.833_685_5e-1,
        -2.222_321_2e-1,
        1.100_136_7e-1,
        -2.019_71e-2,
    ];
    let size = x.abs() + SOME;
    let t = 1.0 / (1.0 + 0.3 * size);
    let mut sum = SERIES[9];
    for factor in SERIES[..9].iter().rev() {
        sum = sum * t + factor;
    }
    let above = exp(-0.5 * size * size) * (t * sum);
    normal((x * if x >= 0.0 { 1.0 - above } else { above }).to_bits())
}

/// x × (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    // (1 + tanh(y)) / 2 is sigmoid(2 y).
    const TWICE: f32 = 1.595_769;
    let size = x.abs() + SOME;
    normal((x * sigmoid(TWICE * x * (1.0 + 0.044715 * (size * size)))).to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_e_are_exact_to_a_few_units() {
        for i in 0..=55_000 {
            let x = -(i as f32) / 1000.0;
            let (found, wanted) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((found / wanted - 1.0).abs() < 3e-7, "{x}: {found}, not {wanted}");
        }
        for x in [-55.01, -87.0, -200.0, -1e9, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(exp(x).to_bits(), 0, "{x}");
        }
        assert!(exp(f32::NAN).is_nan());
    }

    fn near(what: &str, of: impl Fn(f32) -> f32, wanted: impl Fn(f64) -> f64, allowed: f64) {
        for i in -60_000..=60_000 {
            let x = i as f32 / 1200.0;
            let (found, wanted) = (f64::from(of(x)), wanted(f64::from(x)));
            let error = (found - wanted).abs() / wanted.abs().max(1e-20);
            assert!(error < allowed, "{what} of {x}: {found}, not {wanted}");
        }
    }

    /// Relative to what is wanted, in the tails too.
    #[test]
    fn functions_are_exact_to_a_few_units() {
        near("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 5e-7);
        near("silu", silu, |x| x / (1.0 + (-x).exp()), 5e-7);
        near("softplus", softplus, |x| x.exp().ln_1p(), 5e-7);
        near("tanh", tanh, f64::tanh, 5e-7);
        for (x, wanted) in [(1e-7, 1e-7), (-3e-5, -3e-5), (1e-28, 1e-28), (0.0, 0.0)] {
            assert_eq!(tanh(x), wanted);
        }
        for of in [sigmoid, silu, softplus, tanh, gelu, gelu_tanh] {
            assert!(of(f32::NAN).is_nan());
        }
        assert_eq!(tanh(f32::NEG_INFINITY), -1.0);
        assert_eq!(softplus(1e30), 1e30);
    }
}
