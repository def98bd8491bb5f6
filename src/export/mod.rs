//! export: a model of the store in, a folder for another program out.
//!
//! The only target yet is mlx-lm: the same bytes under its names, with the formats in
//! `config.json`. What differs is data, `policies/exports/mlx-lm.toml`.

mod content;
mod mlx_lm;
mod names;
mod shards;

use std::fs;
use std::path::Path;

use crate::fault::{Code, Fault, Faults, Warning};
use crate::store::{Manifest, Store};
use crate::system;

/// What [`export`] wrote.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Exported {
    /// Files written.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// What the folder lacks.
    pub warnings: Vec<Warning>,
}

/// Writes a model as a folder that mlx-lm loads. The folder must not exist yet, or be empty.
/// When something fails, nothing is left of it. The model's policy is that of `policy_dir` where one
/// is given, else its own. `progress` is told of tensor bytes written.
///
/// # Errors
/// A folder in the way, damaged blobs, weights that mlx-lm cannot read, the file system's.
pub fn export(
    store: &Store,
    manifest: &Manifest,
    dir: &Path,
    policy_dir: Option<&Path>,
    progress: &dyn Fn(u64),
) -> Result<Exported, Faults> {
    let _keep = store.keep();
    let is_free = fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none());
    if !is_free || dir.is_file() {
        return Err(Fault::new(Code::Usage, format!("{} exists and is not empty", dir.display()))
            .help("name a folder that does not exist yet")
            .into());
    }
    let absolute = std::path::absolute(dir).map_err(|error| Fault::io("find", dir, &error))?;
    let parent = absolute.parent().unwrap_or(&absolute);
    fs::create_dir_all(parent).map_err(|error| Fault::io("create", parent, &error))?;
    let staged = tempfile::Builder::new()
        .prefix(".lathe-export-")
        .tempdir_in(parent)
        .map_err(|error| Fault::io("write in", parent, &error))?;
    let exported = mlx_lm::write(store, manifest, staged.path(), policy_dir, progress)?;
    let _ = fs::remove_dir(&absolute); // when it was there, empty
    let staged = staged.keep();
    fs::rename(&staged, &absolute).map_err(|error| {
        let _ = fs::remove_dir_all(&staged);
        Fault::io("create", dir, &error)
    })?;
    // Temporary folders are private; this one is not temporary any more.
    system::open_to_others(&absolute);
    Ok(exported)
}
