//! Producers' packed integers: read as plain codes, then decoded, or re-expressed as MLX affine.
//!
//! Every layout is brought to one form: for output row o and input i an unsigned code q, and for
//! its group a scale s and an unsigned zero point z, so that w = (q - z) * s. Signed producers'
//! integers are shifted by half the range. MLX's affine form of the same is scale s and
//! bias -s * z, with q as it is.

use super::arith::{values, write_floats};
use super::array::{Array, ByRows, Bytes, Rows};
use crate::dtype::Dtype;
use crate::fault::{Code, Fault};
use crate::plan::{AffinePart, IntPacking, Packed, Side, Sign, Zero};

/// The layout with its sizes.
#[derive(Clone)]
struct Layout {
    packing: IntPacking,
    outputs: u64,
    inputs: u64,
}

impl Layout {
    /// From the packed weight's shape. `[…, out, in]` layouts may be stacked; then all rows count.
    fn of(packing: &IntPacking, weight: &Array) -> Result<Layout, Fault> {
        let bits = u64::from(packing.bits);
        let unfit = || {
            let what = format!(
                "the plan unpacks {}-bit integers in words of {} bits from {} {:?}",
                packing.bits, packing.weight.word, weight.dtype, weight.shape
            );
            Fault::new(Code::Unsupported, what)
        };
        let columns = weight.last_axis();
        let rows = weight.elements() / columns.max(1);
        let Packed { word, rows: first, along, .. } = packing.weight;
        let fits = packing.weight.check().is_ok()
            && (2..=8).contains(&bits)
            && packing.weight.fields.len() as u64 * bits <= u64::from(word)
            && weight.dtype.bytes() * 8 == u64::from(word)
            && !weight.dtype.is_float()
            && (first == Side::Out || weight.shape.len() == 2);
        if !fits {
            return Err(unfit());
        }
        let unpack = |words: u64| match packing.weight.fields.len() as u64 {
            0 => words * u64::from(word) / bits,
            fields => words * fields,
        };
        let unpacked = |side, words| if along == side { unpack(words) } else { words };
        let (outputs, inputs) = match first {
            Side::Out => (unpacked(Side::Out, rows), unpacked(Side::In, columns)),
            Side::In => (unpacked(Side::Out, columns), unpacked(Side::In, rows)),
        };
        if outputs * inputs == 0 {
            return Err(unfit());
        }
        Ok(Layout { packing: packing.clone(), outputs, inputs })
    }

    /// Inputs that share a scale.
    fn group(&self) -> u64 {
        if self.packing.group == 0 { self.inputs } else { self.packing.group }
    }

    fn groups(&self) -> u64 {
        self.inputs.div_ceil(self.group())
    }

    /// How its scales and zero points stand.
    fn grid(&self) -> GridShape {
        let packing = self.packing.clone();
        GridShape { packing, outputs: self.outputs, groups: self.groups() }
    }
}

/// How scales and zero points stand: one for each output and group.
struct GridShape {
    packing: IntPacking,
    outputs: u64,
    groups: u64,
}

impl GridShape {
    /// The zero point where none are stored.
    fn middle(&self) -> f32 {
        f32::from(1u16 << (self.packing.bits - 1))
    }
}

/// The `bits` bits from bit `at` on of a little-endian stream.
fn bits_at(stream: &[u8], at: u64, bits: u32) -> u8 {
    let byte = (at / 8) as usize;
    let low = u16::from(stream[byte]);
    let high = u16::from(stream.get(byte + 1).copied().unwrap_or(0));
    (((high << 8 | low) >> (at % 8)) & ((1 << bits) - 1)) as u8
}

/// Where the fields of a matrix of `outputs` by `inputs` (or groups) lie in an array of words.
struct Fields {
    packed: Packed,
    bits: u32,
    outputs: u64,
    inputs: u64,
    /// By place among the neighbours of a word: its field. Empty for one stream of bits.
    field: Vec<u64>,
}

