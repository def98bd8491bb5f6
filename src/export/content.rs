//! What is in an exported tensor: bytes of blobs, as they are or taken apart.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::PathBuf;

use super::names::Split;
use crate::dtype::Dtype;
use crate::fault::{Code, Fault};
use crate::format::Format;
use crate::write::kernels::{self, Float, Quantized};

/// Bytes of a blob's file.
#[derive(Clone, Debug)]
pub struct Run {
    /// The file.
    pub blob: PathBuf,
    /// Where in it.
    pub range: Range<u64>,
}

impl Run {
    /// How many bytes.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn open(&self) -> std::io::Result<impl Read> {
        let mut blob = File::open(&self.blob)?;
        blob.seek(SeekFrom::Start(self.range.start))?;
        Ok(blob.take(self.len()))
    }
}

/// A tensor as it is stored: one run, or one for each expert.
#[derive(Clone, Debug)]
pub struct Stored {
    /// dtype of its bytes.
    pub dtype: Dtype,
    /// Shape of its bytes.
    pub shape: Vec<u64>,
    /// Its bytes, in order.
    pub runs: Vec<Run>,
}

/// What is done to a tensor's bytes, step by step.
#[derive(Clone, Debug)]
pub enum Step {
    /// The last two axes are exchanged.
    Transpose,
    /// One of two parts along an axis counted from the end.
    Take { split: Split, axis: usize, second: bool },
    /// A number is added to each.
    Add(f32),
}

/// Where an exported tensor's bytes come from.
#[derive(Clone, Debug)]
pub enum Content {
    /// A stored tensor.
    Stored(Stored),
    /// The values of a quantized one: its format, the packed weight, scales, and biases or global
    /// scales.
    Decoded { format: &'static Format, parts: Vec<Stored>, dtype: Dtype, shape: Vec<u64> },
}

impl Content {
    /// dtype before any step.
    pub fn dtype(&self) -> Dtype {
        match self {
            Content::Stored(stored) => stored.dtype,
            Content::Decoded { dtype, .. } => *dtype,
        }
    }

    /// Shape before any step.
    pub fn shape(&self) -> &[u64] {
        match self {
            Content::Stored(stored) => &stored.shape,
            Content::Decoded { shape, .. } => shape,
        }
    }

    /// Writes the bytes after all steps, and gives how many.
    ///
    /// # Errors
    /// The file system's; numbers that cannot be computed with.
    pub fn write(&self, steps: &[Step], out: &mut impl Write) -> Result<u64, Fault> {
        let failed = |error: std::io::Error| {
            Fault::new(Code::Io, format!("the export cannot be written: {error}"))
        };
        if let (Content::Stored(stored), []) = (self, steps) {
            let mut written = 0;
            for run in &stored.runs {
                let unreadable = |error: std::io::Error| Fault::io("read", &run.blob, &error);
                let mut bytes = run.open().map_err(unreadable)?;
                written += std::io::copy(&mut bytes, out).map_err(failed)?;
            }
            return Ok(written);
        }
        let mut bytes = self.bytes()?;
        let mut shape = self.shape().to_vec();
        for step in steps {
            bytes = step.of(&bytes, &mut shape, self.dtype())?;
        }
        out.write_all(&bytes).map_err(failed)?;
        Ok(bytes.len() as u64)
    }

    fn bytes(&self) -> Result<Vec<u8>, Fault> {
        match self {
            Content::Stored(stored) => stored.bytes(),
            Content::Decoded { format, parts, dtype, shape } => {
                decoded(format, parts, *dtype, shape)
            }
        }
    }
}

impl Stored {
    fn bytes(&self) -> Result<Vec<u8>, Fault> {
        let mut bytes = Vec::new();
        for run in &self.runs {
            let unreadable = |error: std::io::Error| Fault::io("read", &run.blob, &error);
            run.open().and_then(|mut read| read.read_to_end(&mut bytes)).map_err(unreadable)?;
        }
        let wanted = self.shape.iter().product::<u64>() * self.dtype.bytes();
        if bytes.len() as u64 != wanted {
            let message = "a blob became shorter while it was read";
            return Err(Fault::new(Code::CorruptBlob, message));
        }
        Ok(bytes)
    }
}

fn decoded(
    format: &Format,
    parts: &[Stored],
    dtype: Dtype,
    shape: &[u64],
) -> Result<Vec<u8>, Fault> {
    let cannot = |what: &str| Fault::new(Code::Internal, format!("cannot decode {what}"));
    let float = Float::try_from(dtype).map_err(|()| cannot(dtype.as_str()))?;
    let [weight, scales, rest @ ..] = parts else { return Err(cannot("a weight without scales")) };
    let (packed, scale_bytes) = (weight.bytes()?, scales.bytes()?);
    let third = rest.first().map(Stored::bytes).transpose()?;
    let (biases, globals) = match &third {
        Some(bytes) if format.has_bias() => (bytes.as_slice(), None),
        Some(bytes) => (&[][..], Some(bytes.as_chunks::<4>().0)),
        None => (&[][..], None),
    };
    let scale_dtype = Float::try_from(scales.dtype).unwrap_or(Float::F32);
    let matrices = globals.map_or(1, <[[u8; 4]]>::len).max(1);
    let elements = shape.iter().product::<u64>() as usize;
    let mut out = vec![0; elements * dtype.bytes() as usize];
    // A matrix at a time, each with its own global scale.
    let part = |bytes: usize| bytes / matrices;
    let [w, s, b, o] = [packed.len(), scale_bytes.len(), biases.len(), out.len()].map(part);
    for (n, out) in out.chunks_mut(o.max(1)).enumerate() {
        let from = Quantized {
            weight: &packed[n * w..(n + 1) * w],
            scales: &scale_bytes[n * s..(n + 1) * s],
            biases: &biases[n * b..(n + 1) * b],
            scale_dtype,
            global: globals.map(|all| f32::from_le_bytes(all[n])),
        };
        kernels::dequantize(format, &from, float, out);
    }
    Ok(out)
}

impl Step {
    /// The shape after the step.
    pub fn shape(&self, shape: &[u64]) -> Vec<u64> {
        let mut after = shape.to_vec();
        match self {
            Step::Transpose if after.len() >= 2 => {
                let last = after.len() - 1;
                after.swap(last - 1, last);
            }
            Step::Take { axis, .. } => {
                if let Some(at) = after.len().checked_sub(*axis) {
                    after[at] /= 2;
                }
            }
            Step::Transpose | Step::Add(_) => {}
        }
        after
    }

