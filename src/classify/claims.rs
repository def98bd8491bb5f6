//! What a model's config claims to be quantized, and where the tensors say otherwise.
//!
//! Producers name modules as names, regular expressions (`re:`), globs or classes (`Linear`), and
//! disagree on the words that names begin with. Evidence wins; a claim that it contradicts is
//! worth a warning, for one of the two is a mistake.

use std::collections::HashSet;

use globset::{Glob, GlobSet, GlobSetBuilder};
use regex::RegexSet;
use serde_json::Value;

use super::file::ClaimsFile;
use super::paths::{ConfigPath, Roots};
use crate::read::{Inventory, TensorInfo};

/// The claims of one model.
pub struct Claims<'a> {
    file: &'a ClaimsFile,
    /// Modules that have settings of their own in the config.
    overridden: Vec<String>,
    ignored: Modules,
    targeted: Modules,
    schemes: Vec<(Modules, &'a Value)>,
    classless: GlobSet,
    prefixes: &'a [String],
}

/// A set of modules as configs name them.
struct Modules {
    /// The names, patterns and globs as they stand in the config.
    words: Vec<String>,
    /// Names, without the words that producers disagree on.
    names: HashSet<String>,
    patterns: RegexSet,
    globs: GlobSet,
    /// Whether a whole class of modules is named.
    class: bool,
}

/// How a claim names a module.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Named {
    No,
    ByClass,
    ByName,
}

impl<'a> Claims<'a> {
    /// Reads an inventory's claims.
    pub fn new(file: &'a ClaimsFile, inventory: &'a Inventory) -> Claims<'a> {
        let roots = Roots {
            config: &inventory.config,
            quant_config: inventory.quant_config.as_ref(),
            scheme: None,
            base: "",
        };
        let collect = |paths: &[String]| {
            let values: Vec<Value> =
                paths.iter().flat_map(|path| ConfigPath::parse(path).values(&roots)).collect();
            Modules::new(values.iter().flat_map(words), file)
        };
        let mut schemes = Vec::new();
        for path in &file.schemes {
            for group in borrowed(&inventory.config, path) {
                let targets = group.get("targets").map(words).unwrap_or_default();
                schemes.push((Modules::new(targets.into_iter(), file), group));
            }
        }
        let of_module = |(key, value): (&'a String, &'a Value)| {
            let is = key.contains('.') && (value.is_object() || value.is_boolean());
            is.then(|| key.clone())
        };
        let objects = file.overrides.iter().flat_map(|path| borrowed(&inventory.config, path));
        let overridden = objects.filter_map(Value::as_object).flatten().filter_map(of_module);
        Claims {
            file,
            overridden: overridden.collect(),
            ignored: collect(&file.ignored),
            targeted: collect(&file.targeted),
            schemes,
            classless: globs(file.classless.iter().map(String::as_str)),
            prefixes: &file.prefixes,
        }
    }

    /// The config group that targets a module; one that names it wins over one of its class.
    pub fn scheme(&self, module: &str) -> Option<(usize, &'a Value)> {
        if self.schemes.is_empty() {
            return None;
        }
        let names = self.names(module);
        let ranked = self.schemes.iter().enumerate();
        let ranked = ranked.map(|(n, (modules, group))| (modules.find(&names), n, *group));
        let named = ranked.filter(|(named, ..)| *named != Named::No);
        // Of equals the first counts, as producers have it.
        let best = named.reduce(|a, b| if b.0 > a.0 { b } else { a });
        best.map(|(_, n, group)| (n, group))
    }

    /// Whether the config says that a quantized module is not quantized.
    pub fn denies(&self, module: &str) -> bool {
        self.ignored.find(&self.names(module)) == Named::ByName
    }

    /// Whether the config says that a module whose weight is plain floats is quantized.
    pub fn promises(&self, module: &str, shape: &[u64]) -> bool {
        let names = self.names(module);
        let named = self.targeted.find(&names);
        let promised = match named {
            Named::No => false,
            Named::ByName => true,
            Named::ByClass => shape.len() == 2 && !self.classless.is_match(module),
        };
        promised && self.ignored.find(&names) == Named::No
    }

    /// The words of the config that name nothing of these tensors, with what it says of them.
    pub fn in_vain(&self, tensors: &[TensorInfo]) -> Vec<(&'static str, Vec<String>)> {
        let told = [
            ("has settings of their own for", &self.overridden),
            ("leaves unquantized", &self.ignored.words),
            ("quantizes", &self.targeted.words),
        ];
        let habitual = globs(self.file.habitual.iter().map(String::as_str));
        let mut open: Vec<(usize, &String, Modules)> = Vec::new();
        for (n, (_, words)) in told.iter().enumerate() {
            for word in words.iter().filter(|word| !habitual.is_match(word.as_str())) {
                if !open.iter().any(|(m, known, _)| (*m, *known) == (n, word)) {
                    open.push((n, word, Modules::new(std::iter::once(word.clone()), self.file)));
                }
            }
        }
        open.retain(|(_, _, modules)| !modules.class);
        for tensor in tensors {
            if open.is_empty() {
                break;
            }
            let module =
                tensor.name.rsplit_once('.').map_or(tensor.name.as_str(), |(module, _)| module);
            let names = self.names(module);
            open.retain(|(_, _, modules)| modules.find(&names) == Named::No);
        }
        let in_vain = told.iter().enumerate().map(|(n, (says, _))| {
            let words = open.iter().filter(|(m, ..)| *m == n).map(|(_, word, _)| (*word).clone());
            (*says, words.collect::<Vec<_>>())
        });
        in_vain.filter(|(_, words)| !words.is_empty()).collect()
    }

    /// Whether there is anything to compare with.
    pub fn is_empty(&self) -> bool {
        self.ignored.is_empty() && self.targeted.is_empty()
    }

    /// The names under which producers may know a module: the bare one first, then with each of
    /// the leading words, then its own.
    fn names(&self, module: &str) -> Vec<String> {
        let bare = bare(module, self.prefixes);
        let mut names = vec![bare.to_string()];
        names.extend(self.prefixes.iter().map(|prefix| format!("{prefix}{bare}")));
        if !names.iter().any(|name| name == module) {
            names.push(module.into());
        }
        names
    }
}

