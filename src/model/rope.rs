//! Rotary positions in a pass: angles of a row's tokens, and turning by them.
//!
//! What a config says of them and the frequencies are [`crate::decoder::rope`]'s. Pairs are
//! (i, i + n), or neighbours when `interleaved`.

use std::cell::OnceCell;
use std::rc::Rc;

use mlx_rs::ops::indexing::{Ellipsis, TryIndexOp};
use mlx_rs::ops::{concatenate, stack};
use mlx_rs::{Array, Dtype};

use super::batch::{Pass, Span};
use super::loader::Loader;
use super::native::{self, Floats, Turn};
use super::ops::{Result, last_axis};
use crate::decoder::parts;
use crate::decoder::rope::Rotation;

/// A rotation.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Which of the model's different rotations it is.
    pub id: usize,
    /// Its frequencies.
    pub rotation: Rotation,
    /// Whether a sequence is run again when its rotation changes.
    pub run_again: bool,
    interleaved: bool,
    /// Whether lathe's own kernels do it.
    on_cpu: bool,
}

impl Rope {
    /// A rotation, shared by all that rotate alike.
    pub fn load(from: &mut Loader, rope: &parts::Rope) -> Rope {
        let parts::Rope { rotation, interleaved, run_again } = rope.clone();
        let on_cpu = from.compute.on_cpu;
        from.shared_rope(Rope { id: 0, rotation, run_again, interleaved, on_cpu })
    }

    /// Rotates a row's `[…, tokens, head_dim]`.
    pub fn apply(&self, x: &Array, span: Span, pass: &mut Pass) -> Result<Array> {
        if self.on_cpu && x.dtype() == Dtype::Float32 && x.ndim() == 4 && x.dim(0) == 1 {
            return native::rotate(x, &self.turn(span, pass));
        }
        let [cos, sin] = self.rotations(span, x.dtype(), pass)?;
        let (pairs, head_dim) = (self.rotation.pairs() as i32, x.dim(-1));
        let turned = if self.interleaved {
            let mut shape = x.shape().to_vec();
            shape.pop();
            let rotated = last_axis(x, 0, 2 * pairs)?;
            let mut paired = shape.clone();
            paired.extend([pairs, 2]);
            let rotated = rotated.reshape(&paired)?;
            let first = rotated.try_index((Ellipsis, 0))?;
            let second = rotated.try_index((Ellipsis, 1))?;
            let (first, second) = turn(&first, &second, &cos, &sin)?;
            shape.push(2 * pairs);
            stack(&[first, second], -1)?.reshape(&shape)?
        } else {
            let first = last_axis(x, 0, pairs)?;
            let second = last_axis(x, pairs, 2 * pairs)?;
            let (first, second) = turn(&first, &second, &cos, &sin)?;
            if 2 * pairs == head_dim {
                return concatenate(&[first, second], -1);
            }
            concatenate(&[first, second], -1)?
        };
        if 2 * pairs == head_dim {
            return Ok(turned);
        }
        concatenate(&[turned, last_axis(x, 2 * pairs, head_dim)?], -1)
    }

    /// Cosines and sines, `[tokens, pairs]` each, once for each pass and row.
    fn angles(&self, span: Span, pass: &mut Pass) -> Rc<Angles> {
        let make = || {
            let (frequencies, factor) = self.rotation.of_length(span.whole);
            // Angles in f32, as the reference computes them.
            let angles = (span.position..span.position + span.tokens)
                .flat_map(|at| frequencies.iter().map(move |frequency| at as f32 * frequency));
            let (cos, sin): (Vec<f32>, Vec<f32>) =
                angles.map(|angle| (angle.cos() * factor, angle.sin() * factor)).unzip();
            Rc::new(Angles { parts: [cos.into(), sin.into()], arrays: OnceCell::new() })
        };
        pass.rotations.entry((self.id, span)).or_insert_with(make).clone()
    }

    /// The same for lathe's own kernels.
    pub fn turn(&self, span: Span, pass: &mut Pass) -> Turn {
        let [cos, sin] = self.angles(span, pass).parts.clone();
        Turn { cos, sin, interleaved: self.interleaved }
    }

    fn rotations(&self, span: Span, dtype: Dtype, pass: &mut Pass) -> Result<[Array; 2]> {
        let angles = self.angles(span, pass);
        let shape = [span.tokens as i32, self.rotation.pairs() as i32];
        let arrays = angles
            .arrays
            .get_or_init(|| angles.parts.each_ref().map(|part| Array::from_slice(part, &shape)));
        let [cos, sin] = arrays.each_ref().map(|array| array.as_dtype(dtype));
        Ok([cos?, sin?])
    }
}

/// Cosines and sines of the tokens of a pass.
#[derive(Debug)]
pub struct Angles {
    parts: [Floats; 2],
    arrays: OnceCell<[Array; 2]>,
}

fn turn(x: &Array, y: &Array, cos: &Array, sin: &Array) -> Result<(Array, Array)> {
    let first = x.multiply(cos)?.subtract(y.multiply(sin)?)?;
    let second = y.multiply(cos)?.add(x.multiply(sin)?)?;
    Ok((first, second))
}
