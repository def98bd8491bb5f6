//! Operations of MLX's graph that a function of ours computes, on the CPU. Where all inputs have
//! been evaluated, the function runs at once, on the calling thread: to pass a token of a small model
//! through the graph and another thread costs more than the overlap gains.

use std::borrow::Cow;
use std::ffi::c_void;
use std::slice;

use mlx_rs::{Array, Dtype};

use super::error::{Error, Result};
use super::raw;

/// An input of an operation: its elements from the first in memory to the last, and where they are.
pub struct View<'a> {
    /// Elements as bytes.
    pub bytes: &'a [u8],
    /// Elements from one to the next on each axis.
    pub strides: &'a [i64],
    /// Elements of each axis.
    pub shape: &'a [i32],
    /// Bytes of an element.
    width: usize,
}

impl<'a> View<'a> {
    /// The elements one after the other, the last axis fastest; a copy if they lie otherwise.
    pub fn row_major(&self) -> Cow<'a, [u8]> {
        let mut expected = 1;
        let tight = self.shape.iter().zip(self.strides).rev().all(|(&axis, &stride)| {
            let fits = axis == 1 || stride == expected;
            expected *= i64::from(axis);
            fits
        });
        if tight || self.bytes.is_empty() {
            return Cow::Borrowed(self.bytes);
        }
        let mut copy = Vec::with_capacity(expected as usize * self.width);
        self.copy(0, 0, &mut copy);
        Cow::Owned(copy)
    }

    fn copy(&self, axis: usize, from: usize, to: &mut Vec<u8>) {
        let bytes = |count: usize| &self.bytes[from * self.width..(from + count) * self.width];
        match self.shape.len() - axis {
            0 => return to.extend(bytes(1)),
            1 if self.strides[axis] == 1 => return to.extend(bytes(self.shape[axis] as usize)),
            _ => {}
        }
        for index in 0..self.shape[axis] as usize {
            self.copy(axis + 1, from + index * self.strides[axis] as usize, to);
        }
    }
}

/// A result of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Out<'a> {
    /// Elements of each axis.
    pub shape: &'a [i32],
    /// The input that it begins as, row-major and of the same shape and dtype: what is not written
    /// stays. Nothing is copied where nothing else holds that input when the function runs.
    pub over: Option<usize>,
}

impl<'a> Out<'a> {
    /// One that holds nothing before it is written.
    pub fn new(shape: &'a [i32]) -> Out<'a> {
        Out { shape, over: None }
    }
}

/// What an operation computes: of its inputs the elements of its results. Those that results begin
/// as are seen without elements.
type Compute = dyn Fn(&[View], &mut [&mut [u8]]) + Send + Sync;

struct Function {
    compute: Box<Compute>,
    inputs: Vec<Input>,
    /// Bytes of each result.
    outs: Vec<usize>,
}

struct Input {
    shape: Vec<i32>,
    /// Bytes of an element.
    width: usize,
    /// Whether a result begins as it.
    over: bool,
}

/// An array of `shape` and `dtype` that `compute` makes of the inputs, at once or when it is
/// evaluated. It must not panic: that ends the process.
///
/// # Errors
/// What MLX refuses.
pub fn host_operation(
    inputs: &[&Array],
    shape: &[i32],
    dtype: Dtype,
    compute: impl Fn(&[View], &mut [u8]) + Send + Sync + 'static,
) -> Result<Array> {
    let compute = move |inputs: &[View], outs: &mut [&mut [u8]]| compute(inputs, outs[0]);
    let made = host_operations(inputs, &[Out::new(shape)], dtype, compute)?;
    made.into_iter().next().ok_or_else(|| Error::mlx("an operation gave nothing"))
}

/// The same, of several arrays.
///
/// # Errors
/// What MLX refuses.
pub fn host_operations(
    inputs: &[&Array],
    outs: &[Out],
    dtype: Dtype,
    compute: impl Fn(&[View], &mut [&mut [u8]]) + Send + Sync + 'static,
) -> Result<Vec<Array>> {
    let stream = raw::stream();
    let width = dtype_bytes(dtype);
    let bytes = |out: &Out| -> usize {
        let axes = out.shape.iter().map(|&axis| usize::try_from(axis).unwrap_or(0));
        axes.product::<usize>() * width
    };
    for out in outs {
        let fits = |input: &&Array| input.shape() == out.shape && input.dtype() == dtype;
        if out.over.is_some_and(|over| !inputs.get(over).is_some_and(fits)) {
            return Err(Error::mlx("a result cannot begin as an array of another shape or dtype"));
        }
    }
    let given = inputs.iter().enumerate().map(|(index, input)| Input {
        shape: input.shape().to_vec(),
        width: dtype_bytes(input.dtype()),
        over: outs.iter().any(|out| out.over == Some(index)),
    });
    let function = Function {
        compute: Box::new(compute),
        inputs: given.collect(),
        outs: outs.iter().map(bytes).collect(),
    };
    let data = Box::into_raw(Box::new(function));
    let inputs: Vec<mlx_sys::mlx_array> = inputs.iter().map(|input| input.as_ptr()).collect();
    let axes: Vec<usize> = outs.iter().map(|out| out.shape.len()).collect();
    let numbers: Vec<i32> = outs.iter().flat_map(|out| out.shape).copied().collect();
    let over: Vec<i32> = outs.iter().map(|out| out.over.map_or(-1, |over| over as i32)).collect();
    // SAFETY: all arrays and the stream are alive during the call, `results` are as many empty
    // arrays as there are shapes; `data` is what `run` and `drop_function` take it for, and MLX
    // drops it once.
    raw::several(outs.len(), |results| unsafe {
        mlx_sys::lathe_host_operation(
            results,
            axes.len(),
            numbers.as_ptr(),
            axes.as_ptr(),
            over.as_ptr(),
            dtype.into(),
            inputs.as_ptr(),
            inputs.len(),
            run,
            data.cast(),
            drop_function,
            stream.as_ptr(),
        )
    })
}

fn dtype_bytes(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Bool | Dtype::Uint8 | Dtype::Int8 => 1,
        Dtype::Uint16 | Dtype::Int16 | Dtype::Float16 | Dtype::Bfloat16 => 2,
        Dtype::Uint32 | Dtype::Int32 | Dtype::Float32 => 4,
        Dtype::Uint64 | Dtype::Int64 | Dtype::Float64 | Dtype::Complex64 => 8,
    }
}

