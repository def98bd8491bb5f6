//! Which files of a folder hold its weights, and what the shard index says about them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::{Component, Path};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::{lenient, mistaken};
use crate::fault::{Code, Fault, Faults, Warning};

/// The shard index of Hugging Face folders.
pub const INDEX: &str = "model.safetensors.index.json";
const EXTENSION: &str = ".safetensors";

/// The weight files that were chosen, and the index when there is one.
pub struct Chosen {
    /// File names, relative to the folder, sorted.
    pub files: Vec<String>,
    /// Which file each tensor is in, as the index has it.
    pub index: Option<HashMap<String, Arc<str>>>,
}

/// Chooses the weight files among `names`, the names of the folder's files.
///
/// # Errors
/// An index that is invalid, leaves the folder or names a missing file; no weights; several sets.
pub fn choose(
    dir: &Path,
    names: &BTreeSet<String>,
    warnings: &mut Vec<Warning>,
) -> Result<Chosen, Faults> {
    if names.contains(INDEX) {
        return indexed(dir, warnings);
    }
    let files = unindexed(dir, names, warnings)?;
    Ok(Chosen { files, index: None })
}

fn indexed(dir: &Path, warnings: &mut Vec<Warning>) -> Result<Chosen, Faults> {
    let bad = |message: String| Fault::new(Code::BadIndex, message).in_file(INDEX);
    let mut noise = Vec::new();
    let index: Index = match lenient::file(dir, INDEX, &mut noise) {
        Ok(Some(index)) => index,
        Ok(None) => return Err(bad("it vanished while the folder was read".into()).into()),
        Err(fault) => return Err(Fault { code: Code::BadIndex, ..fault }.into()),
    };
    warnings.append(&mut noise);
    let Some(Entries(entries)) = index.weight_map else {
        return Err(bad("it has no weight_map".into()).help("download the index again").into());
    };

    let mut faults = Faults::default();
    let mut map: HashMap<String, Arc<str>> = HashMap::with_capacity(entries.len());
    let mut first_of: BTreeMap<Arc<str>, String> = BTreeMap::new();
    for (tensor, file) in entries {
        let known = first_of.get_key_value(file.as_str()).map(|(file, _)| file.clone());
        let shared = known.unwrap_or_else(|| {
            let file: Arc<str> = file.as_str().into();
            first_of.insert(file.clone(), tensor.clone());
            file
        });
        if let Some(other) = map.insert(tensor.clone(), shared)
            && *other != *file
        {
            faults.push(
                bad(format!("it puts one tensor in {other} and in {file}")).on_tensor(tensor),
            );
        }
    }
    if map.is_empty() {
        faults.push(bad("its weight_map is empty".into()).help("download the index again"));
    }
    for (file, tensor) in &first_of {
        if let Err(message) = inside(file) {
            faults.push(bad(format!("its path {file:?} {message}")).on_tensor(tensor.clone()));
        } else if !dir.join(&**file).is_file() {
            let message = format!("the index names {file}, which is not in the folder");
            let fault = Fault::new(Code::MissingShard, message).in_file(&**file);
            faults.push(fault.on_tensor(tensor.clone()).help("download the missing file"));
        }
    }
    let files = first_of.keys().map(|file| file.to_string()).collect();
    faults.or(Chosen { files, index: Some(map) })
}

/// Whether a path of the index stays in the folder and may hold weights.
fn inside(file: &str) -> Result<(), &'static str> {
    if !file.ends_with(EXTENSION) {
        return Err("is not a safetensors file");
    }
    let plain = |part: Component| matches!(part, Component::Normal(_) | Component::CurDir);
    if file.contains('\\') || !Path::new(file).components().all(plain) {
        return Err("leaves the folder");
    }
    Ok(())
}

/// How the files of a set are told apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Numbering {
    /// One file.
    None,
    /// `-of-` so many.
    Of(u64),
    /// Numbers without a total.
    Open,
    /// `model-` and any words.
    Words,
}

/// A set of files that belong together, by their number.
type Set = BTreeMap<u64, String>;
type Key = (String, Numbering);

