//! A stored model becomes an [`Engine`].

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::options::Options;
use crate::chat::{Answers, Template, is_go};
use crate::checkpoint::{self, GENERATION_CONFIG, architecture, chat_template};
use crate::draft::controller::state::{Key, Memory};
use crate::fault::{Code, Fault, Faults};
use crate::model::{Backend, Blobs, Compute, Known, Model, TensorSource, load as load_model};
use crate::plan::DRAFT_PREFIX;
use crate::policy::{Policy, Role, stored};
use crate::store::{Digest, Layer, Manifest, Name, Store, media};
use crate::tokenizer::{Controls, Files, Tokenizer};

/// A model that answers.
pub struct Engine {
    pub(super) model: Model,
    pub(super) tokenizer: Tokenizer,
    /// Its tokens that steer the model when they are meant.
    pub(super) controls: Controls,
    /// Where it cannot be used, why: plain prompts need none.
    pub(super) template: Option<Result<Template, Fault>>,
    /// For conversations with tools, where the model has a template of its own for them.
    pub(super) tool_template: Option<Result<Template, Fault>>,
    /// As with the template.
    pub(super) answers: Result<Answers, Fault>,
    pub(super) load_time: Duration,
    /// Where it is kept what drafting is like; `None` where there is no place for it.
    pub(super) drafting: Option<Memory>,
    /// What the makers recommend and the Modelfile says.
    pub defaults: Options,
    /// The Modelfile's system message.
    pub system: Option<String>,
    /// The Modelfile's messages, which begin every conversation.
    pub messages: Vec<Value>,
    /// The config blob's `capabilities`.
    pub capabilities: Vec<String>,
}

/// How a stored model is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loading<'a> {
    /// A folder of policies that add to or replace the built-in ones; with it the policy that the
    /// model carries is not looked at.
    pub policy_dir: Option<&'a Path>,
    /// What computes it.
    pub backend: Backend,
}

/// Loads the network of a stored model alone: no vocabulary, no template.
///
/// # Errors
/// As [`Engine::load`].
pub fn model(store: &Store, name: &Name, loading: Loading) -> Result<Model, Faults> {
    let manifest = store.manifest(name)?;
    let files = files_of(&manifest, |layer| store.read_blob(layer))?;
    let policy = stored_policy(store, name, &manifest, &files, loading)?;
    stored_model(store, &manifest, &files, &policy, loading)
}

fn stored_policy(
    store: &Store,
    name: &Name,
    manifest: &Manifest,
    files: &Files,
    loading: Loading,
) -> Result<Policy, Faults> {
    policy_of(manifest, files, &name.to_string(), loading, |layer| store.read_blob(layer))
}

fn stored_model(
    store: &Store,
    manifest: &Manifest,
    files: &Files,
    policy: &Policy,
    loading: Loading,
) -> Result<Model, Faults> {
    let paths = manifest
        .of_type(media::TENSOR)
        .filter(|layer| is_of_target(layer))
        .map(|layer| store.blob_path(&layer.digest));
    model_of(Blobs::open(paths)?, files, policy, loading)
}

impl Engine {
    /// Loads a model of the store.
    ///
    /// # Errors
    /// When it is not there or damaged, or its policy has no decoder; all that does not fit
    /// between its description and its weights, at once.
    pub fn load(store: &Store, name: &Name, loading: Loading) -> Result<Self, Faults> {
        let begin = Instant::now();
        let manifest = store.manifest(name)?;
        let config = store.config(&manifest)?;
        let files = files_of(&manifest, |layer| store.read_blob(layer))?;
        let policy = stored_policy(store, name, &manifest, &files, loading)?;
        let model = stored_model(store, &manifest, &files, &policy, loading)?;
        let text = |media_type| text_layer(store, &manifest, media_type);
        let parameters = json_layer(store, &manifest, media::PARAMS)?;
        let messages = json_layer(store, &manifest, media::MESSAGES)?;
        let generation = files.json(GENERATION_CONFIG)?.unwrap_or(Value::Null);
        let defaults = Options::recommended(&generation).with_parameters(&parameters);
        let own = text(media::TEMPLATE)?.filter(|template| !is_go(template));
        let (template, tool_template) = templates(own, &files);
        let dirs: Vec<&Path> = loading.policy_dir.into_iter().collect();
        let drafting = drafting(&manifest, &model);
        let parser = config.parser.as_deref().unwrap_or(crate::chat::DEFAULT);
        let answers = Answers::or_ollamas(policy.answers(parser, &dirs), parser);
        let tokenizer = Tokenizer::load(&files)?;
        let spoken = [&template, &tool_template].into_iter().flatten().flatten();
        let sources: Vec<&str> = spoken.map(Template::source).collect();
        let marks = || answers.iter().flat_map(Answers::marks);
        let controls = Controls::new(&tokenizer, |token| {
            sources.iter().any(|source| source.contains(token))
                || marks().any(|mark| mark.contains(token))
        })?;
        Ok(Engine {
            model,
            tokenizer,
            controls,
            template,
            tool_template,
            answers,
            load_time: begin.elapsed(),
            drafting,
            defaults,
            system: text(media::SYSTEM)?,
            messages: messages.as_array().cloned().unwrap_or_default(),
            capabilities: config.capabilities,
        })
    }

