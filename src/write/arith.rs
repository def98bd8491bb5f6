//! Operations that compute: numbers from bytes, in F32, rounded once.

use super::array::{Array, ByRows, Bytes, Rows};
use super::kernels::{self, Float, Quantized};
use crate::dtype::Dtype;
use crate::fault::{Code, Fault};
use crate::format::Format;
use crate::plan::GlobalScale;

/// Values of a small array (scales, zero points, scalars), in F32.
pub fn values(array: &mut Array) -> Result<Vec<f32>, Fault> {
    let bytes = array.read_all()?;
    floats(array.dtype, &bytes).ok_or_else(|| not_numbers(array.dtype))
}

fn not_numbers(dtype: Dtype) -> Fault {
    Fault::new(Code::StalePlan, format!("the plan computes with {dtype}, which it cannot"))
        .help("make the plan again instead of editing this operation")
}

/// The numbers of these bytes; `None` for dtypes that hold no numbers that lathe computes with.
fn floats(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    fn each<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<f32> {
        bytes.as_chunks::<N>().0.iter().map(|&bytes| value(bytes)).collect()
    }
    Some(match dtype {
        Dtype::F32 => each(bytes, f32::from_le_bytes),
        Dtype::F64 => each(bytes, |b| f64::from_le_bytes(b) as f32),
        Dtype::BF16 => each(bytes, |b| half::bf16::from_le_bytes(b).to_f32()),
        Dtype::F16 => each(bytes, |b| half::f16::from_le_bytes(b).to_f32()),
        Dtype::F8E4M3 => each(bytes, |[b]| kernels::e4m3_to_f32(b)),
        Dtype::F8E8M0 => each(bytes, |[b]| kernels::e8m0_to_f32(b)),
        Dtype::U8 => each(bytes, |[b]| f32::from(b)),
        Dtype::I8 => each(bytes, |[b]| f32::from(b as i8)),
        Dtype::I16 => each(bytes, |b| f32::from(i16::from_le_bytes(b))),
        Dtype::U16 => each(bytes, |b| f32::from(u16::from_le_bytes(b))),
        Dtype::I32 => each(bytes, |b| i32::from_le_bytes(b) as f32),
        Dtype::U32 => each(bytes, |b| u32::from_le_bytes(b) as f32),
        Dtype::I64 => each(bytes, |b| i64::from_le_bytes(b) as f32),
        Dtype::U64 => each(bytes, |b| u64::from_le_bytes(b) as f32),
        Dtype::Bool => each(bytes, |[b]| f32::from(u8::from(b != 0))),
        Dtype::F8E5M2 | Dtype::F8E4M3Fnuz | Dtype::F8E5M2Fnuz => return None,
    })
}

/// Writes `values` as `dtype`, rounding to nearest; `None` where lathe does not write that dtype.
pub fn write_floats(dtype: Dtype, values: &[f32], out: &mut [u8]) -> Option<()> {
    fn each<const N: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
        for (out, &value) in out.as_chunks_mut::<N>().0.iter_mut().zip(values) {
            *out = bytes(value);
        }
    }
    match dtype {
        Dtype::F32 => each(values, out, f32::to_le_bytes),
        Dtype::BF16 => each(values, out, |value| half::bf16::from_f32(value).to_le_bytes()),
        Dtype::F16 => each(values, out, |value| half::f16::from_f32(value).to_le_bytes()),
        _ => return None,
    }
    Some(())
}

/// A function of each element.
pub struct Mapped {
    of: Box<dyn Bytes>,
    from: Dtype,
    to: Dtype,
    function: fn(f32) -> f32,
    scratch: Vec<u8>,
}

impl Mapped {
    /// `function` of every element of `array`, as `to`.
    pub fn each(array: Array, to: Dtype, function: fn(f32) -> f32) -> Result<Array, Fault> {
        if floats(array.dtype, &[]).is_none() || write_floats(to, &[], &mut []).is_none() {
            return Err(not_numbers(if floats(array.dtype, &[]).is_none() {
                array.dtype
            } else {
                to
            }));
        }
        let Array { dtype: from, shape, bytes } = array;
        let mapped = Mapped { of: bytes, from, to, function, scratch: Vec::new() };
        Ok(Array { dtype: to, shape, bytes: Box::new(mapped) })
    }
}

