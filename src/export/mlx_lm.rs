//! A folder for mlx-lm: `<module>.weight`, `.scales`, `.biases`, and in `config.json` how each is
//! quantized.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::Exported;
use super::content::{Content, Run, Step, Stored};
use super::names::{Names, Target, Unread};
use super::shards::{self, Piece};
use crate::companion;
use crate::decoder::{Decoder, Filled};
use crate::dtype::Dtype;
use crate::fault::{Code, Fault, Faults, Warning};
use crate::format::Format;
use crate::plan::DRAFT_PREFIX;
use crate::policy::{Policy, Role};
use crate::store::{Manifest, Store, Weight, media};

/// mlx-lm's words for the companions.
const MLX_COMPANIONS: [&str; 2] = [".scales", ".biases"];

/// Writes the files of the folder.
pub fn write(
    store: &Store,
    manifest: &Manifest,
    dir: &Path,
    policy_dir: Option<&Path>,
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
    let model_config = store.model_config(manifest)?;
    let policy = store.policy("the model", manifest, Role::Target, policy_dir)?;
    let mut weights = logical(&policy, &weights)?;
    if let Some(decoder) = &policy.decoder {
        name_embedding(decoder, &model_config, &mut weights);
    }
    let names = names_of(&model_config, &weights);
    let pieces = pieces(store, &names, &weights)?;
    if pieces.iter().any(|piece| piece.steps.iter().any(|step| matches!(step, Step::Add(_)))) {
        let message =
            "norms hold 1 + w, rounded to their dtype, as mlx-lm's own conversion has them";
        exported.warnings.push(Warning::new(Code::Unsupported, message));
    }
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
            let config = config(&content, &policy, &names, &weights)?;
            exported.warnings.extend(unread(&config));
            content = serde_json::to_vec_pretty(&config).map_err(|error| {
                Fault::new(Code::Internal, format!("config.json has no JSON form: {error}"))
            })?;
        }
        let path = dir.join(name);
        fs::write(&path, &content).map_err(|error| Fault::io("write", &path, &error))?;
        exported.files += 1;
        exported.bytes += content.len() as u64;
    }
    Ok(exported)
}

/// The table for this model.
fn names_of(config: &Value, weights: &[Logical]) -> Names {
    let types = [&config["model_type"], &config["text_config"]["model_type"]];
    let types: Vec<&str> = types.into_iter().filter_map(Value::as_str).collect();
    let quantized = weights.iter().filter(|weight| weight.format.is_some());
    let quantized: Vec<&str> = quantized.map(|weight| weight.name.as_str()).collect();
    Names::of_model(&types, &quantized)
}

/// Whether a name from a manifest stays inside the folder.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!(parts.next(), Some(std::path::Component::Normal(_))) && parts.next().is_none()
}

/// A weight of the model: as it is stored, or stored expert by expert.
struct Logical<'w> {
    /// The name that it has or would have in one.
    name: String,
    format: Option<&'static Format>,
    dtype: Dtype,
    /// Unpacked.
    shape: Vec<u64>,
    members: Vec<&'w Weight>,
}

