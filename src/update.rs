//! update: a stored model and the policies that there are now in; what would change, and then the
//! newer policies in its manifest, out. Tensors are not touched.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::create::replace;
use crate::fault::{Code, Fault, Faults};
use crate::format::{Format, Formats};
use crate::plan::{DRAFT_PREFIX, LEAST_RUNTIME};
use crate::policy::file::PolicyFile;
use crate::policy::{Decider, Library, Model, Policy, Role, parsers, stored};
use crate::store::{
    Committed, Config, Manifest, Name, Origin, Store, Weight, Writer, media, policy_name,
};

/// What an update of a model would change.
#[derive(Debug, Serialize)]
pub struct Update {
    /// The model.
    pub name: Name,
    /// The policies that would be put in place, the model's and its draft's; none that says the same
    /// as the one that is there.
    pub policies: Vec<PolicyChange>,
    /// What the config blob would say otherwise.
    pub facts: Vec<FactChange>,
    /// Tensors that the newer policy would have in another format; they stay as they are.
    pub create_again: Vec<Otherwise>,
    #[serde(skip)]
    manifest: Manifest,
    #[serde(skip)]
    config: Config,
}

/// A policy that would be put in place.
#[derive(Debug, Serialize)]
pub struct PolicyChange {
    /// `target` or `draft`.
    pub role: &'static str,
    /// The one that the model carries; null for a model that carries none.
    pub from: Option<Head>,
    /// The newer one.
    pub to: Head,
    /// The parts that differ and that running the model looks at, such as `decoder.layers`.
    pub running: Vec<String>,
    /// The other parts that differ: rules and what they use.
    pub other: Vec<String>,
    /// The texts, as a unified diff.
    pub diff: String,
    #[serde(skip)]
    text: String,
    #[serde(skip)]
    layer: Role,
}

/// What a policy is called, and who wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Head {
    /// The policy's name.
    pub name: String,
    /// Version of the form, where it is told.
    pub version: Option<u32>,
    /// The lathe that wrote it, where it is told.
    pub lathe: Option<String>,
}

impl Head {
    /// That of a policy file.
    pub fn of(file: &PolicyFile) -> Head {
        let stored = file.stored.as_ref();
        Head {
            name: file.name.clone(),
            version: stored.map(|stored| stored.version),
            lathe: stored.map(|stored| stored.lathe.clone()),
        }
    }
}

/// A fact of the config blob that would change.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct FactChange {
    /// `parser`, `renderer`, `requires` or `capabilities`.
    pub what: &'static str,
    /// What it is.
    pub from: Option<String>,
    /// What it would be.
    pub to: Option<String>,
}

/// A tensor that would be quantized otherwise.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Otherwise {
    /// Its name.
    pub tensor: String,
    /// Its format.
    pub is: String,
    /// The format that the newer policy gives it.
    pub would_be: String,
    /// The rule that does.
    pub rule: String,
}

/// Compares what a model carries with the policies of `policy_dir`, the user's folder and the
/// binary. Writes nothing.
///
/// # Errors
/// A model that is not there or damaged, policies that cannot be read.
pub fn prepare(store: &Store, name: &Name, policy_dir: Option<&Path>) -> Result<Update, Faults> {
    let entry = store.entry(name)?;
    let (name, manifest) = (entry.name, entry.manifest?);
    let mut config = store.config(&manifest)?;
    let library = Library::load(policy_dir)?;
    let weights = store.weights(&manifest)?;
    let origin = store.origin(&manifest)?.unwrap_or_default();
    let mut update = Update {
        name,
        policies: Vec::new(),
        facts: Vec::new(),
        create_again: Vec::new(),
        manifest,
        config: Config::default(),
    };
    let mut roles = vec![Role::Target];
    roles.extend(config.draft.as_ref().map(|_| Role::Draft));
    for role in roles {
        let one = One { store, library: &library, manifest: &update.manifest, role };
        let model_config = store.config_of(&update.manifest, role)?;
        let template = match role {
            Role::Target => store.chat_template(&update.manifest)?,
            Role::Draft => None,
        };
        let model = Model { config: &model_config, template: template.as_deref(), role };
        let (own, newer) = one.policies(&update.name, &model_config)?;
        if role == Role::Target {
            update.facts = facts(own.as_ref(), &newer, model, &mut config)?;
        }
        update.policies.extend(one.change(&newer, config.parser.as_deref())?);
        update.create_again.extend(one.otherwise(&newer, model, &weights, &origin, &config)?);
    }
    update.config = config;
    Ok(update)
}

