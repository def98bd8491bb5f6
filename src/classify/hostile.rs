//! Folders made of arbitrary bytes, for the fuzzer and for the tests that stand in for it.

use std::path::Path;

use super::classify;
use crate::read::{CONFIG, INDEX, folder as read_folder};

/// What parts the input: config, index (perhaps empty: then there is none), shard.
pub const SEPARATOR: &[u8] = b"\0-\0";

/// Writes the parts of `bytes` as a folder, reads and classifies it. What comes of it does not
/// matter: it must come, and be reported without a panic.
pub fn folder(dir: &Path, bytes: &[u8]) {
    let mut parts = split(bytes);
    let [config, index, shard] = [(); 3].map(|()| parts.next().unwrap_or_default());
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.join(name), bytes).is_ok();
    let _ = std::fs::remove_file(dir.join(INDEX));
    let written = write(CONFIG, config)
        && (index.is_empty() || write(INDEX, index))
        && write("model.safetensors", shard);
    if !written {
        return;
    }
    let said = match read_folder(dir) {
        Ok(inventory) => match classify(&inventory) {
            Ok(classified) => format!("{:?}", classified.warnings),
            Err(faults) => format!("{faults}"),
        },
        Err(faults) => format!("{faults}"),
    };
    assert!(said.len() < 64 << 20, "what is said stays readable");
}

fn split(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let now = rest?;
        let at = now.windows(SEPARATOR.len()).position(|window| window == SEPARATOR);
        rest = at.map(|at| &now[at + SEPARATOR.len()..]);
        Some(at.map_or(now, |at| &now[..at]))
    })
}
