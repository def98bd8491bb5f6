//! The policy that a stored model carries: a compiled policy in, a text that says all of it and
//! extends nothing out; and that text read back.
//!
//! The text is a policy file like any other, so that it can be read, printed, compared and put into
//! a folder of policies. Its head, `stored`, says which versions of lathe read it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::Value;

use super::compile::Policy;
use super::file::{PolicyFile, Role, Stored};
use super::library::{Entry, Library};
use super::parsers::Answers;
use crate::checkpoint::architecture;
use crate::document::Document;
use crate::fault::{Code, Fault, Faults};

/// Version of the form; changes when an older lathe would misread a policy of it.
pub const VERSION: u32 = 1;

/// The lathe that writes.
pub const LATHE: &str = env!("CARGO_PKG_VERSION");

/// A policy and all that it extends as one file that extends nothing, with the parser `answers`
/// besides those that it names.
pub fn merged(policy: &Policy, answers: Option<&Answers>) -> PolicyFile {
    let files = || policy.chain.iter().map(|entry| &entry.file);
    let oldest_first = || files().rev();
    let nearest = &policy.chain[0].file;
    let mut parsers = policy.parsers.clone();
    if let Some(answers) = answers {
        // The nearest of a name is taken, and this one is.
        parsers.retain(|parser| parser.name != answers.name);
        parsers.insert(0, answers.clone());
    }
    let mut fit = IndexMap::new();
    for rule in files().flat_map(|file| &file.fit) {
        fit.entry(&rule.id).or_insert_with(|| rule.clone());
    }
    // An ancestor's order holds for capabilities, whoever said the condition.
    let order = oldest_first().flat_map(|file| file.capabilities.keys());
    let condition = |name: &String| files().find_map(|file| file.capabilities.get(name));
    let capabilities = order.filter_map(|name| Some((name.clone(), condition(name)?.clone())));
    PolicyFile {
        stored: Some(Stored { version: VERSION, lathe: LATHE.into() }),
        name: nearest.name.clone(),
        extends: None,
        role: nearest.role,
        matches: nearest.matches.clone(),
        values: nearest_of(files().map(|file| &file.values)),
        sets: nearest_of(files().map(|file| &file.sets)),
        schedules: nearest_of(files().map(|file| &file.schedules)),
        guards: unique(oldest_first().map(|f| (f, &f.guards)), |rule| &mut rule.id),
        drafts: unique(oldest_first().map(|f| (f, &f.drafts)), |rule| &mut rule.id),
        tensors: unique(files().map(|f| (f, &f.tensors)), |rule| &mut rule.id),
        stack: unique(files().map(|f| (f, &f.stack)), |rule| &mut rule.id),
        aliases: unique(files().map(|f| (f, &f.aliases)), |rule| &mut rule.id),
        drop: unique(files().map(|f| (f, &f.drop)), |rule| &mut rule.id),
        fit: fit.into_values().collect(),
        strict: policy.strict,
        capabilities: capabilities.collect(),
        parser: files().find_map(|file| file.parser.clone()),
        renderer: files().find_map(|file| file.renderer.clone()),
        requires: policy.requires.clone(),
        parsers,
        decoder: policy.decoder.clone(),
    }
}

/// The entries of all files; of several with one name the nearest file's.
fn nearest_of<'f, T: Clone + 'f>(
    files: impl Iterator<Item = &'f IndexMap<String, T>>,
) -> IndexMap<String, T> {
    let mut all = IndexMap::new();
    for (name, value) in files.flatten() {
        all.entry(name.clone()).or_insert_with(|| value.clone());
    }
    all
}

/// The rules of all files. An id that two files use is followed by the second one's name.
fn unique<'f, T: Clone + 'f>(
    files: impl Iterator<Item = (&'f PolicyFile, &'f Vec<T>)>,
    id: impl Fn(&mut T) -> &mut String,
) -> Vec<T> {
    let (mut all, mut seen) = (Vec::new(), HashSet::new());
    for (file, rules) in files {
        for rule in rules {
            let mut rule = rule.clone();
            while !seen.insert(id(&mut rule).clone()) {
                id(&mut rule).push_str(&format!("-of-{}", file.name));
            }
            all.push(rule);
        }
    }
    all
}

/// The text of a policy file, as YAML. The same bytes for the same file.
///
/// # Errors
/// None for a policy that was read.
pub fn text(file: &PolicyFile) -> Result<String, Fault> {
    let no_form = |why: &dyn std::fmt::Display| {
        Fault::new(Code::Internal, format!("policy {} has no YAML form: {why}", file.name))
    };
    let mut tree = serde_json::to_value(file).map_err(|error| no_form(&error))?;
    without_nulls(&mut tree);
    let body = serde_yaml::to_string(&tree).map_err(|error| no_form(&error))?;
    Ok(format!("# A policy with all that it extends, as a stored model carries it.\n{body}"))
}

/// What is not said is left out. A decoder's `defaults` are a config's values, of which null is one.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, inner| !inner.is_null());
            let said = map.iter_mut().filter(|(key, _)| *key != "defaults");
            said.for_each(|(_, inner)| without_nulls(inner));
        }
        Value::Array(list) => list.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// Reads the policy that a model carries; `of` names the model.
///
/// # Errors
/// A text of a later version, or one that cannot be understood.
pub fn read(of: &str, text: &[u8]) -> Result<Arc<Entry>, Fault> {
    let name = format!("the policy of {of}");
    let body = String::from_utf8_lossy(text).into_owned();
    let document = Document::parse(name, body)?;
    let head = document.root.get("stored").map(|(_, head)| head.to_json()).unwrap_or_default();
    let lathe = head["lathe"].as_str().unwrap_or("?").to_string();
    let how = format!(
        "it was written by lathe {lathe}, and this is {LATHE}: install a newer one, `lathe update` \
         the model, or give a policy with --policy-dir"
    );
    match head["version"].as_u64() {
        Some(version) if version > u64::from(VERSION) => {
            let what = format!(
                "the policy that {of} carries has version {version}, and this lathe reads {VERSION}"
            );
            return Err(Fault::new(Code::NewerPolicy, what).help(how));
        }
        _ => {}
    }
    let entry = Entry::of(document, false);
    entry.map(Arc::new).map_err(|fault| if lathe == LATHE { fault } else { fault.help(how) })
}

/// The policy of a stored model: of `policy_dir` when that is given, else its own, else (for one
/// that was stored before models carried theirs) that of the user's folder or the built-in one.
///
/// # Errors
/// When a policy cannot be read or understood.
pub fn policy_of(
    own: Option<&Arc<Entry>>,
    config: &Value,
    role: Role,
    policy_dir: Option<&Path>,
) -> Result<Policy, Faults> {
    match (own, policy_dir) {
        (Some(own), None) => Policy::compile(vec![own.clone()]),
        _ => in_library(&Library::load(policy_dir)?, config, role),
    }
}

/// The policy of a library for a model of this config.
///
/// # Errors
/// As [`Library::find`] and [`Library::compile`].
pub fn in_library(library: &Library, config: &Value, role: Role) -> Result<Policy, Faults> {
    library.compile(library.find(&architecture(config)?, role)?)
}

/// Two policies without what only says who wrote them.
pub fn same(one: &PolicyFile, other: &PolicyFile) -> bool {
    let plain =
        |file: &PolicyFile| serde_json::to_value(PolicyFile { stored: None, ..file.clone() }).ok();
    plain(one) == plain(other)
}
