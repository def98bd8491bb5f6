//! A safetensors file, mapped.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use indexmap::IndexMap;
use memmap2::Mmap;

use super::Tensor;
use crate::dtype::Dtype;
use crate::fault::{Code, Fault, Faults};
use crate::header::{self, Header};

/// A mapped safetensors file.
pub struct File {
    path: PathBuf,
    map: Bytes,
    /// The header's `__metadata__`.
    pub metadata: IndexMap<String, String>,
    tensors: HashMap<String, Entry>,
}

struct Entry {
    dtype: Dtype,
    shape: Vec<i32>,
    bytes: Range<usize>,
}

impl File {
    /// Maps a file and reads its header.
    pub fn open(path: &Path) -> Result<File, Fault> {
        let file = fs::File::open(path).map_err(|error| Fault::io("open", path, &error))?;
        // SAFETY: blobs are written once, under the name of their content, and never changed;
        // a folder's files are only read by tests and checks. A file cut short while it is
        // mapped would end the process, as with any reader that maps.
        let map = unsafe { Mmap::map(&file) };
        let map = Bytes::from_owner(map.map_err(|error| Fault::io("map", path, &error))?);
        let header = Header::of(&map, &path.display().to_string());
        // One fault tells enough: the file is fetched or written again as a whole.
        let first = |faults: Faults| faults.0.into_iter().next();
        let header = header.map_err(|faults| {
            first(faults).unwrap_or_else(|| Fault::new(Code::BadHeader, "its header").in_file(path))
        })?;
        let entry = |tensor: header::Tensor| {
            // What is mapped fits into memory's numbers, and the header's checks bound each axis.
            let shape = tensor.shape.iter().map(|&axis| axis as i32).collect();
            let bytes = tensor.range.start as usize..tensor.range.end as usize;
            (tensor.name, Entry { dtype: tensor.dtype, shape, bytes })
        };
        let tensors = header.tensors.into_iter().map(entry).collect();
        let metadata = header.metadata;
        Ok(File { path: path.into(), map, metadata, tensors })
    }

    /// Its tensors' names.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys()
    }

    /// The dtype of a tensor; `None` when the file has none of that name.
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        self.tensors.get(name).map(|entry| entry.dtype)
    }

    /// A tensor; `None` when the file has none of that name. It keeps the file mapped.
    pub fn tensor(&self, name: &str) -> Option<Tensor> {
        let Entry { dtype, shape, bytes } = self.tensors.get(name)?;
        Some(Tensor { dtype: *dtype, shape: shape.clone(), bytes: self.map.slice(bytes.clone()) })
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