impl Fields {
    fn new(packed: &Packed, bits: u32, outputs: u64, inputs: u64) -> Fields {
        let mut field = vec![0; packed.fields.len()];
        for (n, &neighbour) in packed.fields.iter().enumerate() {
            field[usize::from(neighbour)] = n as u64;
        }
        Fields { packed: packed.clone(), bits, outputs, inputs, field }
    }

    fn word(&self) -> u64 {
        u64::from(self.packed.word)
    }

    /// Whether the words of one run of neighbours stand one behind the other.
    fn contiguous(&self) -> bool {
        self.packed.rows != self.packed.along
    }

    /// How many runs there are: the length of the side that is not packed.
    fn runs(&self) -> u64 {
        if self.packed.along == Side::Out { self.inputs } else { self.outputs }
    }

    /// Words of one run of neighbours.
    fn words(&self) -> u64 {
        let along = if self.packed.along == Side::Out { self.outputs } else { self.inputs };
        match self.field.len() as u64 {
            0 => (along * u64::from(self.bits)).div_ceil(self.word()),
            fields => along.div_ceil(fields),
        }
    }

    /// Size of the array.
    fn bytes(&self) -> u64 {
        self.words() * self.runs() * self.word() / 8
    }

    /// The bit of a run at which a neighbour's field begins.
    fn begins(&self, neighbour: u64) -> u64 {
        match self.field.len() as u64 {
            0 => neighbour * u64::from(self.bits),
            fields => {
                let field = self.field[(neighbour % fields) as usize];
                neighbour / fields * self.word() + field * u64::from(self.bits)
            }
        }
    }

    /// One code, unsigned, of the array's bytes.
    fn code(&self, bytes: &[u8], output: u64, input: u64) -> u8 {
        let (neighbour, run) = match self.packed.along {
            Side::In => (input, output),
            Side::Out => (output, input),
        };
        let begins = self.begins(neighbour);
        let bits = self.bits;
        let code = if self.contiguous() {
            bits_at(bytes, run * self.words() * self.word() + begins, bits)
        } else {
            let place =
                |at: u64| (at / self.word() * self.runs() + run) * self.word() + at % self.word();
            if begins % self.word() + u64::from(bits) <= self.word() {
                bits_at(bytes, place(begins), bits)
            } else {
                (0..bits).map(|i| bits_at(bytes, place(begins + u64::from(i)), 1) << i).sum()
            }
        };
        self.unsigned(code)
    }

    /// A field's bits as an unsigned code.
    fn unsigned(&self, code: u8) -> u8 {
        match self.packed.sign {
            Sign::Offset => code,
            Sign::Twos => code ^ (1 << (self.bits - 1)),
        }
    }

    /// The bytes that hold one output row, and the number that the row has in them, where a part
    /// of the array holds it.
    fn of_row(&self, row: u64) -> Option<Place> {
        if self.packed.rows == Side::In {
            return None;
        }
        if self.packed.along == Side::In {
            let size = self.words() * self.word() / 8;
            return Some(Place { at: row * size, size, outputs: 1, row: 0 });
        }
        let of_word = match self.field.len() as u64 {
            0 if !self.word().is_multiple_of(u64::from(self.bits)) => return None,
            0 => self.word() / u64::from(self.bits),
            fields => fields,
        };
        let size = self.inputs * self.word() / 8;
        Some(Place { at: row / of_word * size, size, outputs: of_word, row: row % of_word })
    }
}

/// The part of an array that holds an output row.
struct Place {
    /// Its first byte and size.
    at: u64,
    size: u64,
    /// How many outputs it holds, and which of them the row is.
    outputs: u64,
    row: u64,
}

/// Codes of whole output rows.
struct Codes {
    layout: Layout,
    fields: Fields,
    packed: Box<dyn Bytes>,
    size: u64,
    /// The part of the packed weight that is looked at: all of it, for layouts whose rows are
    /// spread over all of it.
    held: Vec<u8>,
}

