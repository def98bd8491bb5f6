//! Adding to the store: blobs are staged beside their place, synced together, then renamed; the
//! manifest comes last.
//!
//! Staged files bear a prefix that no blob has. They are removed when a [`Writer`] goes away
//! without a commit; those of a process that was killed are removed by the next writer.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use tempfile::{NamedTempFile, TempPath};

use super::lock::Lock;
use super::{Digest, Layer, Manifest, Name, Store, store_fault};
use crate::fault::{Code, Fault};
use crate::system;
use crate::write;

/// How staged files are called.
pub(super) const STAGED: &str = ".lathe-staged-";

/// Bytes that are read at a time.
const PIECE: usize = 256 << 10;

/// How often finished blobs are put in place while others are still being made.
const CHECKPOINT: Duration = Duration::from_secs(10);

/// The right to add blobs and a manifest. Several writers may be at work at once, in this process
/// and in others, and one writer may be shared by threads.
#[derive(Debug)]
pub struct Writer {
    store: Store,
    staged: Mutex<HashMap<Digest, StagedBlob>>,
    /// When blobs were last put in place, and how many (and how large) have been.
    checkpoint: Mutex<Instant>,
    kept_blobs: AtomicU64,
    kept_bytes: AtomicU64,
    /// Released after `staged` is dropped, so that a sweep never meets files in use.
    _lock: Lock,
}

#[derive(Debug)]
struct StagedBlob {
    file: TempPath,
    size: u64,
}

/// A blob that the store has, or will have once its writer commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Its digest.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// Whether the store did not have it before.
    pub new: bool,
}

impl Blob {
    /// The layer that it is in a manifest.
    pub fn layer(&self, media_type: &str, name: Option<&str>) -> Layer {
        Layer {
            media_type: media_type.into(),
            digest: self.digest,
            size: self.size,
            name: name.map(Into::into),
        }
    }
}

/// What [`Writer::commit`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Digest of the manifest.
    pub digest: Digest,
    /// Blobs that the store did not have before.
    pub new_blobs: u64,
    /// Bytes in them.
    pub new_bytes: u64,
    /// Whether the store had the very same model under this name already.
    pub unchanged: bool,
}

impl Store {
    /// Begins to add to the store, creating it if need be. Waits while blobs are being removed.
    pub fn writer(&self) -> Result<Writer, Fault> {
        let blobs = self.blobs_dir();
        fs::create_dir_all(&blobs).map_err(|error| store_fault("create", &blobs, &error))?;
        // Nobody else at work: what is staged now was left by a process that was killed.
        if let Some(_alone) = self.try_lock_exclusive()? {
            for path in self.leftovers()? {
                let _ = fs::remove_file(path);
            }
        }
        let lock = self.lock_shared()?;
        Ok(Writer {
            store: self.clone(),
            staged: Mutex::default(),
            checkpoint: Mutex::new(Instant::now()),
            kept_blobs: AtomicU64::new(0),
            kept_bytes: AtomicU64::new(0),
            _lock: lock,
        })
    }
}

