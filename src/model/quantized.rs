//! Products with quantized weights, in any of MLX's modes.

use std::ffi::CString;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, Stream};

use super::ops::Result;
use super::source::Quantized;

fn array(f: impl FnOnce(*mut mlx_sys::mlx_array) -> i32, what: &str) -> Result<Array> {
    // SAFETY: an empty handle, which the call below fills or leaves empty; `Array` frees it.
    unsafe {
        let mut out = mlx_sys::mlx_array_new();
        let status = f(&mut out);
        let out = Array::from_ptr(out);
        if status == 0 { Ok(out) } else { Err(Exception::custom(format!("{what} failed"))) }
    }
}

fn optional(array: Option<&Array>) -> mlx_sys::mlx_array {
    array.map_or(mlx_sys::mlx_array { ctx: std::ptr::null_mut() }, Array::as_ptr)
}

fn int(value: i32) -> mlx_sys::mlx_optional_int {
    mlx_sys::mlx_optional_int { value, has_value: true }
}

impl Quantized {
    fn mode(&self) -> CString {
        CString::new(self.mode.as_str()).unwrap_or_default()
    }

    /// `x · Wᵀ` (`x · W` with `transpose` false), without the global scale.
    pub fn matmul(&self, x: &Array, transpose: bool) -> Result<Array> {
        let (mode, stream) = (self.mode(), Stream::thread_local_or_default());
        // SAFETY: all handles live for the call; optional ones may be null by MLX's contract.
        array(
            |out| unsafe {
                mlx_sys::mlx_quantized_matmul(
                    out,
                    x.as_ptr(),
                    self.weight.as_ptr(),
                    self.scales.as_ptr(),
                    optional(self.biases.as_ref()),
                    transpose,
                    int(self.group),
                    int(self.bits),
                    mode.as_ptr(),
                    stream.as_ptr(),
                )
            },
            "quantized_matmul",
        )
    }

    /// The same with one of the stacked matrices for each index in `which`.
    pub fn gather(&self, x: &Array, which: &Array, transpose: bool) -> Result<Array> {
        let (mode, stream) = (self.mode(), Stream::thread_local_or_default());
        // SAFETY: as above.
        array(
            |out| unsafe {
                mlx_sys::mlx_gather_qmm(
                    out,
                    x.as_ptr(),
                    self.weight.as_ptr(),
                    self.scales.as_ptr(),
                    optional(self.biases.as_ref()),
                    optional(None),
                    which.as_ptr(),
                    transpose,
                    int(self.group),
                    int(self.bits),
                    mode.as_ptr(),
                    false,
                    stream.as_ptr(),
                )
            },
            "gather_qmm",
        )
    }

    /// The plain matrix, without the global scale.
    pub fn dequantize(&self, dtype: Dtype) -> Result<Array> {
        let (mode, stream) = (self.mode(), Stream::thread_local_or_default());
        let wanted = mlx_sys::mlx_optional_dtype { value: dtype.into(), has_value: true };
        // SAFETY: as above.
        array(
            |out| unsafe {
                mlx_sys::mlx_dequantize(
                    out,
                    self.weight.as_ptr(),
                    self.scales.as_ptr(),
                    optional(self.biases.as_ref()),
                    int(self.group),
                    int(self.bits),
                    mode.as_ptr(),
                    optional(None),
                    wanted,
                    stream.as_ptr(),
                )
            },
            "dequantize",
        )
    }

    /// The rows of the given indices, still quantized.
    pub fn rows(&self, which: &Array) -> Result<Quantized> {
        Ok(Quantized {
            weight: self.weight.take_axis(which, 0)?,
            scales: self.scales.take_axis(which, 0)?,
            biases: self.biases.as_ref().map(|biases| biases.take_axis(which, 0)).transpose()?,
            ..self.clone()
        })
    }

    /// Elements of the last axis.
    pub fn columns(&self) -> i32 {
        self.scales.dim(-1) * self.group
    }
}
