//! What only Linux has, on the other systems: nothing, or the plain way.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;

/// Nothing: there is no such advice.
pub fn start_writing_back(_file: &File) {}

/// Brings files to the disk, one by one.
///
/// # Errors
/// The system's own, for the first file that failed.
pub fn sync_files<'a>(_dir: &Path, files: impl Iterator<Item = &'a Path>) -> io::Result<()> {
    for file in files {
        File::options().write(true).open(file)?.sync_all()?;
    }
    Ok(())
}

/// No: these systems choose the sizes of pages themselves.
pub fn gives_huge_pages() -> bool {
    false
}

/// Nothing.
pub fn ask_for_huge_pages(_memory: &mut [MaybeUninit<u8>]) {}

/// Nothing.
pub fn ask_for_huge_pages_everywhere() {}
