//! The safetensors form of a blob: its header, and so every size, before a weight is read.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::kernels::Float;
use crate::companion::{BIAS, SCALE};
use crate::dtype::Dtype;
use crate::fault::{Code, Fault};
use crate::format::Formats;
use crate::plan::{Blob, Op, Tensor};

/// A tensor as it stands in a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// dtype.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Vec<u64>,
}

impl Entry {
    fn size(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.dtype.bytes()
    }
}

/// What a planned tensor becomes in its blob: itself, or packed weight, scales and biases.
pub fn entries(tensor: &Tensor) -> Result<Vec<Entry>, Fault> {
    let entry = |suffix: &str, dtype: Dtype, shape: Vec<u64>| Entry {
        name: format!("{}{suffix}", tensor.name),
        dtype,
        shape,
    };
    let Some(Op::Quantize { format }) = tensor.ops.last() else {
        return Ok(vec![entry("", tensor.dtype, tensor.shape.clone())]);
    };
    let format = Formats::built_in().get(format).ok_or_else(|| {
        Fault::new(Code::UnknownFormat, format!("unknown format \"{format}\""))
            .on_tensor(&tensor.name)
    })?;
    let from = tensor.dtype.quantized_from();
    // An empty or odd result is an error here, before anything is written.
    if !format.fits(&tensor.shape) || tensor.shape.contains(&0) || Float::try_from(from).is_err() {
        let what = format!("{} does not fit {} {:?}", format.name, tensor.dtype, tensor.shape);
        return Err(Fault::new(Code::Compute, what).on_tensor(&tensor.name));
    }
    let scale = format.scale_dtype(from);
    let mut entries = vec![
        entry("", Dtype::U32, format.packed_shape(&tensor.shape)),
        entry(SCALE, scale, format.scale_shape(&tensor.shape)),
    ];
    if format.has_bias() {
        entries.push(entry(BIAS, scale, format.scale_shape(&tensor.shape)));
    }
    Ok(entries)
}

/// The bytes before the data: the header's length, and the header, padded with spaces so that the
/// data begin at a multiple of 8. Data stand in the plan's order. Keys are sorted by bytes, those of
/// the metadata too, and texts are escaped as Go does, so that a blob that Ollama's importer makes of
/// the same tensors is the same blob.
pub fn header(blob: &Blob) -> Result<Vec<u8>, Fault> {
    let mut keys: BTreeMap<String, Value> = BTreeMap::new();
    if !blob.metadata.is_empty() {
        let metadata: BTreeMap<_, _> = blob.metadata.iter().collect();
        keys.insert("__metadata__".into(), json!(metadata));
    }
    let mut at = 0;
    for entry in entries_of(blob)? {
        let end = at + entry.size();
        let value = json!({
            "dtype": entry.dtype.as_str(),
            "shape": entry.shape,
            "data_offsets": [at, end],
        });
        if keys.insert(entry.name.clone(), value).is_some() {
            let what = format!("two tensors of blob {} have one name", blob.name);
            return Err(Fault::new(Code::NameCollision, what).on_tensor(entry.name));
        }
        at = end;
    }
    let mut text = escaped_for_html(&json!(keys).to_string()).into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let length = text.len() as u64;
    Ok([length.to_le_bytes().as_slice(), &text].concat())
}

/// JSON with what Go's `encoding/json` escapes besides. These letters stand in texts only.
fn escaped_for_html(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            other => out.push(other),
        }
    }
    out
}

/// Size of the blob's file.
pub fn size(blob: &Blob) -> Result<u64, Fault> {
    let data: u64 = entries_of(blob)?.iter().map(Entry::size).sum();
    Ok(header(blob)?.len() as u64 + data)
}

fn entries_of(blob: &Blob) -> Result<Vec<Entry>, Fault> {
    let mut all = Vec::new();
    for tensor in &blob.tensors {
        all.extend(entries(tensor)?);
    }
    Ok(all)
}
