//! Operations of MLX's graph that a function of ours computes, on the CPU.

use std::ffi::c_void;
use std::slice;

use mlx_rs::{Array, Dtype};

use super::error::Result;
use super::raw;

/// What an operation computes: of the inputs' elements, each row-major, those of the result.
type Compute = dyn Fn(&[&[u8]], &mut [u8]) + Send + Sync;

struct Function {
    compute: Box<Compute>,
    /// Bytes of each input.
    inputs: Vec<usize>,
    /// Bytes of the result.
    out: usize,
}

/// An array of `shape` and `dtype` that `compute` makes of the inputs when it is evaluated. It
/// must not panic: that ends the process.
///
/// # Errors
/// What MLX refuses.
pub fn host_operation(
    inputs: &[&Array],
    shape: &[i32],
    dtype: Dtype,
    compute: impl Fn(&[&[u8]], &mut [u8]) + Send + Sync + 'static,
) -> Result<Array> {
    let stream = raw::stream();
    let elements: usize = shape.iter().map(|&axis| usize::try_from(axis).unwrap_or(0)).product();
    let function = Function {
        compute: Box::new(compute),
        inputs: inputs.iter().map(|input| input.nbytes()).collect(),
        out: elements * dtype_bytes(dtype),
    };
    let data = Box::into_raw(Box::new(function));
    let inputs: Vec<mlx_sys::mlx_array> = inputs.iter().map(|input| input.as_ptr()).collect();
    // SAFETY: all arrays and the stream are alive during the call; `data` is what `run` and
    // `drop_function` take it for, and MLX drops it once.
    raw::array(|out| unsafe {
        mlx_sys::lathe_host_operation(
            out,
            inputs.as_ptr(),
            inputs.len(),
            shape.as_ptr(),
            shape.len(),
            dtype.into(),
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

unsafe extern "C" fn run(data: *mut c_void, inputs: *const *const c_void, out: *mut c_void) {
    // SAFETY: `data` is the Function that `host_operation` made, not dropped yet.
    let function = unsafe { &*data.cast_const().cast::<Function>() };
    // SAFETY: MLX gives as many pointers as there were inputs, each to the elements of a row-major
    // array of the input's shape and dtype, kept until this returns.
    let inputs: Vec<&[u8]> = unsafe {
        let pointers = slice::from_raw_parts(inputs, function.inputs.len());
        let parts = pointers.iter().zip(&function.inputs);
        parts.map(|(&start, &bytes)| bytes_at(start.cast(), bytes)).collect()
    };
    if function.out > 0 {
        // SAFETY: MLX has made room for the result, which nothing else sees before this returns.
        let out = unsafe { slice::from_raw_parts_mut(out.cast(), function.out) };
        (function.compute)(&inputs, out);
    }
}

/// # Safety
/// `bytes` bytes at `start` for as long as the result is used; `start` may be null when there
/// are none.
unsafe fn bytes_at<'a>(start: *const u8, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { slice::from_raw_parts(start, bytes) }
}

unsafe extern "C" fn drop_function(data: *mut c_void) {
    // SAFETY: made by `Box::into_raw` in `host_operation`, and dropped once.
    drop(unsafe { Box::from_raw(data.cast::<Function>()) });
}

#[cfg(test)]
mod tests {
    use super::super::{Host, from_bytes};
    use super::*;
    use crate::dtype;

    #[test]
    fn a_function_sees_its_inputs_row_major_and_makes_the_result() {
        let bytes: Vec<u8> = (0..6).collect();
        let array = from_bytes(&bytes, dtype::Dtype::U8, &[2, 3]).unwrap();
        let turned = array.transpose().unwrap();
        let sum = host_operation(&[&array, &turned], &[6], Dtype::Uint8, |inputs, out| {
            for ((out, a), b) in out.iter_mut().zip(inputs[0]).zip(inputs[1]) {
                *out = a + b;
            }
        });
        // The result may be used further before it is evaluated.
        let doubled = sum.unwrap().multiply(Array::from_int(2).as_dtype(Dtype::Uint8).unwrap());
        let expected = [0, 1 + 3, 2 + 1, 3 + 4, 4 + 2, 5 + 5].map(|x| 2 * x);
        assert_eq!(Host::new(&doubled.unwrap()).unwrap().bytes(), expected);
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
