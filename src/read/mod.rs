//! read: a source folder in, an [`Inventory`] out.
//!
//! Only headers are read, never weights. What leaves this room is known to be whole: every header
//! is valid, every range lies in its file, every indexed tensor is there. Faults are reported all
//! at once, each naming its file and tensor.

mod described;
mod lenient;
mod mistaken;
mod shards;
mod side;
mod values;

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::dtype::Dtype;
use crate::fault::{Code, Fault, Faults, Warning};
use crate::header::{Header, Tensor, shorten};

pub use described::Described;
pub use shards::INDEX;
pub use side::chat_templates;
pub use values::Values;

/// The config of a model folder.
pub const CONFIG: &str = "config.json";

/// All that is known of a model folder without reading a weight.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// The folder (or the inventory file it was described by).
    pub dir: PathBuf,
    /// `config.json`, read leniently (NaN, Infinity, comments, trailing commas).
    pub config: Value,
    /// The safetensors files that hold the weights, in the order in which they are read.
    pub shards: Vec<Shard>,
    /// Every tensor, sorted by name.
    pub tensors: Vec<TensorInfo>,
    /// Every other file of the folder that a model may carry, by name, sorted.
    pub files: Vec<SideFile>,
    /// The chat template, from `chat_template.jinja` or `tokenizer_config.json`.
    pub chat_template: Option<String>,
    /// The producer's claims beside the config (`hf_quant_config.json` and the like), when there.
    pub quant_config: Option<Value>,
    /// Whose arrays the files' metadata say they hold (`pt`, `mlx`), each once.
    pub formats: BTreeSet<String>,
    /// SHA-256 over names, dtypes, shapes and files: what a plan is checked against.
    pub digest: String,
    /// What the reader should know: strays that were passed over, what was taken.
    pub warnings: Vec<Warning>,
}

impl Inventory {
    /// Whether there are weights to read: not so for an inventory file.
    pub fn has_weights(&self) -> bool {
        self.shards.iter().all(|shard| shard.modified.is_some())
    }
}

/// A safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// File name, relative to the folder.
    pub name: Arc<str>,
    /// Size in bytes.
    pub size: u64,
    /// Modification time, to notice a source that changes while it is read; `None` for an
    /// inventory file, which has no weights.
    pub modified: Option<std::time::SystemTime>,
}

/// A file that is not weights: JSON, templates, vocabularies, licences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideFile {
    /// File name, relative to the folder.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
}

/// A tensor in a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, as in the header.
    pub name: String,
    /// Its dtype.
    pub dtype: Dtype,
    /// Its shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Index into [`Inventory::shards`].
    pub shard: u32,
    /// Bytes in the file, from its start (the header included).
    pub range: Range<u64>,
}

impl TensorInfo {
    /// Number of elements (1 for a scalar).
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.elements() * self.dtype.bytes()
    }
}

/// Reads JSON as leniently as that of model folders.
///
/// # Errors
/// Not JSON even leniently; the fault points at the place.
pub fn parse_json<T: serde::de::DeserializeOwned>(name: &str, text: String) -> Result<T, Fault> {
    lenient::parse(name, text, &mut Vec::new())
}

/// Reads a model folder, or an inventory file that describes one.
///
/// # Errors
/// As [`folder`] and [`described`], each fault with the path from where the user stands: a target
/// and its draft both have a `config.json`.
pub fn source(path: &Path) -> Result<Inventory, Faults> {
    if path.is_file() {
        return match mistaken::file(path) {
            Some(fault) => Err(fault.into()),
            None => described::read(path),
        };
    }
    folder(path).map_err(|faults| {
        Faults(faults.0.into_iter().map(|fault| from_outside(path, fault)).collect())
    })
}

/// The fault with the path of its file instead of the name in the folder.
fn from_outside(dir: &Path, fault: Fault) -> Fault {
    let file = match &fault.file {
        None => dir.to_path_buf(),
        Some(file) if file.starts_with(dir) => file.clone(),
        Some(file) => dir.join(file),
    };
    Fault { file: Some(file), ..fault }
}

