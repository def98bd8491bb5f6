//! What Windows does in its own way. Untested.

use std::fs::File;
use std::io;
use std::os::windows::fs::FileExt;
use std::path::Path;

/// Reads the bytes of a file from `at` on.
///
/// # Errors
/// The system's own; `UnexpectedEof` where the file ends before.
pub fn read_exact_at(file: &File, mut out: &mut [u8], mut at: u64) -> io::Result<()> {
    while !out.is_empty() {
        match file.seek_read(out, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                out = &mut out[read..];
                at += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Nothing: a folder has the rights of the one that it lies in.
pub fn open_to_others(_dir: &Path) {}

/// Nothing: a file has the rights of the folder that it lies in.
pub fn readable_by_others<'a, 'p, 's>(
    builder: &'a mut tempfile::Builder<'p, 's>,
) -> &'a mut tempfile::Builder<'p, 's> {
    builder
}

/// Nothing: there is no such call, and renames are journaled.
///
/// # Errors
/// None.
pub fn sync_dir(_dir: &Path) -> io::Result<()> {
    Ok(())
}

/// Not told.
pub fn free_space(_dir: &Path) -> Option<u64> {
    None
}
