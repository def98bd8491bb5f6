//! What is done with each element or row between products: norms, rotations, gates.

use crate::codec::{Eight, normal};
use crate::{Columns, in_parallel};

/// Elements from which on several threads share the work.
const MANY: usize = 64 * 1024;

/// x × (mean(x²) + eps)^-½ × weight of each row of `x` `[rows, width]` (Zhang and Sennrich 2019).
///
/// # Panics
/// When lengths do not fit each other.
pub fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32, width: usize, out: &mut [f32]) {
    assert!(width > 0 && x.len().is_multiple_of(width) && out.len() == x.len(), "rows");
    assert!(weight.is_none_or(|weight| weight.len() == width), "weight");
    by_rows(out, width, &|row, out| {
        let x = &x[row * width..(row + 1) * width];
        let scale = 1.0 / (sum(x, |x| x * x) / width as f32 + eps).sqrt();
        match weight {
            Some(weight) => {
                for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                    *out = x * scale * weight;
                }
            }
            None => out.iter_mut().zip(x).for_each(|(out, x)| *out = x * scale),
        }
    });
}

/// The sum over all elements, in eight parts.
#[inline(always)]
pub fn sum(x: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut sums: Eight = [0.0; 8];
    let chunks = x.chunks_exact(8);
    for (sum, &x) in sums.iter_mut().zip(chunks.remainder()) {
        *sum += of(x);
    }
    for chunk in chunks {
        for (sum, &x) in sums.iter_mut().zip(chunk) {
            *sum += of(x);
        }
    }
    sums.iter().sum()
}

/// Rows of f32 `[heads, rows, width]` that may lie anywhere: elements from one to the next on each
/// axis.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a> {
    /// From the first element to the last.
    pub data: &'a [f32],
    /// Elements of each axis.
    pub shape: [usize; 3],
    /// Steps of each axis.
    pub strides: [usize; 3],
}

/// A norm over each row.
#[derive(Clone, Copy, Debug)]
pub struct RowNorm<'a> {
    /// `[width]`.
    pub weight: Option<&'a [f32]>,
    /// What is added to the mean of squares.
    pub eps: f32,
}

/// A rotation of each row's first elements in pairs, by the angles of its position (Su et al.
/// 2021): pair i of row j by the one whose cosine and sine stand at `[j, i]`.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// `[rows, pairs]`.
    pub cos: &'a [f32],
    /// `[rows, pairs]`.
    pub sin: &'a [f32],
    /// Whether a pair is (2 i, 2 i + 1), and not (i, i + pairs).
    pub interleaved: bool,
}

/// Rows of `x`, normalized and then turned: `out` `[heads, rows, width]`.
///
/// # Panics
/// When lengths do not fit each other.
pub fn heads(x: &Strided, norm: Option<RowNorm>, turn: Option<Turn>, out: &mut [f32]) {
    let Strided { data, shape: [heads, rows, width], strides } = *x;
    assert_eq!(out.len(), heads * rows * width, "out");
    if out.is_empty() {
        return;
    }
    if let Some(RowNorm { weight: Some(weight), .. }) = norm {
        assert_eq!(weight.len(), width, "weight");
    }
    let pairs = turn.map_or(0, |turn| {
        let pairs = turn.cos.len() / rows;
        let fits = turn.cos.len() == rows * pairs && turn.sin.len() == rows * pairs;
        assert!(fits && 2 * pairs <= width, "angles");
        pairs
    });
    by_rows(out, width, &|at, out| {
        let (head, row) = (at / rows, at % rows);
        let from = head * strides[0] + row * strides[1];
        if strides[2] == 1 {
            out.copy_from_slice(&data[from..from + width]);
        } else {
            for (element, out) in out.iter_mut().enumerate() {
                *out = data[from + element * strides[2]];
            }
        }
        if let Some(RowNorm { weight, eps }) = norm {
            let scale = 1.0 / (sum(out, |x| x * x) / width as f32 + eps).sqrt();
            match weight {
                Some(weight) => {
                    out.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * scale * weight);
                }
                None => out.iter_mut().for_each(|x| *x *= scale),
            }
        }
        if let Some(Turn { cos, sin, interleaved }) = turn {
            let turns = row * pairs..(row + 1) * pairs;
            turn_row(out, &cos[turns.clone()], &sin[turns], interleaved);
        }
    });
}