/// Reads a model folder: its config, the headers of its weights and its side files.
///
/// # Errors
/// All faults of the folder at once, each naming its file and, where it is about one, the tensor.
pub fn folder(dir: &Path) -> Result<Inventory, Faults> {
    let names = list(dir)?;
    if names.contains("model_index.json") {
        let message = "an image-generation folder (diffusers), which is out of scope";
        return Err(Fault::new(Code::ImageModel, message)
            .in_file(dir.join("model_index.json"))
            .help("lathe makes language models; give it a folder with a config.json of one")
            .into());
    }
    if let Some(fault) = mistaken::not_downloaded(dir, &names) {
        return Err(fault.into());
    }
    if !names.contains(CONFIG) {
        return Err(mistaken::folder(dir, &names).into());
    }
    let mut faults = Faults::default();
    let mut warnings = Vec::new();
    let config = faults.absorb(config(dir, &mut warnings));
    let side = faults.absorb(side::read(dir, &mut warnings)).unwrap_or_default();
    let chosen = faults.absorb(shards::choose(dir, &names, &mut warnings));
    let (shards, tensors, formats) = match &chosen {
        Some(chosen) => weights(dir, chosen, &mut faults, &mut warnings),
        None => Default::default(),
    };
    let files = names.into_iter().filter(|name| side::travels(name)).filter_map(|name| {
        let size = std::fs::metadata(dir.join(&name)).ok()?.len();
        Some(SideFile { name, size })
    });
    let inventory = Inventory {
        dir: dir.to_path_buf(),
        config: config.unwrap_or_default(),
        digest: digest(&shards, &tensors),
        shards,
        tensors,
        files: files.collect(),
        chat_template: side.chat_template,
        quant_config: side.quant_config,
        formats,
        warnings,
    };
    faults.or(inventory)
}

/// Names of the files in a folder.
fn list(dir: &Path) -> Result<BTreeSet<String>, Fault> {
    let fault = |error: &std::io::Error| {
        let (message, help) = match error.kind() {
            std::io::ErrorKind::NotFound => ("no such folder".to_string(), "check the path"),
            std::io::ErrorKind::NotADirectory => {
                ("not a folder".to_string(), "give the folder that holds config.json")
            }
            _ => (format!("the folder cannot be listed: {error}"), "check its permissions"),
        };
        Fault::new(Code::NoSuchFolder, message).in_file(dir).help(help)
    };
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(dir).map_err(|error| fault(&error))? {
        let entry = entry.map_err(|error| fault(&error))?;
        // Downloads are often links into a cache: what counts is what they lead to.
        if let (Ok(name), true) = (entry.file_name().into_string(), entry.path().is_file()) {
            names.insert(name);
        }
    }
    Ok(names)
}

fn config(dir: &Path, warnings: &mut Vec<Warning>) -> Result<Value, Faults> {
    let config: Option<Value> = lenient::file(dir, CONFIG, warnings)?;
    match config {
        None => Err(Fault::new(Code::NoConfig, "it vanished while the folder was read")
            .in_file(CONFIG)
            .into()),
        Some(config) if config.is_object() => Ok(config),
        Some(_) => Err(Fault::new(Code::BadConfig, "config.json is not an object")
            .in_file(CONFIG)
            .help("download it again")
            .into()),
    }
}

