//! What lathe's own kernels (`kernels/`) compute on the CPU, as operations of MLX's graph: products
//! and what adjoins them here, attention and its heads in [`heads`](mod@heads).
//!
//! Lazy arrays enter and leave. Sizes are checked before an operation is made: in it a panic would
//! end the process. Weights stay in the form that they are stored in, floats too: a product reads each once, on
//! all cores.

mod heads;

use std::borrow::Cow;
use std::os::raw::c_int;

use bytemuck::{cast_slice, cast_slice_mut};
use lathe_kernels::{Form, Gate, Gemm, Matrix, Product, product, products};
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

pub use heads::{HeadsOf, Projection, Seeing, Turn, attention, heads, rotate};

use super::ops::Result;
use super::source::Quantized;
use crate::format::Mode;
use crate::mlx::host::{View, host_operation, host_operations};

/// A matrix `[out, in]` or stacked ones `[experts, out, in]` that the kernels can multiply with.
#[derive(Clone, Debug)]
pub struct Native {
    form: Form,
    weight: Array,
    scales: Option<Array>,
    biases: Option<Array>,
    /// Factors, f32: none, one, or one for each expert.
    factors: Option<Array>,
    rows: i32,
    columns: i32,
}

impl Native {
    /// A matrix of floats; `None` when the kernels lack it.
    pub fn of_floats(weight: &Array) -> Option<Native> {
        let form = match weight.dtype() {
            Dtype::Float32 => Form::F32,
            Dtype::Float16 => Form::F16,
            Dtype::Bfloat16 => Form::Bf16,
            _ => return None,
        };
        let shape = weight.shape();
        let columns = *shape.last()?;
        Native::new(form, weight.clone(), [None, None, None], columns)
    }

    /// A quantized matrix whose affine scales and biases, and global scales, are f32; `None` when
    /// the kernels lack its format.
    pub fn of_quantized(quantized: &Quantized) -> Option<Native> {
        let Quantized { weight, scales, biases, global_scale, mode, bits, group } = quantized;
        let form = match (mode, bits, group) {
            (Mode::Affine, &bits, &group) => {
                Form::Affine { bits: u8::try_from(bits).ok()?, group: usize::try_from(group).ok()? }
            }
            (Mode::Mxfp4, 4, 32) => Form::Mxfp4,
            (Mode::Mxfp8, 8, 32) => Form::Mxfp8,
            (Mode::Nvfp4, 4, 16) => Form::Nvfp4,
            _ => return None,
        };
        let parts = [Some(scales.clone()), biases.clone(), global_scale.clone()];
        Native::new(form, weight.clone(), parts, quantized.columns())
    }

    fn new(
        form: Form,
        weight: Array,
        [scales, biases, factors]: [Option<Array>; 3],
        columns: i32,
    ) -> Option<Native> {
        let supported = form.supports(usize::try_from(columns).ok()?);
        let shape = weight.shape();
        let rows = *shape.get(shape.len().checked_sub(2)?)?;
        let fits = supported && matches!(shape.len(), 2 | 3) && rows > 0;
        fits.then_some(Native { form, weight, scales, biases, factors, rows, columns })
    }

