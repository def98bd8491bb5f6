//! What a plan adds to a disk that may have some of its blobs already.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use super::blob::{self, Buffers, Failed, Work};
use super::{Native, Silent, Sources, layout, side_file};
use crate::fault::{Fault, Faults};
use crate::plan::Plan;
use crate::read::Inventory;

/// Bytes that the plan's blobs and files take in the store when it has none of them.
pub fn space(plan: &Plan) -> Result<u64, Fault> {
    let files: u64 = plan.files.iter().map(|file| file.bytes).sum();
    plan.blobs.iter().try_fold(files, |sum, blob| Ok(sum + layout::size(blob)?))
}

/// As much of a blob as is compared with one of the same size before it is taken for the same.
const SAMPLE: usize = 64 << 10;

/// Bytes that the plan takes on a disk that has the blobs `stored` (by size). Those that are there
/// are still written by `jobs` workers before they are found to be, so as many have to fit too.
///
/// A blob counts as there when one of its size begins with the same [`SAMPLE`]: that costs little,
/// and all that hangs on it is how soon a full disk is found out.
pub fn space_beyond(
    plan: &Plan,
    target: &Inventory,
    draft: Option<&Inventory>,
    stored: &HashMap<u64, Vec<PathBuf>>,
    jobs: usize,
) -> Result<u64, Faults> {
    let sources = Sources::open(target, draft)?;
    let cancel = AtomicBool::new(false);
    let work = Work {
        sources: &sources,
        quantizer: &Native,
        progress: &Silent,
        cancel: &cancel,
        piece: SAMPLE as u64,
    };
    let mut buffers = Buffers::default();
    let mut missing = 0;
    let mut there = Vec::new();
    let mut count = |size, same| if same { there.push(size) } else { missing += size };
    let candidates = |size| stored.get(&size).into_iter().flatten();
    for blob in &plan.blobs {
        let size = layout::size(blob)?;
        let mut same = false;
        for path in candidates(size) {
            let Ok(file) = File::open(path) else { continue };
            let mut comparing = Comparing { file, left: SAMPLE, differs: false };
            match blob::write(blob, &work, &mut buffers, &mut comparing) {
                Err(Failed::Fault(fault)) => return Err(fault.into()),
                Ok(()) | Err(Failed::Write(_)) => same = !comparing.differs,
            }
            if same {
                break;
            }
        }
        count(size, same);
    }
    for file in &plan.files {
        let wanted = std::fs::read(side_file(file, target, draft)?).unwrap_or_default();
        let same = |path: &PathBuf| std::fs::read(path).is_ok_and(|found| found == wanted);
        count(file.bytes, candidates(file.bytes).any(same));
    }
    there.sort_unstable_by(|a, b| b.cmp(a));
    Ok(missing + there.iter().take(jobs).sum::<u64>())
}

/// Takes bytes only to compare them with a file's first ones; then it fails, which ends the work.
struct Comparing {
    file: File,
    left: usize,
    differs: bool,
}

impl Write for Comparing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(self.left)];
        let mut stored = vec![0; bytes.len()];
        self.differs = self.file.read_exact(&mut stored).is_err() || stored != bytes;
        self.left -= bytes.len();
        if self.differs || self.left == 0 {
            return Err(io::Error::other("all that was to be compared"));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
