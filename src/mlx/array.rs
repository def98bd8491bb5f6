//! Arrays from bytes, and bytes from arrays.

use std::ffi::c_void;

use mlx_rs::{Array, Dtype as MlxDtype};

use super::error::{Error, Result};
use super::raw;
use crate::dtype::Dtype;

/// MLX's type for values of a safetensors dtype. FP8 and E8M0 values are U8 to MLX: bytes that
/// only some operations understand.
///
/// # Errors
/// [`Error::Dtype`] for the types MLX has no operation for.
pub fn mlx_dtype(dtype: Dtype) -> Result<MlxDtype> {
    Ok(match dtype {
        Dtype::Bool => MlxDtype::Bool,
        Dtype::U8 | Dtype::F8E4M3 | Dtype::F8E8M0 => MlxDtype::Uint8,
        Dtype::I8 => MlxDtype::Int8,
        Dtype::I16 => MlxDtype::Int16,
        Dtype::U16 => MlxDtype::Uint16,
        Dtype::F16 => MlxDtype::Float16,
        Dtype::BF16 => MlxDtype::Bfloat16,
        Dtype::I32 => MlxDtype::Int32,
        Dtype::U32 => MlxDtype::Uint32,
        Dtype::F32 => MlxDtype::Float32,
        Dtype::I64 => MlxDtype::Int64,
        Dtype::U64 => MlxDtype::Uint64,
        Dtype::F64 => MlxDtype::Float64,
        Dtype::F8E5M2 | Dtype::F8E4M3Fnuz | Dtype::F8E5M2Fnuz => return Err(Error::Dtype(dtype)),
    })
}

/// The safetensors dtype of an array; `None` for complex numbers.
pub fn dtype(array: &Array) -> Option<Dtype> {
    Some(match array.dtype() {
        MlxDtype::Bool => Dtype::Bool,
        MlxDtype::Uint8 => Dtype::U8,
        MlxDtype::Int8 => Dtype::I8,
        MlxDtype::Int16 => Dtype::I16,
        MlxDtype::Uint16 => Dtype::U16,
        MlxDtype::Float16 => Dtype::F16,
        MlxDtype::Bfloat16 => Dtype::BF16,
        MlxDtype::Int32 => Dtype::I32,
        MlxDtype::Uint32 => Dtype::U32,
        MlxDtype::Float32 => Dtype::F32,
        MlxDtype::Int64 => Dtype::I64,
        MlxDtype::Uint64 => Dtype::U64,
        MlxDtype::Float64 => Dtype::F64,
        MlxDtype::Complex64 => return None,
    })
}

/// The shape of an array.
pub fn shape(array: &Array) -> Vec<u64> {
    array.shape().iter().map(|&axis| u64::try_from(axis).unwrap_or(0)).collect()
}

/// A shape as MLX takes it.
///
/// # Errors
/// [`Error::Shape`] when an axis has 2³¹ elements or more.
pub fn mlx_shape(shape: &[u64]) -> Result<Vec<i32>> {
    let axes: std::result::Result<_, _> = shape.iter().map(|&axis| i32::try_from(axis)).collect();
    axes.map_err(|_| Error::Shape(shape.to_vec()))
}

/// An array of `shape`, row-major, from a copy of its little-endian bytes, which may be anywhere:
/// the memory of a mapped file too.
///
/// # Errors
/// [`Error::Length`] when the bytes do not fit dtype and shape, [`Error::Dtype`] and
/// [`Error::Shape`] for what MLX cannot hold.
pub fn from_bytes(bytes: &[u8], dtype: Dtype, shape: &[u64]) -> Result<Array> {
    let axes = mlx_shape(shape)?;
    let needed = shape
        .iter()
        .try_fold(dtype.bytes(), |product, &axis| product.checked_mul(axis))
        .filter(|&bytes| bytes <= isize::MAX as u64)
        .ok_or_else(|| Error::Shape(shape.to_vec()))?;
    if bytes.len() as u64 != needed {
        let given = bytes.len();
        return Err(Error::Length { given, needed, dtype, shape: shape.to_vec() });
    }
    let mlx_dtype = mlx_dtype(dtype)?;
    raw::init();
    let width = dtype.bytes() as usize;
    let aligned: Vec<u64>;
    let mut data = bytes.as_ptr();
    if data.align_offset(width) != 0 {
        // MLX reads it as elements. Safetensors files need not align their tensors.
        aligned = aligned_copy(bytes);
        data = aligned.as_ptr().cast();
    }
    // SAFETY: `data` points to the elements of `axes`, as checked, aligned for them; MLX copies.
    Ok(unsafe { Array::from_raw_data(data.cast::<c_void>(), &axes, mlx_dtype) })
}

