//! What is inside a model's tensor blobs: their headers, read without their data.
//!
//! A quantized tensor `<t>` lies beside its [companions](crate::companion); the blob's metadata
//! names the format. This file puts those together again into [`Weight`]s.

use std::io;
use std::path::Path;

use indexmap::IndexMap;

use super::{CREATE_AGAIN, Config, Layer, Manifest, Store, media, store_fault};
use crate::companion;
use crate::dtype::Dtype;
use crate::fault::{Code, Fault, Faults};
use crate::format::{Format, Formats};
use crate::header::{Header, Tensor};

/// A weight of a model: one tensor, or a quantized one with its companions.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Its name, as in the source.
    pub name: String,
    /// The format it is quantized to; `None` at source precision.
    pub format: Option<&'static Format>,
    /// dtype of the values: that of the scales for what has scales in a float dtype, BF16 for the
    /// formats whose scales are bytes.
    pub dtype: Dtype,
    /// Logical shape, unpacked.
    pub shape: Vec<u64>,
    /// The blob it is in.
    pub layer: Layer,
    /// Its tensors, the weight itself first.
    pub parts: Vec<Tensor>,
}

impl Weight {
    /// Bytes of the weight and its companions.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.range.end - part.range.start).sum()
    }

    /// Elements, unpacked.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Name of the format, `source` for what is not quantized.
    pub fn format_name(&self) -> &str {
        self.format.map_or(crate::format::SOURCE, |format| &format.name)
    }
}

/// The format of a model whose config is `config`: nothing where nothing is quantized, whatever was
/// asked for when it was made.
pub fn told_format<'c>(config: &'c Config, weights: &[Weight]) -> &'c str {
    match weights.iter().any(|weight| weight.format.is_some()) {
        true => &config.file_type,
        false => "",
    }
}

/// Bits that a weight takes on average, scales and biases included; `None` where there are none.
pub fn bits_per_weight(weights: &[Weight]) -> Option<f64> {
    let elements: u64 = weights.iter().map(Weight::elements).sum();
    let bytes: u64 = weights.iter().map(Weight::bytes).sum();
    (elements > 0).then(|| bytes as f64 * 8.0 / elements as f64)
}

impl Store {
    /// All weights of a model, in the order of the manifest. Only headers are read.
    pub fn weights(&self, manifest: &Manifest) -> Result<Vec<Weight>, Faults> {
        let mut faults = Faults::default();
        let mut weights = Vec::new();
        for layer in manifest.of_type(media::TENSOR) {
            let read = self.blob_weights(layer).map_err(|why| match why {
                Wrong::File(fault) => fault,
                Wrong::Content(why) => {
                    let name = layer.name.as_deref().unwrap_or("?");
                    Fault::new(
                        Code::CorruptBlob,
                        format!("blob {} is damaged: {why}", layer.digest),
                    )
                    .on_tensor(name)
                    .help(CREATE_AGAIN)
                }
            });
            match read {
                Ok(more) => weights.extend(more),
                Err(fault) => faults.push(fault),
            }
        }
        faults.or(weights)
    }

    fn blob_weights(&self, layer: &Layer) -> Result<Vec<Weight>, Wrong> {
        let path = self.blob_path(&layer.digest);
        let Header { tensors, metadata, .. } = read_header(&path, layer)?;
        let mut tensors: IndexMap<String, Tensor> =
            tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        let packed = |name: &str| {
            let tensor =
                tensors.get(name).filter(|_| told(&metadata, name, "quant_type").is_some());
            tensor.map(|tensor| tensor.dtype)
        };
        let names: Vec<String> = tensors
            .keys()
            .filter(|name| companion::base_of(name, packed).is_none())
            .cloned()
            .collect();
        let mut weights = Vec::new();
        for name in &names {
            let mut parts = vec![];
            parts.extend(tensors.swap_remove(name));
            if parts.iter().any(|part| part.dtype == Dtype::U32) {
                let companions = companion::ALL.map(|suffix| format!("{name}{suffix}"));
                parts.extend(companions.iter().filter_map(|name| tensors.swap_remove(name)));
            }
            weights.push(weight(name, layer, parts, &metadata)?);
        }
        Ok(weights)
    }
}

/// What is wrong with a blob.
enum Wrong {
    /// It cannot be read.
    File(Fault),
    /// It does not make sense.
    Content(String),
}

impl From<String> for Wrong {
    fn from(why: String) -> Wrong {
        Wrong::Content(why)
    }
}

type Metadata = IndexMap<String, String>;

fn weight(
    name: &str,
    layer: &Layer,
    parts: Vec<Tensor>,
    metadata: &Metadata,
) -> Result<Weight, Wrong> {
    let (stored, layer) = (&parts[0], layer.clone());
    let scale = parts[1..].iter().find(|part| part.name[name.len()..] == *companion::SCALE);
    let (format, dtype, shape) = match scale {
        None => (None, stored.dtype, stored.shape.clone()),
        Some(scale) => {
            let format = format_of(name, metadata)?;
            let shape = unpacked(format, &stored.shape);
            if format.packed_shape(&shape) != stored.shape
                || format.scale_shape(&shape) != scale.shape
            {
                let [weight, scale] = [&stored.shape, &scale.shape];
                let format = &format.name;
                return Err(format!("{weight:?} with scales {scale:?} is not {format}").into());
            }
            let dtype = if format.has_bias() { scale.dtype } else { Dtype::BF16 };
            (Some(format), dtype, shape)
        }
    };
    Ok(Weight { name: name.into(), format, dtype, shape, layer, parts })
}

/// What the metadata tells of a tensor: for it alone, or for the whole blob.
fn told<'m>(metadata: &'m Metadata, name: &str, key: &str) -> Option<&'m String> {
    metadata.get(&format!("{name}.{key}")).or_else(|| metadata.get(key))
}

/// The format that the metadata names.
fn format_of(name: &str, metadata: &Metadata) -> Result<&'static Format, String> {
    let get = |key: &str| told(metadata, name, key);
    let kind = get("quant_type").ok_or_else(|| format!("{name} has scales and no quant_type"))?;
    let number = |key: &str| get(key).and_then(|text| text.parse::<u64>().ok());
    let (bits, group) = (number("bits"), number("group_size"));
    Formats::built_in().labelled(kind, bits, group).ok_or_else(|| {
        let told = |name, value: Option<u64>| value.map(|value| format!(", {name} {value}"));
        let told = [told("bits", bits), told("groups of", group)].into_iter().flatten();
        format!("{name} has the unknown quant_type {kind}{}", told.collect::<String>())
    })
}

/// The logical shape of a packed weight.
fn unpacked(format: &Format, packed: &[u64]) -> Vec<u64> {
    let mut shape = packed.to_vec();
    if let Some(last) = shape.last_mut() {
        *last = last.saturating_mul(32) / u64::from(format.bits);
    }
    shape
}

/// The header of a tensor blob.
fn read_header(path: &Path, layer: &Layer) -> Result<Header, Wrong> {
    let read =
        Header::read(path, &layer.digest.to_string()).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Wrong::File(super::missing_blob(&layer.digest)),
            _ => Wrong::File(store_fault("read", path, &error)),
        })?;
    // One fault tells enough: the blob is written again as a whole.
    let first = |faults: Faults| faults.0.into_iter().next().map(|fault| fault.message);
    read.map_err(|faults| Wrong::Content(first(faults).unwrap_or_default()))
}
