//! Norms and rotations of heads' rows, wherever they lie.

use super::{by_rows, sum_of_squares};

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
pub struct Angles<'a> {
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
pub fn heads(x: &Strided, norm: Option<RowNorm>, turn: Option<Angles>, out: &mut [f32]) {
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
            let scale = 1.0 / (sum_of_squares(out) / width as f32 + eps).sqrt();
            match weight {
                Some(weight) => {
                    out.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * scale * weight);
                }
                None => out.iter_mut().for_each(|x| *x *= scale),
            }
        }
        if let Some(Angles { cos, sin, interleaved }) = turn {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rms_norm;
    use crate::tests::Random;

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
                let turn = Angles { cos: &cos, sin: &sin, interleaved };
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