impl Codes {
    fn new(layout: Layout, weight: Array) -> Self {
        let Layout { packing, outputs, inputs } = &layout;
        let fields = Fields::new(&packing.weight, packing.bits, *outputs, *inputs);
        Codes { layout, fields, size: weight.size(), packed: weight.bytes, held: Vec::new() }
    }

    /// The codes of output row `row`.
    fn row(&mut self, row: u64, out: &mut [u8]) -> Result<(), Fault> {
        let row = match self.fields.of_row(row) {
            Some(part) => {
                self.held.resize(part.size as usize, 0);
                self.packed.read(part.at, &mut self.held)?;
                self.fields.outputs = part.outputs;
                part.row
            }
            None => {
                if self.held.is_empty() {
                    self.held.resize(self.size as usize, 0);
                    self.packed.read(0, &mut self.held)?;
                }
                row
            }
        };
        let bits = self.fields.bits;
        let stream = self.fields.contiguous() && self.fields.field.is_empty();
        let whole = bits == 8 || out.len().is_multiple_of(8);
        if stream && whole && self.fields.packed.rows == Side::Out {
            super::kernels::unpack(bits, &self.held[..out.len() * bits as usize / 8], out);
            out.iter_mut().for_each(|code| *code = self.fields.unsigned(*code));
            return Ok(());
        }
        for (input, code) in out.iter_mut().enumerate() {
            *code = self.fields.code(&self.held, row, input as u64);
        }
        Ok(())
    }

    fn held(&self) -> u64 {
        self.fields.of_row(0).map_or(self.size, |part| part.size)
    }
}

/// Scales and zero points, `[outputs, groups]` each.
struct Grid {
    scales: Vec<f32>,
    zeros: Vec<f32>,
}

impl Grid {
    /// Reads them; `zeros` when the packing stores them.
    fn read(
        shape: &GridShape,
        scales: &mut Array,
        zeros: Option<&mut Array>,
    ) -> Result<Grid, Fault> {
        let (outputs, groups) = (shape.outputs, shape.groups);
        let wanted = outputs * groups;
        if scales.elements() != wanted {
            let what = format!("{} scales where {wanted} are needed", scales.elements());
            return Err(Fault::new(Code::BadScale, what));
        }
        let mut scale = values(scales)?;
        if shape.packing.weight.rows == Side::In {
            scale = transposed(&scale, groups as usize, outputs as usize);
        }
        let zeros = match zeros {
            Some(zeros) => Self::zeros(shape, zeros)?,
            None => vec![shape.middle(); wanted as usize],
        };
        Ok(Grid { scales: scale, zeros })
    }

    fn zeros(shape: &GridShape, array: &mut Array) -> Result<Vec<f32>, Fault> {
        let (outputs, groups) = (shape.outputs, shape.groups);
        let bits = shape.packing.bits;
        let packed = shape.packing.zeros.as_ref().unwrap_or(&shape.packing.weight);
        packed.check().map_err(|message| Fault::new(Code::StalePlan, message))?;
        if packed.fields.len() as u64 * u64::from(bits) > u64::from(packed.word) {
            let fields = packed.fields.len();
            let what = format!("{fields} zero points of {bits} bits in {} bits", packed.word);
            return Err(Fault::new(Code::StalePlan, what));
        }
        let fields = Fields::new(packed, bits, outputs, groups);
        let wanted = fields.bytes();
        let bytes = array.read_all()?;
        if bytes.len() as u64 != wanted {
            let what = format!("zero points of {} bytes where {wanted} are needed", bytes.len());
            return Err(Fault::new(Code::BadScale, what));
        }
        let zero = |output: u64, group: u64| fields.code(&bytes, output, group);
        // Where zero points are stored less one, readers let that wrap around in their width.
        let less = u8::from(shape.packing.zero == Zero::StoredLessOne);
        let mask = ((1u16 << bits) - 1) as u8;
        let zero = |output, group| zero(output, group).wrapping_add(less) & mask;
        let places = (0..outputs).flat_map(|output| (0..groups).map(move |group| (output, group)));
        Ok(places.map(|(output, group)| f32::from(zero(output, group))).collect())
    }
}

fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| (0..rows).map(move |r| values[r * columns + c])).collect()
}

fn logical(layout: &Layout, weight: &Array) -> Vec<u64> {
    let mut shape = weight.shape.clone();
    let rank = shape.len();
    if rank > 2 {
        // Stacked: the leading axes stay, the matrix has its logical sizes.
        let lead: u64 = shape[..rank - 2].iter().product();
        shape[rank - 2] = layout.outputs / lead;
        shape[rank - 1] = layout.inputs;
        return shape;
    }
    vec![layout.outputs, layout.inputs]
}

/// What stands beside packed integers.
struct Beside {
    scales: Array,
    zeros: Option<Array>,
    /// A factor for each input.
    inputs: Option<Array>,
}

/// Splits the packed weight (when `weight`), scales, zero points and factors of the inputs.
fn parts(
    packing: &IntPacking,
    arrays: Vec<Array>,
    weight: bool,
    input_scale: bool,
) -> Result<(Option<Array>, Beside), Fault> {
    let stored = packing.zero != Zero::Middle;
    let wanted = 1 + [weight, stored, input_scale].into_iter().filter(|there| *there).count();
    let count = arrays.len();
    let mut arrays = arrays.into_iter();
    let weight = if weight { arrays.next() } else { None };
    match (count == wanted, arrays.next()) {
        (true, Some(scales)) => {
            let zeros = if stored { arrays.next() } else { None };
            Ok((weight, Beside { scales, zeros, inputs: arrays.next() }))
        }
        _ => {
            let what = format!("the plan unpacks integers from {count} arrays, not {wanted}");
            Err(Fault::new(Code::Companion, what))
        }
    }
}

/// Integers decoded to BF16: (q - z) * s in F32, times the input's factor, rounded once.
struct Unpacked {
    codes: Codes,
    beside: Beside,
    grid: Option<Grid>,
    factors: Vec<f32>,
    scratch: Vec<u8>,
}

/// Decodes `[packed, scales]` (and zero points, and factors of the inputs) to BF16 `[…, out, in]`.
pub fn unpacked(
    packing: &IntPacking,
    input_scale: bool,
    arrays: Vec<Array>,
) -> Result<Array, Fault> {
    let (weight, beside) = parts(packing, arrays, true, input_scale)?;
    let weight = weight.ok_or_else(|| Fault::new(Code::Companion, "no packed weight"))?;
    let layout = Layout::of(packing, &weight)?;
    if let Some(factors) = &beside.inputs
        && factors.elements() != layout.inputs
    {
        let what = format!("{} factors for {} inputs", factors.elements(), layout.inputs);
        return Err(Fault::new(Code::BadScale, what));
    }
    let shape = logical(&layout, &weight);
    let codes = Codes::new(layout, weight);
    let rows = Unpacked { codes, beside, grid: None, factors: Vec::new(), scratch: Vec::new() };
    Ok(Array { dtype: Dtype::BF16, shape, bytes: Box::new(ByRows::new(rows)) })
}

impl Rows for Unpacked {
    fn row(&self) -> usize {
        self.codes.layout.inputs as usize * 2
    }

    fn rows(&mut self, first: u64, out: &mut [u8]) -> Result<(), Fault> {
        let layout = self.codes.layout.clone();
        if self.grid.is_none() {
            let Beside { scales, zeros, inputs } = &mut self.beside;
            self.grid = Some(Grid::read(&layout.grid(), scales, zeros.as_mut())?);
            if let Some(inputs) = inputs {
                self.factors = values(inputs)?;
            }
        }
        let Some(grid) = &self.grid else { return Ok(()) };
        let groups = layout.groups() as usize;
        self.scratch.resize(layout.inputs as usize, 0);
        for (row, out) in (first..).zip(out.chunks_exact_mut(layout.inputs as usize * 2)) {
            self.codes.row(row, &mut self.scratch)?;
            let at = row as usize * groups;
            for (input, (&code, out)) in
                self.scratch.iter().zip(out.as_chunks_mut::<2>().0).enumerate()
            {
                let place = at + input / layout.group() as usize;
                let value = (f32::from(code) - grid.zeros[place]) * grid.scales[place];
                let value = self.factors.get(input).map_or(value, |factor| value * factor);
                *out = half::bf16::from_f32(value).to_le_bytes();
            }
        }
        Ok(())
    }

