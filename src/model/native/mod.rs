//! What lathe's own kernels (`kernels/`) compute on the CPU, as operations of MLX's graph:
//! matrices and their products here, gated MLPs, experts, attention, and modules that follow each
//! other as one operation ([`steps`]) in rooms of their own.
//!
//! Arrays enter and leave, lazy ones or those that are there. Weights are no arrays of the graph: an operation holds those that
//! it needs, in the form that they are stored in, where they are mapped; each product reads them
//! once, on all cores.
//!
//! Sizes are checked before an operation is made: in it a panic would end the process.

mod attention;
mod experts;
mod gated;
mod memory;
mod scores;
pub mod steps;

use std::borrow::Cow;
use std::os::raw::c_int;
use std::sync::Arc;

use bytemuck::allocation::pod_collect_to_vec;
use bytemuck::{cast_slice, cast_slice_mut};
use bytes::Bytes;
use half::{bf16, f16};
use lathe_kernels::{Form, Gemm, Matrix, Product, Scales, products};
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype as MlxDtype};

pub use attention::{Attention, GateOf, Line, Part, Turn};
pub use gated::Gated;
pub use memory::Memory;
pub use scores::{Seeing, attention, rotate};

use super::ops::Result;
use super::source::{QuantizedTensor, Tensor};
use crate::dtype::Dtype;
use crate::format::Mode;
use crate::mlx::Host;
use crate::mlx::host::{Out, View, host_operation, host_operations};

/// Numbers that operations hold.
pub type Floats = Arc<[f32]>;

/// The elements of an array, in f32.
pub fn floats(array: &Array) -> Result<Floats> {
    let host = Host::new(&array.as_dtype(MlxDtype::Float32)?)?;
    Ok(pod_collect_to_vec::<u8, f32>(host.bytes()).into())
}

/// A matrix `[out, in]` with the bias of its product, if there is one, or stacked matrices
/// `[experts, out, in]`.
#[derive(Clone, Debug)]
pub struct Native {
    form: Form,
    weight: Bytes,
    scales: Bytes,
    biases: Bytes,
    /// One for all, or one for each expert.
    factors: Floats,
    bias: Option<Floats>,
    /// Of stacked ones.
    experts: Option<usize>,
    rows: usize,
    columns: usize,
}

impl Native {
    /// A matrix of floats; `None` when the kernels lack it.
    pub fn of_floats(weight: &Tensor) -> Option<Native> {
        let form = match weight.dtype {
            Dtype::F32 => Form::F32,
            Dtype::F16 => Form::F16,
            Dtype::BF16 => Form::Bf16,
            _ => return None,
        };
        let none = [Bytes::new(), Bytes::new()];
        Native::new(form, weight, weight.last(), none, Arc::new([1.0]))
    }

    /// A quantized matrix; `None` when the kernels lack its format.
    pub fn of_quantized(quantized: &QuantizedTensor) -> Option<Native> {
        let QuantizedTensor { weight, scales, biases, global_scale, packing } = quantized;
        let form = match (packing.mode, packing.bits, packing.group) {
            (Mode::Affine, bits, group) => Form::Affine {
                bits: u8::try_from(bits).ok()?,
                group: usize::try_from(group).ok()?,
                scales: match scales.dtype {
                    Dtype::BF16 => Scales::Bf16,
                    _ => Scales::F32,
                },
            },
            (Mode::Mxfp4, 4, 32) => Form::Mxfp4,
            (Mode::Mxfp8, 8, 32) => Form::Mxfp8,
            (Mode::Nvfp4, 4, 16) => Form::Nvfp4,
            _ => return None,
        };
        let companions = match biases {
            Some(biases) if biases.dtype != scales.dtype => return None,
            Some(biases) if scales.dtype == Dtype::BF16 => {
                [Some(scales.bytes.clone()), Some(biases.bytes.clone())]
            }
            Some(biases) => [scales, biases].map(|part| singles(part).map(Bytes::from_owner)),
            None => [Some(scales.bytes.clone()), Some(Bytes::new())],
        };
        let factors = match global_scale {
            Some(factors) => pod_collect_to_vec::<u8, f32>(&singles(factors)?).into(),
            None => Arc::from([1.0]),
        };
        let [scales, biases] = companions;
        Native::new(form, weight, quantized.columns(), [scales?, biases?], factors)
    }

