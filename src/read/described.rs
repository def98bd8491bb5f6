//! Inventory files: all that planning needs of a model, without its weights, as JSON.
//!
//! `lathe inventory DIR` writes one; `create --dry-run` takes it in place of the folder.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Inventory, Shard, SideFile, TensorInfo, digest, lenient, sort};
use crate::dtype::Dtype;
use crate::fault::{Code, Fault, Faults};
use crate::header;

/// Version of the form.
const VERSION: u32 = 1;

/// An inventory file.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Described {
    /// Version of this form: 1.
    pub version: u32,
    /// `config.json`.
    pub config: Value,
    /// Producer's claims beside the config (`hf_quant_config.json`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quant_config: Option<Value>,
    /// The chat template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// Whose arrays the weight files' metadata say they hold (`pt`, `mlx`).
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub formats: BTreeSet<String>,
    /// The weight files.
    pub shards: Vec<File>,
    /// The files beside the weights.
    #[serde(default)]
    pub files: Vec<File>,
    /// The tensors: name, dtype, shape, and which of `shards` (from 0).
    pub tensors: Vec<(String, String, Vec<i64>, u32)>,
}

/// A file.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
}

impl From<&Inventory> for Described {
    fn from(inventory: &Inventory) -> Self {
        let shards = inventory.shards.iter();
        let files = inventory.files.iter();
        let tensors = inventory.tensors.iter();
        Described {
            version: VERSION,
            config: inventory.config.clone(),
            quant_config: inventory.quant_config.clone(),
            chat_template: inventory.chat_template.clone(),
            formats: inventory.formats.clone(),
            shards: shards.map(|s| File { name: s.name.to_string(), size: s.size }).collect(),
            files: files.map(|f| File { name: f.name.clone(), size: f.size }).collect(),
            tensors: tensors
                .map(|t| {
                    let shape = t.shape.iter().map(|&axis| axis as i64).collect();
                    (t.name.clone(), t.dtype.as_str().into(), shape, t.shard)
                })
                .collect(),
        }
    }
}

impl Described {
    /// The file's text: JSON with one line for each tensor, so that two inventories can be
    /// compared line by line.
    pub fn to_text(&self) -> String {
        let head = Described {
            version: self.version,
            config: self.config.clone(),
            quant_config: self.quant_config.clone(),
            chat_template: self.chat_template.clone(),
            formats: self.formats.clone(),
            shards: Vec::new(),
            files: Vec::new(),
            tensors: Vec::new(),
        };
        let mut json = serde_json::to_value(head).unwrap_or_default();
        let lists = ["shards", "files", "tensors"];
        if let Value::Object(entries) = &mut json {
            entries.retain(|key, _| !lists.contains(&key.as_str()));
        }
        let mut text = serde_json::to_string_pretty(&json).unwrap_or_default();
        text.truncate(text.trim_end_matches(['\n', '}']).len());
        fn list<T: Serialize>(text: &mut String, name: &str, items: &[T]) {
            let lines: Vec<String> = items
                .iter()
                .map(|item| format!("\n    {}", serde_json::to_string(item).unwrap_or_default()))
                .collect();
            text.push_str(&format!(",\n  \"{name}\": [{}\n  ]", lines.join(",")));
        }
        list(&mut text, lists[0], &self.shards);
        list(&mut text, lists[1], &self.files);
        list(&mut text, lists[2], &self.tensors);
        text.push_str("\n}\n");
        text
    }
}

/// Reads an inventory file.
///
/// # Errors
/// Not JSON of this form; and for each tensor the faults that a header can have.
pub fn read(path: &Path) -> Result<Inventory, Faults> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let Some(text) = lenient::text(dir, &name)? else {
        return Err(Fault::new(Code::NoSuchFolder, "no such file").in_file(path).into());
    };
    let mut warnings = Vec::new();
    let described: Described = lenient::parse(&name, text, &mut warnings)
        .map_err(|fault| fault.help("write one with `lathe inventory DIR`"))?;
    let bad = |message: String| Fault::new(Code::BadConfig, message).in_file(path);
    if described.version != VERSION {
        let message =
            format!("inventory of version {}; this lathe reads {VERSION}", described.version);
        return Err(bad(message).into());
    }
    if !described.config.is_object() {
        return Err(bad("`config` is not an object".into()).into());
    }

    let mut faults = Faults::default();
    let mut tensors = Vec::with_capacity(described.tensors.len());
    let mut ends: HashMap<u32, u64> = HashMap::new();
    for (tensor, dtype, shape, shard) in described.tensors {
        match info(&tensor, &dtype, &shape, shard, described.shards.len()) {
            Ok(mut info) => {
                let start = ends.entry(shard).or_default();
                let end = start.saturating_add(info.bytes());
                info.range = *start..end;
                *start = end;
                tensors.push(info);
            }
            Err((code, message)) => {
                faults.push(Fault::new(code, message).in_file(path).on_tensor(tensor));
            }
        }
    }
    let shards: Vec<Shard> = described
        .shards
        .into_iter()
        .map(|file| Shard { name: file.name.into(), size: file.size, modified: None })
        .collect();
    sort(&shards, &mut tensors, &mut faults);
    let files = described.files.into_iter().map(|f| SideFile { name: f.name, size: f.size });
    let inventory = Inventory {
        dir: path.to_path_buf(),
        config: described.config,
        digest: digest(&shards, &tensors),
        shards,
        tensors,
        files: files.collect(),
        chat_template: described.chat_template,
        formats: described.formats,
        quant_config: described.quant_config,
        warnings,
    };
    faults.or(inventory)
}

fn info(
    name: &str,
    dtype: &str,
    shape: &[i64],
    shard: u32,
    shards: usize,
) -> Result<TensorInfo, (Code, String)> {
    let bad = |message: String| (Code::BadTensor, message);
    let dtype: Dtype = dtype.parse().map_err(|()| {
        (Code::UnknownDtype, format!("dtype {:?} is unknown", header::shorten(dtype)))
    })?;
    let shape =
        header::shape(shape.iter().map(|&axis| u64::try_from(axis).map_err(|_| axis.to_string())))
            .map_err(bad)?;
    header::byte_size(&shape, dtype)
        .ok_or_else(|| bad(format!("shape {shape:?} overflows: no file holds so many bytes")))?;
    if shard as usize >= shards {
        return Err(bad(format!("there is no shard {shard}; `shards` has {shards}")));
    }
    Ok(TensorInfo { name: name.into(), dtype, shape, shard, range: 0..0 })
}
