//! Removing models, and the blobs that no model needs.
//!
//! What is needed is found by reading every manifest as text: any digest that it mentions is kept,
//! and so is the blob that is the manifest itself. That keeps what other programs have in the same
//! store, without knowing every kind of manifest they write.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::lock::{Lock, busy};
use super::stage::STAGED;
use super::{Digest, Manifest, Name, Store, folder, is_absent, last, size_of, store_fault};
use crate::fault::{Code, Fault};

/// What [`Store::gc`] removed, or would remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Garbage {
    /// Blobs that no manifest mentions.
    pub blobs: Vec<Digest>,
    /// Staged files that a killed process left.
    pub leftovers: Vec<PathBuf>,
    /// Bytes in all of them.
    pub bytes: u64,
}

/// What [`Store::remove`] removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// Blobs that only the removed models needed.
    pub blobs: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Whether blobs were left for `gc`, because another lathe is at work in the store.
    pub deferred: bool,
}

impl Store {
    /// Removes everything that no manifest needs; with `dry_run` only tells.
    pub fn gc(&self, dry_run: bool) -> Result<Garbage, Fault> {
        if !self.dir.exists() {
            return Ok(Garbage::default());
        }
        let _alone = self.try_lock_exclusive()?.ok_or_else(|| busy(self))?;
        let needed = self.needed()?;
        let mut garbage = Garbage { leftovers: self.leftovers()?, ..Garbage::default() };
        for path in &garbage.leftovers {
            garbage.bytes += size_of(path);
            remove_unless(dry_run, path)?;
        }
        for path in folder(&self.blobs_dir())? {
            // Files that are not named by a digest belong to others, e.g. partial downloads.
            let Ok(digest) = last(&path).parse::<Digest>() else { continue };
            if !needed.contains(&digest) {
                garbage.bytes += size_of(&path);
                remove_unless(dry_run, &path)?;
                garbage.blobs.push(digest);
            }
        }
        Ok(garbage)
    }

    /// Removes models: first their manifests, then the blobs that no other model needs. None is
    /// removed when one of them does not exist.
    pub fn remove(&self, names: &[Name]) -> Result<Removed, Fault> {
        let entries = names.iter().map(|name| self.entry(name)).collect::<Result<Vec<_>, _>>()?;
        let _keep: Lock = self.lock_shared()?;
        for entry in &entries {
            let path = self.manifest_path(&entry.name);
            match fs::remove_file(&path) {
                Err(error) if !is_absent(&error) => {
                    return Err(store_fault("remove", &path, &error));
                }
                _ => self.prune_folders(&path),
            }
        }
        drop(_keep);
        let Some(_alone) = self.try_lock_exclusive()? else {
            return Ok(Removed { deferred: true, ..Removed::default() });
        };
        let needed = match self.needed() {
            Ok(needed) => needed,
            // Another model's manifest is damaged: keep every blob rather than guess.
            Err(_) => return Ok(Removed { deferred: true, ..Removed::default() }),
        };
        let mut removed = Removed::default();
        let mut seen = HashSet::new();
        let manifests = entries.iter().filter_map(|entry| entry.manifest.as_ref().ok());
        for layer in manifests.flat_map(Manifest::blobs) {
            let path = self.blob_path(&layer.digest);
            if !needed.contains(&layer.digest) && seen.insert(layer.digest) && path.exists() {
                removed.bytes += size_of(&path);
                removed.blobs += 1;
                fs::remove_file(&path).map_err(|error| store_fault("remove", &path, &error))?;
            }
        }
        Ok(removed)
    }

    /// Gives a model a second name. No blob is copied.
    pub fn copy(&self, from: &Name, to: &Name) -> Result<(), Fault> {
        let writer = self.writer()?;
        let entry = self.entry(from)?;
        let path = self.manifest_path(&entry.name);
        let bytes = fs::read(&path).map_err(|error| store_fault("read", &path, &error))?;
        writer.commit_bytes(to, &entry.manifest?, &bytes).map(drop)
    }

    /// Every digest that a manifest mentions, directly or through a list of manifests.
    fn needed(&self) -> Result<HashSet<Digest>, Fault> {
        let mut needed = HashSet::new();
        for root in folder(&self.dir)? {
            // Ollama has kept manifests in other folders too (`manifests-v2`).
            if root.is_dir() && last(&root).starts_with("manifests") {
                for path in files_below(&root)? {
                    if !last(&path).starts_with('.') {
                        self.mark(&path, &mut needed)?;
                    }
                }
            }
        }
        Ok(needed)
    }

    fn mark(&self, path: &Path, needed: &mut HashSet<Digest>) -> Result<(), Fault> {
        let bytes = fs::read(path).map_err(|error| store_fault("read", path, &error))?;
        let text = String::from_utf8_lossy(&bytes);
        if serde_json::from_str::<serde::de::IgnoredAny>(&text).is_err() {
            let what = format!("{} is not a whole manifest; nothing was removed", path.display());
            return Err(Fault::new(Code::Store, what).in_file(path).help(
                "it is unknown which blobs it needs: remove the file, or the model with \
                 `lathe rm`, then try again",
            ));
        }
        needed.insert(Digest::of(&bytes));
        let is_list = text.contains("manifest.list");
        for digest in digests_in(&text) {
            let blob = self.blob_path(&digest);
            if needed.insert(digest) && is_list && blob.is_file() {
                self.mark(&blob, needed)?;
            }
        }
        Ok(())
    }

    /// Staged files, wherever they were staged.
    pub(super) fn leftovers(&self) -> Result<Vec<PathBuf>, Fault> {
        let mut found = folder(&self.blobs_dir())?;
        found.extend(files_below(&self.manifests_dir())?);
        found.retain(|path| last(path).starts_with(STAGED));
        Ok(found)
    }

    /// Removes the folders above a manifest that have become empty.
    fn prune_folders(&self, manifest: &Path) {
        let root = self.manifests_dir();
        let above = manifest.ancestors().skip(1).take_while(|dir| *dir != root);
        for dir in above {
            if fs::remove_dir(dir).is_err() {
                break; // not empty
            }
        }
    }
}

fn digests_in(text: &str) -> Vec<Digest> {
    text.match_indices("sha256")
        .filter_map(|(at, _)| text.get(at..at + "sha256:".len() + 64)?.parse().ok())
        .collect()
}

/// Every file below a folder; none when there is no such folder.
fn files_below(dir: &Path) -> Result<Vec<PathBuf>, Fault> {
    let mut files = Vec::new();
    for path in folder(dir)? {
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

fn remove_unless(dry_run: bool, path: &Path) -> Result<(), Fault> {
    if dry_run {
        return Ok(());
    }
    fs::remove_file(path).map_err(|error| store_fault("remove", path, &error))
}
