//! write: a [`Plan`] in, blobs out. It executes and decides nothing; it is the only room that reads
//! weights.
//!
//! Blobs are independent, so `jobs` workers make them, the largest first. A worker reads a tensor
//! once, piece by piece, computes, hashes and writes; besides such pieces it holds a tensor's
//! scales, and the matrix at hand where axes are swapped. Workers wait for each other when
//! together they would exceed the memory budget. The bytes are the same for any number of workers
//! and any budget.

mod arith;
mod array;
mod blob;
mod ints;
pub mod kernels;
mod layout;
#[cfg(feature = "mlx")]
mod on_mlx;
mod pool;
mod quantizer;
mod recipe;
mod source;
mod space;
mod watch;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::fault::{Code, Fault, Faults, Warning};
use crate::plan::{File, Plan};
use crate::read::Inventory;

#[cfg(feature = "mlx")]
pub use on_mlx::OnMlx;
pub use quantizer::{Native, Quantizer};
pub use source::Sources;
pub use space::{space, space_beyond};

/// The quantizer for this machine: MLX where it computes on a GPU, else our kernels.
///
/// # Errors
/// What MLX says when it cannot tell its device.
pub fn best_quantizer() -> Result<Box<dyn Quantizer>, Fault> {
    #[cfg(feature = "mlx")]
    if crate::mlx::device::device()? != crate::mlx::Device::Cpu {
        return Ok(Box::new(OnMlx::default()));
    }
    Ok(Box::new(Native))
}

/// How to execute a plan.
pub struct Options<'a> {
    /// Workers.
    pub jobs: usize,
    /// Bytes of memory that they may take together.
    pub memory: u64,
    /// Who quantizes.
    pub quantizer: &'a dyn Quantizer,
    /// Told what happens.
    pub progress: &'a dyn Progress,
    /// Set by others when the user wants to stop.
    pub cancel: &'a AtomicBool,
}

/// Memory to work with when nobody says: a quarter of the machine's, at most 4 GiB.
pub fn default_memory() -> u64 {
    (machine_memory() / 4).min(4 << 30)
}

/// The machine's memory in bytes, or the container's where that is less.
pub fn machine_memory() -> u64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let contained = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory);
    system.total_memory().min(contained)
}

/// Memory in bytes that is free, or can be made so; the container's where that is less.
pub fn free_memory() -> u64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    // What a container's cache of files holds can be freed.
    let contained = system.cgroup_limits();
    let contained = contained.map_or(u64::MAX, |c| c.total_memory.saturating_sub(c.rss));
    system.available_memory().min(contained)
}

/// The phase in which blobs are made.
pub const WRITING: &str = "writing";
/// The phase in which what was made is tried.
pub const CHECKING: &str = "checking";
/// The phase in which the disk catches up and the model gets its name.
pub const SYNCING: &str = "syncing";

/// What happens while a plan is executed. Called by several threads at once, often: be quick.
pub trait Progress: Sync {
    /// Another kind of work begins: [`WRITING`], [`CHECKING`], [`SYNCING`].
    fn phase(&self, _phase: &'static str) {}
    /// Work on this tensor begins.
    fn tensor(&self, _name: &str) {}
    /// So many bytes of the plan's `bytes_in` are done.
    fn read(&self, _bytes: u64) {}
    /// This blob or file is done.
    fn blob(&self, _name: &str, _made: &Made) {}
}

/// Tells nobody.
pub struct Silent;

impl Progress for Silent {}

/// Where blobs go: begun, written from first byte to last, ended.
pub trait Staging: Sync {
    /// A blob that is being written. Dropping it leaves nothing.
    type Blob<'a>: Write
    where
        Self: 'a;

    /// Begins a blob.
    fn stage(&self) -> Result<Self::Blob<'_>, Fault>;

    /// Ends it: its digest is known, and it is there once the model is committed.
    fn finish(&self, blob: Self::Blob<'_>) -> Result<Made, Fault>;

    /// What a failed write is called.
    fn failed(&self, error: &io::Error) -> Fault;
}

/// A blob that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: String,
    /// Size in bytes.
    pub size: u64,
    /// Whether the store did not have it before.
    pub new: bool,
}

/// What came of a plan.
#[derive(Debug)]
pub struct Outcome {
    /// One for each of the plan's blobs, in its order.
    pub blobs: Vec<Made>,
    /// One for each of the plan's files, in its order.
    pub files: Vec<Made>,
    /// What was seen on the way that headers do not show.
    pub warnings: Vec<Warning>,
    /// How long it took.
    pub elapsed: Duration,
}

/// Executes a plan for the folders `target` (and `draft`).
///
/// # Errors
/// The first fault of the source, the plan or the store; files that changed while they were read;
/// [`Code::Interrupted`] when `options.cancel` was set.
pub fn execute<S: Staging>(
    plan: &Plan,
    target: &Inventory,
    draft: Option<&Inventory>,
    staging: &S,
    options: &Options,
) -> Result<Outcome, Faults> {
    let begun = Instant::now();
    options.progress.phase(WRITING);
    let sources = Sources::open(target, draft)?;
    let blobs = pool::run(plan, &sources, staging, options)?;
    let mut files = Vec::with_capacity(plan.files.len());
    for file in &plan.files {
        let path = side_file(file, target, draft)?;
        let made = copy_file(&path, file, staging)?;
        options.progress.blob(&file.name, &made);
        files.push(made);
    }
    sources.changed()?;
    let warnings = sources.not_finite().warnings();
    Ok(Outcome { blobs, files, warnings, elapsed: begun.elapsed() })
}

fn side_file(file: &File, target: &Inventory, draft: Option<&Inventory>) -> Result<PathBuf, Fault> {
    let folder = if file.draft { draft } else { Some(target) };
    folder.map(|folder| folder.dir.join(&file.source)).ok_or_else(|| {
        Fault::new(Code::StalePlan, format!("the plan needs {} of a draft folder", file.source))
    })
}

fn copy_file<S: Staging>(path: &std::path::Path, file: &File, staging: &S) -> Result<Made, Fault> {
    let bytes = std::fs::read(path).map_err(|error| Fault::io("read", path, &error))?;
    if bytes.len() as u64 != file.bytes {
        let what =
            format!("{} has {} bytes, the plan says {}", path.display(), bytes.len(), file.bytes);
        return Err(Fault::new(Code::StalePlan, what)
            .in_file(path)
            .help("make the plan again from the folder as it is now"));
    }
    let mut blob = staging.stage()?;
    blob.write_all(&bytes).map_err(|error| staging.failed(&error))?;
    staging.finish(blob)
}

#[cfg(test)]
mod tests;