fn turn_row(row: &mut [f32], cos: &[f32], sin: &[f32], interleaved: bool) {
    let angles = cos.iter().zip(sin);
    if interleaved {
        for (pair, (cos, sin)) in row.chunks_exact_mut(2).zip(angles) {
            (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[1] * cos + pair[0] * sin);
        }
    } else {
        let (first, second) = row.split_at_mut(cos.len());
        for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(angles) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

/// A function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// x × sigmoid(x).
    Silu,
    /// x × Φ(x), by tanh.
    GeluTanh,
    /// sigmoid(x).
    Sigmoid,
    /// max(x, 0).
    Relu,
    /// x × Φ(x).
    Gelu,
    /// max(x, 0)².
    Relu2,
    /// ln(1 + e^x).
    Softplus,
}

/// cap × tanh(x / cap) of each.
pub fn soft_cap(x: &mut [f32], cap: f32) {
    x.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
}

/// (x - mean) × (variance + eps)^-½ × weight + bias of each row.
pub fn layer_norm(
    x: &[f32],
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    eps: f32,
    width: usize,
    out: &mut [f32],
) {
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let mean = sum(x, |x| x) / width as f32;
        let scale = 1.0 / (sum(x, |x| (x - mean) * (x - mean)) / width as f32 + eps).sqrt();
        for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
            let weight = weight.map_or(1.0, |weight| weight[i]);
            *out = (x - mean) * scale * weight + bias.map_or(0.0, |bias| bias[i]);
        }
    }
}

fn erf(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.5 * f64::from(x).abs());
    let z = f64::from(x).abs();
    let r = t
        * (-z * z - 1.26551223
            + t * (1.00002368
                + t * (0.37409196
                    + t * (0.09678418
                        + t * (-0.18628806
                            + t * (0.27886807
                                + t * (-1.13520398
                                    + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277)))))))))
            .exp();
    (if x >= 0.0 { 1.0 - r } else { r - 1.0 }) as f32
}

impl Gate {
    /// The function of each, in its place.
    pub fn of(self, x: &mut [f32]) {
        let ones = vec![1.0; x.len()];
        self.apply(x, &ones);
    }

    /// The function of each `gate`, times `by`, in its place.
    ///
    /// # Panics
    /// When lengths do not fit each other.
    pub fn apply(self, gate: &mut [f32], by: &[f32]) {
        assert_eq!(gate.len(), by.len(), "lengths");
        match self {
            Gate::Silu => each(gate, by, |x| x * sigmoid(x)),
            Gate::Sigmoid => each(gate, by, sigmoid),
            Gate::Relu => each(gate, by, |x| x.max(0.0)),
            Gate::Relu2 => each(gate, by, |x| x.max(0.0) * x.max(0.0)),
            Gate::Softplus => each(gate, by, |x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
            Gate::Gelu => {
                each(gate, by, |x| 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)))
            }
            Gate::GeluTanh => each(gate, by, |x| {
                // (1 + tanh(y)) / 2 is sigmoid(2 y).
                let twice = 2.0 * (2.0 / std::f32::consts::PI).sqrt();
                x * sigmoid(twice * (x + 0.044715 * x * x * x))
            }),
        }
    }
}

/// In parts, each short enough to share.
fn each(gate: &mut [f32], by: &[f32], function: impl Fn(f32) -> f32 + Sync) {
    let part = MANY / 4;
    let whole = gate.len() - gate.len() % part;
    let work = |from: usize, gate: &mut [f32]| {
        for (gate, by) in gate.iter_mut().zip(&by[from..]) {
            *gate = normal((function(*gate) * by).to_bits());
        }
    };
    let (parts, rest) = gate.split_at_mut(whole);
    by_rows(parts, part, &|row, gate| work(row * part, gate));
    work(whole, rest);
}

/// x × sigmoid(x).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    normal((x * sigmoid(x)).to_bits())
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let small = exp(-x.abs());
    let of_size = 1.0 / (1.0 + small);
    if x >= 0.0 { of_size } else { small * of_size }
}

/// Calls `work` with each row of `out` `[rows, width]`.
fn by_rows(out: &mut [f32], width: usize, work: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    let (rows, elements) = (out.len() / width, out.len());
    // Some rows at a time, so that a piece is worth taking.
    let together = (MANY / 4 / width).max(1);
    let out = Columns { start: out.as_mut_ptr(), stride: width };
    in_parallel(rows.div_ceil(together), elements >= MANY, &|piece| {
        for row in piece * together..((piece + 1) * together).min(rows) {
            // SAFETY: a row of `out`, which no other piece has.
            let out = unsafe { std::slice::from_raw_parts_mut(out.below(row).at(0), width) };
            work(row, out);
        }
    });
}

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

#[cfg(test)]
mod tests {
    use super::super::tests::Random;
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

