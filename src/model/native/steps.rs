//! Modules that follow each other as one operation of the graph: what MLX does for each operation
//! costs as much as many a module of a small model computes.

use std::borrow::Cow;
use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::super::ops::Result;
use super::attention::{Attention, Lines};
use super::gated::Gated;
use super::{Native, RmsNorm, add, expect, multiply};
use crate::mlx::host::{Out, View, host_operations};

/// One of them: `[rows, tokens, width]` to the same, in f32.
#[derive(Debug)]
pub enum Step {
    /// x + steps(x).
    Residual(Vec<Step>),
    /// The sum of branches, of which there is one at least.
    Parallel(Vec<Vec<Step>>),
    /// An RMS norm.
    Norm(RmsNorm),
    /// Attention, made by [`Attention::step`].
    Attention(Arc<Attention>, Lines),
    /// A gated MLP.
    Gated(Arc<Gated>),
    /// A projection.
    Linear(Arc<Native>),
    /// Times a number.
    Scale(f32),
}

/// Keys and values that steps read and write.
#[derive(Debug, Default)]
pub struct Held {
    arrays: Vec<Array>,
    /// Which result each is that a step writes.
    results: Vec<Option<usize>>,
    written: usize,
}

impl Held {
    /// Arrays so far.
    pub(super) fn len(&self) -> usize {
        self.arrays.len()
    }

    /// Takes keys and values, which a step only reads or writes too.
    pub(super) fn take(&mut self, arrays: [Array; 2], write: bool) {
        for array in arrays {
            self.arrays.push(array);
            self.results.push(write.then_some(self.written));
            self.written += usize::from(write);
        }
    }
}

/// Those arrays while the steps run.
pub struct Buffers<'a, 'v, 'w> {
    views: &'a [View<'v>],
    results: &'a [Option<usize>],
    written: &'a mut [&'w mut [u8]],
}

impl<'v> Buffers<'_, 'v, '_> {
    /// The elements of an array that is written: nothing, if it is only read.
    pub fn written(&mut self, array: usize) -> &mut [u8] {
        match self.results[array] {
            Some(result) => self.written[result],
            None => &mut [],
        }
    }

    /// An array as it is: the elements of one that is written, or the view of another.
    pub fn held(&self, array: usize) -> std::result::Result<&[u8], &View<'v>> {
        match self.results[array] {
            Some(result) => Ok(&*self.written[result]),
            None => Err(&self.views[array]),
        }
    }
}

/// Runs steps on `x` `[rows, tokens, width]`, and gives what leaves the last one, and the keys and
/// values that were written, in the order in which they were taken.
pub fn run(steps: Vec<Step>, held: Held, x: &Array) -> Result<(Array, Vec<[Array; 2]>)> {
    let x = x.as_dtype(Dtype::Float32)?;
    let mut shape = x.shape().to_vec();
    let width = shape.pop().unwrap_or(0) as usize;
    let rows = shape.first().map_or(0, |&rows| rows as usize);
    let tokens: usize = shape.iter().map(|&axis| axis as usize).product();
    expect("that something enters", &[tokens > 0 && width > 0], &[true])?;
    let checked = Checked { rows, tokens };
    shape.push(checked.all(&steps, width)? as i32);

    let Held { arrays, results, .. } = held;
    let mut outs = vec![Out::new(&shape)];
    let written = arrays.iter().enumerate().filter(|(array, _)| results[*array].is_some());
    outs.extend(written.map(|(at, array)| Out { shape: array.shape(), over: Some(1 + at) }));
    let inputs: Vec<&Array> = std::iter::once(&x).chain(&arrays).collect();
    let made = host_operations(&inputs, &outs, Dtype::Float32, move |views, outs| {
        let Some((out, written)) = outs.split_first_mut() else { return };
        let x = views[0].row_major();
        let mut buffers = Buffers { views: &views[1..], results: &results, written };
        let made = run_all(&steps, cast_slice(&x), width, &mut buffers);
        cast_slice_mut(out).copy_from_slice(&made);
    });
    let mut made = made?.into_iter();
    let out = made.next().ok_or_else(|| Exception::custom("an operation gave nothing"))?;
    let mut written = Vec::new();
    while let (Some(keys), Some(values)) = (made.next(), made.next()) {
        written.push([keys, values]);
    }
    Ok((out, written))
}

/// That steps fit each other and what enters: in an operation it would be too late.
struct Checked {
    rows: usize,
    tokens: usize,
}

impl Checked {
    /// The width of what leaves steps.
    fn all(&self, steps: &[Step], width: usize) -> Result<usize> {
        steps.iter().try_fold(width, |width, step| self.one(step, width))
    }

