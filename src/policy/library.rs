//! Where policy files come from: the binary, the user's folder, `--policy-dir`; a later one
//! replaces an earlier one of the same name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexMap;
use rayon::prelude::*;

use super::compile::Policy;
use super::file::{PolicyFile, Role};
use super::text::Document;
use crate::fault::{Code, Fault, Faults};
use crate::path;

mod built_in {
    include!(concat!(env!("OUT_DIR"), "/policies.rs"));
}

/// The texts of the built-in source layouts: (name, YAML).
pub fn built_in_sources() -> &'static [(&'static str, &'static str)] {
    built_in::SOURCES
}

/// The texts of the built-in parsers of answers: (name, YAML).
pub fn built_in_parsers() -> impl Iterator<Item = (&'static str, &'static str)> {
    built_in::PARSERS.iter().map(|&(file, text)| {
        let name = file.strip_prefix("parsers/").and_then(|name| name.strip_suffix(".yaml"));
        (name.unwrap_or(file), text)
    })
}

/// A policy file that has been read.
#[derive(Debug)]
pub struct Entry {
    /// The text and its tree.
    pub document: Document,
    /// What it says.
    pub file: PolicyFile,
    /// Whether it is compiled into the binary.
    pub built_in: bool,
}

impl Entry {
    fn read(name: &str, body: String, built_in: bool) -> Result<Entry, Fault> {
        let document = Document::parse(name, body)?;
        let file: PolicyFile = document.decode()?;
        if file.name.is_empty() {
            return Err(document.fault(Code::PolicyName, path!["name"], "a policy needs a name"));
        }
        Ok(Entry { document, file, built_in })
    }
}

/// All policies that are known, by name.
#[derive(Debug, Default)]
pub struct Library {
    entries: IndexMap<String, Arc<Entry>>,
}

impl Library {
    /// The policies that are compiled in.
    pub fn built_in() -> Result<Library, Faults> {
        // Reading so much YAML is most of the work of planning a small model: all cores do it.
        let read: Vec<_> = built_in::ARCHITECTURES
            .par_iter()
            .map(|(name, body)| Entry::read(name, (*body).to_string(), true))
            .collect();
        let mut library = Library::default();
        let mut faults = Faults::default();
        for entry in read {
            if let Some(entry) = faults.absorb(entry.map_err(Faults::from)) {
                library.insert(entry);
            }
        }
        faults.or(library)
    }

    /// The built-in policies, those of the user's folder, and those of `--policy-dir`.
    pub fn load(policy_dir: Option<&Path>) -> Result<Library, Faults> {
        let mut library = Library::built_in()?;
        if let Some(dir) = user_folder().filter(|dir| dir.is_dir()) {
            library.add_folder(&dir)?;
        }
        if let Some(dir) = policy_dir {
            library.add_folder(dir)?;
        }
        Ok(library)
    }

    /// Adds every `.yaml` and `.toml` file of a folder (and of its `architectures`).
    pub fn add_folder(&mut self, dir: &Path) -> Result<(), Faults> {
        let nested = dir.join("architectures");
        let mut faults = Faults::default();
        for dir in [dir, &nested] {
            if dir == nested && !dir.is_dir() {
                continue;
            }
            for path in policy_files(dir)? {
                faults.absorb(self.add_file(&path).map_err(Faults::from));
            }
        }
        faults.or(())
    }

    /// Adds one file; gives the policy's name.
    pub fn add_file(&mut self, path: &Path) -> Result<String, Fault> {
        let body = std::fs::read_to_string(path)
            .map_err(|error| Fault::io("read the policy", path, &error))?;
        Ok(self.insert(Entry::read(&path.display().to_string(), body, false)?))
    }

    /// Adds a policy, in the place of one of the same name; gives its name.
    fn insert(&mut self, entry: Entry) -> String {
        let name = entry.file.name.clone();
        self.entries.insert(name.clone(), Arc::new(entry));
        name
    }

    /// All policies.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.values()
    }

    /// A policy by name.
    pub fn get(&self, name: &str) -> Option<&Arc<Entry>> {
        self.entries.get(name)
    }

    /// The policy for an architecture: one that names it, in any case, for the role; else (for
    /// drafts) one that names it for models; else `base`.
    pub fn find(&self, architecture: &str, role: Role) -> Result<&Arc<Entry>, Fault> {
        let named = |entry: &&Arc<Entry>| {
            entry.file.matches.as_ref().is_some_and(|m| {
                let mut names = m.architectures.iter().chain(&m.model_types);
                names.any(|name| name.eq_ignore_ascii_case(architecture))
            })
        };
        // A later entry replaces an earlier one, so among several the last that was added wins.
        let of_role = |role| self.iter().filter(|e| e.file.role == role).filter(named).last();
        match role {
            Role::Draft => of_role(Role::Draft).or_else(|| of_role(Role::Target)),
            // A draft's folder may also be made into a model by itself, to be attached later.
            Role::Target => of_role(Role::Target).or_else(|| of_role(Role::Draft)),
        }
        .or_else(|| self.get("base"))
        .ok_or_else(|| {
            Fault::new(Code::NoPolicy, format!("no policy for {architecture}, and none named base"))
        })
    }

    /// The policy and those it extends, nearest first.
    pub fn chain(&self, entry: &Arc<Entry>) -> Result<Vec<Arc<Entry>>, Fault> {
        let mut chain = vec![entry.clone()];
        while let Some(parent) = chain.last().and_then(|last| last.file.extends.clone()) {
            let child = chain.last().expect("never empty").clone();
            let fault =
                |message: String| child.document.fault(Code::PolicyName, path!["extends"], message);
            let Some(found) = self.get(&parent) else {
                let near = crate::format::nearest(&parent, self.entries.keys().map(String::as_str));
                let fault = fault(format!("no policy is named `{parent}`"));
                return Err(match near {
                    Some(near) => fault.help(format!("did you mean `{near}`?")),
                    None => fault,
                });
            };
            if chain.iter().any(|seen| seen.file.name == parent) {
                return Err(fault(format!("`{parent}` extends itself")));
            }
            chain.push(found.clone());
        }
        Ok(chain)
    }

    /// Compiles a policy with all that it extends.
    pub fn compile(&self, entry: &Arc<Entry>) -> Result<Policy, Faults> {
        Policy::compile(self.chain(entry)?)
    }
}

/// `~/.config/lathe/policies`, or what the platform has instead.
pub fn user_folder() -> Option<PathBuf> {
    use etcetera::BaseStrategy;
    let strategy = etcetera::choose_base_strategy().ok()?;
    Some(strategy.config_dir().join("lathe").join("policies"))
}

/// The policy files of a folder, sorted by name. Tests of policies (`*.test.yaml`) are not among
/// them.
pub fn policy_files(dir: &Path) -> Result<Vec<PathBuf>, Fault> {
    let fault = |error: &std::io::Error| Fault::io("read the policy folder", dir, error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|error| fault(&error))? {
        let path = entry.map_err(|error| fault(&error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let policy = name.ends_with(".yaml") || name.ends_with(".yml") || name.ends_with(".toml");
        let other = ["formats.toml", "backends.toml", "parsers.toml"].contains(&name.as_str());
        if policy && !other && !name.contains(".test.") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
