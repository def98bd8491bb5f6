//! Several threads for one product.
//!
//! A product of one token takes some ten microseconds, which is less than it takes to wake a
//! thread that sleeps. So the helpers look out for the next work for a while before they sleep,
//! and whoever has work does not wait for those that come late: it closes the work when the last
//! piece is taken, and waits only for the helpers that are inside.

use std::cell::{RefCell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, TryLockError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// How long a helper looks out for work before it sleeps: longer than what lies between two
/// products of a token.
const PATIENCE: Duration = Duration::from_micros(300);

/// What is to be done with each index.
type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// Bits of [`Team::state`]: helpers inside, whether the work is open, and its number.
const INSIDE: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const NUMBER: u64 = 1 << 17;

struct Team {
    /// Held by whoever has work.
    lead: Mutex<()>,
    state: AtomicU64,
    /// The open work and its pieces.
    work: UnsafeCell<Option<(*const Work<'static>, usize)>>,
    /// The next piece of each thread's share.
    next: Vec<Share>,
    /// Whether a helper failed.
    failed: AtomicBool,
    helpers: Vec<Helper>,
}

/// Pieces that follow each other, so that a thread reads on where it has read. Alone in its line of
/// the cache.
#[repr(align(128))]
#[derive(Default)]
struct Share(AtomicUsize);

struct Helper {
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

// SAFETY: `work` is written only by the holder of `lead` while no work is open and no helper
// inside, and read only by helpers inside.
unsafe impl Sync for Team {}
// SAFETY: the pointer in `work` is to what may be shared between threads.
unsafe impl Send for Team {}

/// The number of threads of a team, the caller's among them.
pub fn threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// The threads of this process.
fn team() -> &'static Team {
    static TEAM: OnceLock<Team> = OnceLock::new();
    static STARTED: OnceLock<()> = OnceLock::new();
    let team = TEAM.get_or_init(|| {
        let helper = |_| Helper { asleep: AtomicBool::new(false), thread: OnceLock::new() };
        Team {
            lead: Mutex::new(()),
            state: AtomicU64::new(0),
            work: UnsafeCell::new(None),
            next: (0..threads()).map(|_| Share::default()).collect(),
            failed: AtomicBool::new(false),
            helpers: (1..threads()).map(helper).collect(),
        }
    });
    STARTED.get_or_init(|| {
        for (index, helper) in team.helpers.iter().enumerate() {
            let builder = thread::Builder::new().name(format!("product-{}", index + 1));
            // A thread that cannot be had is one that always comes late.
            if let Ok(handle) = builder.spawn(move || team.help(helper, index + 1)) {
                let _ = helper.thread.set(handle.thread().clone());
            }
        }
    });
    team
}

/// Calls `work` with each index below `count`; on several threads at once if that is `worth` it
/// and they are free.
///
/// # Panics
/// When `work` does.
pub fn in_parallel(count: usize, worth: bool, work: &Work) {
    #[cfg(test)]
    let work: &Work = &crate::tests::environment::carried(work);
    if worth && count > 1 && threads() > 1 {
        let team = team();
        let lead = match team.lead.try_lock() {
            // Who panicked has left nothing undone: `Closing`.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            lead => lead.ok(),
        };
        if let Some(_lead) = lead {
            return team.lead(count, work);
        }
    }
    (0..count).for_each(work);
}

impl Team {
    /// Does the work with whoever comes. The caller holds `lead`.
    fn lead(&self, count: usize, work: &Work) {
        // SAFETY: the lifetime ends after this function has closed the work and seen all helpers
        // leave, on every path: `Closing` does so even when `work` panics.
        let work_of_all: *const Work<'static> =
            unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
        // SAFETY: no work is open and nobody inside, as the one before was left so.
        unsafe { *self.work.get() = Some((work_of_all, count)) };
        for (thread, share) in self.next.iter().enumerate() {
            share.0.store(self.share(thread, count), Ordering::Relaxed);
        }
        self.state.fetch_add(NUMBER | OPEN, Ordering::SeqCst);
        let closing = Closing(self);
        for helper in &self.helpers {
            if helper.asleep.load(Ordering::SeqCst)
                && helper.asleep.swap(false, Ordering::SeqCst)
                && let Some(thread) = helper.thread.get()
            {
                thread.unpark();
            }
        }
        self.pieces(count, work, 0);
        drop(closing);
        assert!(!self.failed.swap(false, Ordering::Relaxed), "a helper failed at a piece of work");
    }

    /// Where a thread's share begins; where the one before it ends.
    fn share(&self, thread: usize, count: usize) -> usize {
        thread * count / self.next.len()
    }

    /// Does the pieces of the thread's own share, and then what is left of the others'.
    fn pieces(&self, count: usize, work: &Work, thread: usize) {
        for other in (thread..self.next.len()).chain(0..thread) {
            let end = self.share(other + 1, count);
            loop {
                let piece = self.next[other].0.fetch_add(1, Ordering::Relaxed);
                if piece >= end {
                    break;
                }
                work(piece);
            }
        }
    }

    /// A helper's life.
    fn help(&self, me: &Helper, thread: usize) {
        let mut done = 0;
        let mut since = Instant::now();
        let mut looks = 0_u32;
        loop {
            let state = self.state.load(Ordering::SeqCst);
            if state & OPEN != 0 && state / NUMBER != done {
                if self
                    .state
                    .compare_exchange(state, state + 1, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
                {
                    done = state / NUMBER;
                    self.join_in(thread);
                    since = Instant::now();
                    looks = 0;
                }
                continue;
            }
            looks = looks.wrapping_add(1);
            if !looks.is_multiple_of(64) {
                std::hint::spin_loop();
                continue;
            }
            // Others may need this processor.
            thread::yield_now();
            if since.elapsed() > PATIENCE {
                me.asleep.store(true, Ordering::SeqCst);
                let state = self.state.load(Ordering::SeqCst);
                if state & OPEN == 0 || state / NUMBER == done {
                    thread::park();
                }
                me.asleep.store(false, Ordering::SeqCst);
                since = Instant::now();
            }
        }
    }

    /// What a helper does inside.
    fn join_in(&self, thread: usize) {
        // SAFETY: inside, the work stays as it is, and what it borrows alive.
        let done = unsafe {
            (*self.work.get()).map(|(work, count)| {
                catch_unwind(AssertUnwindSafe(|| self.pieces(count, &*work, thread)))
            })
        };
        if matches!(done, Some(Err(_))) {
            self.failed.store(true, Ordering::Relaxed);
        }
        self.state.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Closes the work, and waits for those inside.
struct Closing<'a>(&'a Team);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut inside = self.0.state.fetch_and(!OPEN, Ordering::SeqCst) & INSIDE;
        let mut looks = 0_u32;
        while inside != 0 {
            looks += 1;
            match looks % 64 {
                0 => thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
            inside = self.0.state.load(Ordering::SeqCst) & INSIDE;
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once_however_many_lead() {
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 0..500 {
                        let count = round % 40;
                        let pieces: Vec<AtomicUsize> =
                            (0..count).map(|_| AtomicUsize::new(0)).collect();
                        in_parallel(count, true, &|piece| {
                            pieces[piece].fetch_add(1, Ordering::Relaxed);
                        });
                        assert!(pieces.iter().all(|piece| piece.load(Ordering::Relaxed) == 1));
                    }
                });
            }
        });
    }

    #[test]
    fn a_piece_that_fails_is_told_and_the_team_goes_on() {
        for _ in 0..20 {
            let failing = || in_parallel(64, true, &|piece| assert!(piece != 7, "piece 7"));
            assert!(catch_unwind(failing).is_err());
            let done = AtomicUsize::new(0);
            in_parallel(64, true, &|_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.load(Ordering::Relaxed), 64);
        }
    }
}
