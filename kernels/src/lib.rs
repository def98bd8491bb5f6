//! What models compute with on the CPU: products of float vectors with matrices in every form that
//! lathe stores, mixtures of experts, attention, layers that keep a state, and what is done with each element between
//! them.
//!
//! MLX's own quantized products on the CPU use one core and take ten times as long as reading the
//! weights would. Here a matrix is read once, in the form that it is stored in, by all cores: few
//! rows of `x` are multiplied as the weights are decoded ([`rows`]); many rows are multiplied with
//! blocks of decoded weights, by the BLAS that the caller gives. Nothing of the size of the matrix
//! is ever made.
//!
//! Sums are in f32.

mod attention;
mod codec;
mod elements;
mod experts;
mod instructions;
mod recurrent;
mod router;
mod rows;
mod team;
mod vectorized;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use attention::{Heads, Sight, attend};
pub use elements::{
    Angles, Gate, RowNorm, Strided, add_all, add_bias, clamped_gate, heads, layer_norm,
    multiply_rows, rms_norm, scale, scale_rows, soft_cap,
};
pub use experts::{Chosen, Entry, Experts, Stack, mixture};
pub use instructions::Instructions;
pub use recurrent::{Band, Conv, GatedDelta, Mamba2, conv, gated_delta, mamba2};
pub use router::{Router, Scoring, route};
pub use team::in_parallel;

/// How the elements of a matrix are stored. Rows follow each other without gaps; the elements of
/// a row are a stream of bits, the first in the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of a single.
    Bf16,
    /// Whole numbers of so many bits (2 to 6, or 8), with a scale and a bias for each group.
    Affine {
        /// Bits of an element.
        bits: u8,
        /// Elements of a group.
        group: usize,
        /// How scales and biases are stored.
        scales: Scales,
    },
    /// E2M1 with an E8M0 scale for 32.
    Mxfp4,
    /// E4M3 with an E8M0 scale for 32.
    Mxfp8,
    /// E2M1 with an E4M3 scale for 16.
    Nvfp4,
}

/// How the scales and biases of [`Form::Affine`] are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// IEEE single: 4 bytes each.
    F32,
    /// The upper half of a single: 2 bytes each.
    Bf16,
}

impl Scales {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Scales::F32 => 4,
            Scales::Bf16 => 2,
        }
    }
}

impl Form {
    /// Bits of an element.
    pub fn bits(self) -> usize {
        match self {
            Form::F32 => 32,
            Form::F16 | Form::Bf16 => 16,
            Form::Affine { bits, .. } => usize::from(bits),
            Form::Mxfp8 => 8,
            Form::Mxfp4 | Form::Nvfp4 => 4,
        }
    }

    /// Elements that share a scale, and the scale's bytes; `None` when there are no scales.
    pub fn group(self) -> Option<(usize, usize)> {
        match self {
            Form::F32 | Form::F16 | Form::Bf16 => None,
            Form::Affine { group, scales, .. } => Some((group, scales.bytes())),
            Form::Mxfp4 | Form::Mxfp8 => Some((32, 1)),
            Form::Nvfp4 => Some((16, 1)),
        }
    }

    /// Whether there is a product for this form and rows of so many elements.
    pub fn supports(self, columns: usize) -> bool {
        let bits = match self {
            Form::Affine { bits, .. } => matches!(bits, 2..=6 | 8),
            _ => true,
        };
        let whole =
            self.group().is_none_or(|(group, _)| group % 8 == 0 && columns.is_multiple_of(group));
        bits && whole && columns > 0
    }
}

/// A matrix `[rows, columns]`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// How its elements are stored.
    pub form: Form,
    /// Rows: elements of what the product gives.
    pub rows: usize,
    /// Columns: elements of what goes in.
    pub columns: usize,
    /// The elements.
    pub weight: &'a [u8],
    /// A scale for each group; as [`Scales`] says for affine, bytes for the others, empty for floats.
    pub scales: &'a [u8],
    /// A bias for each group of affine ones, stored as the scales are; else empty.
    pub biases: &'a [u8],
    /// Multiplies all.
    pub factor: f32,
}

impl<'a> Matrix<'a> {
    fn row_bytes(&self) -> usize {
        self.columns * self.form.bits() / 8
    }

    fn row_scales(&self) -> usize {
        self.form.group().map_or(0, |(group, bytes)| self.columns / group * bytes)
    }

    /// Panics unless the slices are as long as the form needs: everything below relies on it.
    fn check(&self) {
        assert!(self.form.supports(self.columns), "{:?} of {} columns", self.form, self.columns);
        assert_eq!(self.weight.len(), self.rows * self.row_bytes(), "weight");
        assert_eq!(self.scales.len(), self.rows * self.row_scales(), "scales");
        let biases = if matches!(self.form, Form::Affine { .. }) { self.scales.len() } else { 0 };
        assert_eq!(self.biases.len(), biases, "biases");
    }

