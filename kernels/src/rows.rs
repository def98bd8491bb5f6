//! Few rows of `x`: each is multiplied with the elements of a matrix as they are decoded.
//!
//! The loops are written once ([`dot`], [`spread`]) over an instruction set's vectors of eight
//! floats ([`Isa`]), and made for each form and each instruction set.

use std::borrow::Cow;
use std::marker::PhantomData;

use super::codec::{Bf16, Codec, E4M3_FACTOR, E4m3, E8m0, F16, F32, Fp4, Fp8, One, Scale};
use super::codec::{Eight, Single, Whole};
use super::elements::sum;
use super::{Columns, Form, Matrix, Scales};

/// Vectors of eight floats.
///
/// # Safety
/// Functions may only be called where the instruction set is there.
pub unsafe trait Isa {
    /// A vector.
    type V: Copy;
    /// All the same.
    unsafe fn all(value: f32) -> Self::V;
    /// From memory.
    unsafe fn load(from: &Eight) -> Self::V;
    /// To memory.
    unsafe fn store(value: Self::V, to: &mut Eight);
    /// a × b + c.
    unsafe fn fused(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The sum of all eight.
    unsafe fn sum(value: Self::V) -> f32;
    /// Asks for the line of the cache that an address is in, which need not be memory.
    unsafe fn fetch(from: *const u8);
}

/// A form's elements in an instruction set's vectors.
///
/// # Safety
/// As [`Isa`].
pub unsafe trait Decodes<C: Codec>: Isa {
    /// Eight elements from `C::BYTES` bytes.
    unsafe fn eight(bytes: &[u8]) -> Self::V;
}

/// What every processor can.
pub struct Portable;

// SAFETY: needs nothing.
unsafe impl Isa for Portable {
    type V = Eight;
    #[inline(always)]
    unsafe fn all(value: f32) -> Eight {
        [value; 8]
    }
    #[inline(always)]
    unsafe fn load(from: &Eight) -> Eight {
        *from
    }
    #[inline(always)]
    unsafe fn store(value: Eight, to: &mut Eight) {
        *to = value;
    }
    #[inline(always)]
    unsafe fn fused(a: Eight, b: Eight, c: Eight) -> Eight {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn sum(v: Eight) -> f32 {
        ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]))
    }
    #[inline(always)]
    unsafe fn fetch(_: *const u8) {}
}

// SAFETY: needs nothing.
unsafe impl<C: Codec> Decodes<C> for Portable {
    #[inline(always)]
    unsafe fn eight(bytes: &[u8]) -> Eight {
        C::eight(bytes)
    }
}

/// Rows of `x` at once.
const MOST: usize = 4;

/// Up to a few rows of `x`, made ready for products with matrices of a form.
pub struct Rows<'a> {
    /// As long for each row, which is longer than `columns` where planes need more.
    x: Cow<'a, [f32]>,
    /// Where they begin.
    start: usize,
    count: usize,
    columns: usize,
    /// The sums of groups, where biases need them: `[rows, groups]`.
    sums: Vec<f32>,
    /// Whether `x` is in the order of planes.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no planes there"))]
    planar: bool,
}

