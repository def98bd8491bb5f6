//! The weights of a folder: files opened once, read by position, watched for changes.
//!
//! Files are read, not mapped: a mapped file that is cut short while it is read kills the process,
//! and a read fails. Reading costs one copy into a buffer that stays in the processor's cache.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::watch::NotFinite;
use crate::fault::{Code, Fault, Faults};
use crate::plan::SourceTensor;
use crate::read::{self, Inventory, TensorInfo};
use crate::system;

/// The folders that a plan reads from.
#[derive(Debug)]
pub struct Sources<'a> {
    target: Folder<'a>,
    draft: Option<Folder<'a>>,
    not_finite: Arc<NotFinite>,
}

#[derive(Debug)]
struct Folder<'a> {
    /// As the inventory numbers them.
    shards: Vec<Shard<'a>>,
    tensors: HashMap<&'a str, &'a TensorInfo>,
}

#[derive(Debug)]
struct Shard<'a> {
    file: Arc<Weights>,
    known: &'a read::Shard,
}

/// An open safetensors file.
#[derive(Debug)]
pub struct Weights {
    file: File,
    path: PathBuf,
}

impl<'a> Sources<'a> {
    /// Opens the shards of a model's folder, and of its draft's. A shard that is no longer what
    /// the inventory saw is a fault.
    pub fn open(target: &'a Inventory, draft: Option<&'a Inventory>) -> Result<Self, Faults> {
        let mut faults = Faults::default();
        let target = faults.absorb(Folder::open(target));
        let draft = draft.and_then(|draft| faults.absorb(Folder::open(draft)));
        match target {
            Some(target) => faults.or(Sources { target, draft, not_finite: Arc::default() }),
            None => Err(faults),
        }
    }

    /// Where a tensor's bytes are: its file and the first byte's position there.
    pub fn find(&self, tensor: &SourceTensor) -> Result<(Arc<Weights>, u64), Fault> {
        let gone = |what: &str| {
            Fault::new(Code::StalePlan, format!("the plan needs {}, {what}", tensor.name))
                .on_tensor(&tensor.name)
                .help("make the plan again from the folder as it is now")
        };
        let folder = if tensor.draft { self.draft.as_ref() } else { Some(&self.target) };
        let folder = folder.ok_or_else(|| gone("and no draft folder was given"))?;
        let found = folder.tensors.get(tensor.name.as_str());
        let found = found.ok_or_else(|| gone("and it is not there"))?;
        let shard = &folder.shards[found.shard as usize];
        if (found.dtype, &found.shape) != (tensor.dtype, &tensor.shape)
            || shard.known.name != tensor.file
        {
            return Err(gone("and the folder has another tensor of that name"));
        }
        let Some(view) = &tensor.view else { return Ok((shard.file.clone(), found.range.start)) };
        let count = view.shape.iter().try_fold(1u64, |product, axis| product.checked_mul(*axis));
        let end = count.and_then(|count| view.start.checked_add(count));
        if end.is_none_or(|end| end > found.elements()) {
            return Err(gone("and the run that it takes leaves the tensor"));
        }
        Ok((shard.file.clone(), found.range.start + view.start * found.dtype.bytes()))
    }

    /// Scales and biases that were read and are no numbers.
    pub fn not_finite(&self) -> &Arc<NotFinite> {
        &self.not_finite
    }

    /// Faults for every file that is not what it was when it was opened.
    pub fn changed(&self) -> Result<(), Faults> {
        let mut faults = Faults::default();
        for shard in
            [Some(&self.target), self.draft.as_ref()].into_iter().flatten().flat_map(|f| &f.shards)
        {
            if let Err(fault) = shard.check() {
                faults.push(fault);
            }
        }
        faults.or(())
    }
}

impl<'a> Folder<'a> {
    fn open(inventory: &'a Inventory) -> Result<Self, Faults> {
        let mut faults = Faults::default();
        let mut shards = Vec::with_capacity(inventory.shards.len());
        for known in &inventory.shards {
            let path = inventory.dir.join(&*known.name);
            let opened = File::open(&path).map_err(|error| Fault::io("open", &path, &error));
            let opened = opened.and_then(|file| {
                let shard = Shard { file: Arc::new(Weights { file, path }), known };
                shard.check().map(|()| shard)
            });
            match opened {
                Ok(shard) => shards.push(shard),
                Err(fault) => faults.push(fault),
            }
        }
        let tensors = inventory.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor));
        faults.or(Folder { shards, tensors: tensors.collect() })
    }
}

impl Shard<'_> {
    /// Whether both the open file and the file of that name still are what the inventory saw.
    fn check(&self) -> Result<(), Fault> {
        let path = &self.file.path;
        let open = self.file.file.metadata().map_err(|error| Fault::io("read", path, &error))?;
        let named = std::fs::metadata(path).map_err(|error| Fault::io("read", path, &error))?;
        let same = |meta: &Metadata| {
            meta.len() == self.known.size
                && (self.known.modified.is_none() || meta.modified().ok() == self.known.modified)
        };
        if same(&open) && same(&named) {
            return Ok(());
        }
        let what = format!("{} changed while it was being read", path.display());
        Err(Fault::new(Code::StalePlan, what)
            .in_file(path)
            .help("wait until the download is complete, then create the model again"))
    }
}

impl Weights {
    /// Reads exactly `out.len()` bytes from position `at`.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Fault> {
        system::read_exact_at(&self.file, out, at).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                let what =
                    format!("{} became shorter while it was being read", self.path.display());
                Fault::new(Code::StalePlan, what)
                    .in_file(&self.path)
                    .help("wait until the download is complete, then create the model again")
            }
            _ => Fault::io("read", &self.path, &error),
        })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
