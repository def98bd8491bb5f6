//! Workers that make blobs, under one memory budget.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use super::blob::{self, Buffers, Failed, Work};
use super::source::Sources;
use super::{Made, Options, Staging};
use crate::fault::{Code, Fault, Faults};
use crate::plan::{Blob, Plan};

/// The least piece worth a system call.
const LEAST_PIECE: u64 = 16 << 10;

/// Makes all blobs of a plan; the results are in the plan's order.
pub fn run<S: Staging>(
    plan: &Plan,
    sources: &Sources<'_>,
    staging: &S,
    options: &Options,
) -> Result<Vec<Made>, Faults> {
    let jobs = options.jobs.clamp(1, plan.blobs.len().max(1));
    let work = Work {
        sources,
        quantizer: options.quantizer,
        progress: options.progress,
        cancel: options.cancel,
        piece: (options.memory / (8 * jobs as u64)).clamp(LEAST_PIECE, options.quantizer.piece()),
    };
    // The largest first: then no worker is left alone with a large one at the end.
    let mut order: Vec<usize> = (0..plan.blobs.len()).collect();
    order.sort_by_key(|&index| {
        Reverse(plan.blobs[index].tensors.iter().map(|t| t.bytes_in()).sum::<u64>())
    });

    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let budget = Budget::new(options.memory);
    let results: Vec<Mutex<Option<Made>>> = plan.blobs.iter().map(|_| Mutex::new(None)).collect();
    let faults = Mutex::new(Faults::default());
    let worker = || {
        let mut buffers = Buffers::default();
        while !stop.load(Ordering::Relaxed) {
            let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            let blob = &plan.blobs[index];
            match make(blob, &work, &mut buffers, staging, &budget) {
                Ok(made) => {
                    options.progress.blob(&blob.name, &made);
                    *lock(&results[index]) = Some(made);
                }
                Err(fault) => {
                    stop.store(true, Ordering::Relaxed);
                    lock(&faults).push(fault);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..jobs {
            scope.spawn(worker);
        }
        worker();
    });

    let mut faults = faults.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Workers that were stopped by the same cause say the same.
    faults.0.dedup_by(|a, b| a.code == b.code && a.message == b.message);
    faults.or(())?;
    let made: Option<Vec<Made>> = results.iter().map(|made| lock(made).take()).collect();
    made.ok_or_else(|| Fault::new(Code::Internal, "a blob was not made").into())
}

fn make<S: Staging>(
    blob: &Blob,
    work: &Work,
    buffers: &mut Buffers,
    staging: &S,
    budget: &Budget,
) -> Result<Made, Fault> {
    let _held = budget.take(blob::memory(blob, work)?);
    let mut staged = staging.stage()?;
    match blob::write(blob, work, buffers, &mut staged) {
        Ok(()) => staging.finish(staged),
        Err(Failed::Fault(fault)) => Err(fault),
        Err(Failed::Write(error)) => Err(staging.failed(&error)),
    }
}

/// Memory that is shared out. A blob that needs more than there is gets it when nobody else has any.
struct Budget {
    whole: u64,
    free: Mutex<u64>,
    returned: Condvar,
}

/// A share; dropping it gives it back.
struct Share<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    fn new(whole: u64) -> Self {
        Budget { whole, free: Mutex::new(whole), returned: Condvar::new() }
    }

    fn take(&self, bytes: u64) -> Share<'_> {
        let bytes = bytes.min(self.whole);
        let free = lock(&self.free);
        let mut free = self
            .returned
            .wait_while(free, |free| *free < bytes)
            .unwrap_or_else(PoisonError::into_inner);
        *free -= bytes;
        Share { budget: self, bytes }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        *lock(&self.budget.free) += self.bytes;
        self.budget.returned.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
