//! Arrays that are read piece by piece: source tensors, and what the operations make of them.
//!
//! An [`Array`] is a dtype, a shape and bytes in row-major order that can be read from any
//! position. Operations wrap arrays in arrays; nothing is computed until it is read, and nothing
//! is kept but what the next piece needs.

use std::sync::Arc;

use super::source::Weights;
use super::watch::Watch;
use crate::dtype::Dtype;
use crate::fault::Fault;

/// Bytes in row-major order, read when they are wanted.
pub trait Bytes: Send {
    /// Fills `out` with the bytes from position `at` on. Asked only for bytes that there are.
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), Fault>;

    /// The most memory that it holds between reads.
    fn held(&self) -> u64 {
        0
    }
}

/// A typed array.
pub struct Array {
    /// dtype of its elements.
    pub dtype: Dtype,
    /// Its shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub bytes: Box<dyn Bytes>,
}

impl Array {
    /// Elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.elements() * self.dtype.bytes()
    }

    /// Length of the last axis; 1 for a scalar.
    pub fn last_axis(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }

    /// All of it.
    pub fn read_all(&mut self) -> Result<Vec<u8>, Fault> {
        let mut all = vec![0; self.size() as usize];
        self.bytes.read(0, &mut all)?;
        Ok(all)
    }
}

/// A tensor in a file.
pub struct Stored {
    /// The file.
    pub file: Arc<Weights>,
    /// Position of the tensor's first byte.
    pub start: u64,
    /// Who looks at what is read.
    pub watch: Option<Watch>,
}

impl Bytes for Stored {
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.file.read(self.start + at, out)?;
        if let Some(watch) = &self.watch {
            watch.look(at, out);
        }
        Ok(())
    }
}

/// Equal arrays one after the other.
pub struct Stacked {
    /// The arrays.
    pub parts: Vec<Box<dyn Bytes>>,
    /// Size of each in bytes.
    pub size: u64,
}

impl Bytes for Stacked {
    fn read(&mut self, mut at: u64, mut out: &mut [u8]) -> Result<(), Fault> {
        while !out.is_empty() {
            let inside = at % self.size;
            let length = (self.size - inside).min(out.len() as u64);
            let (now, later) = out.split_at_mut(length as usize);
            self.parts[(at / self.size) as usize].read(inside, now)?;
            at += length;
            out = later;
        }
        Ok(())
    }

    fn held(&self) -> u64 {
        self.parts.iter().map(|part| part.held()).sum()
    }
}

/// Every `stride` bytes, `run` of them from `skip` on: a slice along an axis.
pub struct Slice {
    /// What is sliced.
    pub of: Box<dyn Bytes>,
    /// Bytes to pass over in each stride.
    pub skip: u64,
    /// Bytes to take from each stride.
    pub run: u64,
    /// Bytes of a stride.
    pub stride: u64,
}

impl Bytes for Slice {
    fn read(&mut self, mut at: u64, mut out: &mut [u8]) -> Result<(), Fault> {
        while !out.is_empty() {
            let inside = at % self.run;
            let length = (self.run - inside).min(out.len() as u64);
            let (now, later) = out.split_at_mut(length as usize);
            self.of.read(at / self.run * self.stride + self.skip + inside, now)?;
            at += length;
            out = later;
        }
        Ok(())
    }

    fn held(&self) -> u64 {
        self.of.held()
    }
}

/// An array with its axes permuted. The part of it in which axes move (a matrix of a stack, say) is
/// held in memory, one at a time.
pub struct Transposed {
    of: Box<dyn Bytes>,
    /// Bytes of an element.
    width: usize,
    /// New shape of the part that is permuted, and the step in elements along each of its axes.
    axes: Vec<(u64, u64)>,
    /// Bytes of such a part.
    part: u64,
    /// Which part `held` is.
    current: Option<u64>,
    held: Vec<u8>,
}