/// Puts single experts together by the policy's rules.
fn logical<'w>(policy: &Policy, weights: &'w [Weight]) -> Result<Vec<Logical<'w>>, Faults> {
    let mut whole = Vec::new();
    let mut experts = IndexMap::<String, BTreeMap<u32, &Weight>>::new();
    for weight in weights {
        match policy.expert(&weight.name).and_then(|e| Some((e.stacked(), e.number()?))) {
            Some((stacked, number)) => {
                experts.entry(stacked).or_default().insert(number, weight);
            }
            None => whole.push(Logical {
                name: weight.name.clone(),
                format: weight.format,
                dtype: weight.dtype,
                shape: weight.shape.clone(),
                members: vec![weight],
            }),
        }
    }
    let mut faults = Faults::default();
    for (name, members) in experts {
        let count = members.len() as u64;
        let last = members.keys().next_back().copied().unwrap_or(0);
        let members: Vec<&Weight> = members.into_values().collect();
        let like = |weight: &Weight| {
            let format = weight.format.map(|format| &format.name);
            (format.cloned(), weight.dtype, weight.shape.clone(), weight.parts.len())
        };
        let first = members[0];
        let even = members.iter().all(|weight| like(weight) == like(first));
        if u64::from(last) + 1 != count || !even {
            let message = "its experts are not alike, or some are missing";
            faults.push(Fault::new(Code::BadExperts, message).on_tensor(name));
            continue;
        }
        let shape = [&[count], first.shape.as_slice()].concat();
        let (format, dtype) = (first.format, first.dtype);
        whole.push(Logical { name, format, dtype, shape, members });
    }
    faults.or(whole)
}

impl Logical<'_> {
    /// A stored part of it: of all experts, where it is stored one by one.
    fn stored(&self, store: &Store, part: usize) -> Stored {
        let runs = self.members.iter().map(|weight| Run {
            blob: store.blob_path(&weight.layer.digest),
            range: weight.parts[part].range.clone(),
        });
        let first = &self.members[0].parts[part];
        let shape = match (self.is_apart(), first.shape.as_slice()) {
            (false, shape) => shape.to_vec(),
            (true, shape) => [&[self.members.len() as u64], shape].concat(),
        };
        Stored { dtype: first.dtype, shape, runs: runs.collect() }
    }

    fn is_apart(&self) -> bool {
        self.members[0].shape != self.shape
    }

    /// What follows the weight's name in the name of a part.
    fn suffix(&self, part: usize) -> &str {
        let weight = self.members[0];
        &weight.parts[part].name[weight.name.len()..]
    }

    fn parts(&self) -> usize {
        self.members[0].parts.len()
    }

    /// Whether it is written unquantized although it is quantized.
    fn is_decoded(&self, target: &Target) -> bool {
        self.format.is_some() && (target.decoded || target.transposed)
    }
}

/// All tensors under mlx-lm's names.
fn pieces(store: &Store, names: &Names, weights: &[Logical]) -> Result<Vec<Piece>, Faults> {
    let mut faults = Faults::default();
    let mut pieces = Vec::new();
    for weight in weights {
        let target = names.of(&weight.name);
        let parts = if weight.is_decoded(&target) { 1 } else { weight.parts() };
        for part in 0..parts {
            let suffix = match companion::ALL.iter().position(|c| *c == weight.suffix(part)) {
                None if weight.format.is_some() || weight.name.ends_with(".weight") => ".weight",
                None if target.module => ".weight",
                None => "",
                Some(i) if i < MLX_COMPANIONS.len() => MLX_COMPANIONS[i],
                Some(_) => {
                    faults.push(
                        Fault::new(Code::Unsupported, "mlx-lm cannot read global scales")
                            .on_tensor(&weight.name)
                            .help("create the model with -q nvfp4 --requantize, then export that"),
                    );
                    continue;
                }
            };
            let content = match weight.format.filter(|_| weight.is_decoded(&target)) {
                None => Content::Stored(weight.stored(store, part)),
                Some(format) => Content::Decoded {
                    format,
                    parts: (0..weight.parts()).map(|part| weight.stored(store, part)).collect(),
                    dtype: weight.dtype,
                    shape: weight.shape.clone(),
                },
            };
            named(&target, suffix, content, &mut pieces);
        }
    }
    faults.or(pieces)
}

