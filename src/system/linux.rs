//! What only Linux has: advice on files, one sync for a whole file system, huge pages.
//!
//! What lies in huge pages and is read once for every token is read up to twice as fast, as finding
//! a page of 4 KiB costs more than reading it. Weights are held where they have been asked for
//! ([`ask_for_huge_pages`]). Memory that the C library gives is asked for by glibc, when it is told
//! to before the program begins ([`ask_for_huge_pages_everywhere`]).

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::OnceLock;

/// Lets the disk begin with a finished file while others are being made, so that the sync at the
/// end finds most of the work done. Only advice: nothing depends on it.
pub fn start_writing_back(file: &File) {
    // The kernel's answer to "not needed any more" is to start writing what is dirty; those pages
    // stay in memory until they are on the disk.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

/// Brings files of a folder to the disk, by one sync of the file system that it lies in.
///
/// # Errors
/// The system's own.
pub fn sync_files<'a>(dir: &Path, _files: impl Iterator<Item = &'a Path>) -> io::Result<()> {
    rustix::fs::syncfs(File::open(dir)?).map_err(Into::into)
}

/// The system's setting, such as `always [madvise] never`; nothing where there is none.
fn setting() -> &'static str {
    static SETTING: OnceLock<String> = OnceLock::new();
    SETTING.get_or_init(|| {
        let file = "/sys/kernel/mm/transparent_hugepage/enabled";
        std::fs::read_to_string(file).unwrap_or_default()
    })
}

/// Whether the system gives huge pages to who asks for them.
pub fn gives_huge_pages() -> bool {
    setting().contains("[madvise]") || setting().contains("[always]")
}

/// Asks for them for memory that nobody has written yet. Where that is refused, pages stay small.
pub fn ask_for_huge_pages(memory: &mut [MaybeUninit<u8>]) {
    use rustix::mm::{Advice, madvise};
    let start = memory.as_mut_ptr().cast::<u8>();
    let before = start.align_offset(rustix::param::page_size());
    let Some(length) = memory.len().checked_sub(before) else { return };
    // SAFETY: this memory is lent to this function, from one page on to its end; the advice
    // changes no contents.
    let _ = unsafe { madvise(start.add(before).cast(), length, Advice::LinuxHugepage) };
}

/// Lets the C library ask for huge pages for all memory that it gives, by beginning this program
/// anew if it has not been told so. Where that does not work, the program goes on without; other C
/// libraries than glibc are not told.
pub fn ask_for_huge_pages_everywhere() {
    #[cfg(target_env = "gnu")]
    begin_anew();
}

#[cfg(target_env = "gnu")]
fn begin_anew() {
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    /// What glibc reads when a program begins.
    const TUNABLES: &str = "GLIBC_TUNABLES";
    const ASK: &str = "glibc.malloc.hugetlb";

    let told = std::env::var_os(TUNABLES).unwrap_or_default();
    let known = told.to_string_lossy().contains(ASK);
    // Otherwise nobody need ask, or nobody is given any.
    if known || !setting().contains("[madvise]") {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut tunables = told;
    if !tunables.is_empty() {
        tunables.push(":");
    }
    tunables.push(format!("{ASK}=1"));
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| program.clone().into());
    // It returns only when it fails.
    let _ = Command::new(program).arg0(name).args(arguments).env(TUNABLES, tunables).exec();
}