impl Bytes for Mapped {
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), Fault> {
        let (from, to) = (self.from.bytes(), self.to.bytes());
        self.scratch.resize(out.len() / to as usize * from as usize, 0);
        self.of.read(at / to * from, &mut self.scratch)?;
        let mut values = floats(self.from, &self.scratch).unwrap_or_default();
        values.iter_mut().for_each(|value| *value = (self.function)(*value));
        write_floats(self.to, &values, out).ok_or_else(|| not_numbers(self.to))
    }

    fn held(&self) -> u64 {
        self.of.held()
    }
}

/// E4M3 weights times their scales, as BF16.
pub struct Fp8 {
    codes: Box<dyn Bytes>,
    scales: Array,
    /// The scales' values, once they have been needed.
    factors: Vec<f32>,
    /// Rows and columns of a matrix.
    matrix: [u64; 2],
    /// Rows and columns that share a scale.
    block: [u64; 2],
    scratch: Vec<u8>,
}

impl Fp8 {
    /// `weight` `[…, out, in]` times `scales`, one for each `block` of rows and columns (0 is all).
    /// The last blocks of a matrix may be partial.
    pub fn decoded(weight: Array, scales: Array, block: [u64; 2]) -> Result<Array, Fault> {
        let columns = weight.last_axis();
        let rows = weight.shape.iter().rev().nth(1).copied().unwrap_or(1);
        let block = [(block[0], rows), (block[1], columns)]
            .map(|(block, length)| if block == 0 { length.max(1) } else { block });
        let matrices = weight.elements() / (rows * columns).max(1);
        let wanted = matrices * rows.div_ceil(block[0]) * columns.div_ceil(block[1]);
        if weight.dtype != Dtype::F8E4M3 || scales.elements() != wanted {
            let what = format!(
                "the plan decodes {} {:?} with {} scales, where {wanted} are needed",
                weight.dtype,
                weight.shape,
                scales.elements()
            );
            return Err(Fault::new(Code::BadScale, what));
        }
        let shape = weight.shape.clone();
        let rows = Fp8 {
            codes: weight.bytes,
            scales,
            factors: Vec::new(),
            matrix: [rows, columns],
            block,
            scratch: Vec::new(),
        };
        Ok(Array { dtype: Dtype::BF16, shape, bytes: Box::new(ByRows::new(rows)) })
    }
}

impl Rows for Fp8 {
    fn row(&self) -> usize {
        self.matrix[1] as usize * 2
    }

    fn rows(&mut self, first: u64, out: &mut [u8]) -> Result<(), Fault> {
        if self.factors.is_empty() {
            self.factors = values(&mut self.scales)?;
        }
        let [rows, columns] = self.matrix;
        self.scratch.resize(out.len() / 2, 0);
        self.codes.read(first * columns, &mut self.scratch)?;
        let (down, across) = (rows.div_ceil(self.block[0]), columns.div_ceil(self.block[1]));
        let codes = self.scratch.chunks_exact(columns as usize);
        for (number, (codes, out)) in (first..).zip(codes.zip(out.chunks_exact_mut(self.row()))) {
            let line = number / rows * down + number % rows / self.block[0];
            let at = (line * across) as usize;
            let factors = &self.factors[at..at + across as usize];
            kernels::decode_fp8(codes, factors, self.block[1] as usize, out);
        }
        Ok(())
    }

    fn held(&self) -> u64 {
        self.codes.held() + self.scales.elements() * 4
    }
}

/// A weight in one of the formats of `formats.toml`, decoded to BF16.
pub struct Dequantized {
    format: Format,
    weight: Box<dyn Bytes>,
    scales: Box<dyn Bytes>,
    biases: Option<Box<dyn Bytes>>,
    scale_dtype: Dtype,
    /// nvfp4's global scales: one, or one for each of the first axis.
    globals: Option<Array>,
    /// Whether values are divided by them.
    divides: bool,
    factors: Vec<f32>,
    /// Elements of a row, and rows that share a global scale.
    columns: u64,
    rows_a_global: u64,
    scratch: [Vec<u8>; 3],
}