unsafe extern "C" fn run(
    data: *mut c_void,
    inputs: *const *const c_void,
    strides: *const *const i64,
    outs: *const *mut c_void,
) {
    // SAFETY: `data` is the Function that `operation` made, not dropped yet.
    let function = unsafe { &*data.cast_const().cast::<Function>() };
    // SAFETY: MLX gives as many pointers as there were inputs, each to the first element of an
    // array of the input's shape and dtype, with the strides of its axes, kept until this returns.
    // Of no inputs they may be null, and are not read.
    let views: Vec<View> = unsafe {
        let each = function.inputs.iter().enumerate();
        each.map(|(i, input)| view(*inputs.add(i), *strides.add(i), input)).collect()
    };
    let outs = function.outs.iter().enumerate().map(|(i, &length)| match length {
        0 => &mut [][..],
        // SAFETY: MLX has made room for as many results, of these lengths, which nothing else sees
        // before this returns: those that begin as inputs are seen as results only.
        _ => unsafe { slice::from_raw_parts_mut((*outs.add(i)).cast(), length) },
    });
    (function.compute)(&views, &mut outs.collect::<Vec<_>>());
}

/// # Safety
/// An array as `input` says begins at `start`, its elements `strides` apart, for as long as the
/// result is used. Strides are not negative: no operation of a model turns an axis.
unsafe fn view<'a>(start: *const c_void, strides: *const i64, input: &'a Input) -> View<'a> {
    let Input { ref shape, width, over } = *input;
    let strides = match shape.len() {
        0 => &[][..],
        // SAFETY: a stride for each axis.
        axes => unsafe { slice::from_raw_parts(strides, axes) },
    };
    if over || shape.contains(&0) {
        return View { bytes: &[], strides, shape, width };
    }
    let steps =
        shape.iter().zip(strides).map(|(&axis, &stride)| (axis as usize - 1) * stride as usize);
    let elements = steps.sum::<usize>() + 1;
    // SAFETY: from the first element to the last.
    let bytes = unsafe { slice::from_raw_parts(start.cast(), elements * width) };
    View { bytes, strides, shape, width }
}

unsafe extern "C" fn drop_function(data: *mut c_void) {
    // SAFETY: made by `Box::into_raw` in `operation`, and dropped once.
    drop(unsafe { Box::from_raw(data.cast::<Function>()) });
}

#[cfg(test)]
mod tests {
    use super::super::{Host, from_bytes};
    use super::*;
    use crate::dtype;