    fn new(
        form: Form,
        weight: &Tensor,
        columns: i32,
        [scales, biases]: [Bytes; 2],
        factors: Floats,
    ) -> Option<Native> {
        let (experts, rows) = match *weight.shape {
            [rows, _] => (None, rows),
            [experts, rows, _] => (Some(usize::try_from(experts).ok()?), rows),
            _ => return None,
        };
        let (rows, columns) = (usize::try_from(rows).ok()?, usize::try_from(columns).ok()?);
        let elements = experts.unwrap_or(1) * rows * columns;
        let (group, scale) = form.group().unwrap_or((1, 0));
        let companions = elements / group * scale;
        let affine = matches!(form, Form::Affine { .. });
        let fits = form.supports(columns)
            && elements > 0
            && weight.bytes.len() == elements * form.bits() / 8
            && scales.len() == companions
            && biases.len() == if affine { companions } else { 0 }
            && (factors.len() == 1 || Some(factors.len()) == experts);
        let weight = weight.bytes.clone();
        let bias = None;
        fits.then_some(Native {
            form,
            weight,
            scales,
            biases,
            factors,
            bias,
            experts,
            rows,
            columns,
        })
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.weight.len() + self.scales.len() + self.biases.len()
    }

    /// The same for whom reads it for every token: where that is fastest.
    pub fn read_often(&self, memory: &mut Memory) -> Native {
        Native {
            weight: memory.hold(&self.weight),
            scales: memory.hold(&self.scales),
            biases: memory.hold(&self.biases),
            ..self.clone()
        }
    }

    /// The same with a bias `[out]` that is added to its products.
    pub fn with_bias(self, bias: &Array) -> Result<Native> {
        let bias = floats(bias)?;
        expect("the bias of a product", &[bias.len()], &[self.rows])?;
        Ok(Native { bias: Some(bias), ..self })
    }

    /// Rows `from..from + count` of the only matrix.
    pub fn part(&self, from: usize, count: usize) -> Result<Native> {
        expect("the matrices that a part is taken of", &[self.stacked()], &[1])?;
        expect("the rows of a part", &[self.rows.min(from + count)], &[from + count])?;
        let cut = |bytes: &Bytes| {
            let row = bytes.len() / self.rows;
            bytes.slice(from * row..(from + count) * row)
        };
        Ok(Native {
            weight: cut(&self.weight),
            scales: cut(&self.scales),
            biases: cut(&self.biases),
            bias: self.bias.as_ref().map(|bias| bias[from..from + count].into()),
            rows: count,
            ..self.clone()
        })
    }

    /// The upper and the lower half of the rows of the only matrix.
    pub fn halves(&self) -> Result<[Native; 2]> {
        let half = self.rows / 2;
        expect("the rows of two matrices in one", &[self.rows], &[2 * half])?;
        Ok([self.part(0, half)?, self.part(half, half)?])
    }

    /// `[…, out, in]`.
    pub fn shape(&self) -> Vec<i32> {
        let axes = self.experts.into_iter().chain([self.rows, self.columns]);
        axes.map(|axis| axis as i32).collect()
    }

    fn stacked(&self) -> usize {
        self.experts.unwrap_or(1)
    }

    /// The matrix of an expert; the only one is number 0.
    fn matrix(&self, expert: usize) -> Matrix<'_> {
        fn part(bytes: &[u8], of: usize, expert: usize) -> &[u8] {
            let length = bytes.len() / of;
            &bytes[expert * length..(expert + 1) * length]
        }
        let of = self.stacked();
        Matrix {
            form: self.form,
            rows: self.rows,
            columns: self.columns,
            weight: part(&self.weight, of, expert),
            scales: part(&self.scales, of, expert),
            biases: part(&self.biases, of, expert),
            factor: self.factors[if self.factors.len() == 1 { 0 } else { expert }],
        }
    }

    /// All elements, in the logical shape.
    pub fn expand(&self) -> Array {
        let one = self.rows * self.columns;
        let mut all = vec![0.0; self.stacked() * one];
        for (expert, out) in all.chunks_exact_mut(one).enumerate() {
            lathe_kernels::expand(&self.matrix(expert), out);
        }
        Array::from_slice(&all, &self.shape())
    }

    /// The rows of the only matrix that `which` names, `[…]` to `[…, in]` in f32; zeros for those
    /// that are not there.
    pub fn rows(self: &Arc<Self>, which: &Array) -> Result<Array> {
        let which = which.as_dtype(MlxDtype::Uint32)?;
        let mut shape = which.shape().to_vec();
        shape.push(self.columns as i32);
        let native = self.clone();
        let made = host_operation(&[&which], &shape, MlxDtype::Float32, move |views, out| {
            let which = views[0].row_major();
            let matrix = native.matrix(0);
            let out: &mut [f32] = cast_slice_mut(out);
            for (&row, out) in
                cast_slice::<u8, u32>(&which).iter().zip(out.chunks_exact_mut(matrix.columns))
            {
                match row as usize {
                    row if row < matrix.rows => {
                        lathe_kernels::expand(&matrix.part(row, 1), out);
                    }
                    _ => out.fill(0.0),
                }
            }
        });
        Ok(made?)
    }

    /// `x` `[…, in]` to `[…, out]` in f32.
    pub fn apply(self: &Arc<Self>, x: &Array) -> Result<Array> {
        let (x, shape) = entering(x, self.columns)?;
        let native = self.clone();
        let shape = [&shape[..], &[self.rows as i32]].concat();
        let made = host_operation(&[&x], &shape, MlxDtype::Float32, move |views, out| {
            let x = views[0].row_major();
            multiply(&[&native], cast_slice(&x), &mut [cast_slice_mut(out)]);
        });
        Ok(made?)
    }

    /// What several matrices make of the same `x`.
    pub fn apply_all(matrices: &[&Arc<Self>], x: &Array) -> Result<Vec<Array>> {
        let columns = matrices.first().map_or(0, |native| native.columns);
        let (x, shape) = entering(x, columns)?;
        let shapes = matrices.iter().map(|native| {
            expect("the columns of matrices of one x", &[native.columns], &[columns])?;
            Ok([&shape[..], &[native.rows as i32]].concat())
        });
        let shapes: Vec<Vec<i32>> = shapes.collect::<Result<_>>()?;
        let outs: Vec<Out> = shapes.iter().map(|shape| Out::new(shape)).collect();
        let matrices: Vec<Arc<Native>> = matrices.iter().map(|&native| native.clone()).collect();
        let made = host_operations(&[&x], &outs, MlxDtype::Float32, move |views, outs| {
            let x = views[0].row_major();
            let natives: Vec<&Native> = matrices.iter().map(|native| &**native).collect();
            let mut outs: Vec<&mut [f32]> =
                outs.iter_mut().map(|out| cast_slice_mut(out)).collect();
            multiply(&natives, cast_slice(&x), &mut outs);
        });
        Ok(made?)
    }
}

