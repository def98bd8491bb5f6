//! Quantization on MLX, in every mode: packing, unpacking, and products with packed weights.

use std::ffi::CString;

use mlx_rs::Array;

use super::array::{dtype, mlx_dtype, shape};
use super::error::{Error, Result};
use super::raw::{self, int, optional};
use crate::dtype::Dtype;
use crate::format::{Format, Mode};

/// The largest product of an element (E2M1: 6) and a scale (E4M3: 448) of nvfp4. MLX takes the
/// largest value of a tensor for its global scale, and multiplies by that over this.
pub const NVFP4_RANGE: f32 = 6.0 * 448.0;

/// How values are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// MLX's mode.
    pub mode: Mode,
    /// Bits of one element.
    pub bits: i32,
    /// Elements of the last axis that share a scale.
    pub group: i32,
}

impl From<&Format> for Packing {
    fn from(format: &Format) -> Self {
        let count = |n: u64| i32::try_from(n).unwrap_or(i32::MAX);
        Packing { mode: format.mode, bits: count(format.bits.into()), group: count(format.group) }
    }
}

impl Packing {
    fn mode(self) -> CString {
        CString::new(self.mode.as_str()).unwrap_or_default()
    }
}

/// A packed weight: rows of `in` values, of which `group` share a scale (and a bias).
#[derive(Clone, Debug)]
pub struct Quantized {
    /// U32, `[…, out, in × bits / 32]`.
    pub weight: Array,
    /// `[…, out, in / group]`: the weight's dtype for affine, U8 (E8M0 or E4M3) else.
    pub scales: Array,
    /// As the scales; affine only.
    pub biases: Option<Array>,
    /// F32, `[]` or, of stacked experts, `[experts]`; nvfp4 only. The factor of the whole matrix,
    /// which is MLX's "global scale" (a largest value) over [`NVFP4_RANGE`].
    pub global_scale: Option<Array>,
    /// How it is packed.
    pub packing: Packing,
}

impl Quantized {
    /// Packs `values`, `[…, out, in]`, BF16, F16 or F32, `in` a multiple of the group. The bytes
    /// are those of Python's `mlx.core.quantize`. `global_scale` is the factor `[]` to use.
    ///
    /// # Errors
    /// What MLX refuses, and a result of another shape or dtype than it must have.
    pub fn quantize(
        values: &Array,
        packing: Packing,
        global_scale: Option<&Array>,
    ) -> Result<Quantized> {
        let (mode, stream) = (packing.mode(), raw::stream());
        let largest = global_scale.map(largest_value).transpose()?;
        // SAFETY: all arrays, the string and the stream are alive during the call.
        let parts = raw::arrays(|out| unsafe {
            mlx_sys::mlx_quantize(
                out,
                values.as_ptr(),
                int(packing.group),
                int(packing.bits),
                mode.as_ptr(),
                optional(largest.as_ref()),
                stream.as_ptr(),
            )
        })?;
        let count = parts.len();
        let mut parts = parts.into_iter();
        let (Some(weight), Some(scales)) = (parts.next(), parts.next()) else {
            return Err(wrong(format!("{count} arrays"), "weight and scales".into()));
        };
        let global_scale = global_scale.cloned();
        let packed = Quantized { weight, scales, biases: parts.next(), global_scale, packing };
        packed.check(values)?;
        Ok(packed)
    }