impl Writer {
    /// The store that is written to.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Begins a blob, to be written from its first byte to its last.
    pub fn stage(&self) -> Result<Staged<'_>, Fault> {
        let dir = self.store.blobs_dir();
        let file = temporary(&dir).map_err(|error| store_fault("write in", &dir, &error))?;
        Ok(Staged { writer: self, file, hasher: Sha256::new(), size: 0 })
    }

    /// Adds a blob of these bytes.
    pub fn add(&self, bytes: &[u8]) -> Result<Blob, Fault> {
        let (digest, size) = (Digest::of(bytes), bytes.len() as u64);
        if self.holds(&digest, size, bytes) {
            return Ok(Blob { digest, size, new: false });
        }
        let mut staged = self.stage()?;
        staged.write_all(bytes).map_err(|error| staged.fault(&error))?;
        staged.finish()
    }

    /// Adds a copy of a file.
    pub fn add_file(&self, path: &Path) -> Result<Blob, Fault> {
        let mut source = File::open(path).map_err(|error| Fault::io("open", path, &error))?;
        let mut staged = self.stage()?;
        let mut buffer = vec![0; PIECE];
        loop {
            match Read::read(&mut source, &mut buffer) {
                Ok(0) => return staged.finish(),
                Ok(n) => staged.write_all(&buffer[..n]).map_err(|error| staged.fault(&error))?,
                Err(error) => return Err(Fault::io("read", path, &error)),
            }
        }
    }

    /// Whether the store has the blob, or will have it once this writer commits. A file of another
    /// size is damaged and does not count.
    pub fn has(&self, digest: &Digest, size: u64) -> bool {
        self.staged().contains_key(digest) || has_size(&self.store.blob_path(digest), size)
    }

    /// Whether the store has the blob in earnest: its bytes are `expected`. A disk or another
    /// program may have changed them without a change of size; then it is written again.
    fn holds(&self, digest: &Digest, size: u64, expected: impl Read) -> bool {
        if self.staged().contains_key(digest) {
            return true;
        }
        let path = self.store.blob_path(digest);
        let there = has_size(&path, size);
        there && File::open(&path).and_then(|found| same(found, expected)).unwrap_or(false)
    }

    /// Where a blob can be read until this writer commits: staged, or in its place.
    pub fn path(&self, digest: &Digest) -> PathBuf {
        let staged = self.staged().get(digest).map(|blob| blob.file.to_path_buf());
        staged.unwrap_or_else(|| self.store.blob_path(digest))
    }

    /// Puts the staged blobs and then the manifest in place. Everything is on the disk before a
    /// name appears. The same manifest under the same name is left as it is.
    pub fn commit(self, name: &Name, manifest: &Manifest) -> Result<Committed, Fault> {
        let bytes = serde_json::to_vec(manifest).map_err(|error| {
            Fault::new(Code::Internal, format!("the manifest cannot be written: {error}"))
        })?;
        self.commit_bytes(name, manifest, &bytes)
    }

    /// As [`Writer::commit`], with the manifest's very bytes.
    pub(super) fn commit_bytes(
        self,
        name: &Name,
        manifest: &Manifest,
        bytes: &[u8],
    ) -> Result<Committed, Fault> {
        for layer in manifest.blobs() {
            if !self.has(&layer.digest, layer.size) {
                return Err(super::missing_blob(&layer.digest));
            }
        }
        self.publish_blobs()?;
        let (new_blobs, new_bytes) = self.kept();
        let name = self.store.spelled(name)?;
        let path = self.store.manifest_path(&name);
        let unchanged = fs::read(&path).is_ok_and(|old| old == bytes);
        if !unchanged {
            publish_manifest(&path, bytes).map_err(|error| store_fault("write", &path, &error))?;
        }
        Ok(Committed { digest: Digest::of(bytes), new_blobs, new_bytes, unchanged })
    }

    /// The finished blobs that are in the store whatever happens to this writer, and their bytes.
    /// Until a manifest names them they are garbage, but a later `create` finds them there.
    pub fn kept(&self) -> (u64, u64) {
        (self.kept_blobs.load(Ordering::Relaxed), self.kept_bytes.load(Ordering::Relaxed))
    }

    /// Now and then puts the blobs that are finished in place, so that a long work that is cut
    /// short is not done in vain.
    fn checkpoint(&self) -> Result<(), Fault> {
        {
            let mut last = self.checkpoint.lock().unwrap_or_else(PoisonError::into_inner);
            if last.elapsed() < CHECKPOINT {
                return Ok(());
            }
            *last = Instant::now();
        }
        self.publish_blobs()
    }

    /// Renames the staged blobs to their digests, once they are on the disk.
    fn publish_blobs(&self) -> Result<(), Fault> {
        let staged = std::mem::take(&mut *self.staged());
        if staged.is_empty() {
            return Ok(());
        }
        let dir = self.store.blobs_dir();
        let files = staged.values().map(|blob| &*blob.file);
        system::sync_files(&dir, files).map_err(|error| store_fault("sync", &dir, &error))?;
        for (digest, StagedBlob { file, size }) in staged {
            let path = self.store.blob_path(&digest);
            file.persist(&path).map_err(|error| store_fault("write", &path, &error.error))?;
            self.kept_blobs.fetch_add(1, Ordering::Relaxed);
            self.kept_bytes.fetch_add(size, Ordering::Relaxed);
        }
        system::sync_dir(&dir).map_err(|error| store_fault("sync", &dir, &error))
    }

    fn staged(&self) -> std::sync::MutexGuard<'_, HashMap<Digest, StagedBlob>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A blob that is being written. Dropping it unfinished removes it.
