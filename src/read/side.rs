//! The files beside the weights: what travels with a model, its chat template, its producer's
//! claims.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::lenient;
use crate::fault::{Fault, Faults, Warning};

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
    let other = ["chat_template.jinja", "tokenizer.model"].contains(&name);
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
    let mut take = |result: Result<_, Fault>| match result {
        Ok(value) => value,
        Err(fault) => {
            faults.push(fault);
            None
        }
    };
    let chat_template = take(chat_template(dir, warnings));
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

/// Only what is wanted of a file that may be large.
#[derive(Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<Named>),
    Other(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

/// `chat_template.jinja`, else `tokenizer_config.json` (one template, or the one named `default`,
/// or the first), else `chat_template.json`.
fn chat_template(dir: &Path, warnings: &mut Vec<Warning>) -> Result<Option<String>, Fault> {
    if let Some(template) = lenient::text(dir, "chat_template.jinja")? {
        return Ok(Some(template));
    }
    for name in ["tokenizer_config.json", "chat_template.json"] {
        let config: Option<TokenizerConfig> = lenient::file(dir, name, warnings)?;
        match config.and_then(|config| config.chat_template) {
            Some(Templates::One(template)) => return Ok(Some(template)),
            Some(Templates::Named(named)) => {
                let default = named.iter().position(|template| template.name == "default");
                let chosen = named.into_iter().nth(default.unwrap_or(0));
                if let Some(chosen) = chosen {
                    return Ok(Some(chosen.template));
                }
            }
            Some(Templates::Other(_)) | None => {}
        }
    }
    Ok(None)
}
