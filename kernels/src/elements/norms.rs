//! Norms of rows.

use super::{by_rows, sum, sum_of_squares};
use crate::vectorized::vectorized;

/// x × (mean(x²) + eps)^-½ × weight of each row of `x` `[rows, width]` (Zhang and Sennrich 2019).
/// The weight is `[width]`, or of several rows, which those of `x` take by turns: one for each group
/// of a row that is normalized by groups.
///
/// # Panics
/// When lengths do not fit each other.
pub fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32, width: usize, out: &mut [f32]) {
    check(x, weight, width, out);
    by_rows(out, width, &|row, out| {
        let x = &x[row * width..(row + 1) * width];
        rms_row(x, of_row(weight, row, width), eps, out);
    });
}

/// (x - mean(x)) × (mean((x - mean(x))²) + eps)^-½ × weight + bias of each row of `x` `[rows,
/// width]` (Ba et al. 2016), with a weight and a bias `[width]` if there are any.
///
/// # Panics
/// When lengths do not fit each other.
pub fn layer_norm(
    x: &[f32],
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    eps: f32,
    width: usize,
    out: &mut [f32],
) {
    check(x, weight, width, out);
    check(x, bias, width, out);
    by_rows(out, width, &|row, out| {
        let x = &x[row * width..(row + 1) * width];
        centred_row(x, [weight, bias].map(|it| of_row(it, row, width)), eps, out);
    });
}

fn check(x: &[f32], weight: Option<&[f32]>, width: usize, out: &[f32]) {
    assert!(width > 0 && x.len().is_multiple_of(width) && out.len() == x.len(), "rows");
    let fits = |length: usize| length > 0 && length.is_multiple_of(width);
    assert!(weight.is_none_or(|weight| fits(weight.len())), "weight");
}

fn of_row(weight: Option<&[f32]>, row: usize, width: usize) -> Option<&[f32]> {
    weight.map(|weight| &weight[row * width % weight.len()..][..width])
}

vectorized! {
    fn rms_row(x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt();
        match weight {
            Some(weight) => {
                for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                    *out = x * scale * weight;
                }
            }
            None => out.iter_mut().zip(x).for_each(|(out, x)| *out = x * scale),
        }
    }

    fn centred_row(x: &[f32], by: [Option<&[f32]>; 2], eps: f32, out: &mut [f32]) {
        let mean = sum(x, |x| x) / x.len() as f32;
        out.iter_mut().zip(x).for_each(|(out, x)| *out = x - mean);
        let scale = 1.0 / (sum_of_squares(out) / x.len() as f32 + eps).sqrt();
        out.iter_mut().for_each(|x| *x *= scale);
        let [weight, bias] = by;
        if let Some(weight) = weight {
            out.iter_mut().zip(weight).for_each(|(x, weight)| *x *= weight);
        }
        if let Some(bias) = bias {
            out.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Random;

    #[test]
    fn a_norm_is_what_it_is_defined_to_be() {
        let mut random = Random(3);
        for (rows, width, turns) in [(1, 7, 1), (3, 64, 1), (400, 576, 1), (12, 17, 4)] {
            let x: Vec<f32> = (0..rows * width).map(|_| random.float() + 0.3).collect();
            let [given, bias] =
                [turns, 1].map(|rows| (0..rows * width).map(|_| random.float()).collect());
            let (given, bias): (Vec<f32>, Vec<f32>) = (given, bias);
            for (weight, bias) in
                [(None, None), (Some(&given[..]), None), (Some(&given[..]), Some(&bias[..]))]
            {
                let mut out = vec![f32::NAN; x.len()];
                rms_norm(&x, weight, 1e-5, width, &mut out);
                let mut centred = vec![f32::NAN; x.len()];
                layer_norm(&x, weight, bias, 1e-5, width, &mut centred);
                for row in 0..rows {
                    let x = x[row * width..][..width].iter().map(|&x| f64::from(x));
                    let mean = x.clone().sum::<f64>() / width as f64;
                    let square = |mean: f64| {
                        let squares = x.clone().map(|x| (x - mean).powi(2));
                        (squares.sum::<f64>() / width as f64 + 1e-5).sqrt()
                    };
                    let (plain, spread) = (square(0.0), square(mean));
                    for (i, x) in x.clone().enumerate() {
                        let at = row * width + i;
                        let weight =
                            weight.map_or(1.0, |weight| f64::from(weight[at % weight.len()]));
                        let bias = bias.map_or(0.0, |bias| f64::from(bias[i]));
                        for (found, wanted) in [
                            (out[at], x / plain * weight),
                            (centred[at], (x - mean) / spread * weight + bias),
                        ] {
                            let near = (f64::from(found) - wanted).abs() < 2e-6;
                            assert!(near, "[{row}, {i}]: {found}, {wanted}");
                        }
                    }
                }
            }
        }
    }
}
