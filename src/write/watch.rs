//! Weights, scales and biases of the source that are no numbers.
//!
//! Headers do not show them, and planning does not read weights, so they are noticed where they
//! are read for writing: the exponents of a piece that is in the processor's cache anyway. What is
//! noticed is a set of places, not a count: a scale may be read more than once, and by several
//! workers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use crate::dtype::{Dtype, DtypeClass};
use crate::fault::{Code, Warning};
use crate::format::{Formats, Mode};
use crate::plan::{AffinePart, Op, SourceTensor, Tensor};

/// Tensors that a warning names before it counts the others.
const NAMED: usize = 4;
/// Runs of 64 elements of a tensor in which places are kept: beyond, there is no need to count.
const RUNS: usize = 4096;

/// The places of all numbers that are NaN or infinite, by tensor.
#[derive(Debug, Default)]
pub struct NotFinite(Mutex<BTreeMap<(bool, String), Places>>);

/// Some of a tensor's elements.
#[derive(Debug)]
struct Places {
    /// By run of 64 elements, one bit for each.
    runs: HashMap<u64, u64>,
    elements: u64,
    /// What they are to the tensors that are made of them.
    of: Vec<Of>,
}

/// What numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// Scales or biases of quantized weights.
    Scales,
    /// Weights, which the plan copies, decodes, or quantizes in this mode.
    Weights(Option<Mode>),
}

impl Of {
    /// What becomes of weights that are no numbers.
    fn fate(self) -> Option<&'static str> {
        Some(match self {
            Of::Scales => return None,
            Of::Weights(None) => "what is not quantized keeps them",
            Of::Weights(Some(Mode::Affine)) => {
                "integers take a NaN for the least number of its group, and an infinity makes its \
                 whole group NaN"
            }
            Of::Weights(Some(_)) => "4-bit and 8-bit floats make its whole group next to zero",
        })
    }
}

impl Places {
    fn count(&self) -> String {
        let count = self.runs.values().map(|bits| bits.count_ones()).sum::<u32>();
        let least = if self.runs.len() < RUNS { "" } else { "at least " };
        format!("{least}{count} of {}", self.elements)
    }
}

impl NotFinite {
    /// What to say of them: of scales, for nothing under them has a value, and of weights.
    pub fn warnings(&self) -> Vec<Warning> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_scales = |places: &Places| places.of.contains(&Of::Scales);
        let scales = named(&found, of_scales).map(|(names, first)| {
            let message = format!(
                "the source is damaged: scales or biases are NaN or infinite, so the weights under \
                 them have no value in this model either; quantize the original anew, or take it \
                 from elsewhere: {names}"
            );
            Warning::new(Code::NotFinite, message).on_tensor(first)
        });
        let weights = named(&found, |places| !of_scales(places)).map(|(names, first)| {
            let fates: BTreeSet<&str> =
                found.values().flat_map(|places| &places.of).filter_map(|of| of.fate()).collect();
            let fates: Vec<&str> = fates.into_iter().collect();
            let message = format!(
                "the source is damaged: weights are NaN or infinite ({}); take it from elsewhere: \
                 {names}",
                fates.join("; ")
            );
            Warning::new(Code::NotFinite, message).on_tensor(first)
        });
        scales.into_iter().chain(weights).collect()
    }

    fn mark(&self, watch: &Watch, from: u64, finite: impl Iterator<Item = bool>) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let places = found.entry(watch.tensor.clone()).or_insert_with(|| Places {
            runs: HashMap::new(),
            elements: watch.elements,
            of: Vec::new(),
        });
        if !places.of.contains(&watch.of) {
            places.of.push(watch.of);
        }
        for (at, _) in (from..).zip(finite).filter(|(_, finite)| !finite) {
            if places.runs.len() < RUNS || places.runs.contains_key(&(at / 64)) {
                *places.runs.entry(at / 64).or_default() |= 1 << (at % 64);
            }
        }
    }
}

/// The tensors of one kind with their counts, and the first of them.
fn named(
    found: &BTreeMap<(bool, String), Places>,
    is: impl Fn(&Places) -> bool,
) -> Option<(String, String)> {
    let found: Vec<_> = found.iter().filter(|(_, places)| is(places)).collect();
    let ((_, first), _) = found.first()?;
    let shown = found.iter().take(NAMED);
    let shown = shown.map(|((_, name), places)| format!("{name} ({})", places.count()));
    let shown = shown.collect::<Vec<_>>().join(", ");
    let more = match found.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some((format!("{shown}{more}"), first.clone()))
}