/// Reads the headers, and compares them with each other and with the index.
fn weights(
    dir: &Path,
    chosen: &shards::Chosen,
    faults: &mut Faults,
    warnings: &mut Vec<Warning>,
) -> (Vec<Shard>, Vec<TensorInfo>, BTreeSet<String>) {
    let headers: Vec<_> = (chosen.files.par_iter().enumerate())
        .map(|(shard, name)| (shard as u32, header_of(&dir.join(name), name)))
        .collect();
    let whole = headers.iter().all(|(_, header)| header.is_ok());
    let mut shards = Vec::new();
    let mut tensors = Vec::new();
    let mut formats = BTreeSet::new();
    for (name, (shard, header)) in chosen.files.iter().zip(headers) {
        let Some(mut header) = faults.absorb(header) else { continue };
        let format = header.metadata.swap_remove("format");
        formats.extend(format.map(|format| shorten(&format)));
        let modified = std::fs::metadata(dir.join(name)).and_then(|found| found.modified()).ok();
        shards.push(Shard { name: name.as_str().into(), size: header.size, modified });
        let info =
            |Tensor { name, dtype, shape, range }| TensorInfo { name, dtype, shape, shard, range };
        tensors.extend(header.tensors.into_iter().map(info));
    }
    if !whole {
        return (Vec::new(), Vec::new(), formats);
    }
    sort(&shards, &mut tensors, faults);
    if let Some(index) = &chosen.index {
        compare(index, &shards, &tensors, faults, warnings);
    }
    if tensors.is_empty() && faults.0.is_empty() {
        let fault = Fault::new(Code::NoWeights, "the weight files hold no tensor").in_file(dir);
        faults.push(fault.help("download them again"));
    }
    (shards, tensors, formats)
}

/// The header of a shard, or what the file is instead.
fn header_of(path: &Path, name: &str) -> Result<Header, Faults> {
    let read = Header::read(path, name).map_err(|error| Fault::io("read", path, &error))?;
    read.map_err(|faults| match mistaken::content(path) {
        Some((what, help)) => Fault::new(Code::BadHeader, what).in_file(name).help(help).into(),
        None => faults,
    })
}

/// Sorts by name, and reports names that stand in two shards.
fn sort(shards: &[Shard], tensors: &mut [TensorInfo], faults: &mut Faults) {
    tensors.par_sort_by(|a, b| a.name.cmp(&b.name).then(a.shard.cmp(&b.shard)));
    for pair in tensors.windows(2) {
        if pair[0].name == pair[1].name {
            let files = [0, 1].map(|n| &shards[pair[n].shard as usize].name);
            let message = format!("the tensor is in {} and in {}", files[0], files[1]);
            faults.push(
                Fault::new(Code::DuplicateTensor, message)
                    .in_file(&**files[1])
                    .on_tensor(pair[0].name.clone())
                    .help("one of the files belongs to another download: remove it"),
            );
        }
    }
}

/// Holds the index against the headers.
fn compare(
    index: &HashMap<String, Arc<str>>,
    shards: &[Shard],
    tensors: &[TensorInfo],
    faults: &mut Faults,
    warnings: &mut Vec<Warning>,
) {
    let mut unlisted = Vec::new();
    let mut seen = 0;
    for tensor in tensors {
        let file = &shards[tensor.shard as usize].name;
        match index.get(&tensor.name) {
            None => unlisted.push(&tensor.name),
            Some(told) => {
                seen += 1;
                if told != file {
                    let message = format!("the index puts it in {told}, but it is in {file}");
                    let fault = Fault::new(Code::BadIndex, message).in_file(INDEX);
                    faults.push(fault.on_tensor(tensor.name.clone()).help("download both again"));
                }
            }
        }
    }
    if seen < index.len() {
        let found: BTreeSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let mut lost: Vec<_> =
            index.iter().filter(|(name, _)| !found.contains(name.as_str())).collect();
        lost.sort();
        for (name, file) in lost {
            let message = format!("the index puts it in {file}, which does not have it");
            let fault = Fault::new(Code::BadIndex, message).in_file(INDEX);
            faults.push(fault.on_tensor(name.clone()).help("download the file again"));
        }
    }
    if let Some(first) = unlisted.first() {
        let message = format!("{} tensors are not in the index; they are read too", unlisted.len());
        warnings.push(Warning::new(Code::BadIndex, message).on_tensor(first.to_string()));
    }
}

/// What a plan is checked against: everything that the plan depends on but the config.
fn digest(shards: &[Shard], tensors: &[TensorInfo]) -> String {
    let mut hash = Sha256::new();
    for tensor in tensors {
        hash.update(tensor.name.as_bytes());
        hash.update([0]);
        hash.update(tensor.dtype.as_str().as_bytes());
        for axis in &tensor.shape {
            hash.update(axis.to_le_bytes());
        }
        hash.update(shards[tensor.shard as usize].name.as_bytes());
        hash.update([0]);
    }
    let bytes = hash.finalize();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