/// Floats as singles, in bytes.
fn singles(tensor: &Tensor) -> Option<Vec<u8>> {
    let widened = |widen: fn(u16) -> f32| {
        let halves = pod_collect_to_vec::<u8, u16>(&tensor.bytes);
        halves.into_iter().flat_map(|half| widen(half).to_le_bytes()).collect()
    };
    match tensor.dtype {
        Dtype::F32 => Some(tensor.bytes.to_vec()),
        Dtype::BF16 => Some(widened(|half| bf16::from_bits(half).to_f32())),
        Dtype::F16 => Some(widened(|half| f16::from_bits(half).to_f32())),
        _ => None,
    }
}

/// `x` `[rows, in]` times each matrix, with its bias: `[rows, out]` each.
fn multiply(natives: &[&Native], x: &[f32], outs: &mut [&mut [f32]]) {
    let each = natives.iter().zip(outs.iter_mut());
    let mut of: Vec<Product> =
        each.map(|(native, out)| Product { matrix: native.matrix(0), out }).collect();
    products(x, &mut of, BLAS);
    for (native, out) in natives.iter().zip(outs) {
        if let Some(bias) = &native.bias {
            out.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
        }
    }
}

/// `x` `[…, in]` in f32, and its axes but the last, which must be so long.
fn entering(x: &Array, columns: usize) -> Result<(Array, Vec<i32>)> {
    let x = x.as_dtype(MlxDtype::Float32)?;
    let mut shape = x.shape().to_vec();
    match shape.pop() {
        Some(last) if last as usize == columns && columns > 0 => Ok((x, shape)),
        _ => {
            let message =
                format!("an array {:?} does not fit a matrix of {columns} columns", x.shape());
            Err(Exception::custom(message))
        }
    }
}

fn row_major<'a>(views: &[View<'a>]) -> Vec<Cow<'a, [u8]>> {
    views.iter().map(View::row_major).collect()
}

fn add(to: &mut [f32], other: &[f32]) {
    for (to, other) in to.iter_mut().zip(other) {
        *to += other;
    }
}

/// An RMS norm: [`lathe_kernels::rms_norm`].
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// `[width]`.
    pub weight: Option<Floats>,
    /// What is added to the mean of squares.
    pub eps: f32,
}

impl RmsNorm {
    /// Normalized over the last axis, in f32.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let width = x.shape().last().map_or(0, |&last| last as usize);
        let (x, _) = entering(x, width)?;
        self.expect(width)?;
        let norm = self.clone();
        let made = host_operation(&[&x], x.shape(), MlxDtype::Float32, move |views, out| {
            norm.apply(cast_slice(&views[0].row_major()), width, cast_slice_mut(out));
        });
        Ok(made?)
    }

    fn expect(&self, width: usize) -> Result<()> {
        match &self.weight {
            Some(weight) => expect("the weight of a norm", &[weight.len()], &[width]),
            None => Ok(()),
        }
    }

    fn apply(&self, x: &[f32], width: usize, out: &mut [f32]) {
        lathe_kernels::rms_norm(x, self.weight.as_deref(), self.eps, width, out);
    }
}

