//! A folder for mlx-lm: `<module>.weight`, `.scales`, `.biases`, and in `config.json` how each is
//! quantized.

use std::fs;
use std::path::Path;

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::shards::{self, Piece};
use super::{Exported, names};
use crate::companion;
use crate::fault::{Code, Fault, Faults, Warning};
use crate::format::Format;
use crate::plan::DRAFT_PREFIX;
use crate::store::{Manifest, Store, Weight, media};

/// mlx-lm's words for the companions.
const MLX_COMPANIONS: [&str; 2] = [".scales", ".biases"];

/// Writes the files of the folder.
pub fn write(
    store: &Store,
    manifest: &Manifest,
    dir: &Path,
    progress: &dyn Fn(u64),
) -> Result<Exported, Faults> {
    let mut exported = Exported::default();
    let mut weights = store.weights(manifest)?;
    let all = weights.len();
    weights.retain(|weight| !weight.name.starts_with(DRAFT_PREFIX));
    if weights.len() < all {
        let message = "the draft is left out: mlx-lm takes it as a folder of its own";
        exported.warnings.push(Warning::new(Code::Unsupported, message));
    }
    let pieces = pieces(store, &weights)?;
    let (files, bytes) = shards::write(&pieces, dir, shards::LARGEST, progress)?;
    exported.files += files;
    exported.bytes += bytes;
    for layer in &manifest.layers {
        let is_file = matches!(layer.media_type.as_str(), media::JSON | media::FILE);
        let Some(name) = layer.name.as_deref().filter(|_| is_file) else { continue };
        if name.starts_with("draft/") || !is_plain(name) {
            continue;
        }
        let mut content = store.read_blob(layer)?;
        if name == "config.json" {
            content = config(&content, &weights)?;
        }
        let path = dir.join(name);
        fs::write(&path, &content).map_err(|error| Fault::io("write", &path, &error))?;
        exported.files += 1;
        exported.bytes += content.len() as u64;
    }
    Ok(exported)
}

/// Whether a name from a manifest stays inside the folder.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!(parts.next(), Some(std::path::Component::Normal(_))) && parts.next().is_none()
}

/// All tensors under mlx-lm's names.
fn pieces(store: &Store, weights: &[Weight]) -> Result<Vec<Piece>, Faults> {
    let mut faults = Faults::default();
    let mut pieces = Vec::new();
    for weight in weights {
        for part in &weight.parts {
            let suffix = &part.name[weight.name.len()..];
            let companion = companion::ALL.iter().position(|companion| *companion == suffix);
            let name = match companion {
                None if weight.format.is_none() => names::plain(&weight.name),
                None => format!("{}.weight", names::module(&weight.name)),
                Some(i) if i < MLX_COMPANIONS.len() => {
                    format!("{}{}", names::module(&weight.name), MLX_COMPANIONS[i])
                }
                Some(_) => {
                    faults.push(
                        Fault::new(Code::Unsupported, "mlx-lm cannot read global scales")
                            .on_tensor(&weight.name)
                            .help("create the model with -q nvfp4 --requantize, then export that"),
                    );
                    continue;
                }
            };
            let blob = store.blob_path(&weight.layer.digest);
            pieces.push(Piece { name, blob, tensor: part.clone() });
        }
    }
    faults.or(pieces)
}

/// The config with mlx-lm's `quantization`: the commonest format for all, the others by module.
fn config(text: &[u8], weights: &[Weight]) -> Result<Vec<u8>, Fault> {
    let bad =
        |why: &dyn std::fmt::Display| Fault::new(Code::BadConfig, format!("config.json: {why}"));
    let strict: Result<Map<String, Value>, _> = serde_json::from_slice(text);
    let mut config = match strict {
        Ok(config) => config,
        // NaN and comments occur in the wild.
        Err(_) => {
            let text = std::str::from_utf8(text).map_err(|error| bad(&error))?;
            json5::from_str(text).map_err(|error| bad(&error))?
        }
    };
    // What a producer said of its own layout is not true of ours.
    config.remove("quantization_config");
    config.remove("quantization");
    if let Some(quantization) = quantization(weights) {
        config.insert("quantization".into(), quantization.clone());
        config.insert("quantization_config".into(), quantization);
    }
    serde_json::to_vec_pretty(&config).map_err(|error| bad(&error))
}

fn quantization(weights: &[Weight]) -> Option<Value> {
    let mut elements = IndexMap::<&str, (&Format, u64)>::new();
    for weight in weights {
        if let Some(format) = weight.format {
            elements.entry(&format.name).or_insert((format, 0)).1 += weight.elements();
        }
    }
    let (common, _) = elements.values().max_by_key(|(_, elements)| *elements)?;
    let mut quantization = of(common);
    for weight in weights {
        if let Some(format) = weight.format.filter(|format| format.name != common.name) {
            quantization.insert(names::module(&weight.name), of(format).into());
        }
    }
    Some(quantization.into())
}

fn of(format: &Format) -> Map<String, Value> {
    let Format { group, bits, mode, .. } = format;
    let object = json!({"group_size": group, "bits": bits, "mode": mode.as_str()});
    object.as_object().cloned().unwrap_or_default()
}