    /// Each by its definition, in f64.
    #[test]
    fn gates_are_what_they_are_defined_to_be() {
        let x: Vec<f32> = (-4000..=4000).map(|i| i as f32 / 200.0).collect();
        let by: Vec<f32> = x.iter().map(|x| 0.5 - x / 10.0).collect();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let gelu = |x: f64| {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        };
        let silu = |x: f64| x * sigmoid(x);
        let relu = |x: f64| x.max(0.0);
        let cases: [(Gate, &dyn Fn(f64) -> f64); 4] = [
            (Gate::Silu, &silu),
            (Gate::Sigmoid, &sigmoid),
            (Gate::Relu, &relu),
            (Gate::GeluTanh, &gelu),
        ];
        for (gate, wanted) in cases {
            let mut out = x.clone();
            gate.apply(&mut out, &by);
            for ((&x, &by), &found) in x.iter().zip(&by).zip(&out) {
                let wanted = wanted(f64::from(x)) * f64::from(by);
                assert!(
                    (f64::from(found) - wanted).abs() <= 2e-6 * wanted.abs().max(0.1),
                    "{gate:?} of {x} times {by}: {found}, not {wanted}"
                );
            }
        }
        // So many that threads share them; NaN stays what it is.
        let many: Vec<f32> = (0..MANY * 3 + 5).map(|i| (i % 17) as f32 - 8.0).collect();
        let mut out = many.clone();
        Gate::Relu.apply(&mut out, &many);
        assert!(many.iter().zip(&out).all(|(&x, &y)| y == x.max(0.0) * x));
        let mut out = [f32::NAN];
        Gate::Silu.apply(&mut out, &[1.0]);
        assert!(out[0].is_nan());
    }

    #[test]
    fn a_norm_is_what_it_is_defined_to_be() {
        let mut random = Random(3);
        for (rows, width) in [(1, 7), (3, 64), (400, 576)] {
            let x: Vec<f32> = (0..rows * width).map(|_| random.float()).collect();
            let weight: Vec<f32> = (0..width).map(|_| random.float()).collect();
            for weight in [None, Some(&weight[..])] {
                let mut out = vec![f32::NAN; x.len()];
                rms_norm(&x, weight, 1e-5, width, &mut out);
                for (row, (x, out)) in x.chunks(width).zip(out.chunks(width)).enumerate() {
                    let square = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
                    let scale = (square / width as f64 + 1e-5).sqrt().recip();
                    for (i, (&x, &out)) in x.iter().zip(out).enumerate() {
                        let weight = weight.map_or(1.0, |weight| f64::from(weight[i]));
                        let wanted = f64::from(x) * scale * weight;
                        assert!(
                            (f64::from(out) - wanted).abs() < 1e-6,
                            "[{row}, {i}]: {out}, {wanted}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn pairs_are_turned_wherever_rows_lie() {
        let mut random = Random(4);
        let (many, rows, width, pairs) = (3, 50, 10, 4);
        let x: Vec<f32> = (0..many * rows * width).map(|_| random.float()).collect();
        let angles: Vec<f32> = (0..rows * pairs).map(|_| random.float() * 3.0).collect();
        let (sin, cos): (Vec<f32>, Vec<f32>) = angles.iter().map(|angle| angle.sin_cos()).unzip();
        // By heads, by rows, and by elements.
        for strides in [[rows * width, width, 1], [width, many * width, 1], [rows, 1, many * rows]]
        {
            for interleaved in [false, true] {
                let shape = [many, rows, width];
                let given = Strided { data: &x, shape, strides };
                let mut out = vec![f32::NAN; x.len()];
                let turn = Turn { cos: &cos, sin: &sin, interleaved };
                heads(&given, None, Some(turn), &mut out);
                for head in 0..many {
                    for row in 0..rows {
                        let from =
                            |i: usize| x[head * strides[0] + row * strides[1] + i * strides[2]];
                        let to = |i: usize| out[(head * rows + row) * width + i];
                        for pair in 0..pairs {
                            let (a, b) = match interleaved {
                                true => (2 * pair, 2 * pair + 1),
                                false => (pair, pair + pairs),
                            };
                            let (sin, cos) = angles[row * pairs + pair].sin_cos();
                            assert!((to(a) - (from(a) * cos - from(b) * sin)).abs() < 1e-6);
                            assert!((to(b) - (from(b) * cos + from(a) * sin)).abs() < 1e-6);
                        }
                        assert!((2 * pairs..width).all(|i| to(i) == from(i)));
                    }
                }
                // Normalized before they are turned.
                let weight: Vec<f32> = (0..width).map(|i| 0.5 + i as f32).collect();
                let norm = RowNorm { weight: Some(&weight), eps: 1e-5 };
                let mut plain = vec![f32::NAN; x.len()];
                heads(&given, None, None, &mut plain);
                let mut normed = vec![f32::NAN; x.len()];
                rms_norm(&plain, Some(&weight), 1e-5, width, &mut normed);
                let normed = Strided { data: &normed, shape, strides: [rows * width, width, 1] };
                let mut wanted = vec![f32::NAN; x.len()];
                heads(&normed, None, Some(turn), &mut wanted);
                heads(&given, Some(norm), Some(turn), &mut out);
                assert_eq!(out, wanted);
            }
        }
    }
}