    fn held(&self) -> u64 {
        self.codes.held() + 8 * self.beside.scales.elements()
    }
}

/// One part of a weight re-expressed as MLX affine. `wanted` is the shape that the plan gives the
/// part: scales may be repeated along the last axis where the producer's group is a multiple.
pub fn affine(
    packing: &IntPacking,
    part: AffinePart,
    arrays: Vec<Array>,
    dtype: Dtype,
    wanted: &[u64],
) -> Result<Array, Fault> {
    if part == AffinePart::Weight {
        let weight = arrays.into_iter().next();
        let weight = weight.ok_or_else(|| Fault::new(Code::Companion, "no packed weight"))?;
        let layout = Layout::of(packing, &weight)?;
        let mut shape = logical(&layout, &weight);
        let columns = layout.inputs * u64::from(packing.bits) / 32;
        if let Some(last) = shape.last_mut() {
            *last = columns;
        }
        let codes = Codes::new(layout, weight);
        let rows = Repacked { codes, scratch: Vec::new() };
        return Ok(Array { dtype: Dtype::U32, shape, bytes: Box::new(ByRows::new(rows)) });
    }
    let columns = wanted.last().copied().unwrap_or(0);
    let (_, mut beside) = parts(packing, arrays, false, false)?;
    let outputs = wanted.iter().product::<u64>() / columns.max(1);
    let groups = beside.scales.elements() / outputs.max(1);
    if groups == 0 || columns % groups != 0 || outputs * groups != beside.scales.elements() {
        let what =
            format!("{} scales cannot become scales of shape {wanted:?}", beside.scales.elements());
        return Err(Fault::new(Code::BadScale, what));
    }
    let shape = GridShape { packing: packing.clone(), outputs, groups };
    let grid = Grid::read(&shape, &mut beside.scales, beside.zeros.as_mut())?;
    let of = |place: usize| match part {
        AffinePart::Bias => -grid.scales[place] * grid.zeros[place],
        _ => grid.scales[place],
    };
    let repeat = (columns / groups) as usize;
    let parts: Vec<f32> = (0..grid.scales.len()).flat_map(|i| vec![of(i); repeat]).collect();
    let mut bytes = vec![0; parts.len() * dtype.bytes() as usize];
    write_floats(dtype, &parts, &mut bytes).ok_or_else(|| {
        Fault::new(Code::StalePlan, format!("scales cannot be stored as {dtype}"))
    })?;
    Ok(Array { dtype, shape: wanted.to_vec(), bytes: Box::new(InMemory(bytes)) })
}

/// Codes packed as MLX packs them.
struct Repacked {
    codes: Codes,
    scratch: Vec<u8>,
}

impl Rows for Repacked {
    fn row(&self) -> usize {
        (self.codes.layout.inputs * u64::from(self.codes.layout.packing.bits) / 8) as usize
    }

    fn rows(&mut self, first: u64, out: &mut [u8]) -> Result<(), Fault> {
        let bits = self.codes.layout.packing.bits;
        let row_bytes = self.row();
        self.scratch.resize(self.codes.layout.inputs as usize, 0);
        for (row, out) in (first..).zip(out.chunks_exact_mut(row_bytes)) {
            self.codes.row(row, &mut self.scratch)?;
            super::kernels::pack(bits, &self.scratch, out);
        }
        Ok(())
    }

    fn held(&self) -> u64 {
        self.codes.held()
    }
}

/// Bytes that are there already.
struct InMemory(Vec<u8>);

impl Bytes for InMemory {
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), Fault> {
        out.copy_from_slice(&self.0[at as usize..at as usize + out.len()]);
        Ok(())
    }

    fn held(&self) -> u64 {
        self.0.len() as u64
    }
}
