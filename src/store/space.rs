//! Room on the disk, and what is there already.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use super::{Digest, Store, folder, last};
use crate::fault::{Code, Fault};
use crate::plan::render::bytes as shown;
use crate::system;

impl Store {
    /// Bytes free for this user on the disk of the store; `None` where the system does not tell.
    pub fn free_space(&self) -> Option<u64> {
        // The store itself may not exist yet; the nearest parent that does is on the same disk.
        let absolute = std::path::absolute(self.blobs_dir()).ok()?;
        absolute.ancestors().find(|dir| dir.exists()).and_then(system::free_space)
    }

    /// A fault when the disk has less than `bytes` free.
    pub fn require_space(&self, bytes: u64) -> Result<(), Fault> {
        match self.free_space() {
            Some(free) if free < bytes => {
                let what = format!(
                    "{} needs {bytes} bytes ({}) more, and its disk has {free} ({}) free",
                    self.dir.display(),
                    shown(bytes),
                    shown(free)
                );
                Err(Fault::new(Code::NoSpace, what).help(
                    "free some space (`lathe gc`, `lathe rm`), or name another store with --store",
                ))
            }
            _ => Ok(()),
        }
    }

    /// The blobs that are there, by size.
    pub fn blobs_by_size(&self) -> Result<HashMap<u64, Vec<PathBuf>>, Fault> {
        let mut found = HashMap::<u64, Vec<PathBuf>>::new();
        for path in folder(&self.blobs_dir())? {
            if last(&path).parse::<Digest>().is_ok()
                && let Ok(meta) = fs::metadata(&path)
            {
                found.entry(meta.len()).or_default().push(path);
            }
        }
        Ok(found)
    }
}