/// Adds a tensor, or what is made of it, under its names.
fn named(target: &Target, suffix: &str, content: Content, pieces: &mut Vec<Piece>) {
    if let (true, Content::Stored(stored)) = (target.apart, &content) {
        let name = &target.names[0];
        for (number, stored) in each_expert(stored).into_iter().enumerate() {
            let name = name.replace("{e}", &number.to_string()) + suffix;
            let content = Content::Stored(stored);
            pieces.push(Piece { name, content, steps: Vec::new(), reshaped: None });
        }
        return;
    }
    for (second, name) in target.names.iter().enumerate() {
        let mut steps = Vec::new();
        if target.transposed {
            steps.push(Step::Transpose);
        }
        if let Some((split, axis)) = target.split {
            steps.push(Step::Take { split, axis, second: second > 0 });
        }
        steps.extend(target.add.map(Step::Add));
        let reshaped = match content.shape() {
            &[channels, 1, kernel] if target.last => Some(vec![channels, kernel, 1]),
            _ => None,
        };
        let (name, content) = (format!("{name}{suffix}"), content.clone());
        pieces.push(Piece { name, content, steps, reshaped });
    }
}

/// A stacked tensor's experts.
fn each_expert(stored: &Stored) -> Vec<Stored> {
    let (count, shape) = stored.shape.split_first().map_or((1, &[][..]), |(c, s)| (*c, s));
    let cut = |number: u64| match stored.runs.as_slice() {
        [all] => {
            let bytes = all.len() / count.max(1);
            let start = all.range.start + number * bytes;
            Run { blob: all.blob.clone(), range: start..start + bytes }
        }
        single => single[number as usize].clone(),
    };
    let expert =
        |number| Stored { dtype: stored.dtype, shape: shape.to_vec(), runs: vec![cut(number)] };
    (0..count).map(expert).collect()
}

/// Calls the head of a tied model that has nothing but it what it is, the embedding: mlx-lm looks for
/// that one.
fn name_embedding(decoder: &Decoder, config: &Value, weights: &mut [Logical]) {
    let names: Vec<String> = weights.iter().map(|weight| weight.name.clone()).collect();
    let Some((_, embedding, head)) = decoder.head_alone(names.iter()) else { return };
    let tied = decoder.head.tied.as_ref();
    if tied.is_some_and(|tied| decoder.scope(config).holds(tied).unwrap_or(false))
        && let Some(weight) = weights.iter_mut().find(|weight| weight.name == head)
    {
        weight.name = embedding;
    }
}

/// Whether the config makes the embedding the head and the model has a head besides. lathe uses that
/// one, and mlx-lm would leave it out.
fn has_own_head(decoder: &Decoder, config: &Value, weights: &[Logical]) -> bool {
    let has = |name: &str| weights.iter().any(|weight| weight.name == name);
    let tied = |tied| decoder.scope(config).holds(tied).unwrap_or(false);
    decoder.head.tied.as_ref().is_some_and(tied) && decoder.own_head(has).is_some()
}

/// What mlx-lm asks for by name and published configs leave out: what the library takes for it.
fn fill(config: &mut Value, decoder: &Decoder) {
    let filled = Filled::new(config, decoder.config.list(), &decoder.defaults);
    let inner = filled.inner.as_deref();
    for level in std::iter::once(None).chain(inner.map(Some)) {
        let (to, from) = match level {
            None => (Some(&mut *config), Some(&filled.config)),
            Some(name) => (config.get_mut(name), filled.config.get(name)),
        };
        let (Some(Value::Object(to)), Some(Value::Object(from))) = (to, from) else { continue };
        // The rotation in the older form too, which most of mlx-lm reads: flat beside the rest.
        let rope = from.get("rope_parameters").and_then(Value::as_object);
        let given = to.get("rope_scaling").is_some_and(|scaling| !scaling.is_null());
        let rope = rope.filter(|_| !given).cloned().unwrap_or_default();
        for key in ["rope_theta", "partial_rotary_factor"] {
            if let Some(value) = rope.get(key) {
                to.entry(key).or_insert_with(|| value.clone());
            }
        }
        let kind = rope.get("rope_type").or(rope.get("type")).and_then(Value::as_str);
        if kind.is_some_and(|kind| kind != "default") {
            to.insert("rope_scaling".into(), rope.into());
        }
        let scaled = to.get("rope_scaling").is_some_and(|scaling| !scaling.is_null());
        if from.contains_key("rope_theta") {
            to.entry("rope_scaling").or_insert(Value::Null);
        }
        for (key, value) in from {
            let hidden = scaled && key == "rope_parameters";
            if !value.is_null() && !hidden {
                to.entry(key).or_insert_with(|| value.clone());
            }
        }
    }
}