    /// Adds its arrays to the inputs of an operation, and says where they are.
    fn add_to<'a>(&'a self, inputs: &mut Vec<&'a Array>) -> Places {
        let mut place = |array: Option<&'a Array>| {
            array.map(|array| {
                inputs.push(array);
                inputs.len() - 1
            })
        };
        Places {
            form: self.form,
            rows: self.rows as usize,
            columns: self.columns as usize,
            weight: place(Some(&self.weight)).unwrap_or_default(),
            scales: place(self.scales.as_ref()),
            biases: place(self.biases.as_ref()),
            factors: place(self.factors.as_ref()),
        }
    }

    /// `x` `[…, in]` to `[…, out]` in f32.
    pub fn apply(&self, x: &Array) -> Result<Array> {
        let mut made = Native::apply_all(&[self], x)?;
        made.pop().ok_or_else(|| Exception::custom("a product gave nothing"))
    }

    /// The same with several matrices at once.
    pub fn apply_all(matrices: &[&Native], x: &Array) -> Result<Vec<Array>> {
        let Stacked { x, inputs, places, shapes } = Stacked::new(matrices, x)?;
        let shapes: Vec<&[i32]> = shapes.iter().map(Vec::as_slice).collect();
        let inputs: Vec<&Array> = std::iter::once(&x).chain(inputs).collect();
        let made = host_operations(&inputs, &shapes, Dtype::Float32, move |views, outs| {
            let inputs = row_major(views);
            let mut of: Vec<Product> = Vec::with_capacity(outs.len());
            for (places, out) in places.iter().zip(outs) {
                of.push(Product { matrix: places.matrix(&inputs, 0), out: cast_slice_mut(out) });
            }
            products(cast_slice(&inputs[0]), &mut of, BLAS);
        });
        Ok(made?)
    }

    /// `x` `[…, in]` to `[…, out]` in f32, added to `to`.
    pub fn apply_onto(&self, x: &Array, to: &Array) -> Result<Array> {
        let Stacked { x, inputs, places, shapes } = Stacked::new(&[self], x)?;
        let to = to.as_dtype(Dtype::Float32)?;
        expect("what a product is added to", to.shape(), &shapes[0])?;
        let inputs: Vec<&Array> = std::iter::once(&x).chain(inputs).chain([&to]).collect();
        let made = host_operation(&inputs, &shapes[0], Dtype::Float32, move |views, out| {
            let inputs = row_major(views);
            let out: &mut [f32] = cast_slice_mut(out);
            product(cast_slice(&inputs[0]), &places[0].matrix(&inputs, 0), out, BLAS);
            add(out, cast_slice(&inputs[inputs.len() - 1]));
        });
        Ok(made?)
    }

    /// down(function(gate(x)) × up(x)) in f32: `[…, in]` to `[…, out]`; added to `to`, if given.
    pub fn gated(mlp: GatedOf, x: &Array, to: Option<&Array>) -> Result<Array> {
        let GatedOf { function, gate, up, down } = mlp;
        let Stacked { x, mut inputs, mut places, shapes } = Stacked::new(&[gate, up], x)?;
        places.push(down.add_to(&mut inputs).behind(1));
        let to = to.map(|to| to.as_dtype(Dtype::Float32)).transpose()?;
        expect("the rows of a gate and of what it opens", &[gate.rows], &[up.rows])?;
        expect("the columns after a gate", &[down.columns], &[gate.rows])?;
        let mut shape = shapes[0].clone();
        if let Some(last) = shape.last_mut() {
            *last = down.rows;
        }
        if let Some(to) = &to {
            expect("what a product is added to", to.shape(), &shape)?;
        }
        let inputs: Vec<&Array> = std::iter::once(&x).chain(inputs).chain(&to).collect();
        let onto = to.is_some();
        let made = host_operation(&inputs, &shape, Dtype::Float32, move |views, out| {
            let inputs = row_major(views);
            let out: &mut [f32] = cast_slice_mut(out);
            let [gate_of, up_of, down_of] = [0, 1, 2].map(|i| places[i].matrix(&inputs, 0));
            let elements = out.len() / down_of.rows * down_of.columns;
            let (mut gate, mut up) = (vec![0.0; elements], vec![0.0; elements]);
            let mut of = [
                Product { matrix: gate_of, out: &mut gate },
                Product { matrix: up_of, out: &mut up },
            ];
            products(cast_slice(&inputs[0]), &mut of, BLAS);
            function.apply(&mut gate, &up);
            product(&gate, &down_of, out, BLAS);
            if onto {
                add(out, cast_slice(&inputs[inputs.len() - 1]));
            }
        });
        Ok(made?)
    }

    /// Stacked matrices: `x` `[tokens, 1 or k, 1, in]` and experts `[tokens, k]` give
    /// `[tokens, k, 1, out]` in f32.
    pub fn apply_experts(&self, x: &Array, experts: &Array) -> Result<Array> {
        let x = x.as_dtype(Dtype::Float32)?;
        let experts = experts.as_dtype(Dtype::Uint32)?;
        let (tokens, chosen) = (experts.dim(0), experts.dim(-1));
        let fits = x.ndim() == 4 && x.dim(0) == tokens && x.dim(-1) == self.columns;
        if !fits || !(x.dim(1) == 1 || x.dim(1) == chosen) {
            return Err(misfit(&x, self.columns));
        }
        let shared = x.dim(1) == 1;
        let chosen = chosen as usize;
        let shape = [tokens, chosen as i32, 1, self.rows];
        let mut inputs = vec![&x, &experts];
        let places = self.add_to(&mut inputs);
        let made = host_operation(&inputs, &shape, Dtype::Float32, move |views, out| {
            let inputs = row_major(views);
            let x: &[f32] = cast_slice(&inputs[0]);
            let experts: &[u32] = cast_slice(&inputs[1]);
            let x_row = |pair: usize| {
                let row = if shared { pair / chosen } else { pair };
                &x[row * places.columns..(row + 1) * places.columns]
            };
            places.gather(&inputs, experts, x_row, cast_slice_mut(out));
        });
        Ok(made?)
    }
}

/// The parts of a gated MLP.
pub struct GatedOf<'a> {
    /// Of the gate.
    pub function: Gate,
    /// `[inner, in]`.
    pub gate: &'a Native,
    /// `[inner, in]`.
    pub up: &'a Native,
    /// `[out, inner]`.
    pub down: &'a Native,
}

fn add(to: &mut [f32], other: &[f32]) {
    for (to, other) in to.iter_mut().zip(other) {
        *to += other;
    }
}

/// Matrices of as many columns, ready for an operation whose first input is `x` in f32.
struct Stacked<'a> {
    x: Array,
    /// All other inputs.
    inputs: Vec<&'a Array>,
    places: Vec<Places>,
    /// Of each result.
    shapes: Vec<Vec<i32>>,
}

