//! Scores by themselves and rotations by themselves, for attention that is not one operation.

use std::borrow::Cow;

use bytemuck::{cast_slice, cast_slice_mut};
use lathe_kernels::{Heads, Sight, Strided, attend};
use mlx_rs::{Array, Dtype};

use super::super::ops::Result;
use super::BLAS;
use super::attention::Turn;
use crate::mlx::host::{View, host_operation};

/// Turns `[1, heads, tokens, width]` in f32.
pub fn rotate(x: &Array, turn: &Turn) -> Result<Array> {
    turn.expect(x.dim(-2) as usize, x.dim(-1) as usize)?;
    let turn = turn.clone();
    let made = host_operation(&[x], x.shape(), Dtype::Float32, move |views, out| {
        let [_, of_head, of_row, of_element] =
            std::array::from_fn(|axis| views[0].strides[axis] as usize);
        let [_, heads, rows, width] = axes(&views[0]);
        let x = Strided {
            data: cast_slice(views[0].bytes),
            shape: [heads, rows, width],
            strides: [of_head, of_row, of_element],
        };
        lathe_kernels::heads(&x, None, Some(turn.of()), cast_slice_mut(out));
    });
    Ok(made?)
}

/// How queries see keys.
#[derive(Clone, Copy, Debug)]
pub struct Seeing {
    /// Multiplies scores.
    pub scale: f32,
    /// Query i sees key j up to `first + i`.
    pub first: usize,
    /// At most so many keys, the last ones.
    pub window: Option<usize>,
}

/// Attention of queries over keys and values, `[1, heads, tokens, width]` each in f32.
pub fn attention([queries, keys, values]: [&Array; 3], seeing: Seeing) -> Result<Array> {
    let shape = [1, queries.dim(1), queries.dim(2), values.dim(3)];
    let inputs = [queries, keys, values];
    let Seeing { scale, first, window } = seeing;
    let made = host_operation(&inputs, &shape, Dtype::Float32, move |views, out| {
        let [q, k, v] = [0, 1, 2].map(|i| lined_up(&views[i]));
        let sight = Sight { scale, cap: None, first, causal: true, window, sinks: None };
        attend(
            heads_of(&views[0], &q),
            &[heads_of(&views[1], &k)],
            &[heads_of(&views[2], &v)],
            &sight,
            cast_slice_mut(out),
            BLAS,
        );
    });
    Ok(made?)
}

/// The four axes of a view.
fn axes(view: &View) -> [usize; 4] {
    std::array::from_fn(|axis| view.shape[axis] as usize)
}

/// The elements of a view `[1, heads, rows, width]` whose rows follow each other, and the elements
/// from a head to the next; a copy if they lie otherwise.
pub(super) fn lined_up<'a>(view: &View<'a>) -> (Cow<'a, [f32]>, usize) {
    let floats: &[f32] = cast_slice(view.bytes);
    let [_, heads, rows, width] = axes(view);
    let [_, of_head, of_row, of_element] = std::array::from_fn(|axis| view.strides[axis] as usize);
    let tight = (width == 1 || of_element == 1) && (rows == 1 || of_row == width);
    if tight {
        return (Cow::Borrowed(floats), of_head);
    }
    let mut copy = Vec::with_capacity(heads * rows * width);
    for row in (0..heads).flat_map(|head| (0..rows).map(move |row| head * of_head + row * of_row)) {
        copy.extend((0..width).map(|element| floats[row + element * of_element]));
    }
    (Cow::Owned(copy), rows * width)
}

fn heads_of<'a>(view: &View, (data, stride): &'a (Cow<[f32]>, usize)) -> Heads<'a> {
    let [_, heads, rows, width] = axes(view);
    Heads { data, heads, rows, width, stride: *stride }
}
