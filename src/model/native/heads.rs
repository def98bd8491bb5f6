//! What attention does between its products: heads, their norms and rotations, scores.

use std::borrow::Cow;

use bytemuck::{cast_slice, cast_slice_mut};
use lathe_kernels::{Heads, Product, RowNorm, Sight, Strided, attend, products};
use mlx_rs::{Array, Dtype};

use super::super::ops::Result;
use super::{BLAS, Native, Stacked, add, expect, row_major};
use crate::mlx::host::{View, host_operation, host_operations};

/// Heads that are made of what a projection gives.
pub struct HeadsOf<'a> {
    /// Which projection.
    pub of: usize,
    /// Its first column that belongs to them.
    pub first: i32,
    /// How many.
    pub heads: i32,
    /// A norm over each head: its weight, if it has one, and epsilon.
    pub norm: Option<(Option<&'a Array>, f32)>,
    /// Whether they are turned.
    pub turned: bool,
}

/// A projection, and its bias if it has one.
pub type Projection<'a> = (&'a Native, Option<&'a Array>);

/// A rotation by the angles of each token.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    /// Cosines `[tokens, pairs]`.
    pub cos: &'a Array,
    /// Sines `[tokens, pairs]`.
    pub sin: &'a Array,
    /// See [`lathe_kernels::Turn`].
    pub interleaved: bool,
}

/// What [`heads`] does for each [`HeadsOf`], with places among the inputs for arrays.
struct Making {
    of: usize,
    first: usize,
    heads: usize,
    norm: Option<(Option<usize>, f32)>,
    turned: bool,
}

/// Projections, each with its bias if it has one, of `x` `[1, tokens, in]`, split into heads of
/// `dim` elements, which are normalized and turned: `[1, heads, tokens, dim]` each, in f32.
pub fn heads<'a>(
    projections: &[Projection<'a>],
    all: &[HeadsOf<'a>],
    dim: i32,
    turn: Option<Turn<'a>>,
    x: &Array,
) -> Result<Vec<Array>> {
    let natives: Vec<&Native> = projections.iter().map(|(native, _)| *native).collect();
    for (native, bias) in projections {
        if let Some(bias) = bias {
            expect("the bias of a projection", bias.shape(), &[native.rows])?;
        }
    }
    for one in all {
        if let Some((Some(weight), _)) = one.norm {
            expect("the weight of a norm of heads", weight.shape(), &[dim])?;
        }
        let needed = one.first + one.heads * dim;
        let rows = natives.get(one.of).map_or(0, |native| native.rows);
        expect("the rows of a projection to heads", &[rows.min(needed)], &[needed])?;
    }
    let Stacked { x, inputs, places, .. } = Stacked::new(&natives, x)?;
    let mut inputs: Vec<&Array> = std::iter::once(&x).chain(inputs).collect();
    let mut place = |array: &'a Array| {
        inputs.push(array);
        inputs.len() - 1
    };
    let biases: Vec<Option<usize>> =
        projections.iter().map(|(_, bias)| bias.map(&mut place)).collect();
    let making: Vec<Making> = all
        .iter()
        .map(|one| Making {
            of: one.of,
            first: one.first as usize,
            heads: one.heads as usize,
            norm: one.norm.map(|(weight, eps)| (weight.map(&mut place), eps)),
            turned: one.turned,
        })
        .collect();
    if let Some(turn) = &turn {
        let turned = 2 * turn.cos.dim(-1);
        expect("what is turned of a head", &[turned], &[turned.min(dim)])?;
    }
    let turn = turn.map(|turn| (place(turn.cos), place(turn.sin), turn.interleaved));
    let shapes: Vec<[i32; 4]> = all.iter().map(|one| [1, one.heads, x.dim(1), dim]).collect();
    let shapes: Vec<&[i32]> = shapes.iter().map(|shape| &shape[..]).collect();
    let (tokens, dim) = (x.dim(1) as usize, dim as usize);
    let made = host_operations(&inputs, &shapes, Dtype::Float32, move |views, outs| {
        let inputs = row_major(views);
        let floats = |place: usize| -> &[f32] { cast_slice(&inputs[place]) };
        let mut projected: Vec<Vec<f32>> =
            places.iter().map(|places| vec![0.0; tokens * places.rows]).collect();
        let of = places.iter().zip(&mut projected);
        let mut of: Vec<Product> =
            of.map(|(places, out)| Product { matrix: places.matrix(&inputs, 0), out }).collect();
        products(floats(0), &mut of, BLAS);
        for (rows, bias) in projected.iter_mut().zip(&biases) {
            if let Some(bias) = bias.map(floats) {
                rows.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
            }
        }
        for (one, out) in making.iter().zip(outs) {
            let rows = Strided {
                data: &projected[one.of][one.first..],
                shape: [one.heads, tokens, dim],
                strides: [dim, places[one.of].rows, 1],
            };
            let norm = one.norm.map(|(weight, eps)| RowNorm { weight: weight.map(floats), eps });
            let turn = turn.filter(|_| one.turned).map(|(cos, sin, interleaved)| {
                lathe_kernels::Turn { cos: floats(cos), sin: floats(sin), interleaved }
            });
            lathe_kernels::heads(&rows, norm, turn, cast_slice_mut(out));
        }
    });
    Ok(made?)
}