    /// That MLX gave what belongs to `values`.
    fn check(&self, values: &Array) -> Result<()> {
        let affine = self.packing.mode == Mode::Affine;
        let last = |by: &dyn Fn(u64) -> u64| {
            let mut shape = shape(values);
            if let Some(last) = shape.last_mut() {
                *last = by(*last);
            }
            shape
        };
        let (bits, group) = (self.packing.bits as u64, self.packing.group as u64);
        let packed = last(&|columns| columns * bits / 32);
        let grouped = last(&|columns| columns / group);
        let scale_dtype = if affine { dtype(values) } else { Some(Dtype::U8) };
        let expected = [
            Some((&self.weight, Some(Dtype::U32), &packed)),
            Some((&self.scales, scale_dtype, &grouped)),
            self.biases.as_ref().map(|biases| (biases, scale_dtype, &grouped)),
        ];
        for (array, must_dtype, must_shape) in expected.into_iter().flatten() {
            let found = (dtype(array), shape(array));
            if found.0 != must_dtype || &found.1 != must_shape {
                let expected = (must_dtype, must_shape);
                return Err(wrong(format!("{found:?}"), format!("{expected:?}")));
            }
        }
        if affine != self.biases.is_some() {
            return Err(wrong(
                "biases in the wrong mode".into(),
                self.packing.mode.as_str().into(),
            ));
        }
        Ok(())
    }

    /// The values again, `[…, out, in]`, as `to` (BF16, F16 or F32).
    ///
    /// # Errors
    /// What MLX refuses.
    pub fn dequantize(&self, to: Dtype) -> Result<Array> {
        let Some(scale) = &self.global_scale else { return self.unpack(to) };
        // In F32, and by a product: MLX's own takes only one scale, not one for each expert.
        let scale = match scale.size() {
            1 => scale.reshape(&[])?,
            _ => scale.expand_dims_axes(&[-2, -1])?,
        };
        let values = self.unpack(Dtype::F32)?.multiply(&scale)?;
        Ok(values.as_dtype(mlx_dtype(to)?)?)
    }

    /// The values without the global scale.
    fn unpack(&self, to: Dtype) -> Result<Array> {
        let (mode, stream) = (self.packing.mode(), raw::stream());
        let to = mlx_sys::mlx_optional_dtype { value: mlx_dtype(to)?.into(), has_value: true };
        // SAFETY: all arrays, the string and the stream are alive during the call.
        raw::array(|out| unsafe {
            mlx_sys::mlx_dequantize(
                out,
                self.weight.as_ptr(),
                self.scales.as_ptr(),
                optional(self.biases.as_ref()),
                int(self.packing.group),
                int(self.packing.bits),
                mode.as_ptr(),
                optional(None),
                to,
                stream.as_ptr(),
            )
        })
    }

    /// `x`, `[…, in]`, times the `transposed` weight: `[…, out]` in the dtype of `x`. The weight as
    /// it is takes `x` `[…, out]` to `[…, in]`.
    ///
    /// On the CPU give it F32: in BF16 MLX accumulates in BF16, which is both slower (9 to 14
    /// times) and wrong by some percent.
    ///
    /// # Errors
    /// What MLX refuses.
    pub fn matmul(&self, x: &Array, transposed: bool) -> Result<Array> {
        let (mode, stream) = (self.packing.mode(), raw::stream());
        // SAFETY: all arrays, the string and the stream are alive during the call.
        let product = raw::array(|out| unsafe {
            mlx_sys::mlx_quantized_matmul(
                out,
                x.as_ptr(),
                self.weight.as_ptr(),
                self.scales.as_ptr(),
                optional(self.biases.as_ref()),
                transposed,
                int(self.packing.group),
                int(self.packing.bits),
                mode.as_ptr(),
                stream.as_ptr(),
            )
        })?;
        // MLX's product knows no global scale.
        match &self.global_scale {
            Some(scale) => Ok(product.multiply(&scale.as_dtype(product.dtype())?)?),
            None => Ok(product),
        }
    }

