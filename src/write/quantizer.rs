//! Who quantizes: our kernels on the processor, or MLX on a GPU. The bytes are the same.

use super::kernels::{self, Float, Out};
#[cfg(any(test, feature = "mlx"))]
use crate::dtype::Dtype;
use crate::fault::Fault;
use crate::format::Format;

/// Quantizes whole groups of numbers. Called by several threads at once.
pub trait Quantizer: Sync {
    /// Bytes that it likes to be given at a time.
    fn piece(&self) -> u64;

    /// Quantizes `input`, a whole number of groups of little-endian `dtype`, into `out`.
    ///
    /// # Errors
    /// What the device reports.
    fn quantize(
        &self,
        format: &Format,
        dtype: Float,
        input: &[u8],
        out: Out<'_>,
    ) -> Result<(), Fault>;
}

/// Our kernels.
pub struct Native;

impl Quantizer for Native {
    /// Small enough to stay in a core's cache between reading, quantizing, hashing and writing.
    fn piece(&self) -> u64 {
        256 << 10
    }

    fn quantize(
        &self,
        format: &Format,
        dtype: Float,
        input: &[u8],
        out: Out<'_>,
    ) -> Result<(), Fault> {
        kernels::quantize(format, dtype, input, out);
        Ok(())
    }
}

/// Weight, scales and biases that a quantizer makes.
#[cfg(any(test, feature = "mlx"))]
pub(super) fn made(
    by: &dyn Quantizer,
    format: &Format,
    dtype: Float,
    input: &[u8],
) -> Result<[Vec<u8>; 3], Fault> {
    let width = Dtype::from(dtype).bytes() as usize;
    let elements = input.len() / width;
    let groups = elements / format.group as usize;
    let scales = groups * if format.has_bias() { width } else { 1 };
    let mut weight = vec![0; elements * format.bits as usize / 8];
    let mut scale = vec![0; scales];
    let mut bias = vec![0; if format.has_bias() { scales } else { 0 }];
    let out = Out { weight: &mut weight, scales: &mut scale, biases: &mut bias };
    by.quantize(format, dtype, input, out)?;
    Ok([weight, scale, bias])
}