    #[test]
    fn a_function_sees_its_inputs_and_makes_its_results() {
        let bytes: Vec<u8> = (0..6).collect();
        let array = from_bytes(&bytes, dtype::Dtype::U8, &[2, 3]).unwrap();
        let turned = array.transpose().unwrap();
        let outs = [Out::new(&[6]), Out::new(&[2, 3])];
        let made = host_operations(&[&array, &turned], &outs, Dtype::Uint8, |inputs, outs| {
            let (a, b) = (inputs[0].row_major(), inputs[1].row_major());
            for ((out, a), b) in outs[0].iter_mut().zip(&*a).zip(&*b) {
                *out = a + b;
            }
            outs[1].copy_from_slice(inputs[0].bytes);
        });
        let made = made.unwrap();
        // Results may be used further before they are evaluated.
        let doubled = made[0].multiply(Array::from_int(2).as_dtype(Dtype::Uint8).unwrap());
        let expected = [0, 1 + 3, 2 + 1, 3 + 4, 4 + 2, 5 + 5].map(|x| 2 * x);
        assert_eq!(Host::new(&doubled.unwrap()).unwrap().bytes(), expected);
        assert_eq!(Host::new(&made[1]).unwrap().bytes(), bytes);
    }

    #[test]
    fn a_view_is_given_as_it_lies() {
        let bytes: Vec<u8> = (0..24).collect();
        let array = from_bytes(&bytes, dtype::Dtype::U8, &[4, 6]).unwrap();
        let rows = Array::from_slice(&[1u32, 2], &[2]);
        let turned = array.transpose().unwrap();
        let made = host_operation(&[&turned, &rows], &[2], Dtype::Uint8, |views, out| {
            assert_eq!((views[0].strides, views[0].shape), (&[1, 6][..], &[6, 4][..]));
            out.copy_from_slice(&[views[0].bytes[7], views[1].bytes.len() as u8]);
        });
        assert_eq!(Host::new(&made.unwrap()).unwrap().bytes(), [7, 8]);
    }

    /// Where an array's elements are.
    fn place(array: &Array) -> *const u8 {
        Host::new(array).unwrap().bytes().as_ptr()
    }

    #[test]
    fn a_result_begins_as_an_input_and_takes_its_memory_where_nothing_else_holds_it() {
        // A lazy input makes the operation one of the graph; else it runs at once.
        let write = |held: Array, at: usize, lazy: bool| {
            let outs = [Out { shape: &[4], over: Some(1) }, Out::new(&[1])];
            let number = |number| from_bytes(&[number], dtype::Dtype::U8, &[1]).unwrap();
            let nine = if lazy { number(4).add(number(5)).unwrap() } else { number(9) };
            let made = host_operations(&[&nine, &held], &outs, Dtype::Uint8, move |views, outs| {
                assert!(views[1].bytes.is_empty());
                outs[0][at] = views[0].bytes[0];
                outs[1][0] = outs[0][3];
            });
            drop(held);
            let [written, last] = <[Array; 2]>::try_from(made.unwrap()).unwrap();
            assert_eq!(Host::new(&last).unwrap().bytes(), [4]);
            written
        };
        let first = from_bytes(&[1, 2, 3, 4], dtype::Dtype::U8, &[4]).unwrap();
        let mut taken = first.clone();
        for lazy in [true, false] {
            let copied = write(first.clone(), 0, lazy);
            assert_eq!(Host::new(&first).unwrap().bytes(), [1, 2, 3, 4]);
            assert_eq!(Host::new(&copied).unwrap().bytes(), [9, 2, 3, 4]);
            let before = place(&copied);
            taken = write(copied, 1, lazy);
            assert_eq!(Host::new(&taken).unwrap().bytes(), [9, 9, 3, 4]);
            assert_eq!(place(&taken), before, "{lazy}");
        }
        let other = [Out { shape: &[5], over: Some(0) }];
        assert!(host_operations(&[&taken], &other, Dtype::Uint8, |_, _| {}).is_err());
    }

    #[test]
    fn a_function_is_dropped_with_what_it_holds() {
        let held = std::sync::Arc::new(());
        let mine = held.clone();
        let array = host_operation(&[], &[1], Dtype::Uint8, move |_, out| {
            let _ = &mine;
            out[0] = 7;
        });
        let array = array.unwrap();
        assert_eq!(Host::new(&array).unwrap().bytes(), [7]);
        drop(array);
        assert_eq!(std::sync::Arc::strong_count(&held), 1);
    }
}