/// `x` `[rows, width]`, normalized if there is a norm.
fn normalized<'a>(norm: Option<&RmsNorm>, x: &'a [f32], width: usize) -> Cow<'a, [f32]> {
    let Some(norm) = norm else { return Cow::Borrowed(x) };
    let mut out = vec![0.0; x.len()];
    norm.apply(x, width, &mut out);
    Cow::Owned(out)
}

/// An error unless sizes are what they must be.
fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: &[T], wanted: &[T]) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Exception::custom(format!("{what}: {found:?} where {wanted:?} would fit")))
}

/// OpenBLAS (Accelerate on macOS); each thread of a product calls it for a part of its own.
const BLAS: Gemm = Gemm(sgemm);

/// # Safety
/// As [`Gemm`] says.
#[expect(clippy::too_many_arguments, reason = "BLAS's")]
unsafe fn sgemm(
    m: usize,
    n: usize,
    k: usize,
    a: *const f32,
    b: *const f32,
    transposed: bool,
    c: *mut f32,
    c_stride: usize,
) {
    const ROW_MAJOR: c_int = 101;
    const AS_IT_IS: c_int = 111;
    const TRANSPOSED: c_int = 112;
    // Axes of MLX's arrays, and parts of them: they fit.
    let (m, n, k, c_stride) = (m as c_int, n as c_int, k as c_int, c_stride as c_int);
    let (of_b, b_stride) = if transposed { (TRANSPOSED, k) } else { (AS_IT_IS, n) };
    // SAFETY: as the caller says.
    unsafe {
        mlx_sys::cblas_sgemm(
            ROW_MAJOR, AS_IT_IS, of_b, m, n, k, 1.0, a, k, b, b_stride, 0.0, c, c_stride,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ones(shape: &[i32]) -> Array {
        mlx_rs::ops::ones_dtype(shape, MlxDtype::Float32).unwrap()
    }

    fn counting(shape: &[i32]) -> Arc<Native> {
        let count: i32 = shape.iter().product();
        let bytes: Vec<u8> = (0..count).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let tensor = Tensor { dtype: Dtype::F32, shape: shape.to_vec(), bytes: bytes.into() };
        Arc::new(Native::of_floats(&tensor).unwrap())
    }

    /// An error from each, where the kernels would end the process.
    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        let (matrix, x) = (counting(&[16, 8]), ones(&[1, 3, 8]));
        assert!(matrix.apply(&x).is_ok());
        assert!(matrix.apply(&ones(&[1, 3, 7])).is_err());
        assert!(Native::apply_all(&[&matrix, &counting(&[4, 7])], &x).is_err());
        assert!(Native::clone(&matrix).with_bias(&ones(&[16])).is_ok());
        assert!(Native::clone(&matrix).with_bias(&ones(&[15])).is_err());
        assert!(matrix.part(8, 8).is_ok() && matrix.part(8, 9).is_err());
        assert!(counting(&[3, 4]).halves().is_err());
        let norm = |width| RmsNorm { weight: Some(floats(&ones(&[width])).unwrap()), eps: 1e-6 };
        assert!(norm(8).forward(&x).is_ok() && norm(7).forward(&x).is_err());
        let short = Tensor { dtype: Dtype::F32, shape: vec![2, 8], bytes: vec![0; 60].into() };
        assert!(Native::of_floats(&short).is_none());
    }

    #[test]
    fn rows_and_experts_that_are_not_there_are_zeros() {
        let table = counting(&[3, 2]);
        let rows = table.rows(&Array::from_slice(&[2_u32, 9, 0], &[3])).unwrap();
        assert_eq!(floats(&rows).unwrap()[..], [4.0, 5.0, 0.0, 0.0, 0.0, 1.0]);
        let stack = counting(&[2, 1, 2]);
        let x = ones(&[1, 1, 1, 2]);
        let made = stack.apply_experts(&x, &Array::from_slice(&[1_u32, 7], &[1, 2])).unwrap();
        assert_eq!(floats(&made).unwrap()[..], [5.0, 0.0]);
    }

    #[test]
    fn a_part_has_the_rows_and_the_bias_of_its_own() {
        let bias = Array::from_slice(&[10.0_f32, 20.0, 30.0], &[3]);
        let matrix = Native::clone(&counting(&[3, 2])).with_bias(&bias).unwrap();
        let part = Arc::new(matrix.part(1, 2).unwrap());
        let made = part.apply(&ones(&[1, 2])).unwrap();
        assert_eq!(floats(&made).unwrap()[..], [25.0, 39.0]);
    }
}
