//! A folder made of hostile bytes: config, index and one shard. Reading and classifying it may
//! fail, and may do nothing else. `cargo +nightly fuzz run folder` runs it; `tests/hostile.rs`
//! runs a short part without a fuzzer.

#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;

thread_local! {
    static DIR: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
}

fuzz_target!(|bytes: &[u8]| {
    DIR.with_borrow_mut(|dir| {
        let memory = std::path::Path::new("/dev/shm");
        let dir = dir.get_or_insert_with(|| match memory.is_dir() {
            true => tempfile::tempdir_in(memory).expect("a temporary folder"),
            false => tempfile::tempdir().expect("a temporary folder"),
        });
        lathe::read::hostile::folder(dir.path(), bytes);
    });
});
