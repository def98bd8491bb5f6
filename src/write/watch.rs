//! Scales and biases of the source that are no numbers.
//!
//! Headers do not show them, and planning does not read weights, so they are noticed where they
//! are read for writing. What is noticed is a set of places, not a count: a scale may be read more
//! than once, and by several workers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::dtype::{Dtype, DtypeClass};
use crate::fault::{Code, Warning};
use crate::format::{Formats, Mode};
use crate::plan::{AffinePart, Op, SourceTensor, Tensor};

/// Tensors that a warning names before it counts the others.
const NAMED: usize = 4;

/// The places of all scales and biases that are NaN or infinite, by tensor.
#[derive(Debug, Default)]
pub struct NotFinite(Mutex<BTreeMap<(bool, String), Places>>);

/// Some of a tensor's elements, one bit for each.
#[derive(Debug)]
struct Places {
    bits: Vec<u64>,
    elements: u64,
}

impl NotFinite {
    /// What to say of them.
    pub fn warning(&self) -> Option<Warning> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, first) = found.keys().next()?;
        let count = |places: &Places| places.bits.iter().map(|bits| bits.count_ones()).sum::<u32>();
        let shown = found.iter().take(NAMED).map(|((_, name), places)| {
            format!("{name} ({} of {})", count(places), places.elements)
        });
        let shown = shown.collect::<Vec<_>>().join(", ");
        let more = match found.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let message = format!(
            "the source is damaged: scales or biases are NaN or infinite, so the weights under \
             them have no value in this model either; quantize the original anew, or take it from \
             elsewhere: {shown}{more}"
        );
        Some(Warning::new(Code::NotFinite, message).on_tensor(first.clone()))
    }

    fn mark(&self, watch: &Watch, from: u64, finite: impl Iterator<Item = bool>) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let places = found.entry(watch.tensor.clone()).or_insert_with(|| Places {
            bits: vec![0; watch.elements.div_ceil(64) as usize],
            elements: watch.elements,
        });
        for (at, _) in (from..).zip(finite).filter(|(_, finite)| !finite) {
            if let Some(bits) = places.bits.get_mut((at / 64) as usize) {
                *bits |= 1 << (at % 64);
            }
        }
    }
}

/// Looks at a scale's or bias's bytes as they are read.
#[derive(Debug)]
pub struct Watch {
    found: Arc<NotFinite>,
    /// Whether it is the draft's, and its name.
    tensor: (bool, String),
    elements: u64,
    /// Elements of the tensor before the ones that are read.
    first: u64,
    dtype: Dtype,
}

impl Watch {
    /// A watch for the source of this number, when it holds scales or biases of quantized weights.
    pub fn of(tensor: &Tensor, number: usize, found: &Arc<NotFinite>) -> Option<Watch> {
        let source = tensor.sources.get(number)?;
        Some(Watch {
            dtype: scale_dtype(tensor, number, source)?,
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

/// What the source's numbers are, when they are scales or biases; `None` when they are weights or
/// integers.
fn scale_dtype(tensor: &Tensor, number: usize, source: &SourceTensor) -> Option<Dtype> {
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
            // The bias is made of the same numbers as the scale.
            Op::AffineInt { part, .. } => beside = *part == AffinePart::Scale,
            _ => {}
        }
    }
    let mode = format.and_then(|name| Formats::built_in().get(name)).map(|format| format.mode);
    match (source.dtype, mode) {
        _ if !beside => None,
        (Dtype::U8, Some(Mode::Mxfp4 | Mode::Mxfp8)) => Some(Dtype::F8E8M0),
        (Dtype::U8, Some(Mode::Nvfp4)) => Some(Dtype::F8E4M3),
        (dtype, _) => (dtype.class() != DtypeClass::Integer).then_some(dtype),
    }
}
