//! A store's blobs: safetensors files of one tensor or of one group of experts, whose metadata
//! says how each tensor is quantized.

use std::collections::HashMap;
use std::path::PathBuf;

use super::file::File;
use super::{QuantizedTensor, TensorSource, Weight};
use crate::companion::{self, BIAS, GLOBAL_SCALE, SCALE};
use crate::dtype::Dtype;
use crate::fault::{Code, Fault, Faults};
use crate::format::{Formats, Mode};
use crate::mlx::Packing;

/// The blobs of a model.
pub struct Blobs {
    files: Vec<File>,
    /// Which file a tensor is in.
    tensors: HashMap<String, usize>,
}

impl Blobs {
    /// Opens the blobs of a manifest's tensor layers.
    ///
    /// # Errors
    ///
    /// All blobs that cannot be read, at once.
    pub fn open(paths: impl IntoIterator<Item = PathBuf>) -> Result<Blobs, Faults> {
        let (mut files, mut faults) = (Vec::new(), Faults::default());
        for path in paths {
            match File::open(&path) {
                Ok(file) => files.push(file),
                Err(fault) => faults.push(fault),
            }
        }
        let mut tensors = HashMap::new();
        for (index, file) in files.iter().enumerate() {
            let packed = |name: &str| file.dtype(name).filter(|_| quant_type(file, name).is_some());
            for name in file.names() {
                if companion::base_of(name, packed).is_none() {
                    tensors.insert(name.clone(), index);
                }
            }
        }
        faults.or(Blobs { files, tensors })
    }
}

/// The metadata that says how a tensor of a file is quantized: its own, or the whole file's.
fn quant_type<'a>(file: &'a File, tensor: &str) -> Option<&'a String> {
    value(file, tensor, "quant_type")
}

fn value<'a>(file: &'a File, tensor: &str, key: &str) -> Option<&'a String> {
    file.metadata.get(&format!("{tensor}.{key}")).or_else(|| file.metadata.get(key))
}

impl TensorSource for Blobs {
    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn tensor(&self, name: &str) -> Result<Option<Weight>, Fault> {
        let Some(file) = self.tensors.get(name).and_then(|&index| self.files.get(index)) else {
            return Ok(None);
        };
        let Some(weight) = file.tensor(name) else { return Ok(None) };
        let beside = |suffix: &str| file.tensor(&format!("{name}{suffix}"));
        let scales = Some(SCALE).filter(|_| weight.dtype == Dtype::U32).and_then(beside);
        let (Some(kind), Some(scales)) = (quant_type(file, name), scales) else {
            return Ok(Some(Weight::Float(weight)));
        };
        let unreadable = |what: &str| {
            Fault::new(Code::CorruptBlob, format!("the blob's metadata {what}"))
                .in_file(file.path())
                .on_tensor(name)
        };
        let number = |key: &str| value(file, name, key).and_then(|text| text.parse::<i32>().ok());
        let (mode, bits, group) = match Formats::built_in().get(kind) {
            Some(format) => (format.mode, Some(format.bits as i32), Some(format.group as i32)),
            None if kind == Mode::Affine.as_str() => (Mode::Affine, None, None),
            None => return Err(unreadable(&format!("names the unknown format {kind}"))),
        };
        let group = number("group_size").or(group);
        let group = group.ok_or_else(|| unreadable("gives no group_size"))?;
        // The packed width tells the bits: of 32-bit words for each group's elements.
        let columns = scales.last() * group;
        let packed = weight.last().checked_mul(32).filter(|_| columns > 0);
        let packed = packed.map(|all| all / columns);
        let bits = number("bits").or(bits).or(packed);
        let bits = bits.ok_or_else(|| unreadable("gives no bits"))?;
        if packed != Some(bits) {
            return Err(unreadable(&format!(
                "says {bits} bits in groups of {group}, which do not fit the tensor"
            )));
        }
        let biases = beside(BIAS);
        if (mode == Mode::Affine) != biases.is_some() {
            return Err(unreadable("and the biases that are there do not fit each other"));
        }
        let global_scale = beside(GLOBAL_SCALE);
        let packing = Packing { mode, bits, group };
        let quantized = QuantizedTensor { weight, scales, biases, global_scale, packing };
        Ok(Some(Weight::Quantized(Box::new(quantized))))
    }
}