impl Transposed {
    /// `of` an array of this `shape`, with axis i of the result being axis `axes[i]` of it.
    pub fn new(of: Box<dyn Bytes>, width: u64, shape: &[u64], axes: &[u32]) -> Self {
        let fixed = axes.iter().enumerate().take_while(|&(i, &axis)| i == axis as usize).count();
        let step = |axis: u32| shape[axis as usize + 1..].iter().product::<u64>();
        let moved = axes[fixed..].iter().map(|&axis| (shape[axis as usize], step(axis)));
        let part = shape[fixed..].iter().product::<u64>() * width;
        Transposed {
            of,
            width: width as usize,
            axes: moved.collect(),
            part,
            current: None,
            held: Vec::new(),
        }
    }

    fn hold(&mut self, index: u64) -> Result<(), Fault> {
        if self.current != Some(index) {
            self.current = None;
            self.held.resize(self.part as usize, 0);
            self.of.read(index * self.part, &mut self.held)?;
            self.current = Some(index);
        }
        Ok(())
    }

    /// Where the element that comes `index`-th in the result is in the held part.
    fn origin(&self, mut index: u64) -> u64 {
        let mut at = 0;
        for &(length, step) in self.axes.iter().rev() {
            at += index % length * step;
            index /= length;
        }
        at
    }
}

impl Bytes for Transposed {
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), Fault> {
        let width = self.width;
        debug_assert!(
            at.is_multiple_of(width as u64) && out.len().is_multiple_of(width),
            "whole elements"
        );
        let mut element = at / width as u64;
        let in_part = self.part / width as u64;
        let (last, step) = self.axes.last().copied().unwrap_or((1, 1));
        let mut out = out;
        while !out.is_empty() {
            self.hold(element / in_part)?;
            // One run along the last axis: a fixed step through the held part.
            let inside = element % in_part;
            let run = (last - inside % last).min((out.len() / width) as u64);
            let (now, later) = out.split_at_mut(run as usize * width);
            let mut from = self.origin(inside) as usize * width;
            for target in now.chunks_exact_mut(width) {
                target.copy_from_slice(&self.held[from..from + width]);
                from += step as usize * width;
            }
            element += run;
            out = later;
        }
        Ok(())
    }

    fn held(&self) -> u64 {
        self.part + self.of.held()
    }
}

/// Arrays that are computed a whole row (of the last axis) at a time.
pub trait Rows: Send {
    /// Bytes of a row.
    fn row(&self) -> usize;

    /// Computes whole rows from number `first` on.
    fn rows(&mut self, first: u64, out: &mut [u8]) -> Result<(), Fault>;

    /// The most memory that it holds between calls.
    fn held(&self) -> u64;
}

/// [`Rows`] read from any position.
pub struct ByRows<R> {
    rows: R,
    /// A row of which only a part was wanted.
    scratch: Vec<u8>,
    kept: Option<u64>,
}

impl<R: Rows> ByRows<R> {
    /// Wraps them.
    pub fn new(rows: R) -> Self {
        ByRows { rows, scratch: Vec::new(), kept: None }
    }
}

impl<R: Rows> Bytes for ByRows<R> {
    fn read(&mut self, at: u64, mut out: &mut [u8]) -> Result<(), Fault> {
        let row = self.rows.row();
        let mut number = at / row as u64;
        let mut inside = (at % row as u64) as usize;
        while !out.is_empty() {
            if inside == 0 && out.len() >= row {
                let whole = out.len() / row;
                let (now, later) = out.split_at_mut(whole * row);
                self.rows.rows(number, now)?;
                number += whole as u64;
                out = later;
                continue;
            }
            if self.kept != Some(number) {
                self.kept = None;
                self.scratch.resize(row, 0);
                self.rows.rows(number, &mut self.scratch)?;
                self.kept = Some(number);
            }
            let length = (row - inside).min(out.len());
            let (now, later) = out.split_at_mut(length);
            now.copy_from_slice(&self.scratch[inside..inside + length]);
            number += 1;
            inside = 0;
            out = later;
        }
        Ok(())
    }

    fn held(&self) -> u64 {
        self.rows.held() + self.rows.row() as u64
    }
}
