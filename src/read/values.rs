//! A few numbers out of the weights, where a header cannot tell: a scale that may be zero, an
//! order that may be permuted, a head that may be the embedding, a bias that may be all zeros.
//! Planning reads nothing else of them.

use std::fs::File;
use std::ops::Range;
use std::sync::OnceLock;

use super::{Inventory, TensorInfo};
use crate::dtype::Dtype;
use crate::fault::Fault;
use crate::system;

/// The longest tensor that planning reads.
const LONGEST: u64 = 1 << 20;

/// Reads small tensors of a folder; files are opened once.
pub struct Values<'a> {
    inventory: &'a Inventory,
    files: Vec<OnceLock<File>>,
}

impl<'a> Values<'a> {
    /// Opens nothing yet.
    pub fn new(inventory: &'a Inventory) -> Self {
        let files = inventory.shards.iter().map(|_| OnceLock::new()).collect();
        Values { inventory, files }
    }

    /// A tensor's numbers as integers; floats give `None`, as do inventories without weights.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn integers(&self, tensor: &TensorInfo) -> Result<Option<Vec<i64>>, Fault> {
        let convert: fn(&[u8]) -> i64 = match tensor.dtype {
            Dtype::I64 => |b| i64::from_le_bytes(b.try_into().unwrap_or_default()),
            Dtype::I32 => |b| i64::from(i32::from_le_bytes(b.try_into().unwrap_or_default())),
            _ => return Ok(None),
        };
        self.convert(tensor, convert)
    }

    /// A tensor's numbers as F32; other dtypes give `None`, as do inventories without weights.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn floats(&self, tensor: &TensorInfo) -> Result<Option<Vec<f32>>, Fault> {
        let convert: fn(&[u8]) -> f32 = match tensor.dtype {
            Dtype::F32 => |b| f32::from_le_bytes(b.try_into().unwrap_or_default()),
            Dtype::BF16 => |b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32(),
            Dtype::F16 => |b| half::f16::from_le_bytes([b[0], b[1]]).to_f32(),
            _ => return Ok(None),
        };
        self.convert(tensor, convert)
    }

    /// Whether two tensors are the same numbers, however long; `None` for an inventory without
    /// weights.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn same(&self, one: &TensorInfo, other: &TensorInfo) -> Result<Option<bool>, Fault> {
        if (one.dtype, &one.shape) != (other.dtype, &other.shape) {
            return Ok(Some(false));
        }
        if !self.inventory.has_weights() {
            return Ok(None);
        }
        let mut start = 0;
        while start < one.bytes() {
            let run = start..one.bytes().min(start + LONGEST);
            if self.run(one, run.clone())? != self.run(other, run.clone())? {
                return Ok(Some(false));
            }
            start = run.end;
        }
        Ok(Some(true))
    }

    /// Whether all of a tensor's numbers are zero, of either sign, however many; `None` for an
    /// inventory without weights.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn all_zero(&self, tensor: &TensorInfo) -> Result<Option<bool>, Fault> {
        if !self.inventory.has_weights() {
            return Ok(None);
        }
        let width = tensor.dtype.bytes().max(1) as usize;
        // The sign is the highest bit of the last byte.
        let sign = if tensor.dtype.is_float() { 0x7f } else { 0xff };
        let is_zero = |number: &[u8]| match number.split_last() {
            Some((last, rest)) => last & sign == 0 && rest.iter().all(|&byte| byte == 0),
            None => true,
        };
        let mut start = 0;
        while start < tensor.bytes() {
            let run = start..tensor.bytes().min(start + LONGEST);
            if !self.run(tensor, run.clone())?.chunks_exact(width).all(is_zero) {
                return Ok(Some(false));
            }
            start = run.end;
        }
        Ok(Some(true))
    }

    fn convert<T>(
        &self,
        tensor: &TensorInfo,
        convert: fn(&[u8]) -> T,
    ) -> Result<Option<Vec<T>>, Fault> {
        if !self.inventory.has_weights() || tensor.bytes() > LONGEST {
            return Ok(None);
        }
        let bytes = self.run(tensor, 0..tensor.bytes())?;
        Ok(Some(bytes.chunks_exact(tensor.dtype.bytes() as usize).map(convert).collect()))
    }

    /// Some of a tensor's bytes.
    fn run(&self, tensor: &TensorInfo, run: Range<u64>) -> Result<Vec<u8>, Fault> {
        let path = self.inventory.dir.join(&*self.inventory.shards[tensor.shard as usize].name);
        let slot = &self.files[tensor.shard as usize];
        let read = || {
            let file = match slot.get() {
                Some(file) => file,
                None => {
                    let opened = File::open(&path)?;
                    slot.get_or_init(|| opened)
                }
            };
            let mut bytes = vec![0; (run.end - run.start) as usize];
            system::read_exact_at(file, &mut bytes, tensor.range.start + run.start)?;
            Ok(bytes)
        };
        read().map_err(|error| Fault::io("read", &path, &error).on_tensor(tensor.name.clone()))
    }
}
