//! The files beside the weights: what travels with a model, its chat template, its producer's
//! claims.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::lenient;
use crate::checkpoint::{self, ChatTemplate, GENERATION_CONFIG, SmallFiles, generation};
use crate::fault::{Code, Fault, Faults, Warning};

/// Where producers of quantized models put their claims beside config.json; the first wins.
const CLAIMS: [&str; 4] = [
    "hf_quant_config.json",
    "quantize_config.json",
    "quantization_config.json",
    "quant_config.json",
];

/// Whether a file travels with the model: JSON (but for the shard index), and what the runtime
/// needs that is not JSON.
pub fn travels(name: &str) -> bool {
    let json = name.ends_with(".json") && !name.ends_with(".safetensors.index.json");
    let licence = name.to_ascii_uppercase().starts_with("LICENSE");
    let other = ["chat_template.jinja", "tokenizer.model", "merges.txt"].contains(&name);
    json || licence || other || name.ends_with(".tiktoken")
}

/// What the side files say.
#[derive(Default)]
pub struct Side {
    /// The chat template.
    pub chat_template: Option<String>,
    /// The producer's claims.
    pub quant_config: Option<Value>,
}

/// Reads the side files that planning needs.
///
/// # Errors
/// Files that are there and cannot be understood.
pub fn read(dir: &Path, warnings: &mut Vec<Warning>) -> Result<Side, Faults> {
    let mut faults = Faults::default();
    let template = checkpoint::chat_template(&mut Folder { dir, warnings }, checkpoint::DEFAULT);
    let template = faults.absorb(template.map_err(Faults::from)).flatten();
    let chat_template = template.map(|found| found.text);
    let recommended = lenient::file::<Value>(dir, GENERATION_CONFIG, warnings);
    let recommended = faults.absorb(recommended.map_err(Faults::from)).flatten();
    let remarks = recommended.map(|config| generation(&config).remarks).unwrap_or_default();
    warnings.extend(remarks.into_iter().map(|remark| Warning::new(Code::BadConfig, remark)));
    let quant_config = CLAIMS.iter().find_map(|name| {
        let read = lenient::file::<Value>(dir, name, warnings).map(|claims| claims.map(Some));
        match read {
            Ok(claims) => claims.flatten(),
            Err(fault) => {
                faults.push(fault);
                None
            }
        }
    });
    faults.or(Side { chat_template, quant_config })
}

/// The chat templates of a folder: that for conversations, and that for those with tools where it is
/// another.
///
/// # Errors
/// When a file is there and cannot be read.
pub fn chat_templates(dir: &Path) -> Result<Vec<ChatTemplate>, Fault> {
    let mut files = Folder { dir, warnings: &mut Vec::new() };
    let mut found = Vec::new();
    for named in [checkpoint::DEFAULT, checkpoint::TOOL_USE] {
        let template = checkpoint::chat_template(&mut files, named)?;
        found.extend(template.filter(|template| !found.contains(template)));
    }
    Ok(found)
}

/// The files of a folder, and what is said of those that are no strict JSON.
struct Folder<'a> {
    dir: &'a Path,
    warnings: &'a mut Vec<Warning>,
}

impl SmallFiles for Folder<'_> {
    fn text(&mut self, name: &str) -> Result<Option<String>, Fault> {
        lenient::text(self.dir, name)
    }

    fn json<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Fault> {
        lenient::file(self.dir, name, self.warnings)
    }
}