    fn of(&self, bytes: &[u8], shape: &mut Vec<u64>, dtype: Dtype) -> Result<Vec<u8>, Fault> {
        let before = std::mem::take(shape);
        *shape = self.shape(&before);
        let element = dtype.bytes() as usize;
        let size = |axes: &[u64]| axes.iter().product::<u64>() as usize;
        match self {
            Step::Transpose => {
                let [.., rows, columns] = before.as_slice() else { return Ok(bytes.to_vec()) };
                let (rows, columns) = (*rows as usize, *columns as usize);
                let mut out = Vec::with_capacity(bytes.len());
                for matrix in bytes.chunks_exact((rows * columns * element).max(1)) {
                    for column in 0..columns {
                        for row in 0..rows {
                            let at = (row * columns + column) * element;
                            out.extend_from_slice(&matrix[at..at + element]);
                        }
                    }
                }
                Ok(out)
            }
            Step::Take { split, axis, second } => {
                let at = before.len().saturating_sub(*axis);
                let inner = size(&before[at + 1..]) * element;
                let block = match split {
                    Split::Halves => inner * (before[at] / 2) as usize,
                    Split::Pairs => inner,
                };
                let mut out = Vec::with_capacity(bytes.len() / 2);
                for both in bytes.chunks_exact((2 * block).max(1)) {
                    let (first, other) = both.split_at(block);
                    out.extend_from_slice(if *second { other } else { first });
                }
                Ok(out)
            }
            Step::Add(number) => {
                let cannot = || Fault::new(Code::Internal, format!("cannot add to {dtype}"));
                let added = |value: f32| value + number;
                match dtype {
                    Dtype::F32 => Ok(each(bytes, |b| added(f32::from_le_bytes(b)).to_le_bytes())),
                    Dtype::BF16 => Ok(each(bytes, |b| {
                        half::bf16::from_f32(added(half::bf16::from_le_bytes(b).to_f32()))
                            .to_le_bytes()
                    })),
                    Dtype::F16 => Ok(each(bytes, |b| {
                        half::f16::from_f32(added(half::f16::from_le_bytes(b).to_f32()))
                            .to_le_bytes()
                    })),
                    _ => Err(cannot()),
                }
            }
        }
    }
}

fn each<const N: usize>(bytes: &[u8], function: impl Fn([u8; N]) -> [u8; N]) -> Vec<u8> {
    bytes.as_chunks::<N>().0.iter().flat_map(|&bytes| function(bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(step: &Step, bytes: &[u8], shape: &[u64]) -> (Vec<u8>, Vec<u64>) {
        let mut shape = shape.to_vec();
        (step.of(bytes, &mut shape, Dtype::U8).unwrap(), shape)
    }

    #[test]
    fn tensors_are_taken_apart_and_turned() {
        let bytes: Vec<u8> = (0..16).collect(); // [2, 4, 2]
        let take = |split, second| Step::Take { split, axis: 2, second };
        let halves = of(&take(Split::Halves, true), &bytes, &[2, 4, 2]);
        assert_eq!(halves, (vec![4, 5, 6, 7, 12, 13, 14, 15], vec![2, 2, 2]));
        let pairs = of(&take(Split::Pairs, false), &bytes, &[2, 4, 2]);
        assert_eq!(pairs, (vec![0, 1, 4, 5, 8, 9, 12, 13], vec![2, 2, 2]));
        let turned = of(&Step::Transpose, &bytes[..6], &[1, 2, 3]);
        assert_eq!(turned, (vec![0, 3, 1, 4, 2, 5], vec![1, 3, 2]));
    }
}