impl<'a> Rows<'a> {
    /// `x` `[rows, columns]`, for products with matrices of a form.
    pub fn new(x: &'a [f32], columns: usize, form: Form) -> Rows<'a> {
        #[cfg(target_arch = "x86_64")]
        if let Some((arranged, start)) = super::x86::planar::arrange(x, columns, form) {
            let rows = Rows::in_order(x, columns, form);
            return Rows { x: arranged.into(), start, planar: true, ..rows };
        }
        Rows::in_order(x, columns, form)
    }

    /// As it is.
    fn in_order(x: &'a [f32], columns: usize, form: Form) -> Rows<'a> {
        let (count, sums) = (x.len() / columns, sums_of(x, form));
        Rows { x: x.into(), start: 0, count, columns, sums, planar: false }
    }

    /// Row i of `x` times row j of a matrix, to `[i, first + j]` of `out`.
    ///
    /// # Safety
    /// `out` has these rows and columns, and no other thread writes them.
    pub unsafe fn product(&self, matrix: &Matrix, out: Columns, first: usize) {
        let Rows { x, start, count, columns, sums, .. } = self;
        let x = &x[*start..];
        assert_eq!(*columns, matrix.columns, "columns");
        let of_all = count.max(&1);
        let (length, groups) = ((x.len() / of_all).max(1), sums.len() / of_all);
        for (index, x) in x.chunks(MOST * length).enumerate() {
            let (from, count) = (index * MOST, x.len() / length);
            let sums = &sums[from * groups..(from + count) * groups];
            let to = Target { out: out.below(from), first };
            #[cfg(target_arch = "x86_64")]
            if self.planar {
                // SAFETY: `new` has arranged `x`, for which the instruction set must be there; for
                // `out` as the caller says.
                unsafe { super::x86::planar::product(x, sums, matrix, to) };
                continue;
            }
            call(matrix, Work::Dot { x, sums, to });
        }
    }
}

fn sums_of(x: &[f32], form: Form) -> Vec<f32> {
    match form {
        Form::Affine { group, .. } => {
            x.chunks_exact(group).map(|group| sum(group, |x| x)).collect()
        }
        _ => Vec::new(),
    }
}

/// Where products go: row i of `x` times row j of the matrix to `[i, first + j]`. Only
/// [`Rows::product`] makes one, whose caller has promised that these places are its own.
#[derive(Clone, Copy)]
pub struct Target {
    out: Columns,
    first: usize,
}

impl Target {
    /// Row i of `x` times row j.
    #[inline(always)]
    pub fn put(&self, i: usize, j: usize, value: f32) {
        // SAFETY: as the type says.
        unsafe { self.out.set(i, self.first + j, value) }
    }
}

/// All elements of a matrix.
pub fn expand(matrix: &Matrix, out: &mut [f32]) {
    call(matrix, Work::Spread { out });
}

/// What is to be done with a matrix.
pub enum Work<'a> {
    /// Products with at most [`MOST`] rows of `x`.
    Dot { x: &'a [f32], sums: &'a [f32], to: Target },
    /// All elements.
    Spread { out: &'a mut [f32] },
}

fn call(matrix: &Matrix, work: Work) {
    #[cfg(target_arch = "x86_64")]
    if super::x86::chosen() {
        // SAFETY: the instruction set is there.
        return unsafe { super::x86::by_form(matrix, work) };
    }
    // SAFETY: needs nothing.
    unsafe { by_form::<Portable>(matrix, work) }
}

/// All codecs.
pub trait DecodesAll:
    Decodes<F32>
    + Decodes<F16>
    + Decodes<Bf16>
    + Decodes<Fp4>
    + Decodes<Fp8>
    + Decodes<Whole<2>>
    + Decodes<Whole<3>>
    + Decodes<Whole<4>>
    + Decodes<Whole<5>>
    + Decodes<Whole<6>>
    + Decodes<Whole<8>>
{
}
impl DecodesAll for Portable {}

/// The loop for the matrix's form.
///
/// # Safety
/// The instruction set must be there.
#[inline(always)]
pub unsafe fn by_form<I: DecodesAll>(matrix: &Matrix, work: Work) {
    // SAFETY: as the caller says.
    unsafe {
        match matrix.form {
            Form::F32 => Loop::<I, F32, One>::run(matrix, matrix.columns, 1.0, work),
            Form::F16 => Loop::<I, F16, One>::run(matrix, matrix.columns, 1.0, work),
            Form::Bf16 => Loop::<I, Bf16, One>::run(matrix, matrix.columns, 1.0, work),
            Form::Mxfp4 => Loop::<I, Fp4, E8m0>::run(matrix, 32, 1.0, work),
            Form::Nvfp4 => Loop::<I, Fp4, E4m3>::run(matrix, 16, 1.0, work),
            Form::Mxfp8 => Loop::<I, Fp8, E8m0>::run(matrix, 32, E4M3_FACTOR, work),
            Form::Affine { scales: Scales::F32, .. } => affine::<I, Single>(matrix, work),
            Form::Affine { scales: Scales::Bf16, .. } => affine::<I, Bf16>(matrix, work),
        }
    }
}

/// [`by_form`] for whole numbers.
///
/// # Safety
/// As that.
#[inline(always)]
unsafe fn affine<I: DecodesAll, S: Scale>(matrix: &Matrix, work: Work) {
    let group = matrix.form.group().map_or(matrix.columns, |(group, _)| group);
    // SAFETY: as the caller says.
    unsafe {
        match matrix.form.bits() {
            2 => Loop::<I, Whole<2>, S>::run(matrix, group, 1.0, work),
            3 => Loop::<I, Whole<3>, S>::run(matrix, group, 1.0, work),
            4 => Loop::<I, Whole<4>, S>::run(matrix, group, 1.0, work),
            5 => Loop::<I, Whole<5>, S>::run(matrix, group, 1.0, work),
            6 => Loop::<I, Whole<6>, S>::run(matrix, group, 1.0, work),
            _ => Loop::<I, Whole<8>, S>::run(matrix, group, 1.0, work),
        }
    }
}

struct Loop<I, C, S>(PhantomData<(I, C, S)>);

impl<I: Decodes<C>, C: Codec, S: Scale> Loop<I, C, S> {
    /// `factor` is the codec's own.
    ///
    /// # Safety
    /// The instruction set must be there.
    #[inline(always)]
    unsafe fn run(matrix: &Matrix, group: usize, factor: f32, work: Work) {
        let factor = factor * matrix.factor;
        // SAFETY: as the caller says.
        unsafe {
            match work {
                Work::Spread { out } => Self::spread(matrix, group, factor, out),
                Work::Dot { x, sums, to } => match x.len() / matrix.columns {
                    1 => Self::dots::<1>(matrix, group, factor, x, sums, to),
                    2 => Self::dots::<2>(matrix, group, factor, x, sums, to),
                    3 => Self::dots::<3>(matrix, group, factor, x, sums, to),
                    _ => Self::dots::<MOST>(matrix, group, factor, x, sums, to),
                },
            }
        }
    }

    /// # Safety
    /// The instruction set must be there.
    #[inline(always)]
    unsafe fn dots<const N: usize>(
        matrix: &Matrix,
        group: usize,
        factor: f32,
        x: &[f32],
        sums: &[f32],
        to: Target,
    ) {
        let columns = matrix.columns;
        let groups = columns / group;
        let x: [&[f32]; N] = std::array::from_fn(|i| &x[i * columns..(i + 1) * columns]);
        for row in 0..matrix.rows {
            let part = matrix.part(row, 1);
            // SAFETY: as the caller says.
            let mut totals = unsafe { Self::dot::<N>(&part, group, &x) };
            let biases = part.biases.chunks_exact(S::BYTES.max(1)).map(S::of).enumerate();
            for (at, bias) in biases {
                for (i, total) in totals.iter_mut().enumerate() {
                    *total += bias * sums[i * groups + at];
                }
            }
            for (i, total) in totals.into_iter().enumerate() {
                to.put(i, row, total * factor);
            }
        }
    }

    /// Sums that are made at the same time, so that none waits for the one before: several groups
    /// or rows of `x` are so by themselves.
    const CHAINS: usize = if S::BYTES == 0 { 4 } else { 2 };

    /// One row of a matrix times rows of `x`, without biases.
    ///
    /// # Safety
    /// The instruction set must be there; the matrix is checked, and each `x` has its columns.
    #[inline(always)]
    unsafe fn dot<const N: usize>(row: &Matrix, group: usize, x: &[&[f32]; N]) -> [f32; N] {
        let steps = group / 8;
        let even = steps - steps % Self::CHAINS;
        let mut first = [std::ptr::null(); N];
        for i in 0..N {
            first[i] = x[i].as_ptr();
        }
        let mut weights = row.weight.as_ptr();
        let mut results = [0.0; N];
        // SAFETY: as the caller says. A group has `steps` times eight elements, of `C::BYTES`
        // bytes for eight, and the pointers go on by as many.
        unsafe {
            let mut totals = [I::all(0.0); N];
            for at in 0..row.columns / group {
                let mut sums = [[I::all(0.0); 4]; N];
                for _ in (0..even).step_by(Self::CHAINS) {
                    for chain in 0..Self::CHAINS {
                        Self::eight(&mut weights, &mut first, chain, &mut sums);
                    }
                }
                for _ in even..steps {
                    Self::eight(&mut weights, &mut first, 0, &mut sums);
                }
                if S::BYTES == 0 {
                    for i in 0..N {
                        let one = I::all(1.0);
                        let (a, b) = (sums[i][0], sums[i][1]);
                        let (c, d) = (sums[i][2], sums[i][3]);
                        totals[i] = I::fused(I::fused(a, one, b), one, I::fused(c, one, d));
                    }
                } else {
                    let scale = I::all(S::of(row.scales.get_unchecked(at * S::BYTES..)));
                    for i in 0..N {
                        totals[i] = I::fused(sums[i][0], scale, totals[i]);
                        totals[i] = I::fused(sums[i][1], scale, totals[i]);
                    }
                }
            }
            for i in 0..N {
                results[i] = I::sum(totals[i]);
            }
        }
        let from = row.columns - row.columns % 8;
        if from < row.columns {
            // Only floats have rows that are no multiple of eight.
            let last = Self::last(row, from);
            for i in 0..N {
                for (w, x) in last.iter().zip(&x[i][from..]) {
                    results[i] += w * x;
                }
            }
        }
        results
    }

    /// The next eight elements times those of each `x`.
    ///
    /// A function and not a closure: those are made without the instruction set.
    ///
    /// # Safety
    /// The instruction set must be there, and so many elements behind each pointer.
    #[inline(always)]
    unsafe fn eight<const N: usize>(
        weights: &mut *const u8,
        x: &mut [*const f32; N],
        chain: usize,
        sums: &mut [[I::V; 4]; N],
    ) {
        // SAFETY: as the caller says.
        unsafe {
            let w = I::eight(std::slice::from_raw_parts(*weights, C::BYTES));
            *weights = weights.add(C::BYTES);
            for i in 0..N {
                sums[i][chain] = I::fused(w, I::load(&*x[i].cast()), sums[i][chain]);
                x[i] = x[i].add(8);
            }
        }
    }

    /// The elements from `from` on, fewer than eight.
    #[inline(always)]
    fn last(row: &Matrix, from: usize) -> Eight {
        let mut bytes = [0; 32];
        let left = &row.weight[from / 8 * C::BYTES..];
        bytes[..left.len()].copy_from_slice(left);
        C::eight(&bytes[..C::BYTES])
    }

    /// # Safety
    /// The instruction set must be there.
    #[inline(always)]
    unsafe fn spread(matrix: &Matrix, group: usize, factor: f32, out: &mut [f32]) {
        let columns = matrix.columns;
        for row in 0..matrix.rows {
            let out = &mut out[row * columns..(row + 1) * columns];
            let row = matrix.part(row, 1);
            let mut biases = row.biases.chunks_exact(S::BYTES.max(1));
            for at in 0..columns.div_ceil(group) {
                let scale = S::of(&row.scales[at * S::BYTES..]) * factor;
                let bias = biases.next().map_or(0.0, S::of) * factor;
                let weights = &row.weight[at * group / 8 * C::BYTES..];
                // SAFETY: as the caller says.
                unsafe {
                    let (scale, bias) = (I::all(scale), I::all(bias));
                    for step in 0..group / 8 {
                        let w = I::eight(&weights[step * C::BYTES..][..C::BYTES]);
                        let to = eight_of_mut(out, at * group + step * 8);
                        I::store(I::fused(w, scale, bias), to);
                    }
                }
            }
            let from = columns - columns % 8;
            if from < columns {
                for (out, w) in out[from..].iter_mut().zip(Self::last(&row, from)) {
                    *out = w * factor;
                }
            }
        }
    }
}

#[inline(always)]
fn eight_of_mut(x: &mut [f32], at: usize) -> &mut Eight {
    let part = &mut x[at..at + 8];
    // SAFETY: a slice of eight.
    unsafe { &mut *part.as_mut_ptr().cast() }
}