    /// Rows `from..from + count`.
    ///
    /// # Panics
    /// When there are no such rows.
    pub fn part(&self, from: usize, count: usize) -> Matrix<'a> {
        let cut = |bytes: &'a [u8], row: usize| &bytes[from * row..(from + count) * row];
        let scales = self.row_scales();
        Matrix {
            rows: count,
            weight: cut(self.weight, self.row_bytes()),
            scales: cut(self.scales, scales),
            biases: cut(self.biases, if self.biases.is_empty() { 0 } else { scales }),
            ..*self
        }
    }
}

/// A BLAS's product on the calling thread alone: `c[i × c_stride + j] = Σ a[i × k + l] × B(l, j)`
/// for `i < m`, `j < n`, `l < k`, where B is `b[j × k + l]` when it is `transposed`, else
/// `b[l × n + j]`. Arguments: m, n, k, a, b, transposed, c, c_stride.
#[derive(Clone, Copy)]
pub struct Gemm(pub unsafe fn(usize, usize, usize, *const f32, *const f32, bool, *mut f32, usize));

/// From so many rows of `x` on, decoding a block first and multiplying it by the BLAS is faster.
const MANY: usize = 12;

/// Bytes by which what is read once is fetched ahead: the hardware's own prefetching stops at each
/// page.
const AHEAD: usize = 4096;

/// Elements of a piece of work, at most.
const PIECE: usize = 256 * 1024;

/// Bytes of a block of decoded weights: half of a small second-level cache.
const BLOCK: usize = 256 << 10;

/// A product to be made.
#[derive(Debug)]
pub struct Product<'a> {
    /// The matrix.
    pub matrix: Matrix<'a>,
    /// `[count, rows]`: `x` times the transposed matrix.
    pub out: &'a mut [f32],
}

/// `x` `[count, columns]` times a matrix.
///
/// # Panics
/// When lengths do not fit each other.
pub fn product(x: &[f32], matrix: &Matrix, out: &mut [f32], gemm: Gemm) {
    products(x, &mut [Product { matrix: *matrix, out }], gemm);
}

/// Products of the same `x` `[count, columns]`.
///
/// # Panics
/// When lengths do not fit each other.
pub fn products(x: &[f32], of: &mut [Product], gemm: Gemm) {
    let Some(columns) = of.first().map(|first| first.matrix.columns) else { return };
    let jobs = of.iter_mut().map(|Product { matrix, out }| {
        assert_eq!(matrix.columns, columns, "columns");
        Job { x, matrix: *matrix, out }
    });
    each_product(&mut jobs.collect::<Vec<Job>>(), gemm);
}

/// A product to be made, of rows of its own.
#[derive(Debug)]
pub struct Job<'a> {
    /// `[count, columns]`.
    pub x: &'a [f32],
    /// The matrix.
    pub matrix: Matrix<'a>,
    /// `[count, rows]`: `x` times the transposed matrix.
    pub out: &'a mut [f32],
}

/// Products that do not depend on each other, as one work that all threads share. Those of the same
/// `x`, the same slice, share what is made of it first.
///
/// # Panics
/// When lengths do not fit each other.
pub fn each_product(of: &mut [Job], gemm: Gemm) {
    let mut ready: Vec<(Form, &[f32], rows::Rows)> = Vec::new();
    let mut made: Vec<Made> = Vec::with_capacity(of.len());
    for Job { x, matrix, out } in of {
        matrix.check();
        let count = x.len() / matrix.columns;
        assert_eq!(x.len(), count * matrix.columns, "x");
        assert_eq!(out.len(), count * matrix.rows, "out");
        if count == 0 {
            continue;
        }
        let few = (count < MANY).then(|| {
            let known = ready
                .iter()
                .position(|(form, known, _)| *form == matrix.form && std::ptr::eq(*known, *x));
            known.unwrap_or_else(|| {
                ready.push((matrix.form, x, rows::Rows::new(x, matrix.columns, matrix.form)));
                ready.len() - 1
            })
        });
        let out = Columns { start: out.as_mut_ptr(), stride: matrix.rows };
        made.push(Made { x, count, few, matrix: *matrix, out });
    }
    let elements = |made: &Made| made.matrix.rows * made.matrix.columns;
    let read: usize = made.iter().map(elements).sum();
    let work: usize = made.iter().map(|made| elements(made) * made.count).sum();
    // Long enough to be read at the memory's speed, and some for each thread.
    let piece = (read / (8 * team::threads())).clamp(8 * 1024, PIECE);
    let pieces = Piece::all(&made, piece);
    in_parallel(pieces.len(), work > 64 * 1024, &|index| {
        let Piece { of, from, rows } = pieces[index];
        let made = &made[of];
        match made.few {
            // SAFETY: each piece has rows of its own, which are columns of `out`.
            Some(at) => unsafe {
                ready[at].2.product(&made.matrix.part(from, rows), made.out, from);
            },
            None => many(made, from, rows, gemm),
        }
    });
}

