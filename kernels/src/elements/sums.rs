//! Sums and products of arrays.

use super::by_parts;
use crate::vectorized::vectorized;

/// Adds `bias` `[width]` to each row of `x` `[rows, width]`.
///
/// # Panics
/// When lengths do not fit each other.
pub fn add_bias(x: &mut [f32], bias: &[f32]) {
    check(x, bias);
    x.chunks_exact_mut(bias.len()).for_each(|row| added(row, bias, 1.0));
}

/// Multiplies each row of `x` `[rows, width]` with `by` `[width]`.
///
/// # Panics
/// When lengths do not fit each other.
pub fn multiply_rows(x: &mut [f32], by: &[f32]) {
    check(x, by);
    x.chunks_exact_mut(by.len()).for_each(|row| multiplied(row, by));
}

/// Multiplies each row of `x` `[rows, width]` with the one number of `by` `[rows]` that is its own.
///
/// # Panics
/// When lengths do not fit each other.
pub fn scale_rows(x: &mut [f32], by: &[f32]) {
    if x.is_empty() {
        return;
    }
    assert!(!by.is_empty() && x.len().is_multiple_of(by.len()), "rows");
    let width = x.len() / by.len();
    x.chunks_exact_mut(width).zip(by).for_each(|(row, by)| scaled(row, *by));
}

/// Multiplies each element.
pub fn scale(x: &mut [f32], by: f32) {
    by_parts(x, &|_, x| scaled(x, by));
}

/// (x + the sum of all branches) × factor in the place of `x`: with a factor of one over their
/// number, their mean.
///
/// # Panics
/// When lengths do not fit each other.
pub fn add_all(x: &mut [f32], branches: &[&[f32]], factor: f32) {
    for branch in branches {
        assert_eq!(branch.len(), x.len(), "branches");
    }
    by_parts(x, &|from, x| {
        for (at, branch) in branches.iter().enumerate() {
            let last = at + 1 == branches.len();
            added(x, &branch[from..from + x.len()], if last { factor } else { 1.0 });
        }
        if branches.is_empty() {
            scaled(x, factor);
        }
    });
}

fn check(x: &[f32], row: &[f32]) {
    assert!(x.is_empty() || !row.is_empty() && x.len().is_multiple_of(row.len()), "rows");
}

vectorized! {
    fn added(x: &mut [f32], branch: &[f32], factor: f32) {
        x.iter_mut().zip(branch).for_each(|(x, branch)| *x = (*x + branch) * factor);
    }

    fn multiplied(x: &mut [f32], by: &[f32]) {
        x.iter_mut().zip(by).for_each(|(x, by)| *x *= by);
    }

    fn scaled(x: &mut [f32], by: f32) {
        x.iter_mut().for_each(|x| *x *= by);
    }
}

#[cfg(test)]
mod tests {
    use super::super::MANY;
    use super::*;

    #[test]
    fn rows_are_added_and_multiplied() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let made = |work: &dyn Fn(&mut [f32])| {
            let mut x = x;
            work(&mut x);
            x
        };
        assert_eq!(made(&|x| add_bias(x, &[10.0, 20.0])), [11.0, 22.0, 13.0, 24.0, 15.0, 26.0]);
        assert_eq!(
            made(&|x| multiply_rows(x, &[2.0, 0.0, -1.0])),
            [2.0, 0.0, -3.0, 8.0, 0.0, -6.0]
        );
        assert_eq!(made(&|x| scale_rows(x, &[2.0, 0.5])), [2.0, 4.0, 6.0, 2.0, 2.5, 3.0]);
        assert_eq!(made(&|x| scale(x, -1.0)), x.map(|x| -x));
        assert_eq!(made(&|x| add_all(x, &[], 2.0)), x.map(|x| 2.0 * x));
        assert_eq!(made(&|x| add_all(x, &[&[1.0; 6]], 0.5)), x.map(|x| (x + 1.0) / 2.0));
        scale_rows(&mut [], &[]);
        add_bias(&mut [], &[1.0]);
        let many: Vec<f32> = (0..3 * MANY + 7).map(|i| (i % 1000) as f32).collect();
        let mut sum = many.clone();
        add_all(&mut sum, &[&many, &many], 0.25);
        assert!(sum.iter().zip(&many).all(|(sum, x)| *sum == x * 0.75));
    }

    #[test]
    #[should_panic(expected = "branches")]
    fn branches_of_other_lengths_are_refused() {
        add_all(&mut [0.0; 4], &[&[0.0; 4], &[0.0; 3]], 1.0);
    }
}