    /// Products with chosen matrices of a stack of weights, `[experts, out, in]`: row block
    /// `lhs[i]` of `x` (`[…, rows, in]`, its leading axes flattened; all in order when `None`)
    /// times the transposed matrix `rhs[i]`. The indices are U32 and broadcast against each other;
    /// the result is `[shape of the indices…, rows, out]`. As in [`Quantized::matmul`] the matrices
    /// may be `transposed` or not; `sorted` says that `rhs` ascends.
    ///
    /// # Errors
    /// What MLX refuses.
    pub fn gather_matmul(
        &self,
        x: &Array,
        lhs: Option<&Array>,
        rhs: Option<&Array>,
        transposed: bool,
        sorted: bool,
    ) -> Result<Array> {
        let (mode, stream) = (self.packing.mode(), raw::stream());
        // SAFETY: all arrays, the string and the stream are alive during the call.
        let product = raw::array(|out| unsafe {
            mlx_sys::mlx_gather_qmm(
                out,
                x.as_ptr(),
                self.weight.as_ptr(),
                self.scales.as_ptr(),
                optional(self.biases.as_ref()),
                optional(lhs),
                optional(rhs),
                transposed,
                int(self.packing.group),
                int(self.packing.bits),
                mode.as_ptr(),
                sorted,
                stream.as_ptr(),
            )
        })?;
        // MLX's own global scale here exists on GPUs only.
        let Some(scale) = &self.global_scale else { return Ok(product) };
        let scale = match (scale.ndim(), rhs) {
            (0, _) => scale.clone(),
            _ if scale.size() == 1 => scale.reshape(&[])?,
            (_, Some(rhs)) => scale.take_axis(rhs, 0)?.expand_dims_axes(&[-2, -1])?,
            (_, None) => scale.expand_dims_axes(&[-2, -1])?,
        };
        Ok(product.multiply(&scale.as_dtype(product.dtype())?)?)
    }

    /// Chosen rows of a matrix, still packed.
    ///
    /// # Errors
    /// What MLX refuses.
    pub fn rows(&self, which: &Array) -> Result<Quantized> {
        let biases = self.biases.as_ref().map(|biases| biases.take_axis(which, 0)).transpose()?;
        Ok(Quantized {
            weight: self.weight.take_axis(which, 0)?,
            scales: self.scales.take_axis(which, 0)?,
            biases,
            ..self.clone()
        })
    }

    /// `x`, `[rows, in]`, quantized as the weight is (mxfp8 or nvfp4), times the transposed weight:
    /// both sides in few bits, for GPUs with units for that. `x_global_scale` is a factor `[]`, and
    /// must be given when the weight has one.
    ///
    /// # Errors
    /// What MLX refuses: on the CPU, which has no kernel for it, everything.
    pub fn quantized_both_matmul(
        &self,
        x: &Array,
        x_global_scale: Option<&Array>,
    ) -> Result<Array> {
        let (mode, stream) = (self.packing.mode(), raw::stream());
        let largest_x = x_global_scale.map(largest_value).transpose()?;
        let largest_w = self.global_scale.as_ref().map(largest_value).transpose()?;
        // SAFETY: all arrays, the string and the stream are alive during the call.
        raw::array(|out| unsafe {
            mlx_sys::mlx_qqmm(
                out,
                x.as_ptr(),
                self.weight.as_ptr(),
                self.scales.as_ptr(),
                int(self.packing.group),
                int(self.packing.bits),
                mode.as_ptr(),
                optional(largest_x.as_ref()),
                optional(largest_w.as_ref()),
                stream.as_ptr(),
            )
        })
    }
}

/// MLX's global scale for a factor.
fn largest_value(factor: &Array) -> Result<Array> {
    Ok(factor.multiply(Array::from_f32(NVFP4_RANGE))?)
}

fn wrong(found: String, expected: String) -> Error {
    Error::Result { operation: "quantize", found, expected }
}

#[cfg(test)]
mod tests {
    use super::super::{Host, from_bytes};
    use super::*;
    use crate::format::Formats;

    /// Values between -1 and 1 that no format holds exactly.
    fn values(count: u64) -> Vec<f32> {
        (0..count).map(|i| ((i * 2_654_435_761 % 10_007) as f32 / 5_003.5) - 1.0).collect()
    }

    fn array(values: &[f32], shape: &[u64]) -> Array {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        from_bytes(&bytes, Dtype::F32, shape).unwrap()
    }

    fn floats(array: &Array) -> Vec<f32> {
        let host = Host::new(array).unwrap();
        let chunks = host.bytes().chunks_exact(4);
        chunks.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    /// `x` `[m, k]` times the transposed `w` `[n, k]`, in f64.
    fn product(x: &[f32], w: &[f32], k: usize) -> Vec<f32> {
        let dot = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() as f32
        };
        x.chunks(k).flat_map(|row| w.chunks(k).map(move |column| dot(row, column))).collect()
    }