impl<'a> Stacked<'a> {
    fn new(matrices: &[&'a Native], x: &Array) -> Result<Stacked<'a>> {
        let x = x.as_dtype(Dtype::Float32)?;
        let (mut inputs, mut places, mut shapes) = (Vec::new(), Vec::new(), Vec::new());
        for matrix in matrices {
            let mut shape = x.shape().to_vec();
            match shape.last_mut().filter(|last| **last == matrix.columns) {
                Some(last) => *last = matrix.rows,
                None => return Err(misfit(&x, matrix.columns)),
            }
            shapes.push(shape);
            let places_of_one = matrix.add_to(&mut inputs);
            places.push(places_of_one.behind(1));
        }
        Ok(Stacked { x, inputs, places, shapes })
    }
}

fn row_major<'a>(views: &[View<'a>]) -> Vec<Cow<'a, [u8]>> {
    views.iter().map(View::row_major).collect()
}

/// Where an operation finds a matrix among its inputs.
#[derive(Clone, Copy)]
struct Places {
    form: Form,
    rows: usize,
    columns: usize,
    weight: usize,
    scales: Option<usize>,
    biases: Option<usize>,
    factors: Option<usize>,
}

impl Places {
    /// The same where so many inputs come first.
    fn behind(self, first: usize) -> Places {
        let later = |place: Option<usize>| place.map(|place| place + first);
        Places {
            weight: self.weight + first,
            scales: later(self.scales),
            biases: later(self.biases),
            factors: later(self.factors),
            ..self
        }
    }

    /// The matrix of an expert; the only one is number 0.
    fn matrix<'a>(&self, inputs: &'a [Cow<[u8]>], expert: usize) -> Matrix<'a> {
        let elements = self.rows * self.columns;
        let part = |bytes: &'a [u8], length: usize| &bytes[expert * length..(expert + 1) * length];
        let (group, scale) = self.form.group().unwrap_or((1, 0));
        let companions = elements / group * scale;
        let companion =
            |place: Option<usize>| place.map_or(&[][..], |place| part(&inputs[place], companions));
        let factors: &[f32] = self.factors.map_or(&[1.0], |place| cast_slice(&inputs[place]));
        Matrix {
            form: self.form,
            rows: self.rows,
            columns: self.columns,
            weight: part(&inputs[self.weight], elements * self.form.bits() / 8),
            scales: companion(self.scales),
            biases: companion(self.biases),
            factor: factors[if factors.len() == 1 { 0 } else { expert }],
        }
    }

    /// Products of the rows of `x` with the expert of each, expert by expert.
    fn gather<'x>(
        &self,
        inputs: &[Cow<[u8]>],
        experts: &[u32],
        x_row: impl Fn(usize) -> &'x [f32],
        out: &mut [f32],
    ) {
        let mut pairs: Vec<usize> = (0..experts.len()).collect();
        pairs.sort_by_key(|&pair| experts[pair]);
        for same in pairs.chunk_by(|&a, &b| experts[a] == experts[b]) {
            let matrix = self.matrix(inputs, experts[same[0]] as usize);
            if let [pair] = *same {
                let out = &mut out[pair * self.rows..(pair + 1) * self.rows];
                product(x_row(pair), &matrix, out, BLAS);
                continue;
            }
            let x: Vec<f32> = same.iter().flat_map(|&pair| x_row(pair)).copied().collect();
            let mut products = vec![0.0; same.len() * self.rows];
            product(&x, &matrix, &mut products, BLAS);
            for (&pair, product) in same.iter().zip(products.chunks_exact(self.rows)) {
                out[pair * self.rows..(pair + 1) * self.rows].copy_from_slice(product);
            }
        }
    }
}

/// RMS norm over the last axis, in f32; see [`lathe_kernels::rms_norm`].
pub fn rms_norm(x: &Array, weight: Option<&Array>, eps: f32) -> Result<Array> {
    if let Some(weight) = weight {
        expect("the weight of a norm", weight.shape(), &[x.dim(-1)])?;
    }
    let width = x.dim(-1).max(1) as usize;
    let inputs: Vec<&Array> = std::iter::once(x).chain(weight).collect();
    let made = host_operation(&inputs, x.shape(), Dtype::Float32, move |views, out| {
        let inputs = row_major(views);
        let weight = inputs.get(1).map(|weight| cast_slice(weight));
        lathe_kernels::rms_norm(cast_slice(&inputs[0]), weight, eps, width, cast_slice_mut(out));
    });
    Ok(made?)
}

/// An error unless a shape is what it must be.
fn expect(what: &str, found: &[i32], wanted: &[i32]) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Exception::custom(format!("{what}: {found:?} where {wanted:?} would fit")))
}

fn misfit(x: &Array, columns: i32) -> Exception {
    let message = format!("an array {:?} does not fit a matrix of {columns} columns", x.shape());
    Exception::custom(message)
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
