//! A safetensors file, mapped: arrays are copied out of it when they are asked for.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use mlx_rs::{Array, Dtype as MlxDtype};
use serde::Deserialize;

use crate::dtype::Dtype;
use crate::fault::{Code, Fault};

/// A mapped safetensors file.
pub struct File {
    path: PathBuf,
    map: Mmap,
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
        let map = map.map_err(|error| Fault::io("map", path, &error))?;
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

    /// A tensor, copied; `None` when the file has none of that name.
    pub fn array(&self, name: &str) -> Result<Option<Array>, Fault> {
        let Some(entry) = self.tensors.get(name) else { return Ok(None) };
        let Some(dtype) = mlx_dtype(entry.dtype) else {
            let message = format!("MLX has no {}", entry.dtype);
            let fault = Fault::new(Code::UnknownDtype, message).in_file(&self.path);
            return Err(fault.on_tensor(name));
        };
        let bytes = &self.map[entry.bytes.clone()];
        let aligned;
        let start = if bytes.as_ptr().align_offset(8) == 0 {
            bytes.as_ptr()
        } else {
            // MLX reads whole elements: give it an aligned copy.
            aligned = bytes
                .chunks(8)
                .map(|chunk| {
                    let mut word = [0; 8];
                    word[..chunk.len()].copy_from_slice(chunk);
                    u64::from_ne_bytes(word)
                })
                .collect::<Vec<u64>>();
            aligned.as_ptr().cast()
        };
        // SAFETY: `start` is aligned for any element and holds the bytes of `shape`, as checked
        // when the file was opened; MLX copies them before this returns.
        let array = unsafe { Array::from_raw_data(start.cast(), &entry.shape, dtype) };
        Ok(Some(array))
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn mlx_dtype(dtype: Dtype) -> Option<MlxDtype> {
    Some(match dtype {
        Dtype::Bool => MlxDtype::Bool,
        Dtype::U8 | Dtype::F8E8M0 | Dtype::F8E4M3 => MlxDtype::Uint8,
        Dtype::I8 => MlxDtype::Int8,
        Dtype::I16 => MlxDtype::Int16,
        Dtype::U16 => MlxDtype::Uint16,
        Dtype::F16 => MlxDtype::Float16,
        Dtype::BF16 => MlxDtype::Bfloat16,
        Dtype::I32 => MlxDtype::Int32,
        Dtype::U32 => MlxDtype::Uint32,
        Dtype::F32 => MlxDtype::Float32,
        Dtype::I64 => MlxDtype::Int64,
        Dtype::U64 => MlxDtype::Uint64,
        Dtype::F64 | Dtype::F8E5M2 | Dtype::F8E4M3Fnuz | Dtype::F8E5M2Fnuz => return None,
    })
}