    fn assert_near(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
        assert_eq!(found.len(), expected.len(), "{what}");
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() <= tolerance, "{what}: {a} and {b}");
        }
    }

    fn formats() -> impl Iterator<Item = &'static Format> {
        Formats::built_in().iter()
    }

    #[test]
    fn products_with_packed_weights_are_those_with_the_unpacked_ones() {
        let (w, x) = (values(16 * 128), values(3 * 128));
        for format in formats() {
            let packed = Quantized::quantize(&array(&w, &[16, 128]), format.into(), None).unwrap();
            let unpacked = floats(&packed.dequantize(Dtype::F32).unwrap());
            // The widest step between two elements where values reach to 1: half of it, but the
            // whole for affine, whose grid MLX moves so that the largest value is on it.
            let error = match format.mode {
                Mode::Affine => 2.0 / ((1 << format.bits) - 1) as f32,
                Mode::Mxfp8 => 1.0 / 16.0,
                Mode::Mxfp4 | Mode::Nvfp4 => 1.0 / 4.0,
            };
            assert_near(&unpacked, &w, error, &format.name);
            let found = floats(&packed.matmul(&array(&x, &[3, 128]), true).unwrap());
            assert_near(&found, &product(&x, &unpacked, 128), 2e-2, &format.name);
        }
    }

    #[test]
    fn a_global_scale_is_a_factor_everywhere() {
        let nvfp4 = Formats::built_in().get("nvfp4").unwrap();
        let w: Vec<f32> = values(2 * 8 * 64).iter().map(|x| x * 1e-3).collect();
        let x = values(64);
        let one = array(&[1e-3 / NVFP4_RANGE], &[]);
        let packed = Quantized::quantize(&array(&w, &[16, 64]), nvfp4.into(), Some(&one)).unwrap();
        let unpacked = floats(&packed.dequantize(Dtype::F32).unwrap());
        assert_near(&unpacked, &w, 2e-4, "unpacked");
        let found = floats(&packed.matmul(&array(&x, &[1, 64]), true).unwrap());
        assert_near(&found, &product(&x, &unpacked, 64), 1e-5, "product");

        // Two experts with scales of their own: the second weighs twice.
        let stack = |a: &Array, last: i32| a.reshape(&[2, 8, last]).unwrap();
        let experts = Quantized {
            weight: stack(&packed.weight, 8),
            scales: stack(&packed.scales, 4),
            biases: None,
            global_scale: Some(array(&[1e-3 / NVFP4_RANGE, 2e-3 / NVFP4_RANGE], &[2])),
            packing: packed.packing,
        };
        let all = floats(&experts.dequantize(Dtype::F32).unwrap());
        let doubled: Vec<f32> =
            unpacked.iter().enumerate().map(|(i, x)| if i < 512 { *x } else { x * 2.0 }).collect();
        assert_near(&all, &doubled, 1e-9, "experts");
        let chosen = from_bytes(&[1, 0, 0, 0, 0, 0, 0, 0], Dtype::U32, &[2]).unwrap();
        let x_of_all = array(&x, &[1, 1, 64]);
        let found = experts.gather_matmul(&x_of_all, None, Some(&chosen), true, false);
        let expected = [&doubled[512..], &doubled[..512]].concat();
        assert_near(&floats(&found.unwrap()), &product(&x, &expected, 64), 1e-5, "gathered");
    }

    #[test]
    fn what_mlx_refuses_is_an_error_in_its_words() {
        let int4 = Formats::built_in().get("int4").unwrap();
        let error = Quantized::quantize(&array(&values(100), &[2, 50]), int4.into(), None);
        let Err(Error::Mlx(message)) = error else { panic!("{error:?}") };
        assert!(message.contains("64") && !message.contains(".cpp"), "{message}");
    }
}