impl Update {
    /// Whether there is nothing to put in place.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.facts.is_empty()
    }

    /// Puts the newer policies in place. Before that `check` may refuse the model with them.
    ///
    /// # Errors
    /// Those of the store and of `check`.
    pub fn write(
        &self,
        store: &Store,
        check: &dyn Fn(&Writer, &Manifest) -> Result<(), Faults>,
    ) -> Result<Committed, Faults> {
        let writer = store.writer()?;
        let mut layers = self.manifest.layers.clone();
        for change in &self.policies {
            let blob = writer.add(change.text.as_bytes())?;
            replace(&mut layers, blob.layer(media::POLICY, Some(policy_name(change.layer))));
        }
        let config = serde_json::to_vec(&self.config).map_err(|error| {
            Fault::new(Code::Internal, format!("the config has no JSON form: {error}"))
        })?;
        let config = writer.add(&config)?.layer(media::CONFIG, None);
        let manifest = Manifest::new(config, layers);
        check(&writer, &manifest)?;
        Ok(writer.commit(&self.name, &manifest)?)
    }
}

/// One of the two models of a manifest, and the policies that there are.
struct One<'a> {
    store: &'a Store,
    library: &'a Library,
    manifest: &'a Manifest,
    role: Role,
}

impl One<'_> {
    /// The policy that the model carries, as far as this lathe reads it, and the one there is now.
    fn policies(&self, name: &Name, config: &Value) -> Result<(Option<Policy>, Policy), Faults> {
        let read = |layer: &_| self.store.read_blob(layer);
        let own = match self.manifest.read_policy(self.role, &name.to_string(), read) {
            Ok(own) => own.map(|own| Policy::compile(vec![own])).transpose()?,
            // What cannot be read can be replaced.
            Err(fault) if fault.code == Code::CorruptBlob => return Err(fault.into()),
            Err(_) => None,
        };
        let newer = stored::in_library(self.library, config, self.role)?;
        Ok((own, newer))
    }

    /// What putting the newer policy in place changes; none where both say the same.
    fn change(&self, newer: &Policy, parser: Option<&str>) -> Result<Option<PolicyChange>, Faults> {
        let layer = self.manifest.policy(self.role);
        let old = layer.map(|layer| self.store.read_blob(layer)).transpose()?;
        let old = old.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let parser = match self.role {
            Role::Target => parser,
            Role::Draft => None,
        };
        let answers = self.library.answers_of(newer, parser.unwrap_or(parsers::DEFAULT)).ok();
        let file = stored::merged(newer, answers.as_ref());
        let text = stored::text(&file)?;
        let before = old.as_deref().and_then(|old| stored::read("it", old.as_bytes()).ok());
        let before = before.as_ref().map(|entry| &entry.file);
        if before.is_some_and(|before| stored::same(before, &file)) {
            return Ok(None);
        }
        let (running, other) = parts(before, &file)?;
        let (name, old) = (policy_name(self.role), old.unwrap_or_default());
        let diff = similar::TextDiff::from_lines(old.as_str(), text.as_str());
        let (now, newer) = (format!("{name} (now)"), format!("{name} (newer)"));
        let diff = diff.unified_diff().header(&now, &newer).to_string();
        Ok(Some(PolicyChange {
            role: match self.role {
                Role::Target => "target",
                Role::Draft => "draft",
            },
            from: before.map(Head::of),
            to: Head::of(&file),
            running,
            other,
            diff,
            text,
            layer: self.role,
        }))
    }

    /// Tensors about which a rule decided and would now decide otherwise.
    fn otherwise(
        &self,
        newer: &Policy,
        model: Model,
        weights: &[Weight],
        origin: &Origin,
        config: &Config,
    ) -> Result<Vec<Otherwise>, Faults> {
        // Rules of a policy are told with file and line, lathe's own decisions without.
        let by_rule = |weight: &&Weight| {
            origin.tensors.get(&weight.name).is_some_and(|origin| origin.rule.ends_with(')'))
        };
        let own =
            |weight: &&Weight| weight.name.starts_with(DRAFT_PREFIX) == (self.role == Role::Draft);
        let weights: Vec<&Weight> = weights.iter().filter(own).filter(by_rule).collect();
        // What was asked for is told of a model, and of a draft only by what came of it.
        let formats = Formats::built_in();
        let asked = formats.get(&config.file_type).filter(|_| self.role == Role::Target);
        let mut candidates: Vec<&'static Format> = asked.into_iter().collect();
        if candidates.is_empty() {
            for format in weights.iter().filter_map(|weight| weight.format) {
                if !candidates.iter().any(|known| known.name == format.name) {
                    candidates.push(format);
                }
            }
        }
        let mut least: Option<Vec<Otherwise>> = None;
        for format in candidates {
            let found = differences(newer, model, format, &weights)?;
            if least.as_ref().is_none_or(|least| found.len() < least.len()) {
                least = Some(found);
            }
        }
        Ok(least.unwrap_or_default())
    }
}

