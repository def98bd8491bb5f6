//! Checking that blobs hold the bytes that they are named after.

use std::collections::BTreeMap;
use std::fs::{self, File};

use rayon::prelude::*;
use serde::Serialize;

use super::lock::busy;
use super::{Digest, Entry, Name, Store, folder, last, store_fault};
use crate::fault::{Code, Fault};

/// What [`Store::verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Blobs that were read.
    pub blobs: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// What is wrong, by digest.
    pub bad: Vec<BadBlob>,
}

/// A blob that is not what its name says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadBlob {
    /// What it should be.
    pub digest: Digest,
    /// What is wrong with it.
    pub damage: Damage,
    /// Where it is needed: model and tensor or file.
    pub used_by: Vec<String>,
}

/// What can be wrong with a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Damage {
    /// It is not there.
    Missing,
    /// It has another size than the manifest says.
    Size {
        /// Bytes that the manifest says.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// Its bytes have another digest.
    Digest {
        /// The digest that they have.
        found: Digest,
    },
    /// The system could not read it.
    Unreadable {
        /// What it said.
        why: String,
    },
}

impl BadBlob {
    /// The blob as a fault.
    pub fn fault(&self) -> Fault {
        let digest = self.digest;
        let what = match &self.damage {
            Damage::Missing => format!("blob {digest} is missing"),
            Damage::Size { expected, found } => {
                format!("blob {digest} has {found} bytes, not {expected}")
            }
            Damage::Digest { found } => format!("blob {digest} is damaged: its digest is {found}"),
            Damage::Unreadable { why } => format!("blob {digest} cannot be read: {why}"),
        };
        let used = match self.used_by.as_slice() {
            [] => "no model needs it: `lathe gc` removes it".to_string(),
            [one] => format!("needed by {one}; {}", super::CREATE_AGAIN),
            [one, rest @ ..] => {
                format!("needed by {one} and {} more; {}", rest.len(), super::CREATE_AGAIN)
            }
        };
        Fault::new(Code::CorruptBlob, what).help(used)
    }
}

/// What is known of a blob from the manifests.
#[derive(Default)]
struct Expected {
    size: Option<u64>,
    used_by: Vec<String>,
}

impl Store {
    /// Reads blobs again and compares their digests: those of the named models, or with no name
    /// every blob of the store, needed or not. `progress` is told of bytes read and is called from
    /// several threads.
    pub fn verify(
        &self,
        names: &[Name],
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Verified, Fault> {
        let _keep = self.keep();
        let mut expected = BTreeMap::<Digest, Expected>::new();
        let entries = match names {
            [] => self.list()?,
            some => some.iter().map(|name| self.entry(name)).collect::<Result<_, _>>()?,
        };
        for Entry { name, manifest, .. } in entries {
            for layer in manifest?.blobs() {
                let blob = expected.entry(layer.digest).or_default();
                blob.size = Some(layer.size);
                let part = layer.name.as_deref().unwrap_or(&layer.media_type);
                blob.used_by.push(format!("{name} ({part})"));
            }
        }
        if names.is_empty() {
            for path in folder(&self.blobs_dir())? {
                if let Ok(digest) = last(&path).parse() {
                    expected.entry(digest).or_default();
                }
            }
        }
        let checked: Vec<_> = expected
            .into_par_iter()
            .map(|(digest, expected)| self.check(digest, expected, progress))
            .collect();
        let mut verified = Verified::default();
        for check in checked {
            match check {
                Ok(bytes) => {
                    verified.blobs += 1;
                    verified.bytes += bytes;
                }
                Err(bad) => verified.bad.push(bad),
            }
        }
        Ok(verified)
    }

    /// Bytes that [`Store::verify`] will read.
    pub fn size(&self, names: &[Name]) -> Result<u64, Fault> {
        if names.is_empty() {
            return Ok(folder(&self.blobs_dir())?.iter().map(|path| super::size_of(path)).sum());
        }
        let manifests = names.iter().map(|name| self.manifest(name));
        manifests.map(|manifest| Ok(manifest?.size())).sum()
    }

    /// Removes what [`Store::verify`] found damaged, so that the next `create` writes it anew.
    pub fn delete_bad(&self, verified: &Verified) -> Result<u64, Fault> {
        let _alone = self.try_lock_exclusive()?.ok_or_else(|| busy(self))?;
        let mut deleted = 0;
        for bad in verified.bad.iter().filter(|bad| bad.damage != Damage::Missing) {
            let path = self.blob_path(&bad.digest);
            fs::remove_file(&path).map_err(|error| store_fault("remove", &path, &error))?;
            deleted += 1;
        }
        Ok(deleted)
    }

    /// Bytes of the blob when it is what it should be.
    fn check(
        &self,
        digest: Digest,
        expected: Expected,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<u64, BadBlob> {
        let path = self.blob_path(&digest);
        let damage = match File::open(&path).and_then(Digest::of_reader) {
            Ok((found, bytes)) => {
                progress(bytes);
                match expected.size {
                    Some(size) if size != bytes => Damage::Size { expected: size, found: bytes },
                    _ if found != digest => Damage::Digest { found },
                    _ => return Ok(bytes),
                }
            }
            Err(error) if super::is_absent(&error) => Damage::Missing,
            Err(error) => Damage::Unreadable { why: error.to_string() },
        };
        Err(BadBlob { digest, damage, used_by: expected.used_by })
    }
}
