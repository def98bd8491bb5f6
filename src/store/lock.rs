//! The store's lock: many may write at once, nobody may remove blobs while one does.
//!
//! Writers and long readers hold `lathe.lock` shared: a blob that they count on, old or new, must
//! not go away before their manifest is there. Removing blobs needs it exclusively. The lock is
//! the operating system's, so it ends with the process that holds it, however that ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::PathBuf;

use super::{ANOTHER_STORE, Store, store_fault};
use crate::fault::{Code, Fault};

/// A held lock; dropping it lets go.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held, not used")] File);

impl Store {
    /// The right to write, shared with others. Waits while blobs are being removed.
    pub(super) fn lock_shared(&self) -> Result<Lock, Fault> {
        let (path, file) = self.lock_file()?;
        file.lock_shared().map_err(|error| store_fault("lock", &path, &error))?;
        Ok(Lock(file))
    }

    /// The right to remove blobs, or `None` while somebody writes.
    pub(super) fn try_lock_exclusive(&self) -> Result<Option<Lock>, Fault> {
        let (path, file) = self.lock_file()?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(store_fault("lock", &path, &error)),
        }
    }

    /// For long readers: keeps blobs from being removed. A store that cannot be written needs no
    /// lock, because nobody removes anything from it.
    pub fn keep(&self) -> Option<Lock> {
        self.lock_shared().ok()
    }

    fn lock_file(&self) -> Result<(PathBuf, File), Fault> {
        let path = self.dir.join("lathe.lock");
        let open = OpenOptions::new().read(true).append(true).create(true).open(&path);
        match open {
            Ok(file) => Ok((path, file)),
            Err(error) => Err(store_fault("write", &path, &error)),
        }
    }
}

/// What to tell someone who wants to remove blobs while somebody writes.
pub(super) fn busy(store: &Store) -> Fault {
    let what = format!("another lathe is at work in the store at {}", store.dir.display());
    Fault::new(Code::Store, what).help(format!("wait until it has finished, or {ANOTHER_STORE}"))
}
