//! Manifests: which blobs make a model. The JSON is the one that Ollama reads.

use serde::{Deserialize, Serialize};

use super::Digest;
use crate::plan;

/// The media types of manifests and layers.
pub mod media {
    /// A manifest.
    pub const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
    /// The config blob, [`super::Config`].
    pub const CONFIG: &str = "application/vnd.docker.container.image.v1+json";
    /// A safetensors blob: one output tensor or one expert group.
    pub const TENSOR: &str = "application/vnd.ollama.image.tensor";
    /// A JSON file of the model's folder.
    pub const JSON: &str = "application/vnd.ollama.image.json";
    /// Another file that the runtime needs. Ollama passes over it.
    pub const FILE: &str = "application/vnd.lathe.image.file";
    /// Where each tensor came from, [`super::Origin`]. Ollama passes over it.
    pub const ORIGIN: &str = "application/vnd.lathe.image.origin";
    /// The policy by which a model was made and is run, with all that it extends: `policy.yaml`, and
    /// `draft/policy.yaml`. Ollama passes over it.
    pub const POLICY: &str = "application/vnd.lathe.image.policy";
    /// `TEMPLATE` of a Modelfile.
    pub const TEMPLATE: &str = "application/vnd.ollama.image.template";
    /// `SYSTEM` of a Modelfile.
    pub const SYSTEM: &str = "application/vnd.ollama.image.system";
    /// `LICENSE` of a Modelfile.
    pub const LICENSE: &str = "application/vnd.ollama.image.license";
    /// `PARAMETER`s of a Modelfile, as a JSON object.
    pub const PARAMS: &str = "application/vnd.ollama.image.params";
    /// `MESSAGE`s of a Modelfile, as a JSON list of `{role, content}`.
    pub const MESSAGES: &str = "application/vnd.ollama.image.messages";
}

/// A manifest: one JSON file that names the blobs of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// 2.
    pub schema_version: u32,
    /// [`media::MANIFEST`].
    pub media_type: String,
    /// The config blob.
    pub config: Layer,
    /// Tensors, files and what the Modelfile adds, in this order.
    pub layers: Vec<Layer>,
}

/// A blob of a model: what it is, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Layer {
    /// What the blob is; see [`media`].
    pub media_type: String,
    /// Its digest, which is its name in the store.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// Name of the tensor, expert group or file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Manifest {
    /// A manifest of this config and these layers.
    pub fn new(config: Layer, layers: Vec<Layer>) -> Manifest {
        let media_type = media::MANIFEST.into();
        Manifest { schema_version: 2, media_type, config, layers }
    }

    /// The layers of one media type.
    pub fn of_type<'a>(&'a self, media_type: &'a str) -> impl Iterator<Item = &'a Layer> {
        self.layers.iter().filter(move |layer| layer.media_type == media_type)
    }

    /// A file of the model by its name, e.g. `tokenizer.json`, `draft/config.json`.
    pub fn file(&self, name: &str) -> Option<&Layer> {
        self.layers.iter().find(|layer| {
            matches!(layer.media_type.as_str(), media::JSON | media::FILE)
                && layer.name.as_deref() == Some(name)
        })
    }

    /// Every blob once: the config and the layers.
    pub fn blobs(&self) -> impl Iterator<Item = &Layer> {
        let mut seen = std::collections::HashSet::new();
        std::iter::once(&self.config).chain(&self.layers).filter(move |l| seen.insert(l.digest))
    }

    /// Bytes of all its blobs, each counted once.
    pub fn size(&self) -> u64 {
        self.blobs().map(|layer| layer.size).sum()
    }
}

/// The config blob: what the model is and can do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Config {
    /// `safetensors`.
    pub model_format: String,
    /// The format asked for or kept; `mixed` where kept layouts differ; empty for none.
    #[serde(default)]
    pub file_type: String,
    /// Renderer of conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renderer: Option<String>,
    /// Parser of the model's answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parser: Option<String>,
    /// Least version of the runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requires: Option<String>,
    /// `completion`, `tools`, `thinking`, `vision`, `audio`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// The draft in the same manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<plan::Draft>,
}

impl Config {
    /// Format of what lathe stores.
    pub const SAFETENSORS: &str = "safetensors";
}

/// What a plan says about the model.
impl From<&plan::Manifest> for Config {
    fn from(planned: &plan::Manifest) -> Config {
        let planned = planned.clone();
        Config {
            model_format: Config::SAFETENSORS.into(),
            file_type: planned.file_type,
            renderer: planned.renderer,
            parser: planned.parser,
            requires: planned.requires,
            capabilities: planned.capabilities,
            draft: planned.draft,
        }
    }
}
