//! What kernels run under in a test: chosen instructions, and a processor that flushes what is
//! subnormal or tells that something was. Helpers run under what the one who leads them does.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Instructions;

thread_local! {
    static CURRENT: RefCell<Option<Environment>> = const { RefCell::new(None) };
}

/// How this thread computes.
#[derive(Clone)]
pub struct Environment {
    instructions: Instructions,
    /// Whether subnormal operands and results are zeros.
    flush: bool,
    /// Flags that any thread has raised.
    raised: Arc<AtomicU32>,
}

impl Environment {
    /// What `work` gives under it, and whether an operand or a result was subnormal (as far as this
    /// processor tells).
    pub fn run<R>(instructions: Instructions, flush: bool, work: impl FnOnce() -> R) -> (R, bool) {
        let here = Environment { instructions, flush, raised: Arc::default() };
        CURRENT.set(Some(here.clone()));
        let made = here.under(work);
        CURRENT.set(None);
        (made, here.raised.load(Ordering::Relaxed) != 0)
    }

    fn under<R>(&self, work: impl FnOnce() -> R) -> R {
        let before = control::read();
        control::write(if self.flush { control::FLUSHING } else { control::TELLING });
        let made = std::hint::black_box(work());
        let raised = control::read() & control::RAISED;
        control::write(before);
        self.raised.fetch_or(raised, Ordering::Relaxed);
        made
    }
}

/// The instructions of this thread's environment.
pub fn instructions() -> Option<Instructions> {
    CURRENT.with_borrow(|current| current.as_ref().map(|here| here.instructions))
}

/// The same work under this thread's environment, whichever thread does it.
pub fn carried(work: &(dyn Fn(usize) + Sync)) -> impl Fn(usize) + Sync {
    let current = CURRENT.with_borrow(Clone::clone);
    move |piece| match &current {
        None => work(piece),
        Some(here) => {
            let before = CURRENT.replace(Some(here.clone()));
            here.under(|| work(piece));
            CURRENT.set(before);
        }
    }
}

/// MXCSR.
#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    /// All exceptions masked.
    pub const TELLING: u32 = 0x1f80;
    /// Denormals are zero, and results flushed to it.
    pub const FLUSHING: u32 = TELLING | 1 << 15 | 1 << 6;
    /// A denormal operand, or a tiny result that is not exact.
    pub const RAISED: u32 = 1 << 1 | 1 << 4;

    pub fn read() -> u32 {
        let mut word = 0_u32;
        // SAFETY: stores to the word.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word) };
        word
    }

    pub fn write(word: u32) {
        // SAFETY: loads a word of which no bit is reserved. What is computed between two calls is
        // behind pointers to functions, so that compilers move nothing over them.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word) };
    }
}

/// FPCR, which says how and tells nothing.
#[cfg(target_arch = "aarch64")]
mod control {
    use std::arch::asm;

    pub const TELLING: u32 = 0;
    pub const FLUSHING: u32 = 1 << 24;
    pub const RAISED: u32 = 0;

    pub fn read() -> u32 {
        let word: u64;
        // SAFETY: reads a register.
        unsafe { asm!("mrs {}, fpcr", out(reg) word) };
        word as u32
    }

    pub fn write(word: u32) {
        // SAFETY: as on x86.
        unsafe { asm!("msr fpcr, {}", in(reg) u64::from(word)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    pub const TELLING: u32 = 0;
    pub const FLUSHING: u32 = 0;
    pub const RAISED: u32 = 0;

    pub fn read() -> u32 {
        0
    }

    pub fn write(_: u32) {}
}

/// The test's own instruments: without them it could not fail.
#[test]
fn what_is_subnormal_is_told_and_flushed() {
    let tiny = std::hint::black_box(f32::MIN_POSITIVE / 4.0);
    let halved = || std::hint::black_box(tiny) * std::hint::black_box(0.5);
    let helped = || {
        let found: Vec<AtomicU32> = (0..64).map(|_| AtomicU32::new(1)).collect();
        crate::in_parallel(64, true, &|piece| {
            found[piece].store(halved().to_bits(), Ordering::Relaxed);
        });
        found.into_iter().map(AtomicU32::into_inner).collect::<Vec<u32>>()
    };
    let telling = Environment::run(Instructions::Portable, false, helped);
    assert!(telling.0.iter().all(|&bits| bits == (tiny * 0.5).to_bits()));
    let (flushed, _) = Environment::run(Instructions::Portable, true, helped);
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        assert!(flushed.iter().all(|&bits| bits == 0));
    }
    assert_eq!(telling.1, cfg!(target_arch = "x86_64"));
    let (_, told) = Environment::run(Instructions::Portable, false, || std::hint::black_box(2.0));
    assert!(!told);
}
