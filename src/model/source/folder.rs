//! A folder as it was downloaded, not quantized: for checking a description against the model
//! that it describes, before anything is created from it.
//!
//! Tensors of single experts are stacked as they are read, as `create` does it once.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use bytes::BytesMut;

use super::file::File;
use super::{Tensor, TensorSource, Weight};
use crate::fault::{Code, Fault, Faults};

/// A folder of safetensors files.
pub struct Folder {
    files: Vec<File>,
    tensors: HashMap<String, Place>,
}

enum Place {
    In(usize),
    /// The experts' tensors, by number.
    Stacked(BTreeMap<u32, (usize, String)>),
}

impl Folder {
    /// Opens all `model*.safetensors` of a folder; `experts` is the segment of names under which
    /// single experts stand by number.
    pub fn open(folder: &Path, experts: &str) -> Result<Folder, Faults> {
        let entries = std::fs::read_dir(folder)
            .map_err(|error| Faults::from(Fault::io("list", folder, &error)))?;
        let mut paths: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
                name.starts_with("model") && name.ends_with(".safetensors")
            })
            .collect();
        paths.sort();
        let (mut files, mut faults) = (Vec::new(), Faults::default());
        for path in paths {
            match File::open(&path) {
                Ok(file) => files.push(file),
                Err(fault) => faults.push(fault),
            }
        }
        if files.is_empty() && faults.0.is_empty() {
            let message = "the folder has no model*.safetensors";
            faults.push(Fault::new(Code::NoWeights, message).in_file(folder));
        }
        let mut tensors = HashMap::new();
        for (index, file) in files.iter().enumerate() {
            for name in file.names() {
                let Some((group, expert, rest)) = expert_of(name, experts) else {
                    tensors.insert(name.clone(), Place::In(index));
                    continue;
                };
                let stacked = format!("{group}.{rest}");
                let place = tensors.entry(stacked);
                let place = place.or_insert_with(|| Place::Stacked(BTreeMap::new()));
                if let Place::Stacked(experts) = place {
                    experts.insert(expert, (index, name.clone()));
                }
            }
        }
        faults.or(Folder { files, tensors })
    }
}

/// `….{group}.3.rest` as (`….{group}`, 3, `rest`).
fn expert_of(name: &str, group: &str) -> Option<(String, u32, String)> {
    let segments: Vec<&str> = name.split('.').collect();
    let at = segments.iter().position(|segment| *segment == group)?;
    let expert = segments.get(at + 1)?.parse().ok()?;
    Some((segments[..=at].join("."), expert, segments[at + 2..].join(".")))
}

impl TensorSource for Folder {
    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn tensor(&self, name: &str) -> Result<Option<Weight>, Fault> {
        match self.tensors.get(name) {
            None => Ok(None),
            Some(Place::In(index)) => Ok(self.files[*index].tensor(name).map(Weight::Float)),
            Some(Place::Stacked(experts)) => self.stacked(experts).map(Some),
        }
    }
}

impl Folder {
    fn stacked(&self, experts: &BTreeMap<u32, (usize, String)>) -> Result<Weight, Fault> {
        let mut all: Option<(Tensor, BytesMut)> = None;
        for (position, (expert, (index, name))) in experts.iter().enumerate() {
            let tensor = self.files[*index].tensor(name);
            let Some(tensor) = tensor.filter(|_| *expert as usize == position) else {
                let message = format!("expert {position} of its group is missing");
                return Err(Fault::new(Code::BadExperts, message).on_tensor(name));
            };
            let (first, bytes) = all.get_or_insert_with(|| (tensor.clone(), BytesMut::new()));
            if (first.dtype, &first.shape) != (tensor.dtype, &tensor.shape) {
                let message = format!(
                    "is {} {:?} where the first expert's is {} {:?}",
                    tensor.dtype, tensor.shape, first.dtype, first.shape
                );
                return Err(Fault::new(Code::BadExperts, message).on_tensor(name));
            }
            bytes.extend_from_slice(&tensor.bytes);
        }
        let (Tensor { dtype, mut shape, .. }, bytes) =
            all.ok_or_else(|| Fault::new(Code::BadExperts, "a group has no experts"))?;
        shape.insert(0, experts.len() as i32);
        Ok(Weight::Float(Tensor { dtype, shape, bytes: bytes.freeze() }))
    }
}
