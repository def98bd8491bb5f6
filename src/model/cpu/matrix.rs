//! Matrices in the form that they are stored in, and projections: each product reads them once, on
//! all cores.

use std::os::raw::c_int;
use std::sync::Arc;

use bytes::Bytes;
use half::{bf16, f16};
use lathe_kernels::{Form, Gemm, Product, Scales, products};

use super::memory::Memory;
use crate::dtype::Dtype;
use crate::format::Mode;
use crate::model::source::{QuantizedTensor, Tensor, Weight};

/// Numbers that modules hold.
pub type Floats = Arc<[f32]>;

/// A matrix `[out, in]`, or stacked ones `[experts, out, in]`.
#[derive(Clone, Debug)]
pub struct Matrix {
    form: Form,
    weight: Bytes,
    scales: Bytes,
    biases: Bytes,
    /// One for all, or one for each of the stacked.
    factors: Floats,
    /// How many are stacked.
    pub stacked: usize,
    /// Elements of what a product gives.
    pub rows: usize,
    /// Elements of what enters a product.
    pub columns: usize,
}

impl Matrix {
    /// Takes a weight in; `transposed` says that it is stored as `[…, in, out]`, and it is put right
    /// then. `None` when the kernels lack its form.
    pub fn new(weight: &Weight, transposed: bool) -> Option<Matrix> {
        let stored = match weight {
            Weight::Float(tensor) => Matrix::of_floats(tensor),
            Weight::Quantized(quantized) => Matrix::of_quantized(quantized),
        };
        match transposed {
            true => stored.map(|stored| stored.turned()),
            false => stored,
        }
    }

    fn of_floats(weight: &Tensor) -> Option<Matrix> {
        let form = match weight.dtype {
            Dtype::F32 => Form::F32,
            Dtype::F16 => Form::F16,
            Dtype::BF16 => Form::Bf16,
            _ => return None,
        };
        let none = [Bytes::new(), Bytes::new()];
        Matrix::of_parts(form, weight, weight.last(), none, Arc::new([1.0]))
    }

