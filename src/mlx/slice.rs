//! Parts of arrays along one axis, without the general indexing of mlx-rs, whose dozen operations
//! for one slice would cost more than what a token computes with it.

use std::ops::Range;
use std::os::raw::c_int;

use mlx_rs::Array;

use super::error::Result;
use super::raw;

/// A rectangle of an array: everything on all axes but one.
struct Bounds {
    start: Vec<c_int>,
    stop: Vec<c_int>,
    strides: Vec<c_int>,
}

impl Bounds {
    fn new(shape: &[i32], axis: usize, range: &Range<i32>) -> Bounds {
        let mut bounds = Bounds {
            start: vec![0; shape.len()],
            stop: shape.to_vec(),
            strides: vec![1; shape.len()],
        };
        bounds.start[axis] = range.start;
        bounds.stop[axis] = range.end;
        bounds
    }
}

/// Elements `range` of an axis.
///
/// # Errors
/// What MLX refuses.
///
/// # Panics
/// When there is no such axis.
pub fn part(x: &Array, axis: usize, range: Range<i32>) -> Result<Array> {
    let Bounds { start, stop, strides } = Bounds::new(x.shape(), axis, &range);
    let (axes, stream) = (start.len(), raw::stream());
    // SAFETY: the arrays, the stream and the numbers live during the call.
    raw::array(|out| unsafe {
        mlx_sys::mlx_slice(
            out,
            x.as_ptr(),
            start.as_ptr(),
            axes,
            stop.as_ptr(),
            axes,
            strides.as_ptr(),
            axes,
            stream.as_ptr(),
        )
    })
}

/// `x` with `update` in the place of as many elements of an axis, from `from` on. Nothing is
/// copied where nothing else holds `x` when this is evaluated.
///
/// # Errors
/// What MLX refuses.
///
/// # Panics
/// When there is no such axis.
pub fn with_part(x: &Array, axis: usize, from: i32, update: &Array) -> Result<Array> {
    let range = from..from + update.dim(axis as i32);
    let Bounds { start, stop, strides } = Bounds::new(x.shape(), axis, &range);
    let (axes, stream) = (start.len(), raw::stream());
    // SAFETY: as above.
    raw::array(|out| unsafe {
        mlx_sys::mlx_slice_update(
            out,
            x.as_ptr(),
            update.as_ptr(),
            start.as_ptr(),
            axes,
            stop.as_ptr(),
            axes,
            strides.as_ptr(),
            axes,
            stream.as_ptr(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Host, from_bytes};
    use super::*;
    use crate::dtype;

    #[test]
    fn parts_are_read_and_written_along_an_axis() {
        let bytes: Vec<u8> = (0..12).collect();
        let x = from_bytes(&bytes, dtype::Dtype::U8, &[2, 3, 2]).unwrap();
        let middle = part(&x, 1, 1..3).unwrap();
        assert_eq!(middle.shape(), [2, 2, 2]);
        assert_eq!(Host::new(&middle).unwrap().bytes(), [2, 3, 4, 5, 8, 9, 10, 11]);
        let other = from_bytes(&[90, 91, 92, 93], dtype::Dtype::U8, &[2, 1, 2]).unwrap();
        let written = with_part(&x, 1, 2, &other).unwrap();
        let expected = [0, 1, 2, 3, 90, 91, 6, 7, 8, 9, 92, 93];
        assert_eq!(Host::new(&written).unwrap().bytes(), expected);
        assert_eq!(Host::new(&x).unwrap().bytes(), bytes);
        assert!(
            with_part(&x, 1, 3, &from_bytes(&[0; 5], dtype::Dtype::U8, &[5, 1]).unwrap()).is_err()
        );
    }
}