/// The config as mlx-lm needs it, with its `quantization`: the commonest format for all, the others
/// by module.
fn config(
    text: &[u8],
    policy: &Policy,
    names: &Names,
    weights: &[Logical],
) -> Result<Value, Fault> {
    let bad =
        |why: &dyn std::fmt::Display| Fault::new(Code::BadConfig, format!("config.json: {why}"));
    let mut config: Value = match serde_json::from_slice(text) {
        Ok(config) => config,
        // NaN and comments occur in the wild.
        Err(_) => {
            let text = std::str::from_utf8(text).map_err(|error| bad(&error))?;
            json5::from_str(text).map_err(|error| bad(&error))?
        }
    };
    let own_head = match &policy.decoder {
        None => false,
        Some(decoder) => {
            fill(&mut config, decoder);
            has_own_head(decoder, &config, weights)
        }
    };
    let Value::Object(mut config) = config else { return Err(bad(&"it is no object")) };
    // What a producer said of its own layout is not true of ours.
    config.remove("quantization_config");
    config.remove("quantization");
    if let Some(quantization) = quantization(names, weights) {
        config.insert("quantization".into(), quantization.clone());
        config.insert("quantization_config".into(), quantization);
    }
    if own_head {
        const TIED: &str = "tie_word_embeddings";
        config.insert(TIED.into(), false.into());
        if let Some(Value::Object(text)) = config.get_mut("text_config") {
            text.insert(TIED.into(), false.into());
        }
    }
    Ok(config.into())
}

/// Warnings of what an exported config says that mlx-lm does not read.
fn unread(config: &Value) -> Vec<Warning> {
    let levels = [config, &config["text_config"]];
    let ropes = ["rope_scaling", "rope_parameters"];
    let ropes: Vec<&Value> =
        levels.into_iter().flat_map(|level| ropes.map(|key| &level[key])).collect();
    let applies = |unread: &&Unread| {
        ropes
            .iter()
            .any(|rope| rope.get(&unread.key).is_some_and(|value| unread.values.contains(value)))
    };
    let told = super::names::unread().iter().filter(applies).map(|unread| {
        let message =
            format!("mlx-lm does not read `{}` of the config: {}", unread.key, unread.because);
        Warning::new(Code::UnreadConfig, message)
    });
    told.collect()
}

fn quantization(names: &Names, weights: &[Logical]) -> Option<Value> {
    let mut elements = IndexMap::<&str, (&Format, u64)>::new();
    for weight in weights {
        if let Some(format) = weight.format {
            let count = weight.shape.iter().product::<u64>();
            elements.entry(&format.name).or_insert((format, 0)).1 += count;
        }
    }
    let (common, _) = elements.values().max_by_key(|(_, elements)| *elements)?;
    let mut quantization = of(common);
    for weight in weights {
        if let Some(format) = weight.format.filter(|format| format.name != common.name) {
            let target = names.of(&weight.name);
            if !weight.is_decoded(&target) {
                quantization.extend(target.names.into_iter().map(|name| (name, of(format).into())));
            }
        }
    }
    Some(quantization.into())
}

fn of(format: &Format) -> Map<String, Value> {
    let Format { group, bits, mode, .. } = format;
    let object = json!({"group_size": group, "bits": bits, "mode": mode.as_str()});
    object.as_object().cloned().unwrap_or_default()
}