/// Turns `[1, heads, tokens, width]` in f32.
pub fn rotate(x: &Array, turn: Turn) -> Result<Array> {
    let Turn { cos, sin, interleaved } = turn;
    let fits = (2 * cos.dim(-1)).min(x.dim(-1));
    expect("what is turned of a head", &[2 * cos.dim(-1)], &[fits])?;
    let made = host_operation(&[x, cos, sin], x.shape(), Dtype::Float32, move |views, out| {
        let [_, of_head, of_row, of_element] =
            std::array::from_fn(|axis| views[0].strides[axis] as usize);
        let [_, heads, rows, width] = axes(&views[0]);
        let x = Strided {
            data: cast_slice(views[0].bytes),
            shape: [heads, rows, width],
            strides: [of_head, of_row, of_element],
        };
        let (cos, sin) = (views[1].row_major(), views[2].row_major());
        let (cos, sin) = (cast_slice(&cos), cast_slice(&sin));
        let turn = lathe_kernels::Turn { cos, sin, interleaved };
        lathe_kernels::heads(&x, None, Some(turn), cast_slice_mut(out));
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

/// Attention of queries over keys and values, `[1, heads, tokens, width]` each in f32; `sinks`
/// `[heads]`.
pub fn attention(
    [queries, keys, values]: [&Array; 3],
    sinks: Option<&Array>,
    seeing: Seeing,
) -> Result<Array> {
    if let Some(sinks) = sinks {
        expect("the sinks of attention", sinks.shape(), &[queries.dim(1)])?;
    }
    let shape = [1, queries.dim(1), queries.dim(2), values.dim(3)];
    let mut inputs = vec![queries, keys, values];
    inputs.extend(sinks);
    let Seeing { scale, first, window } = seeing;
    let made = host_operation(&inputs, &shape, Dtype::Float32, move |views, out| {
        let [q, k, v] = [0, 1, 2].map(|i| lined_up(&views[i]));
        let sinks = views.get(3).map(|view| cast_slice(view.bytes));
        let sight = Sight { scale, first, window, sinks };
        attend(
            heads_of(&views[0], &q),
            heads_of(&views[1], &k),
            heads_of(&views[2], &v),
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
fn lined_up<'a>(view: &View<'a>) -> (Cow<'a, [f32]>, usize) {
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

#[cfg(test)]
mod tests {
    use super::super::rms_norm;
    use super::*;

    fn ones(shape: &[i32]) -> Array {
        mlx_rs::ops::ones_dtype(shape, Dtype::Float32).unwrap()
    }

    /// An error from each, where the kernels would end the process.
    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        let x = ones(&[1, 3, 8]);
        assert!(rms_norm(&x, Some(&ones(&[8])), 1e-6).is_ok());
        assert!(rms_norm(&x, Some(&ones(&[7])), 1e-6).is_err());
        let matrix = Native::of_floats(&ones(&[16, 8])).unwrap();
        let make = |bias: Option<&Array>, heads: i32, weight: &Array| {
            let norm = Some((Some(weight), 1e-6));
            let all = [HeadsOf { of: 0, first: 0, heads, norm, turned: false }];
            super::heads(&[(&matrix, bias)], &all, 4, None, &x).map(|made| made.len())
        };
        let weight = ones(&[4]);
        assert_eq!(make(Some(&ones(&[16])), 4, &weight).unwrap(), 1);
        assert!(make(Some(&ones(&[15])), 4, &weight).is_err());
        assert!(make(None, 5, &weight).is_err());
        assert!(make(None, 4, &ones(&[5])).is_err());
        assert!(matrix.apply_onto(&x, &ones(&[1, 3, 16])).is_ok());
        assert!(matrix.apply_onto(&x, &ones(&[1, 3, 8])).is_err());
        let turn = |pairs: i32| {
            let angles = ones(&[3, pairs]);
            rotate(&ones(&[1, 2, 3, 8]), Turn { cos: &angles, sin: &angles, interleaved: false })
        };
        assert!(turn(4).is_ok() && turn(5).is_err());
    }
}