fn differences(
    newer: &Policy,
    model: Model,
    asked: &'static Format,
    weights: &[&Weight],
) -> Result<Vec<Otherwise>, Faults> {
    let mut decider = Decider::new(newer, model, Some(asked))?;
    let mut out = Vec::new();
    for weight in weights {
        let name = weight.name.strip_prefix(DRAFT_PREFIX).unwrap_or(&weight.name);
        let decision = decider.decide(name, &weight.shape, weight.dtype)?;
        let would_be = decision.format.map_or(crate::format::SOURCE, |format| &format.name);
        if would_be != weight.format_name() {
            out.push(Otherwise {
                tensor: weight.name.clone(),
                is: weight.format_name().to_string(),
                would_be: would_be.to_string(),
                rule: decision.rule.id.clone(),
            });
        }
    }
    Ok(out)
}

/// What the config blob says of a model by its policy, made what the newer one says. What a Modelfile
/// said in the policy's place stays; of a model that carries no policy that cannot be told.
fn facts(
    own: Option<&Policy>,
    newer: &Policy,
    model: Model,
    config: &mut Config,
) -> Result<Vec<FactChange>, Faults> {
    let told = |policy: &Policy| -> Result<_, Faults> {
        let mut decider = Decider::new(policy, model, None)?;
        let parser = decider.parser()?;
        let requires = decider.requires().unwrap_or_else(|| LEAST_RUNTIME.into());
        let capabilities = decider.capabilities(parser.as_deref())?;
        Ok((parser, decider.renderer()?, Some(requires), capabilities))
    };
    let before = own.map(told).transpose()?;
    let (parser, renderer, requires, capabilities) = told(newer)?;
    let mut changes = Vec::new();
    let before = before.as_ref();
    let facts = [
        ("parser", &mut config.parser, before.map(|told| &told.0), parser),
        ("renderer", &mut config.renderer, before.map(|told| &told.1), renderer),
        ("requires", &mut config.requires, before.map(|told| &told.2), requires),
    ];
    for (what, is, by_policy, to) in facts {
        if by_policy.is_none_or(|by_policy| by_policy == is) && *is != to {
            changes.push(FactChange { what, from: is.clone(), to: to.clone() });
            *is = to;
        }
    }
    if config.capabilities != capabilities {
        let listed = |list: &[String]| Some(list.join(", "));
        let (from, to) = (listed(&config.capabilities), listed(&capabilities));
        changes.push(FactChange { what: "capabilities", from, to });
        config.capabilities = capabilities;
    }
    Ok(changes)
}

/// The keys of two policies that differ: those that running looks at, and the others. The decoder's
/// are told one by one.
fn parts(
    before: Option<&PolicyFile>,
    after: &PolicyFile,
) -> Result<(Vec<String>, Vec<String>), Faults> {
    const RUNNING: [&str; 3] = ["parsers", "aliases", "decoder"];
    let tree = |file: &PolicyFile| {
        serde_json::to_value(PolicyFile { stored: None, ..file.clone() }).map_err(|error| {
            Fault::new(Code::Internal, format!("a policy has no JSON form: {error}"))
        })
    };
    let (before, after) = (before.map(tree).transpose()?.unwrap_or_default(), tree(after)?);
    let (mut running, mut other) = (Vec::new(), Vec::new());
    for key in differing(&before, &after) {
        match (key.as_str(), RUNNING.contains(&key.as_str())) {
            ("decoder", _) => {
                let keys = differing(&before["decoder"], &after["decoder"]);
                running.extend(keys.into_iter().map(|inner| format!("decoder.{inner}")));
            }
            (_, true) => running.push(key),
            (_, false) => other.push(key),
        }
    }
    Ok((running, other))
}

/// The keys whose values differ between two objects.
fn differing(one: &Value, other: &Value) -> Vec<String> {
    let keys = |value: &Value| -> Vec<String> {
        value.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default()
    };
    let mut all = keys(other);
    all.extend(keys(one).into_iter().filter(|key| other.get(key).is_none()));
    all.retain(|key| {
        one.get(key).unwrap_or(&Value::Null) != other.get(key).unwrap_or(&Value::Null)
    });
    all
}