    fn of_quantized(quantized: &QuantizedTensor) -> Option<Matrix> {
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
            Some(biases) => {
                [scales, biases].map(|part| floats(part).map(|floats| in_bytes(&floats)))
            }
            None => [Some(scales.bytes.clone()), Some(Bytes::new())],
        };
        let factors = match global_scale {
            Some(factors) => floats(factors)?.into(),
            None => Arc::from([1.0]),
        };
        let [scales, biases] = companions;
        Matrix::of_parts(form, weight, quantized.columns(), [scales?, biases?], factors)
    }

    fn of_parts(
        form: Form,
        weight: &Tensor,
        columns: i32,
        [scales, biases]: [Bytes; 2],
        factors: Floats,
    ) -> Option<Matrix> {
        let (stacked, rows) = match *weight.shape {
            [rows, _] => (1, rows),
            [stacked, rows, _] => (usize::try_from(stacked).ok()?, rows),
            _ => return None,
        };
        let (rows, columns) = (usize::try_from(rows).ok()?, usize::try_from(columns).ok()?);
        let elements = stacked.checked_mul(rows)?.checked_mul(columns)?;
        let (group, scale) = form.group().unwrap_or((1, 0));
        let companions = elements / group * scale;
        let affine = matches!(form, Form::Affine { .. });
        let fits = form.supports(columns)
            && elements > 0
            && weight.bytes.len() == elements * form.bits() / 8
            && scales.len() == companions
            && biases.len() == if affine { companions } else { 0 }
            && (factors.len() == 1 || factors.len() == stacked);
        let weight = weight.bytes.clone();
        fits.then_some(Matrix { form, weight, scales, biases, factors, stacked, rows, columns })
    }

    /// The last axes exchanged, once and for all: floats as they are, others as singles.
    fn turned(&self) -> Matrix {
        let Matrix { stacked, rows, columns, .. } = *self;
        let (size, form) = match self.form {
            Form::F16 | Form::Bf16 => (2, self.form),
            _ => (4, Form::F32),
        };
        let expanded;
        let from: &[u8] = match self.form == form && self.factors[..] == [1.0] {
            true => &self.weight,
            false => {
                expanded = in_bytes(&self.expand());
                &expanded
            }
        };
        let mut turned = vec![0; from.len()];
        let one = rows * columns * size;
        for (from, to) in from.chunks_exact(one).zip(turned.chunks_exact_mut(one)) {
            for (at, element) in from.chunks_exact(size).enumerate() {
                let to_at = (at % columns * rows + at / columns) * size;
                to[to_at..to_at + size].copy_from_slice(element);
            }
        }
        let (weight, none) = (Bytes::from(turned), Bytes::new());
        let (scales, biases, factors) = (none.clone(), none, Floats::from([1.0]));
        Matrix { form, weight, scales, biases, factors, stacked, rows: columns, columns: rows }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.weight.len() + self.scales.len() + self.biases.len()
    }

    /// The same for whom reads it for every token: where that is fastest.
    pub fn read_often(self, memory: &mut Memory) -> Matrix {
        Matrix {
            weight: memory.hold(&self.weight),
            scales: memory.hold(&self.scales),
            biases: memory.hold(&self.biases),
            ..self
        }
    }

    /// Rows `from..from + count` of the only matrix.
    ///
    /// # Panics
    /// When there are no such rows.
    pub fn part(&self, from: usize, count: usize) -> Matrix {
        assert!(self.stacked == 1 && from + count <= self.rows, "rows of a part");
        let cut = |bytes: &Bytes| {
            let row = bytes.len() / self.rows;
            bytes.slice(from * row..(from + count) * row)
        };
        Matrix {
            weight: cut(&self.weight),
            scales: cut(&self.scales),
            biases: cut(&self.biases),
            rows: count,
            ..self.clone()
        }
    }

    /// One of the stacked matrices by itself.
    ///
    /// # Panics
    /// When it is not there.
    pub fn one(&self, which: usize) -> Matrix {
        assert!(which < self.stacked, "a stacked matrix");
        let cut = |bytes: &Bytes| {
            let one = bytes.len() / self.stacked;
            bytes.slice(which * one..(which + 1) * one)
        };
        let factor = self.factors[if self.factors.len() == 1 { 0 } else { which }];
        Matrix {
            weight: cut(&self.weight),
            scales: cut(&self.scales),
            biases: cut(&self.biases),
            factors: Arc::from([factor]),
            stacked: 1,
            ..self.clone()
        }
    }

    /// One of the stacked matrices, or the only one, for the kernels.
    pub fn of(&self, which: usize) -> lathe_kernels::Matrix<'_> {
        fn part(bytes: &[u8], of: usize, which: usize) -> &[u8] {
            let length = bytes.len() / of;
            &bytes[which * length..(which + 1) * length]
        }
        lathe_kernels::Matrix {
            form: self.form,
            rows: self.rows,
            columns: self.columns,
            weight: part(&self.weight, self.stacked, which),
            scales: part(&self.scales, self.stacked, which),
            biases: part(&self.biases, self.stacked, which),
            factor: self.factors[if self.factors.len() == 1 { 0 } else { which }],
        }
    }

    /// All elements.
    pub fn expand(&self) -> Vec<f32> {
        let one = self.rows * self.columns;
        let mut all = vec![0.0; self.stacked * one];
        for (which, out) in all.chunks_exact_mut(one).enumerate() {
            lathe_kernels::expand(&self.of(which), out);
        }
        all
    }

    /// The rows of the only matrix that are named, `[named, columns]`.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn rows_of(&self, named: impl ExactSizeIterator<Item = usize>) -> Vec<f32> {
        let mut out = vec![0.0; named.len() * self.columns];
        let matrix = self.of(0);
        for (row, out) in named.zip(out.chunks_exact_mut(self.columns)) {
            lathe_kernels::expand(&matrix.part(row, 1), out);
        }
        out
    }
}

/// A linear projection.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[out, in]`.
    pub matrix: Arc<Matrix>,
    /// `[out]`.
    pub bias: Option<Floats>,
}

