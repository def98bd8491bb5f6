//! What Linux, macOS and the other Unixes share.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

/// Reads the bytes of a file from `at` on, without a position that threads would share.
///
/// # Errors
/// The system's own; `UnexpectedEof` where the file ends before.
pub fn read_exact_at(file: &File, out: &mut [u8], at: u64) -> io::Result<()> {
    file.read_exact_at(out, at)
}

/// Lets others enter a folder that was made as a private, temporary one.
pub fn open_to_others(dir: &Path) {
    let _ = fs::set_permissions(dir, fs::Permissions::from_mode(0o755));
}

/// Lets others read a temporary file, as they read any file that the user makes.
pub fn readable_by_others<'a, 'p, 's>(
    builder: &'a mut tempfile::Builder<'p, 's>,
) -> &'a mut tempfile::Builder<'p, 's> {
    builder.permissions(fs::Permissions::from_mode(0o666))
}

/// Brings the names in a folder to the disk.
///
/// # Errors
/// The system's own.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// The bytes that may still be written where a folder lies; nothing where the system does not tell.
pub fn free_space(dir: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}
