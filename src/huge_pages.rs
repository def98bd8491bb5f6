//! Huge pages, where Linux gives them to who asks: what is read once for every token is read up to
//! twice as fast, as finding a page of 4 KiB costs more than reading it.
//!
//! Weights are held where they have been asked for ([`ask_for`]). Keys and values are arrays of MLX,
//! whose memory is the C library's: glibc asks for all that it gives when it is told to before the
//! program begins ([`ask_for_all`]).

use std::mem::MaybeUninit;

#[cfg(target_os = "linux")]
use std::sync::OnceLock;

/// What glibc reads when a program begins.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TUNABLES: &str = "GLIBC_TUNABLES";
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ASK: &str = "glibc.malloc.hugetlb";

/// Linux's setting, such as `always [madvise] never`; nothing where there is none.
#[cfg(target_os = "linux")]
fn setting() -> &'static str {
    static SETTING: OnceLock<String> = OnceLock::new();
    SETTING.get_or_init(|| {
        let file = "/sys/kernel/mm/transparent_hugepage/enabled";
        std::fs::read_to_string(file).unwrap_or_default()
    })
}

/// Whether the system gives huge pages to who asks for them.
pub fn given() -> bool {
    #[cfg(target_os = "linux")]
    return setting().contains("[madvise]") || setting().contains("[always]");
    #[cfg(not(target_os = "linux"))]
    false
}

/// Asks for them for memory that nobody has written yet. Where that is refused, pages stay small.
pub fn ask_for(memory: &mut [MaybeUninit<u8>]) {
    #[cfg(target_os = "linux")]
    {
        use rustix::mm::{Advice, madvise};
        let start = memory.as_mut_ptr().cast::<u8>();
        let before = start.align_offset(rustix::param::page_size());
        let Some(length) = memory.len().checked_sub(before) else { return };
        // SAFETY: this memory is lent to this function, from one page on to its end; the advice
        // changes no contents.
        let _ = unsafe { madvise(start.add(before).cast(), length, Advice::LinuxHugepage) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

/// Lets the C library ask for huge pages for all memory that it gives, by beginning this program
/// anew if it has not been told so. Where that does not work, the program goes on without.
pub fn ask_for_all() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::os::unix::process::CommandExt;
        use std::process::Command;

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
}