fn aligned_copy(bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks(8)
        .map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        })
        .collect()
}

/// An array that has been evaluated and lies row-major in memory. It may be sent to other threads.
#[derive(Debug)]
pub struct Host(Array);

impl Host {
    /// Evaluates an array, and copies it if it is not row-major.
    ///
    /// # Errors
    /// What MLX finds while it computes.
    pub fn new(array: &Array) -> Result<Host> {
        let stream = raw::stream();
        // SAFETY: array and stream are alive during the call.
        let row_major = raw::array(|out| unsafe {
            mlx_sys::mlx_contiguous(out, array.as_ptr(), false, stream.as_ptr())
        })?;
        row_major.eval()?;
        Ok(Host(row_major))
    }

    /// The array.
    pub fn array(&self) -> &Array {
        &self.0
    }

    /// Its elements as little-endian bytes, row-major.
    pub fn bytes(&self) -> &[u8] {
        let size = self.0.nbytes();
        if size == 0 {
            return &[];
        }
        // SAFETY: the accessor is the same cast for every dtype, and the array is evaluated.
        let data = unsafe { mlx_sys::mlx_array_data_uint8(self.0.as_ptr()) };
        if data.is_null() {
            return &[];
        }
        // SAFETY: `new` made the array row-major, so `size` bytes follow; they live and stay as
        // they are as long as the array, which `self` holds.
        unsafe { std::slice::from_raw_parts(data, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_as_they_went_in() {
        let bytes: Vec<u8> = (0..=255).collect();
        let cases = [
            (Dtype::U8, vec![16, 16]),
            (Dtype::F8E4M3, vec![256]),
            (Dtype::BF16, vec![8, 16]),
            (Dtype::F16, vec![2, 64]),
            (Dtype::U32, vec![4, 4, 4]),
            (Dtype::F32, vec![64]),
            (Dtype::I64, vec![32, 1]),
        ];
        for (dtype, shape) in cases {
            let array = from_bytes(&bytes, dtype, &shape).unwrap();
            assert_eq!(super::shape(&array), shape);
            assert_eq!(Host::new(&array).unwrap().bytes(), bytes, "{dtype}");
        }
        let empty = from_bytes(&[], Dtype::F32, &[0, 4]).unwrap();
        assert_eq!(Host::new(&empty).unwrap().bytes(), [0u8; 0]);
        let scalar = from_bytes(&1.5f32.to_le_bytes(), Dtype::F32, &[]).unwrap();
        assert_eq!(Host::new(&scalar).unwrap().bytes(), 1.5f32.to_le_bytes());
    }

    #[test]
    fn unaligned_bytes_are_read() {
        let bytes: Vec<u8> = (0..33).collect();
        for from in 0..8 {
            let part = &bytes[from..from + 24];
            let array = from_bytes(part, Dtype::F32, &[6]).unwrap();
            assert_eq!(Host::new(&array).unwrap().bytes(), part);
        }
    }

    #[test]
    fn a_transposed_array_gives_its_bytes_row_major() {
        let bytes: Vec<u8> = (0..6).collect();
        let array = from_bytes(&bytes, Dtype::U8, &[2, 3]).unwrap();
        let turned = Host::new(&array.transpose().unwrap()).unwrap();
        assert_eq!(shape(turned.array()), [3, 2]);
        assert_eq!(turned.bytes(), [0, 3, 1, 4, 2, 5]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let bytes = [0; 12];
        let error = from_bytes(&bytes, Dtype::F32, &[2, 2]).unwrap_err();
        let said = "12 bytes given for a F32 tensor of shape [2, 2], which has 16";
        assert_eq!(error.to_string(), said);
        let error = |bytes, dtype, shape: &[u64]| from_bytes(bytes, dtype, shape).unwrap_err();
        assert_eq!(error(&bytes, Dtype::F8E5M2, &[12]), Error::Dtype(Dtype::F8E5M2));
        let huge = vec![1 << 31, 0];
        assert_eq!(error(&[], Dtype::U8, &huge), Error::Shape(huge));
        let overflow = vec![1 << 30; 4];
        assert_eq!(error(&bytes, Dtype::F32, &overflow), Error::Shape(overflow));
    }
}
