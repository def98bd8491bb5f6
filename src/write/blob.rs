//! Writing one blob: header, then tensor after tensor, piece by piece, hashed on the way.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use super::array::Array;
use super::kernels::{Float, Out};
use super::quantizer::Quantizer;
use super::recipe::{Recipe, recipe};
use super::source::Sources;
use super::{Progress, layout};
use crate::fault::{Code, Fault};
use crate::format::Format;
use crate::plan::{Blob, Tensor};

/// What writing blobs needs besides the blob.
pub struct Work<'a> {
    /// The weights.
    pub sources: &'a Sources<'a>,
    /// Who quantizes.
    pub quantizer: &'a dyn Quantizer,
    /// Told of every piece.
    pub progress: &'a dyn Progress,
    /// Set when the user wants to stop.
    pub cancel: &'a AtomicBool,
    /// Bytes read at a time.
    pub piece: u64,
}

/// Why a blob was not written.
pub enum Failed {
    /// The source or the plan is at fault, or the user stopped it.
    Fault(Fault),
    /// The blob's file could not be written.
    Write(io::Error),
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Failed::Fault(fault)
    }
}

/// Memory that writing the blob takes at most, beyond what is mapped or cached: two buffers, the
/// scales of a tensor, and what its operations hold.
pub fn memory(blob: &Blob, work: &Work) -> Result<u64, Fault> {
    let mut most = 0;
    for tensor in &blob.tensors {
        let recipe = recipe(tensor, work.sources)?;
        let piece = piece(&recipe.array, recipe.quantize, work.piece);
        let scales = match recipe.quantize {
            Some(format) => tensor.bytes - packed(format, tensor.elements()),
            None => 0,
        };
        most = most.max(2 * piece + scales + recipe.array.bytes.held());
    }
    Ok(most)
}

fn packed(format: &Format, elements: u64) -> u64 {
    elements * u64::from(format.bits) / 8
}

/// Bytes to read at a time: whole rows where they fit, else whole groups.
fn piece(array: &Array, format: Option<&Format>, target: u64) -> u64 {
    let width = array.dtype.bytes();
    let row = array.last_axis() * width;
    let unit = if row <= target { row } else { format.map_or(1, |format| format.group) * width };
    (target / unit.max(1)).max(1) * unit.max(width)
}

/// Writes a blob to `out`.
pub fn write(
    blob: &Blob,
    work: &Work,
    buffers: &mut Buffers,
    out: &mut dyn Write,
) -> Result<(), Failed> {
    let header = layout::header(blob)?;
    out.write_all(&header).map_err(Failed::Write)?;
    let mut written = 0;
    for tensor in &blob.tensors {
        work.progress.tensor(&tensor.name);
        let recipe = recipe(tensor, work.sources)?;
        written += match recipe.quantize {
            None => copy(tensor, recipe.array, work, buffers, out)?,
            Some(format) => quantize(tensor, recipe, format, work, buffers, out)?,
        };
    }
    let expected: u64 = blob.tensors.iter().map(|tensor| tensor.bytes).sum();
    if written != expected {
        let what = format!("blob {} came to {written} bytes, not {expected}", blob.name);
        return Err(Fault::new(Code::Internal, what).into());
    }
    Ok(())
}

/// Memory that a worker uses again for every tensor: what is freed is given back to the system, and
/// must be had from it again, page by page.
#[derive(Default)]
pub struct Buffers {
    input: Vec<u8>,
    weight: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

fn each_piece(
    tensor: &Tensor,
    array: &mut Array,
    format: Option<&Format>,
    work: &Work,
    buffer: &mut Vec<u8>,
    mut take: impl FnMut(&[u8]) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let size = array.size();
    let piece = piece(array, format, work.piece);
    // What is read counts, not what it becomes: progress is over the plan's bytes in.
    let read = tensor.bytes_in() as f64 / size.max(1) as f64;
    let mut at = 0;
    let mut told = 0;
    while at < size {
        if work.cancel.load(Ordering::Relaxed) {
            return Err(Fault::new(Code::Interrupted, "interrupted").into());
        }
        buffer.resize(piece.min(size - at) as usize, 0);
        array.bytes.read(at, buffer).map_err(|fault| match fault.tensor {
            Some(_) => fault,
            None => fault.on_tensor(&tensor.name),
        })?;
        take(buffer)?;
        at += buffer.len() as u64;
        let now = (at as f64 * read) as u64;
        work.progress.read(now - told);
        told = now;
    }
    Ok(())
}

fn copy(
    tensor: &Tensor,
    mut array: Array,
    work: &Work,
    buffers: &mut Buffers,
    out: &mut dyn Write,
) -> Result<u64, Failed> {
    let size = array.size();
    each_piece(tensor, &mut array, None, work, &mut buffers.input, |bytes| {
        out.write_all(bytes).map_err(Failed::Write)
    })?;
    Ok(size)
}

/// The packed weight goes out as it is made; scales and biases, which follow it in the file, wait.
fn quantize(
    tensor: &Tensor,
    recipe: Recipe,
    format: &Format,
    work: &Work,
    buffers: &mut Buffers,
    out: &mut dyn Write,
) -> Result<u64, Failed> {
    let mut array = recipe.array;
    let dtype = Float::try_from(array.dtype).map_err(|()| {
        Fault::new(Code::Compute, format!("{} cannot be quantized", array.dtype))
            .on_tensor(&tensor.name)
    })?;
    let width = array.dtype.bytes();
    let scale = if format.has_bias() { width } else { 1 };
    let Buffers { input, weight, scales, biases } = buffers;
    scales.clear();
    biases.clear();
    let groups = array.elements() / format.group;
    scales.reserve((groups * scale) as usize);
    each_piece(tensor, &mut array, Some(format), work, input, |bytes| {
        let elements = bytes.len() as u64 / width;
        let more = (elements / format.group * scale) as usize;
        weight.resize(packed(format, elements) as usize, 0);
        let scales_from = scales.len();
        scales.resize(scales_from + more, 0);
        let biases_from = biases.len();
        biases.resize(biases_from + if format.has_bias() { more } else { 0 }, 0);
        let into = Out {
            weight: weight.as_mut_slice(),
            scales: &mut scales[scales_from..],
            biases: &mut biases[biases_from..],
        };
        work.quantizer
            .quantize(format, dtype, bytes, into)
            .map_err(|fault| fault.on_tensor(&tensor.name))?;
        out.write_all(weight).map_err(Failed::Write)
    })?;
    if scales.len() as u64 != groups * scale || groups == 0 {
        let what =
            format!("{} gave {} bytes of scales for {groups} groups", format.name, scales.len());
        return Err(Fault::new(Code::Compute, what).on_tensor(&tensor.name).into());
    }
    out.write_all(scales).map_err(Failed::Write)?;
    out.write_all(biases).map_err(Failed::Write)?;
    Ok(packed(format, array.elements()) + (scales.len() + biases.len()) as u64)
}
