//! A safetensors file, mapped.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use memmap2::Mmap;
use serde::Deserialize;

use super::Tensor;
use crate::dtype::Dtype;
use crate::fault::{Code, Fault};

/// A mapped safetensors file.
pub struct File {
    path: PathBuf,
    map: Bytes,
    /// The header's `__metadata__`.
    pub metadata: HashMap<String, String>,
    tensors: HashMap<String, Entry>,
}

struct Entry {
    dtype: Dtype,
    shape: Vec<i32>,
    bytes: Range<usize>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum HeaderValue {
    Tensor { dtype: Dtype, shape: Vec<i32>, data_offsets: (usize, usize) },
    Metadata(HashMap<String, String>),
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
        let bad = |message: &str| Fault::new(Code::BadHeader, message).in_file(path);
        let length: [u8; 8] = map
            .get(..8)
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or_else(|| bad("the file is too short for a safetensors header"))?;
        let data = usize::try_from(u64::from_le_bytes(length))
            .ok()
            .and_then(|length| length.checked_add(8))
            .filter(|&end| end <= map.len())
            .ok_or_else(|| bad("the header is longer than the file"))?;
        let header: HashMap<String, HeaderValue> = serde_json::from_slice(&map[8..data])
            .map_err(|error| bad(&format!("the header is invalid: {error}")))?;
        let (mut metadata, mut tensors) = (HashMap::new(), HashMap::new());
        for (name, value) in header {
            match value {
                HeaderValue::Metadata(values) => metadata = values,
                HeaderValue::Tensor { dtype, shape, data_offsets: (from, to) } => {
                    let bytes = data.saturating_add(from)..data.saturating_add(to);
                    let elements: i64 = shape.iter().map(|&size| i64::from(size)).product();
                    let wanted = elements.checked_mul(dtype.bytes() as i64);
                    let found = i64::try_from(bytes.len()).ok();
                    if bytes.end > map.len() || bytes.start > bytes.end || wanted != found {
                        let message = "its bytes do not fit its shape and file";
                        return Err(Fault::new(Code::BadTensor, message)
                            .in_file(path)
                            .on_tensor(name));
                    }
                    tensors.insert(name, Entry { dtype, shape, bytes });
                }
            }
        }
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