    /// Whether it has a chat template, so that a prompt is a conversation.
    pub fn can_chat(&self) -> bool {
        self.template.is_some()
    }

    /// The text of its chat template.
    pub fn template_source(&self) -> Option<&str> {
        self.template.as_ref()?.as_ref().ok().map(Template::source)
    }

    /// The vocabulary.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The model itself.
    pub fn model(&self) -> &Model {
        &self.model
    }
}

/// Where it is kept what drafting is like for a model on this machine.
fn drafting(manifest: &Manifest, model: &Model) -> Option<Memory> {
    use etcetera::BaseStrategy;
    let folder = etcetera::choose_base_strategy().ok()?.cache_dir().join("lathe");
    let digests: String = manifest.layers.iter().map(|layer| layer.digest.to_string()).collect();
    let key = Key {
        model: Digest::of(digests.as_bytes()).to_string(),
        draft: "lookup".into(),
        backend: model.backend().name().into(),
        device: format!("{:?}", mlx_rs::Device::default()),
    };
    Some(Memory::new(&folder, key))
}

/// Builds the model that a set of weights and its config make, as a policy describes it.
///
/// # Errors
/// As [`Engine::load`].
pub(super) fn model_of(
    source: impl TensorSource,
    files: &Files,
    policy: &Policy,
    loading: Loading,
) -> Result<Model, Faults> {
    let config = files
        .json("config.json")?
        .ok_or_else(|| Fault::new(Code::NoConfig, "the model has no config.json"))?;
    let described = policy.described().ok_or_else(|| {
        let architecture = architecture(&config).unwrap_or_else(|_| "this model".into());
        let help = match loading.policy_dir {
            None => "a policy with a decoder section can say it; see docs/policies.md".into(),
            Some(dir) => format!(
                "{} has no policy for it with a decoder; without --policy-dir the model's own is taken",
                dir.display()
            ),
        };
        Fault::new(Code::NoDecoder, format!("lathe does not know how {architecture} is run"))
            .help(help)
    })?;
    let source = Known::by(policy, source)?;
    load_model(&source, described, &config, Compute::of(loading.backend))
}

/// The policy of a stored model: that of the folder given, else its own, else, for one that carries
/// none, that of its architecture. `of` names the model.
///
/// # Errors
/// When a policy cannot be read or understood.
pub(super) fn policy_of(
    manifest: &Manifest,
    files: &Files,
    of: &str,
    loading: Loading,
    read: impl Fn(&Layer) -> Result<Vec<u8>, Fault>,
) -> Result<Policy, Faults> {
    let own = match loading.policy_dir {
        Some(_) => None,
        None => manifest.read_policy(Role::Target, of, read)?,
    };
    let config = files.json("config.json")?.unwrap_or(Value::Null);
    stored::policy_of(own.as_ref(), &config, Role::Target, loading.policy_dir)
}

/// The small files of a stored model, those of its draft left out.
///
/// # Errors
/// When a blob is missing or damaged.
pub(super) fn files_of(
    manifest: &Manifest,
    read: impl Fn(&Layer) -> Result<Vec<u8>, Fault>,
) -> Result<Files, Fault> {
    let mut files = Files::default();
    for media_type in [media::JSON, media::FILE] {
        for layer in manifest.of_type(media_type) {
            match &layer.name {
                Some(name) if !name.contains('/') => files.insert(name, read(layer)?),
                _ => {}
            }
        }
    }
    Ok(files)
}

/// Whether a layer of tensors is the model's own, and not its draft's.
pub(super) fn is_of_target(layer: &Layer) -> bool {
    !layer.name.as_deref().unwrap_or_default().starts_with(DRAFT_PREFIX)
}

/// A template, or why it cannot be used; `None` where there is none.
type Compiled = Option<Result<Template, Fault>>;

/// The template for conversations, and that for those with tools where it is another.
fn templates(own: Option<String>, files: &Files) -> (Compiled, Compiled) {
    if let Some(own) = own {
        return (Some(Template::compile("TEMPLATE", &own)), None);
    }
    let compile = |named| -> Compiled {
        let found = chat_template(&mut &*files, named).transpose()?;
        Some(found.and_then(|found| Template::compile(&found.name, &found.text)))
    };
    let template = compile(checkpoint::DEFAULT);
    let source = |compiled: &Compiled| Some(compiled.as_ref()?.as_ref().ok()?.source().to_owned());
    let same = source(&template);
    let for_tools = compile(checkpoint::TOOL_USE);
    let differs = same.is_none() || source(&for_tools) != same;
    (template, for_tools.filter(|_| differs))
}

fn text_layer(
    store: &Store,
    manifest: &Manifest,
    media_type: &str,
) -> Result<Option<String>, Fault> {
    let Some(layer) = manifest.of_type(media_type).next() else { return Ok(None) };
    Ok(Some(String::from_utf8_lossy(&store.read_blob(layer)?).into_owned()))
}

fn json_layer(store: &Store, manifest: &Manifest, media_type: &str) -> Result<Value, Fault> {
    let Some(layer) = manifest.of_type(media_type).next() else { return Ok(Value::Null) };
    serde_json::from_slice(&store.read_blob(layer)?).map_err(|error| {
        Fault::new(Code::CorruptBlob, format!("blob {} is damaged: {error}", layer.digest))
    })
}
