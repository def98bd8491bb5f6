//! What a controller learned, kept across restarts: one file for each model, draft, backend and
//! device. A file that is not whole, or of something else, is as though it were not there.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{DEEPEST, Learned};
use crate::fault::{Code, Fault};

/// Changes when files of before mean something else.
const VERSION: u32 = 1;
/// A larger file is not one of ours.
const MOST_BYTES: u64 = 64 << 20;

/// What costs and acceptance depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The target: its manifest's digest, since a name may come to mean another model.
    pub model: String,
    /// The draft likewise; `lookup` for prompt lookup.
    pub draft: String,
    /// `cpu` or `graph`.
    pub backend: String,
    /// The device, as the backend calls it.
    pub device: String,
}

impl Key {
    /// The file's name, which holds for this key alone.
    fn file(&self) -> String {
        let mut hash = Sha256::new();
        for part in [&self.model, &self.draft, &self.backend, &self.device] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        let hex: String = hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect();
        format!("draft-{hex}.json")
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    key: Key,
    learned: Learned,
}

/// Where learned state is kept.
#[derive(Clone, Debug)]
pub struct Memory {
    path: PathBuf,
    key: Key,
}

impl Memory {
    /// The state of `key` in a folder, which need not exist.
    pub fn new(folder: &Path, key: Key) -> Self {
        Memory { path: folder.join(key.file()), key }
    }

    /// What was learned; nothing where there is no file, or none that can be used.
    pub fn load(&self) -> Learned {
        self.read().unwrap_or_default()
    }

    fn read(&self) -> Option<Learned> {
        let size = std::fs::metadata(&self.path).ok()?.len();
        if size > MOST_BYTES {
            return None;
        }
        let file: File = serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()?;
        let ours = file.version == VERSION && file.key == self.key && file.learned.is_sound();
        ours.then_some(file.learned)
    }

    /// Keeps what was learned: beside the file first, then in its place.
    ///
    /// # Errors
    /// A fault of code `io` where the folder cannot be written.
    pub fn save(&self, learned: &Learned) -> Result<(), Fault> {
        let failed = |error: &std::io::Error| Fault::io("write", &self.path, error);
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(|error| failed(&error))?;
        let file = File { version: VERSION, key: self.key.clone(), learned: learned.faded() };
        let text = serde_json::to_vec(&file).map_err(|error| {
            Fault::new(Code::Io, format!("what drafting learned cannot be written: {error}"))
        })?;
        let mut temporary =
            tempfile::NamedTempFile::new_in(folder).map_err(|error| failed(&error))?;
        temporary.write_all(&text).map_err(|error| failed(&error))?;
        temporary.as_file().sync_all().map_err(|error| failed(&error))?;
        temporary.persist(&self.path).map_err(|error| failed(&error.error))?;
        Ok(())
    }
}

impl Learned {
    /// What is kept: costs open to be taught otherwise.
    fn faded(&self) -> Self {
        let costs = self.costs.iter().map(|(&count, costs)| (count, costs.faded())).collect();
        Learned { rates: self.rates.inherited(), costs }
    }

    fn is_sound(&self) -> bool {
        self.rates.is_sound()
            && self.costs.len() <= DEEPEST
            && self.costs.iter().all(|(&count, costs)| count > 0 && costs.is_sound(count))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Controller, Round};
    use super::*;

    fn key(model: &str) -> Key {
        let text = |text: &str| text.to_string();
        Key { model: text(model), draft: text("d"), backend: text("cpu"), device: text("x") }
    }

    fn drafting(controller: &mut Controller, rounds: usize) -> usize {
        let mut sequence = controller.begin();
        let mut drafted = 0;
        for _ in 0..rounds {
            drafted = controller.plan(&[(&sequence, 6)])[0];
            let round = Round { drafted, accepted: drafted.min(4) };
            let cost = 10.0 + drafted as f64;
            controller.report(&mut [(&mut sequence, round)], Some(cost));
        }
        drafted
    }

    #[test]
    fn what_was_learned_holds_after_a_restart_and_is_not_taken_for_that_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory::new(&folder.path().join("new"), key("m"));
        let mut controller = Controller::new(memory.load());
        assert_eq!(drafting(&mut controller, 1), 0);
        drafting(&mut controller, 300);
        memory.save(controller.learned()).unwrap();
        memory.save(controller.learned()).unwrap();
        let files = std::fs::read_dir(folder.path().join("new")).unwrap().count();
        assert_eq!(files, 1, "nothing temporary is left");

        let mut restarted = Controller::new(memory.load());
        assert_eq!(drafting(&mut restarted, 1), 4, "it drafts at once");
        let other = Memory::new(&folder.path().join("new"), key("other"));
        assert_eq!(drafting(&mut Controller::new(other.load()), 1), 0);
        // A file that was copied to another's name is known by what it says.
        std::fs::copy(&memory.path, &other.path).unwrap();
        assert_eq!(drafting(&mut Controller::new(other.load()), 1), 0);
    }

    #[test]
    fn files_that_are_damaged_or_impossible_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory::new(folder.path(), key("m"));
        let mut controller = Controller::default();
        drafting(&mut controller, 300);
        memory.save(controller.learned()).unwrap();
        let whole = std::fs::read_to_string(&memory.path).unwrap();
        let spoiled = [
            String::new(),
            "{".into(),
            "null".into(),
            whole[..whole.len() / 2].into(),
            whole.replace("\"version\":1", "\"version\":2"),
            whole.replace("\"noise\":0.", "\"noise\":-0."),
            whole.replacen("\"hits\":1", "\"hits\":9991", 1),
            whole.replace("\"sequences\":1", "\"sequences\":2"),
            whole.replace("\"mean\":2.", "\"mean\":2000000."),
        ];
        for text in spoiled {
            assert_ne!(text, whole);
            std::fs::write(&memory.path, &text).unwrap();
            let mut controller = Controller::new(memory.load());
            assert_eq!(drafting(&mut controller, 1), 0, "{}", &text[..text.len().min(80)]);
        }
        std::fs::write(&memory.path, whole).unwrap();
        assert_eq!(drafting(&mut Controller::new(memory.load()), 1), 4);
    }
}