/// A product that is being made.
struct Made<'a> {
    x: &'a [f32],
    count: usize,
    /// Which of what is ready it is made with, where there are few rows.
    few: Option<usize>,
    matrix: Matrix<'a>,
    out: Columns,
}

/// Some rows of one of several matrices.
#[derive(Clone, Copy)]
struct Piece {
    of: usize,
    from: usize,
    rows: usize,
}

impl Piece {
    /// All rows of all matrices, in blocks; of so many elements where there are few rows of `x`.
    fn all(of: &[Made], piece: usize) -> Vec<Piece> {
        let pieces = of.iter().enumerate().flat_map(|(of, made)| {
            let (rows, columns) = (made.matrix.rows, made.matrix.columns);
            let block = if made.few.is_some() {
                (piece / columns).max(4)
            } else {
                let fits = (BLOCK / 4 / columns).max(64);
                let shared = rows.div_ceil(team::threads()).next_multiple_of(16);
                fits.min(shared).max(16)
            };
            let starts = (0..rows).step_by(block);
            starts.map(move |from| Piece { of, from, rows: block.min(rows - from) })
        });
        pieces.collect()
    }
}

/// Some rows of a product with many rows of `x`, which no other piece has.
fn many(made: &Made, from: usize, rows: usize, gemm: Gemm) {
    let Made { x, count, out, .. } = made;
    let part = made.matrix.part(from, rows);
    let multiply = |weights: &[f32]| {
        let (k, x, weights) = (part.columns, x.as_ptr(), weights.as_ptr());
        // SAFETY: `x` is `[count, columns]` and `weights` `[rows, columns]`, as checked; of
        // `out` this writes the columns that are this piece's own.
        unsafe { gemm.0(*count, rows, k, x, weights, true, out.at(from), out.stride) }
    };
    match floats(&part) {
        Some(weights) => multiply(weights),
        None => team::with_scratch(rows * part.columns, |scratch| {
            expand(&part, scratch);
            multiply(scratch);
        }),
    }
}

/// The elements of a matrix of singles, where they can be used in place.
fn floats<'a>(matrix: &Matrix<'a>) -> Option<&'a [f32]> {
    let aligned = matrix.weight.as_ptr().align_offset(4) == 0;
    if matrix.form != Form::F32 || !aligned || matrix.factor != 1.0 {
        return None;
    }
    // SAFETY: aligned, as long as the bytes, and every pattern of bits is a float.
    Some(unsafe {
        std::slice::from_raw_parts(matrix.weight.as_ptr().cast(), matrix.weight.len() / 4)
    })
}

/// All elements of a matrix, `[rows, columns]`, on the calling thread.
///
/// # Panics
/// When lengths do not fit each other.
pub fn expand(matrix: &Matrix, out: &mut [f32]) {
    matrix.check();
    assert_eq!(out.len(), matrix.rows * matrix.columns, "out");
    rows::expand(matrix, out);
}

/// An array whose columns are written by different threads.
#[derive(Clone, Copy)]
struct Columns {
    start: *mut f32,
    stride: usize,
}

// SAFETY: only written through `set` and `Gemm`, whose callers see to it that no two threads
// write the same column.
unsafe impl Send for Columns {}
// SAFETY: likewise.
unsafe impl Sync for Columns {}

impl Columns {
    /// # Safety
    /// The column is inside the array.
    unsafe fn at(&self, column: usize) -> *mut f32 {
        // SAFETY: as the caller says.
        unsafe { self.start.add(column) }
    }

    /// Those from a row on.
    fn below(self, row: usize) -> Columns {
        Columns { start: self.start.wrapping_add(row * self.stride), ..self }
    }

    /// Those from a column on.
    fn right_of(self, column: usize) -> Columns {
        Columns { start: self.start.wrapping_add(column), ..self }
    }

    /// # Safety
    /// `[row, column]` is inside the array, and no other thread writes the column.
    unsafe fn set(&self, row: usize, column: usize, value: f32) {
        // SAFETY: as the caller says.
        unsafe { *self.start.add(row * self.stride + column) = value }
    }
}

#[cfg(test)]
mod tests;
