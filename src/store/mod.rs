//! store: models as blobs and manifests, laid out as Ollama's so that both programs read them.
//!
//! ```text
//! <store>/blobs/sha256-<hex>                               bytes, named by their digest
//! <store>/manifests/<host>/<namespace>/<model>/<tag>       which blobs make a model
//! <store>/lathe.lock                                       see `lock`
//! ```
//!
//! The door is [`Store`]. Reading needs nothing more; a [`Writer`] adds blobs and manifests. A
//! name in `blobs/` or `manifests/` appears only when its bytes are on the disk, and a model's
//! manifest comes last, so a model that is listed is whole.

mod digest;
mod lock;
mod manifest;
mod name;
mod origin;
mod policy;
mod space;
mod stage;
mod sweep;
mod tensors;
mod verify;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub use digest::Digest;
pub use manifest::{Config, Layer, Manifest, media};
pub use name::{DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_TAG, Name};
pub use origin::{Origin, TensorOrigin};
pub use policy::policy_name;
pub use stage::{Blob, Committed, Staged, Writer};
pub use sweep::{Garbage, Removed};
pub use tensors::{Weight, bits_per_weight, told_format};
pub use verify::{BadBlob, Damage, Verified};

use serde::de::DeserializeOwned;

use crate::checkpoint::{self, DEFAULT, SmallFiles};
use crate::fault::{Code, Fault};
use crate::format::nearest;
use crate::policy::Role;
use crate::read::CONFIG;

/// Variable that names the store when the command line does not.
pub const STORE_VARIABLE: &str = "LATHE_STORE";

/// A folder of blobs and manifests. It need not exist to be read: then it is empty.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
}

/// A model of the store, as [`Store::list`] finds it.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub name: Name,
    /// Digest of the manifest, the model's identity.
    pub digest: Digest,
    /// When the manifest was written.
    pub modified: SystemTime,
    /// The manifest, or why it cannot be read.
    pub manifest: Result<Manifest, Fault>,
}

impl Store {
    /// The store in this folder, or in the default place: `$LATHE_STORE`, else `~/.lathe/models`.
    pub fn open(dir: Option<&Path>) -> Result<Store, Fault> {
        let from_environment = || std::env::var_os(STORE_VARIABLE).filter(|dir| !dir.is_empty());
        let dir = match dir.map(Path::to_path_buf).or_else(|| from_environment().map(Into::into)) {
            Some(dir) => dir,
            None => home()?.join(".lathe").join("models"),
        };
        if dir.exists() && !dir.is_dir() {
            let what = format!("the store {} is not a folder", dir.display());
            return Err(Fault::new(Code::Store, what).help(ANOTHER_STORE));
        }
        Ok(Store { dir })
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file of a blob, whether it is there or not.
    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.blobs_dir().join(digest.file_name())
    }

