//! Where policy files come from: the binary, the user's folder, `--policy-dir`; a later one
//! replaces an earlier one of the same name.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, OnceLock};

use indexmap::IndexMap;

use super::compile::Policy;
pub use super::entry::Entry;
use super::file::Role;
use super::parsers::Answers;
use crate::built_in::{self, policy_files};
use crate::fault::{Code, Fault, Faults};
use crate::path;

/// A policy that is compiled in. Reading all of them would be most of the work of planning a small
/// model, so each is read when it is asked for.
#[derive(Debug)]
struct BuiltIn {
    /// Of the policy, and of its file.
    name: &'static str,
    file: &'static str,
    body: &'static str,
    read: OnceLock<Arc<Entry>>,
}

static BUILT_IN: LazyLock<Vec<BuiltIn>> = LazyLock::new(|| {
    let stem = |file: &'static str| {
        let name = file.strip_prefix("architectures/").unwrap_or(file);
        name.rsplit_once('.').map_or(name, |(stem, _)| stem)
    };
    let files = built_in::ARCHITECTURES.iter();
    let built_in = |&(file, body)| BuiltIn { name: stem(file), file, body, read: OnceLock::new() };
    files.map(built_in).collect()
});

impl BuiltIn {
    fn entry(&self) -> &Arc<Entry> {
        self.read.get_or_init(|| {
            let entry = Entry::read(self.file, self.body.to_string(), true);
            Arc::new(entry.expect("tested: the built-in policies"))
        })
    }
}

#[derive(Debug)]
enum Slot {
    BuiltIn(&'static BuiltIn),
    Read(Arc<Entry>),
}

impl Slot {
    fn entry(&self) -> &Arc<Entry> {
        match self {
            Slot::BuiltIn(built_in) => built_in.entry(),
            Slot::Read(entry) => entry,
        }
    }

    /// Whether the policy's text has a word, in any case: what lacks it need not be read for it.
    fn may_name(&self, word: &str) -> bool {
        let Slot::BuiltIn(built_in) = self else { return true };
        let mut windows = built_in.body.as_bytes().windows(word.len().max(1));
        windows.any(|window| window.eq_ignore_ascii_case(word.as_bytes()))
    }
}

/// All policies that are known, by name.
#[derive(Debug, Default)]
pub struct Library {
    entries: IndexMap<String, Slot>,
    /// Folders that policies were added from, which may have parsers too.
    dirs: Vec<PathBuf>,
}

impl Library {
    /// The policies that are compiled in.
    pub fn built_in() -> Library {
        let slots = BUILT_IN.iter();
        let entries = slots.map(|slot| (slot.name.to_string(), Slot::BuiltIn(slot))).collect();
        Library { entries, dirs: Vec::new() }
    }

    /// The built-in policies, those of the user's folder, and those of `--policy-dir`.
    pub fn load(policy_dir: Option<&Path>) -> Result<Library, Faults> {
        let mut library = Library::built_in();
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
        self.dirs.push(dir.to_path_buf());
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
        self.entries.insert(name.clone(), Slot::Read(Arc::new(entry)));
        name
    }

    /// All policies.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.values().map(Slot::entry)
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// A policy by name.
    pub fn get(&self, name: &str) -> Option<&Arc<Entry>> {
        self.entries.get(name).map(Slot::entry)
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
        let may_name = self.entries.values().filter(|slot| slot.may_name(architecture));
        let of_name: Vec<&Arc<Entry>> = may_name.map(Slot::entry).filter(named).collect();
        // A later entry replaces an earlier one, so among several the last that was added wins.
        let of_role = |role| of_name.iter().rfind(|entry| entry.file.role == role).copied();
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
                let near = crate::format::nearest(&parent, self.names());
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

    /// Compiles a policy with all that it extends, and with the parsers that it names as far as
    /// they are known.
    pub fn compile(&self, entry: &Arc<Entry>) -> Result<Policy, Faults> {
        let mut policy = Policy::compile(self.chain(entry)?)?;
        let names: Vec<String> = policy.parser.iter().map(|(_, name)| name.clone()).collect();
        for name in names {
            // One that cannot be read is told where it is used.
            if let Ok(answers) = self.answers_of(&policy, &name)
                && !policy.parsers.contains(&answers)
            {
                policy.parsers.push(answers);
            }
        }
        Ok(policy)
    }

    /// The folders that add policies, and parsers in their `parsers`; later ones win.
    pub fn dirs(&self) -> Vec<&Path> {
        self.dirs.iter().map(PathBuf::as_path).collect()
    }

    /// A parser by name: the policy's own, else of a policy folder, the last that was added first,
    /// else one that lathe carries.
    ///
    /// # Errors
    /// As [`Answers::named`].
    pub fn answers_of(&self, policy: &Policy, name: &str) -> Result<Answers, Fault> {
        policy.answers(name, &self.dirs())
    }
}

/// `~/.config/lathe/policies`, or what the platform has instead.
pub fn user_folder() -> Option<PathBuf> {
    use etcetera::BaseStrategy;
    let strategy = etcetera::choose_base_strategy().ok()?;
    Some(strategy.config_dir().join("lathe").join("policies"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_policy_can_be_read_and_is_named_as_its_file() {
        assert!(BUILT_IN.len() > 20);
        for built_in in BUILT_IN.iter() {
            assert_eq!(built_in.entry().file.name, built_in.name);
        }
    }

    #[test]
    fn an_architecture_is_found_in_any_case_and_what_does_not_name_it_is_not_read() {
        let library = Library::built_in();
        let found = library.find("LLAMAforcausallm", Role::Target).unwrap();
        assert_eq!(found.file.name, "llama");
        assert_eq!(library.find("NobodyForCausalLM", Role::Target).unwrap().file.name, "base");
        let unread = Slot::BuiltIn(&BUILT_IN[0]);
        assert!(unread.may_name(&BUILT_IN[0].body[..9]) && !unread.may_name("NobodyForCausalLM"));
    }
}