/// Looks at a tensor's bytes as they are read.
#[derive(Debug)]
pub struct Watch {
    found: Arc<NotFinite>,
    /// Whether it is the draft's, and its name.
    tensor: (bool, String),
    elements: u64,
    /// Elements of the tensor before the ones that are read.
    first: u64,
    dtype: Dtype,
    of: Of,
}

impl Watch {
    /// A watch for the source of this number, unless it holds integers.
    pub fn of(tensor: &Tensor, number: usize, found: &Arc<NotFinite>) -> Option<Watch> {
        let source = tensor.sources.get(number)?;
        let (dtype, of) = floats(tensor, number, source)?;
        Some(Watch {
            dtype,
            of,
            found: found.clone(),
            tensor: (source.draft, source.name.clone()),
            elements: source.shape.iter().product(),
            first: source.view.as_ref().map_or(0, |view| view.start),
        })
    }

    /// Looks at the bytes from position `at` on.
    pub fn look(&self, at: u64, bytes: &[u8]) {
        let from = self.first + at / self.dtype.bytes();
        match self.dtype {
            Dtype::F32 => {
                self.scan(from, bytes, |b| u32::from_le_bytes(b) & 0x7f80_0000 != 0x7f80_0000);
            }
            Dtype::F64 => self.scan(from, bytes, |b| f64::from_le_bytes(b).is_finite()),
            Dtype::BF16 => self.scan(from, bytes, |b| u16::from_le_bytes(b) & 0x7f80 != 0x7f80),
            Dtype::F16 => self.scan(from, bytes, |b| u16::from_le_bytes(b) & 0x7c00 != 0x7c00),
            Dtype::F8E4M3 => self.scan(from, bytes, |[b]| b & 0x7f != 0x7f),
            Dtype::F8E8M0 => self.scan(from, bytes, |[b]| b != 0xff),
            _ => {}
        }
    }

    fn scan<const N: usize>(&self, from: u64, bytes: &[u8], finite: impl Fn([u8; N]) -> bool) {
        let numbers = bytes.as_chunks::<N>().0.iter().map(|&number| finite(number));
        // Without an early end, so that it is compiled to vectors.
        if !numbers.clone().fold(true, |all, finite| all & finite) {
            self.found.mark(self, from, numbers);
        }
    }
}

/// The floats that a source holds and what they are; `None` for integers.
fn floats(tensor: &Tensor, number: usize, source: &SourceTensor) -> Option<(Dtype, Of)> {
    let stacked = tensor.ops.iter().map(|op| match op {
        Op::Stack { count } => (*count).max(1) as usize,
        _ => 1,
    });
    let width = (tensor.sources.len() / stacked.product::<usize>()).max(1);
    let is_weight = number.is_multiple_of(width);
    let mut format = tensor.format.as_deref();
    let mut beside = tensor.is_companion();
    for op in &tensor.ops {
        match op {
            Op::DecodeFp8 { .. } | Op::UnpackInt { .. } => {
                (format, beside) = (None, !is_weight);
            }
            Op::Dequantize { format: from, .. } => {
                (format, beside) = (Some(from.as_str()), !is_weight);
            }
            Op::AffineInt { part, .. } => beside = *part != AffinePart::Weight,
            _ => {}
        }
    }
    let mode_of = |name: &str| Formats::built_in().get(name).map(|format| format.mode);
    if !beside {
        let to = tensor.ops.last().and_then(Op::quantizes).and_then(mode_of);
        let is_float = source.dtype.class() != DtypeClass::Integer;
        return is_float.then_some((source.dtype, Of::Weights(to)));
    }
    let dtype = match (source.dtype, format.and_then(mode_of)) {
        (Dtype::U8, Some(Mode::Mxfp4 | Mode::Mxfp8)) => Dtype::F8E8M0,
        (Dtype::U8, Some(Mode::Nvfp4)) => Dtype::F8E4M3,
        (dtype, _) if dtype.class() == DtypeClass::Integer => return None,
        (dtype, _) => dtype,
    };
    Some((dtype, Of::Scales))
}