    /// The whole of a (small) blob.
    pub fn read_blob(&self, layer: &Layer) -> Result<Vec<u8>, Fault> {
        let path = self.blob_path(&layer.digest);
        let bytes = fs::read(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => missing_blob(&layer.digest),
            _ => store_fault("read", &path, &error),
        })?;
        if bytes.len() as u64 != layer.size {
            let what =
                format!("blob {} has {} bytes, not {}", layer.digest, bytes.len(), layer.size);
            return Err(Fault::new(Code::CorruptBlob, what).in_file(path).help(CREATE_AGAIN));
        }
        Ok(bytes)
    }

    /// A model's manifest. An unknown name is a fault that names the nearest one.
    pub fn manifest(&self, name: &Name) -> Result<Manifest, Fault> {
        self.entry(name)?.manifest
    }

    /// A model's config blob.
    pub fn config(&self, manifest: &Manifest) -> Result<Config, Fault> {
        let bytes = self.read_blob(&manifest.config)?;
        serde_json::from_slice(&bytes).map_err(|error| {
            let what = format!("config blob {} is damaged: {error}", manifest.config.digest);
            Fault::new(Code::CorruptBlob, what).help(CREATE_AGAIN)
        })
    }

    /// The `config.json` of a model's folder.
    pub fn model_config(&self, manifest: &Manifest) -> Result<serde_json::Value, Fault> {
        self.config_of(manifest, Role::Target)
    }

    /// The `config.json` of a model's folder, or of its draft's.
    pub fn config_of(&self, manifest: &Manifest, role: Role) -> Result<serde_json::Value, Fault> {
        let name = match role {
            Role::Target => CONFIG.to_string(),
            Role::Draft => format!("draft/{CONFIG}"),
        };
        let layer = manifest.file(&name).ok_or_else(|| {
            Fault::new(Code::NoConfig, format!("the model has no {name}")).help(CREATE_AGAIN)
        })?;
        let text = String::from_utf8_lossy(&self.read_blob(layer)?).into_owned();
        crate::read::parse_json(CONFIG, text)
    }

    /// The chat template of a model's folder.
    pub fn chat_template(&self, manifest: &Manifest) -> Result<Option<String>, Fault> {
        let found = checkpoint::chat_template(&mut Stored { store: self, manifest }, DEFAULT)?;
        Ok(found.map(|template| template.text))
    }

    /// Where a model's tensors came from; `None` for one that another program made.
    pub fn origin(&self, manifest: &Manifest) -> Result<Option<Origin>, Fault> {
        manifest.of_type(media::ORIGIN).next().map(|layer| self.origin_in(layer)).transpose()
    }

    /// The origin in a blob.
    pub fn origin_in(&self, layer: &Layer) -> Result<Origin, Fault> {
        serde_json::from_slice(&self.read_blob(layer)?).map_err(|error| {
            let what = format!("origin blob {} is damaged: {error}", layer.digest);
            Fault::new(Code::CorruptBlob, what).help(CREATE_AGAIN)
        })
    }

    /// One model.
    pub fn entry(&self, name: &Name) -> Result<Entry, Fault> {
        let name = self.spelled(name)?;
        let path = self.manifest_path(&name);
        match fs::read(&path) {
            Ok(bytes) => Ok(read_entry(name, &path, &bytes)),
            Err(error) if is_absent(&error) => Err(self.no_such_model(&name)),
            Err(error) => Err(store_fault("read", &path, &error)),
        }
    }

    /// Whether a model of this name is there.
    pub fn contains(&self, name: &Name) -> Result<bool, Fault> {
        Ok(self.manifest_path(&self.spelled(name)?).is_file())
    }

    /// All models, sorted by name.
    pub fn list(&self) -> Result<Vec<Entry>, Fault> {
        let mut entries = Vec::new();
        for name in self.names()? {
            let path = self.manifest_path(&name);
            match fs::read(&path) {
                Ok(bytes) => entries.push(read_entry(name, &path, &bytes)),
                Err(error) if is_absent(&error) => {} // removed meanwhile
                Err(error) => return Err(store_fault("read", &path, &error)),
            }
        }
        Ok(entries)
    }

    /// The names of all models, sorted.
    pub fn names(&self) -> Result<Vec<Name>, Fault> {
        let mut names = Vec::new();
        for host in folder(&self.manifests_dir())? {
            for namespace in folder(&host)? {
                for model in folder(&namespace)? {
                    for tag in folder(&model)? {
                        let parts = [&host, &namespace, &model, &tag].map(|path| last(path));
                        // Files that no name leads to are not models: editors' backups, ours
                        // that are not finished.
                        if let Ok(name) = Name::from_parts(parts[0], parts[1], parts[2], parts[3])
                            && !tag.is_dir()
                        {
                            names.push(name);
                        }
                    }
                }
            }
        }
        names.sort_by_cached_key(|name| name.to_string().to_lowercase());
        Ok(names)
    }

    /// The name as the store spells it, when it has the model in another case.
    fn spelled(&self, name: &Name) -> Result<Name, Fault> {
        if self.manifest_path(name).is_file() {
            return Ok(name.clone());
        }
        let found = self.names()?.into_iter().find(|other| other.same(name));
        Ok(found.unwrap_or_else(|| name.clone()))
    }

    fn no_such_model(&self, name: &Name) -> Fault {
        let known: Vec<_> = self.names().unwrap_or_default().iter().map(Name::to_string).collect();
        let wanted = name.to_string();
        let near = nearest(&wanted, known.iter().map(String::as_str)).map_or_else(
            || {
                let model = wanted.split(':').next().unwrap_or(&wanted);
                known.iter().find(|other| other.split(':').next() == Some(model)).cloned()
            },
            |near| Some(near.to_string()),
        );
        let help = match near {
            Some(near) => format!("did you mean {near}? `lathe list` shows all models"),
            None => "`lathe list` shows all models; `lathe create` makes one".to_string(),
        };
        let what = format!("no model {name} in the store at {}", self.dir.display());
        Fault::new(Code::NoSuchModel, what).help(help)
    }

    fn blobs_dir(&self) -> PathBuf {
        self.dir.join("blobs")
    }

    fn manifests_dir(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    fn manifest_path(&self, name: &Name) -> PathBuf {
        self.manifests_dir().join(name.path())
    }
}