impl Linear {
    /// `x` `[rows, in]` to `[rows, out]`.
    pub fn forward(&self, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len() / self.matrix.columns * self.matrix.rows];
        Linear::into(&[self], x, &mut [&mut out]);
        out
    }

    /// What several projections make of the same `x`: they share the threads.
    pub fn forward_all(all: &[&Linear], x: &[f32]) -> Vec<Vec<f32>> {
        let size = |linear: &&Linear| x.len() / linear.matrix.columns * linear.matrix.rows;
        let mut outs: Vec<Vec<f32>> = all.iter().map(|linear| vec![0.0; size(linear)]).collect();
        let mut each: Vec<&mut [f32]> = outs.iter_mut().map(|out| &mut out[..]).collect();
        Linear::into(all, x, &mut each);
        outs
    }

    fn into(all: &[&Linear], x: &[f32], outs: &mut [&mut [f32]]) {
        let each = all.iter().zip(outs.iter_mut());
        let mut of: Vec<Product> =
            each.map(|(linear, out)| Product { matrix: linear.matrix.of(0), out }).collect();
        products(x, &mut of, BLAS);
        for (linear, out) in all.iter().zip(outs) {
            if let Some(bias) = &linear.bias {
                lathe_kernels::add_bias(out, bias);
            }
        }
    }

    /// Rows `from..from + count` of what it gives.
    ///
    /// # Panics
    /// When there are no such rows.
    pub fn part(&self, from: usize, count: usize) -> Linear {
        let bias = self.bias.as_ref().map(|bias| bias[from..from + count].into());
        Linear { matrix: Arc::new(self.matrix.part(from, count)), bias }
    }

    /// Elements of what it gives.
    pub fn outputs(&self) -> usize {
        self.matrix.rows
    }
}

/// The elements of a tensor of floats.
pub fn floats(tensor: &Tensor) -> Option<Vec<f32>> {
    let halves = |widen: fn(u16) -> f32| {
        let halves = tensor.bytes.chunks_exact(2);
        halves.map(|half| widen(u16::from_le_bytes([half[0], half[1]]))).collect()
    };
    match tensor.dtype {
        Dtype::F32 => {
            let each = tensor.bytes.chunks_exact(4);
            Some(each.map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect())
        }
        Dtype::BF16 => Some(halves(|half| bf16::from_bits(half).to_f32())),
        Dtype::F16 => Some(halves(|half| f16::from_bits(half).to_f32())),
        _ => None,
    }
}

fn in_bytes(floats: &[f32]) -> Bytes {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

/// OpenBLAS (Accelerate on macOS); each thread of a product calls it for a part of its own.
pub const BLAS: Gemm = Gemm(sgemm);

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
    // Axes of tensors, and parts of them: they fit.
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

    fn counting(shape: &[i32]) -> Weight {
        let count: i32 = shape.iter().product();
        let bytes: Vec<u8> = (0..count).flat_map(|i| (i as f32).to_le_bytes()).collect();
        Weight::Float(Tensor { dtype: Dtype::F32, shape: shape.to_vec(), bytes: bytes.into() })
    }

    #[test]
    fn a_part_has_the_rows_and_the_bias_of_its_own() {
        let matrix = Arc::new(Matrix::new(&counting(&[3, 2]), false).unwrap());
        let linear = Linear { matrix, bias: Some(Arc::from([10.0, 20.0, 30.0])) };
        assert_eq!(linear.forward(&[1.0, 1.0]), [11.0, 25.0, 39.0]);
        assert_eq!(linear.part(1, 2).forward(&[1.0, 1.0]), [25.0, 39.0]);
    }

    #[test]
    fn transposed_stacks_are_put_right() {
        let matrix = Matrix::new(&counting(&[2, 2, 3]), true).unwrap();
        assert_eq!((matrix.stacked, matrix.rows, matrix.columns), (2, 3, 2));
        assert_eq!(matrix.expand(), [0., 3., 1., 4., 2., 5., 6., 9., 7., 10., 8., 11.]);
        assert_eq!(matrix.of(1).rows, 3);
    }

    #[test]
    fn what_is_too_short_is_no_matrix() {
        let bytes = vec![0; 60].into();
        let short = Tensor { dtype: Dtype::F32, shape: vec![2, 8], bytes };
        assert!(Matrix::new(&Weight::Float(short), false).is_none());
    }
}