/// A module's name without the words that producers disagree on.
fn bare<'m>(module: &'m str, prefixes: &[String]) -> &'m str {
    let longest =
        prefixes.iter().filter(|prefix| module.starts_with(*prefix)).max_by_key(|p| p.len());
    longest.map_or(module, |prefix| &module[prefix.len()..])
}

impl Modules {
    fn new(words: impl Iterator<Item = String>, file: &ClaimsFile) -> Modules {
        let (mut names, mut patterns, mut globbed, mut class) =
            (HashSet::new(), Vec::new(), Vec::new(), false);
        let mut all = Vec::new();
        for word in words {
            all.push(word.clone());
            if let Some(pattern) = word.strip_prefix("re:") {
                // As Python's `re.match`: from the start, not to the end.
                patterns.push(format!("^(?:{pattern})"));
            } else if file.classes.contains(&word) {
                class = true;
            } else if word.contains(['*', '?', '[']) {
                globbed.push(word);
            } else {
                names.insert(bare(&word, &file.prefixes).to_string());
            }
        }
        // A pattern that is none names nothing; its module is judged by its tensors alone.
        let patterns = patterns.into_iter().filter(|p| regex::Regex::new(p).is_ok());
        Modules {
            words: all,
            names,
            patterns: RegexSet::new(patterns).unwrap_or_else(|_| RegexSet::empty()),
            globs: globs(globbed.iter().map(String::as_str)),
            class,
        }
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.patterns.is_empty() && self.globs.is_empty() && !self.class
    }

    /// How the set names a module, known under `names`.
    fn find(&self, names: &[String]) -> Named {
        let mut above = names.first().map_or("", String::as_str);
        loop {
            if self.names.contains(above) {
                return Named::ByName;
            }
            match above.rfind('.') {
                Some(dot) if !self.names.is_empty() => above = &above[..dot],
                _ => break,
            }
        }
        let by_pattern = |name: &String| self.patterns.is_match(name) || self.globs.is_match(name);
        if names.iter().any(by_pattern) {
            return Named::ByName;
        }
        if self.class { Named::ByClass } else { Named::No }
    }
}

/// Globs as Python's fnmatch has them: `*` crosses dots.
pub fn globs<'g>(words: impl Iterator<Item = &'g str>) -> GlobSet {
    let mut builder = GlobSetBuilder::new();
    words.filter_map(|word| Glob::new(word).ok()).for_each(|glob| {
        builder.add(glob);
    });
    builder.build().unwrap_or_else(|_| GlobSet::empty())
}

/// The strings of a list, the keys of an object, or the string itself.
fn words(value: &Value) -> Vec<String> {
    match value {
        Value::String(word) => vec![word.clone()],
        Value::Array(list) => list.iter().flat_map(words).collect(),
        Value::Object(map) => map.keys().cloned().collect(),
        _ => Vec::new(),
    }
}

/// The objects at a path of keys and `*`.
fn borrowed<'a>(value: &'a Value, path: &str) -> Vec<&'a Value> {
    path.split('.').fold(vec![value], |found, step| {
        let next = |value: &'a Value| -> Vec<&'a Value> {
            match value {
                Value::Object(map) if step == "*" => map.values().collect(),
                Value::Object(map) => map.get(step).into_iter().collect(),
                _ => Vec::new(),
            }
        };
        found.into_iter().flat_map(next).collect()
    })
}