/// The small files of a stored model.
struct Stored<'a> {
    store: &'a Store,
    manifest: &'a Manifest,
}

impl SmallFiles for Stored<'_> {
    fn text(&mut self, name: &str) -> Result<Option<String>, Fault> {
        let layer = self.manifest.file(name);
        let bytes = layer.map(|layer| self.store.read_blob(layer)).transpose()?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn json<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Fault> {
        self.text(name)?.map(|text| crate::read::parse_json(name, text)).transpose()
    }
}

const ANOTHER_STORE: &str = "name another store with --store or LATHE_STORE";
const CREATE_AGAIN: &str =
    "`lathe verify --delete` removes what is damaged; create the model again after it";

fn home() -> Result<PathBuf, Fault> {
    etcetera::home_dir().map_err(|error| {
        Fault::new(Code::Store, format!("there is no home folder to keep the store in: {error}"))
            .help(ANOTHER_STORE)
    })
}

fn read_entry(name: Name, path: &Path, bytes: &[u8]) -> Entry {
    let modified = fs::metadata(path).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let manifest = serde_json::from_slice(bytes).map_err(|error| {
        Fault::new(Code::Store, format!("the manifest of {name} is damaged: {error}"))
            .in_file(path)
            .help(format!("create {name} again, or remove it with `lathe rm {name}`"))
    });
    Entry { name, digest: Digest::of(bytes), modified, manifest }
}

fn missing_blob(digest: &Digest) -> Fault {
    Fault::new(Code::CorruptBlob, format!("blob {digest} is missing from the store"))
        .help(CREATE_AGAIN)
}

/// The paths in a folder, sorted; none when there is no such folder.
fn folder(dir: &Path) -> Result<Vec<PathBuf>, Fault> {
    let fault = |error: &io::Error| store_fault("list", dir, error);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(fault(&error)),
    };
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()
        .map_err(|error| fault(&error))?;
    paths.sort();
    Ok(paths)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The last segment of a path, empty when it is not Unicode (no name is).
fn last(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn size_of(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
}

/// A failed operation in the store, with what to do about the usual reasons.
fn store_fault(doing: &str, path: &Path, error: &io::Error) -> Fault {
    let what = format!("cannot {doing} {}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Fault::new(Code::NoSpace, what).help(
                "free some space (`lathe gc`, `lathe rm`), or name another store with --store",
            )
        }
        _ => Fault::new(Code::Store, what).help(ANOTHER_STORE),
    }
}

#[cfg(test)]
mod tests;