    fn one(&self, step: &Step, width: usize) -> Result<usize> {
        let through = |[columns, rows]: [usize; 2]| {
            expect("what enters a matrix", &[width], &[columns])?;
            Ok(rows)
        };
        match step {
            Step::Residual(steps) => {
                let made = self.all(steps, width)?;
                expect("what is added to", &[made], &[width])?;
                Ok(made)
            }
            Step::Parallel(branches) => {
                let mut widths = branches.iter().map(|steps| self.all(steps, width));
                let first = widths.next().unwrap_or(Ok(width))?;
                widths.try_for_each(|made| expect("branches", &[made?], &[first]))?;
                Ok(first)
            }
            Step::Norm(norm) => norm.expect(width).map(|()| width),
            Step::Attention(attention, lines) => {
                lines.check(self.rows, self.tokens)?;
                through(attention.widths())
            }
            Step::Gated(gated) => through(gated.widths()),
            Step::Linear(native) => through([native.columns, native.rows]),
            Step::Scale(_) => Ok(width),
        }
    }
}

fn run_all<'x>(
    steps: &[Step],
    x: &'x [f32],
    width: usize,
    buffers: &mut Buffers,
) -> Cow<'x, [f32]> {
    let tokens = x.len() / width;
    let mut x = Cow::Borrowed(x);
    for step in steps {
        let width = x.len() / tokens;
        x = Cow::Owned(step.run(&x, width, buffers));
    }
    x
}

impl Step {
    /// `[tokens, width]` to the same.
    fn run(&self, x: &[f32], width: usize, buffers: &mut Buffers) -> Vec<f32> {
        match self {
            Step::Residual(steps) => {
                let mut made = run_all(steps, x, width, buffers).into_owned();
                add(&mut made, x);
                made
            }
            Step::Parallel(branches) => {
                let mut sum: Option<Vec<f32>> = None;
                for steps in branches {
                    let made = run_all(steps, x, width, buffers);
                    match &mut sum {
                        Some(sum) => add(sum, &made),
                        None => sum = Some(made.into_owned()),
                    }
                }
                sum.unwrap_or_else(|| x.to_vec())
            }
            Step::Norm(norm) => {
                let mut out = vec![0.0; x.len()];
                norm.apply(x, width, &mut out);
                out
            }
            Step::Attention(attention, lines) => attention.run(x, lines, buffers),
            Step::Gated(gated) => gated.run(x),
            Step::Linear(native) => {
                let mut out = vec![0.0; x.len() / width * native.rows];
                multiply(&[native], x, &mut [&mut out]);
                out
            }
            Step::Scale(by) => x.iter().map(|x| by * x).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::floats;
    use super::*;
    use crate::dtype::Dtype as Stored;
    use crate::model::source::Tensor;

    /// A matrix of so many rows of 2, all of its elements the same.
    fn linear(rows: i32, element: f32) -> Step {
        let bytes: Vec<u8> = (0..2 * rows).flat_map(|_| element.to_le_bytes()).collect();
        let shape = vec![rows, 2];
        let tensor = Tensor { dtype: Stored::F32, shape, bytes: bytes.into() };
        Step::Linear(Arc::new(Native::of_floats(&tensor).unwrap()))
    }

    fn norm(width: usize) -> Step {
        Step::Norm(RmsNorm { weight: Some(vec![2.0; width].into()), eps: 0.0 })
    }

    fn made(steps: Vec<Step>) -> Result<Vec<f32>> {
        let x = Array::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[1, 2, 2]);
        let (out, written) = run(steps, Held::default(), &x)?;
        assert!(written.is_empty());
        Ok(floats(&out)?.to_vec())
    }

    #[test]
    fn steps_follow_each_other() {
        let sums = |x: f32| linear(2, x);
        assert_eq!(made(Vec::new()).unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(made(vec![linear(1, 1.0), Step::Scale(3.0)]).unwrap(), [9.0, 21.0]);
        // 3 more, and then 2 × 9 more of half of that.
        let residual = Step::Residual(vec![sums(1.0)]);
        let nested = Step::Residual(vec![sums(1.0), Step::Scale(0.5)]);
        assert_eq!(made(vec![residual, nested]).unwrap(), [8.5, 9.5, 22.0 - 1.5, 21.5]);
        let branches = vec![vec![sums(1.0)], vec![Step::Scale(2.0)], Vec::new()];
        assert_eq!(made(vec![Step::Parallel(branches)]).unwrap(), [6.0, 9.0, 16.0, 19.0]);
        let normalized = made(vec![norm(2)]).unwrap();
        let mean = (2.5_f32).sqrt();
        assert!(
            (normalized[0] - 2.0 / mean).abs() < 1e-6 && (normalized[1] - 4.0 / mean).abs() < 1e-6
        );
    }

    /// An error from each, where the kernels would end the process.
    #[test]
    fn widths_that_do_not_fit_are_errors() {
        let three = || linear(3, 1.0);
        let wrong = [
            vec![three(), three()],
            vec![norm(3)],
            vec![Step::Residual(vec![three()])],
            vec![Step::Parallel(vec![vec![three()], Vec::new()])],
        ];
        for steps in wrong {
            let shown = format!("{steps:?}");
            assert!(made(steps).is_err(), "{shown}");
        }
    }
}