#[derive(Debug)]
pub struct Staged<'a> {
    writer: &'a Writer,
    file: NamedTempFile,
    hasher: Sha256,
    size: u64,
}

impl Staged<'_> {
    /// Ends the blob. When the store has it already, the copy is dropped.
    pub fn finish(mut self) -> Result<Blob, Fault> {
        self.file.rewind().map_err(|error| self.fault(&error))?;
        let (digest, size) = (Digest::from(self.hasher), self.size);
        // What was written just now is in memory, so that only the old blob is read.
        if self.writer.holds(&digest, size, self.file.as_file()) {
            return Ok(Blob { digest, size, new: false });
        }
        system::start_writing_back(self.file.as_file());
        let file = self.file.into_temp_path();
        self.writer.staged().entry(digest).or_insert(StagedBlob { file, size });
        self.writer.checkpoint()?;
        Ok(Blob { digest, size, new: true })
    }

    /// What a failed write to this blob is called.
    pub fn fault(&self, error: &io::Error) -> Fault {
        store_fault("write", self.file.path(), error)
    }
}

impl Write for Staged<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The executor's blobs are staged here.
impl write::Staging for Writer {
    type Blob<'a> = Staged<'a>;

    fn stage(&self) -> Result<Staged<'_>, Fault> {
        Writer::stage(self)
    }

    fn finish(&self, blob: Staged<'_>) -> Result<write::Made, Fault> {
        let Blob { digest, size, new } = blob.finish()?;
        Ok(write::Made { digest: digest.to_string(), size, new })
    }

    fn failed(&self, error: &io::Error) -> Fault {
        store_fault("write in", &self.store.blobs_dir(), error)
    }
}

/// Whether two readers give the same bytes.
fn same(mut one: impl Read, mut other: impl Read) -> io::Result<bool> {
    let mut pieces = [vec![0; PIECE], vec![0; PIECE]];
    loop {
        let [a, b] = &mut pieces;
        let (read, other_read) = (fill(&mut one, a)?, fill(&mut other, b)?);
        if a[..read] != b[..other_read] {
            return Ok(false);
        }
        if read < PIECE {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or nothing follows.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut at = 0;
    while at < buffer.len() {
        match from.read(&mut buffer[at..]) {
            Ok(0) => break,
            Ok(more) => at += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(at)
}

fn has_size(path: &Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == size)
}

/// A new file under a staged name, readable by others as any file that the user makes.
fn temporary(dir: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(STAGED);
    system::readable_by_others(&mut builder).tempfile_in(dir)
}

fn publish_manifest(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    fs::create_dir_all(&dir)?;
    let mut file = temporary(&dir)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    system::sync_dir(&dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A long work that is cut short has not been done in vain.
    #[test]
    fn finished_blobs_are_put_in_place_now_and_then_and_outlive_their_writer() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path())).unwrap();
        let writer = store.writer().unwrap();
        let early = writer.add(b"early").unwrap();
        assert_eq!(writer.kept(), (0, 0), "it is not time yet");
        *writer.checkpoint.lock().unwrap() -= CHECKPOINT;
        let late = writer.add(b"late!!").unwrap();
        let after = writer.add(b"after").unwrap();
        assert_eq!(writer.kept(), (2, 11));
        drop(writer);
        let there = |blob: &Blob| store.blob_path(&blob.digest).exists();
        assert!(there(&early) && there(&late) && !there(&after));
        let again = store.writer().unwrap();
        assert!(!again.add(b"early").unwrap().new, "the next writer finds it");
        drop(again);
        assert_eq!(store.gc(false).unwrap().blobs.len(), 2);
    }
}