fn unindexed(
    dir: &Path,
    names: &BTreeSet<String>,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<String>, Faults> {
    let candidates: Vec<&String> = names.iter().filter(|name| is_weights(name)).collect();
    let mut sets: BTreeMap<Key, Set> = BTreeMap::new();
    for name in &candidates {
        let (stem, numbering, number) = split(name);
        let set = sets.entry((stem, numbering)).or_default();
        let number = if numbering == Numbering::Words { set.len() as u64 } else { number };
        set.insert(number, (*name).clone());
    }
    // Names that the ecosystem writes win over strays under other names.
    let words = |key: &&Key| key.1 == Numbering::Words;
    let usual: Vec<_> = sets.keys().filter(|key| key.0 == "model" && !words(key)).collect();
    let pool = match usual.is_empty() {
        false => usual,
        true => match sets.keys().find(words) {
            Some(set) => vec![set],
            None => sets.keys().collect(),
        },
    };
    let &[key] = pool.as_slice() else {
        return Err(no_set(dir, names, &pool, &sets).into());
    };
    let set = &sets[key];
    let mut faults = Faults::default();
    if let Numbering::Of(total) = key.1 {
        let missing = (1..=total.min(100_000)).filter(|number| !set.contains_key(number));
        for number in missing {
            let message = format!("shard {number} of {total} is not in the folder");
            let like = set.values().next().map_or("", |name| name);
            let fault = Fault::new(Code::MissingShard, message).in_file(like);
            faults.push(fault.help(format!("download it; it is named like {like}")));
        }
    }
    let files: Vec<String> = set.values().cloned().collect();
    if key.0 != "model" {
        let message =
            format!("no model.safetensors: the weights were taken from {}", files.join(", "));
        warnings.push(Warning::new(Code::NoWeights, message));
    }
    faults.or(files)
}

fn no_set(dir: &Path, names: &BTreeSet<String>, pool: &[&Key], sets: &BTreeMap<Key, Set>) -> Fault {
    if !pool.is_empty() {
        let first = |key: &&Key| sets[*key].values().next().map(String::as_str);
        let firsts: Vec<&str> = pool.iter().filter_map(first).collect();
        let message = format!("the folder holds several sets of weights: {}", firsts.join(", "));
        return Fault::new(Code::NoWeights, message)
            .help("keep one set, or add the model.safetensors.index.json that names it");
    }
    if let Some(fault) = mistaken::adapter(dir, names) {
        return fault;
    }
    let fault = Fault::new(Code::NoWeights, "the folder has no safetensors weights");
    if let Some(other) = names.iter().find(|name| name.ends_with(EXTENSION)) {
        fault.help(format!(
            "{other} is not read: lathe reads Hugging Face weights (model*.safetensors), neither \
             consolidated files nor adapters"
        ))
    } else if let Some((name, form)) = mistaken::other_weights(names) {
        Fault::new(Code::NoWeights, format!("the folder's weights are {}", form.0))
            .in_file(name)
            .help(form.1)
    } else {
        fault.help("download model*.safetensors into the folder")
    }
}

/// Whether a file may hold the model's weights: neither another program's form of them, nor an
/// adapter.
fn is_weights(name: &str) -> bool {
    name.ends_with(EXTENSION) && !name.starts_with("consolidated") && !name.starts_with("adapter")
}

/// The set that a file belongs to, and its number there: `model-00002-of-00003.safetensors` and
/// `model.safetensors-00002-of-00003.safetensors` are number 2 of `model` of 3,
/// `weights.01.safetensors` is number 1 of `weights`.
fn split(name: &str) -> (String, Numbering, u64) {
    let stem = name.strip_suffix(EXTENSION).unwrap_or(name);
    let number = |text: &str| -> Option<u64> {
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
    };
    if let Some((head, total)) = stem.rsplit_once("-of-")
        && let (Some(total), Some((base, index))) = (number(total), head.rsplit_once('-'))
        && let Some(index) = number(index)
    {
        let base = base.strip_suffix(EXTENSION).unwrap_or(base);
        return (base.into(), Numbering::Of(total), index);
    }
    if let Some((base, index)) = stem.rsplit_once(['.', '-'])
        && let Some(index) = number(index)
    {
        return (base.into(), Numbering::Open, index);
    }
    if stem.starts_with("model-") {
        return ("model".into(), Numbering::Words, 0);
    }
    (stem.into(), Numbering::None, 0)
}

#[derive(Deserialize)]
struct Index {
    weight_map: Option<Entries>,
}

/// Entries in the order of the text; a name that comes twice is kept twice.
struct Entries(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;

        impl<'de> Visitor<'de> for Map {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of file names by tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(Map)
    }
}