impl Dequantized {
    /// `arrays` are the packed weight, its scales, and the format's biases or global scale.
    ///
    /// Without `global` the third array of nvfp4 multiplies.
    pub fn decoded(
        format: &Format,
        arrays: Vec<Array>,
        global: Option<GlobalScale>,
    ) -> Result<Array, Fault> {
        let count = arrays.len();
        let mut arrays = arrays.into_iter();
        let (Some(weight), Some(scales), third, None) =
            (arrays.next(), arrays.next(), arrays.next(), arrays.next())
        else {
            let what = format!("the plan decodes {} from {count} arrays", format.name);
            return Err(Fault::new(Code::Companion, what));
        };
        let mut shape = scales.shape.clone();
        if let Some(last) = shape.last_mut() {
            *last *= format.group;
        }
        let elements: u64 = shape.iter().product();
        let columns = shape.last().copied().unwrap_or(1);
        let (biases, globals) = match third {
            Some(third) if format.has_bias() => (Some(third), None),
            third => (None, third),
        };
        let fits = weight.size() == elements * u64::from(format.bits) / 8
            && biases
                .as_ref()
                .map(|b| (b.dtype, &b.shape))
                .is_none_or(|b| b == (scales.dtype, &scales.shape))
            && biases.is_some() == format.has_bias()
            && globals
                .as_ref()
                .is_none_or(|g| g.elements() == 1 || Some(&g.elements()) == shape.first())
            && elements > 0;
        if !fits {
            let what = format!(
                "{} scales {:?} do not fit a weight of {} bytes",
                format.name,
                scales.shape,
                weight.size()
            );
            return Err(Fault::new(Code::BadScale, what));
        }
        let rows = elements / columns;
        let rows_a_global = globals.as_ref().map_or(rows, |globals| rows / globals.elements());
        let rows = Dequantized {
            format: format.clone(),
            weight: weight.bytes,
            scale_dtype: scales.dtype,
            scales: scales.bytes,
            biases: biases.map(|biases| biases.bytes),
            globals,
            divides: global == Some(GlobalScale::Divides),
            factors: Vec::new(),
            columns,
            rows_a_global,
            scratch: [const { Vec::new() }; 3],
        };
        Ok(Array { dtype: Dtype::BF16, shape, bytes: Box::new(ByRows::new(rows)) })
    }

    /// One row.
    fn decode(&mut self, number: u64, out: &mut [u8]) -> Result<(), Fault> {
        let groups = self.columns / self.format.group;
        let scale = if self.format.has_bias() { self.scale_dtype.bytes() } else { 1 };
        let sizes =
            [self.columns * u64::from(self.format.bits) / 8, groups * scale, groups * scale];
        let [weight, scales, biases] = &mut self.scratch;
        let from = [Some(&mut self.weight), Some(&mut self.scales), self.biases.as_mut()];
        for ((from, into), size) in from.into_iter().zip([&mut *weight, scales, biases]).zip(sizes)
        {
            let Some(from) = from else { continue };
            into.resize(size as usize, 0);
            from.read(number * size, into)?;
        }
        let from = Quantized {
            weight,
            scales,
            biases,
            scale_dtype: Float::try_from(self.scale_dtype).unwrap_or(Float::BF16),
            global: self.factors.get((number / self.rows_a_global) as usize).copied(),
        };
        kernels::dequantize(&self.format, &from, Float::BF16, out);
        Ok(())
    }
}

impl Rows for Dequantized {
    fn row(&self) -> usize {
        self.columns as usize * 2
    }

    fn rows(&mut self, first: u64, out: &mut [u8]) -> Result<(), Fault> {
        if let (Some(globals), true) = (&mut self.globals, self.factors.is_empty()) {
            self.factors = values(globals)?;
            if self.divides {
                self.factors.iter_mut().for_each(|factor| *factor = 1.0 / *factor);
            }
        }
        let row = self.row();
        for (number, out) in (first..).zip(out.chunks_exact_mut(row)) {
            self.decode(number, out)?;
        }
        Ok(())
    }

    fn held(&self) -> u64 {
        self.weight.held() + self.scales.held() + self.globals.as_ref().map_or(0, |g| g.size())
    }
}
