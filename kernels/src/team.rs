//! Several threads for one product.

use std::cell::{OnceCell, RefCell};

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

thread_local! {
    /// The threads that work for this one; itself among them, so that a product begins at once
    /// and ends even when no other thread finds time for it.
    static TEAM: OnceCell<Option<ThreadPool>> = const { OnceCell::new() };
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// The number of threads of a team.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn team() -> Option<ThreadPool> {
    let builder = ThreadPoolBuilder::new().num_threads(threads()).use_current_thread();
    builder.thread_name(|index| format!("product-{index}")).build().ok()
}

/// Calls `work` with each index below `count`; on several threads at once if that is `worth` it.
pub fn in_parallel(count: usize, worth: bool, work: &(dyn Fn(usize) + Sync)) {
    if !worth || count < 2 || threads() < 2 || rayon::current_thread_index().is_some_and(|i| i > 0)
    {
        return (0..count).for_each(work);
    }
    TEAM.with(|team_cell| match team_cell.get_or_init(team) {
        Some(team) => {
            team.install(|| (0..count).into_par_iter().with_max_len(1).for_each(work));
        }
        None => (0..count).for_each(work),
    });
}

/// Lends `length` floats of this thread, whatever they hold.
pub fn with_scratch<R>(length: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < length {
            scratch.resize(length, 0.0);
        }
        work(&mut scratch[..length])
    })
}
