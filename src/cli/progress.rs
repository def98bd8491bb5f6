//! How the progress of `create` is shown: one line on a terminal, a line now and then elsewhere, one
//! JSON object a line for scripts, or nothing.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::ui;
use crate::write::{Made, Progress};

/// Where progress goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Nobody.
    Nobody,
    /// People: a line that changes on a terminal, else a line every few seconds.
    People,
    /// Scripts: events on standard output.
    Scripts,
}

/// What scripts are told while a model is made; docs/store.md describes it.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Event<'a> {
    Phase { phase: &'a str, total: u64 },
    Progress { phase: &'a str, tensor: &'a str, bytes: u64, total: u64, seconds: f64 },
    Blob { name: &'a str, digest: &'a str, size: u64, new: bool },
}

/// How often a line is written where lines cannot be changed, and an event of progress is sent.
const PLAIN_EVERY: Duration = Duration::from_secs(5);
const EVENT_EVERY: Duration = Duration::from_millis(200);

/// Shows how far a `create` is.
pub struct Reporter {
    audience: Audience,
    /// Bytes of the source that will be read.
    total: u64,
    done: AtomicU64,
    begun: Instant,
    bar: ProgressBar,
    state: Mutex<State>,
}

/// Phase and tensor at hand, and when something was last said.
struct State {
    phase: &'static str,
    tensor: String,
    said: Instant,
}

impl Reporter {
    /// For work that reads `total` bytes.
    pub fn new(audience: Audience, total: u64) -> Self {
        let line = audience == Audience::People && std::io::stderr().is_terminal();
        let now = Instant::now();
        Reporter {
            audience,
            total,
            done: AtomicU64::new(0),
            begun: now,
            bar: if line { bar(total) } else { ProgressBar::hidden() },
            state: Mutex::new(State { phase: "", tensor: String::new(), said: now }),
        }
    }

    /// Ends the line; what is printed next begins on a clean one.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says where things stand, when it is time to.
    fn tell(&self, bytes: u64) {
        let every = match self.audience {
            Audience::Scripts => EVENT_EVERY,
            Audience::People if self.bar.is_hidden() => PLAIN_EVERY,
            _ => return,
        };
        // Another thread is telling: nothing to wait for.
        let Ok(mut state) = self.state.try_lock() else { return };
        if state.said.elapsed() < every {
            return;
        }
        state.said = Instant::now();
        let (State { phase, tensor, .. }, total) = (&*state, self.total);
        if self.audience == Audience::Scripts {
            let seconds = self.begun.elapsed().as_secs_f64();
            ui::print_json_line(&Event::Progress { phase, tensor, bytes, total, seconds });
        } else {
            ui::note(plain(phase, tensor, bytes, total, self.begun.elapsed()));
        }
    }
}

/// `writing: 1.20 GB of 9.80 GB (12 %), 512 MB/s, 17 s left, model.layers.3.mlp.up_proj.weight`
fn plain(phase: &str, tensor: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-3);
    let left = total.saturating_sub(done) as f64 / rate.max(1.0);
    let percent = 100.0 * done as f64 / total.max(1) as f64;
    let (done, total, rate) = (ui::bytes(done), ui::bytes(total), ui::bytes(rate as u64));
    format!("{phase}: {done} of {total} ({percent:.0} %), {rate}/s, {left:.0} s left, {tensor}")
}

/// The last segments of a tensor's name, as many as a narrow terminal has room for.
fn shortened(name: &str) -> &str {
    const ROOM: usize = 20;
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let starts = std::iter::once(0).chain(name.match_indices('.').map(|(at, _)| at + 1));
    starts.map(|at| &name[at..]).find(|rest| rest.len() <= ROOM).unwrap_or(name)
}

fn bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template(
        "{prefix} {bar:12.cyan/dim} {decimal_bytes}/{decimal_total_bytes} \
         {decimal_bytes_per_sec} {eta} left  {wide_msg:.dim}",
    );
    if let Ok(style) = style { bar.with_style(style) } else { bar }
}

impl Progress for Reporter {
    fn phase(&self, phase: &'static str) {
        self.state().phase = phase;
        self.bar.set_prefix(phase);
        self.bar.set_message("");
        if self.audience == Audience::Scripts {
            ui::print_json_line(&Event::Phase { phase, total: self.total });
        }
    }

    fn tensor(&self, name: &str) {
        if self.audience == Audience::Nobody {
            return;
        }
        self.bar.set_message(shortened(name).to_string());
        let mut state = self.state();
        state.tensor.clear();
        state.tensor.push_str(name);
    }

    fn read(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.bar.set_position(done);
        self.tell(done);
    }

    fn blob(&self, name: &str, made: &Made) {
        if self.audience == Audience::Scripts {
            let Made { digest, size, new } = made;
            ui::print_json_line(&Event::Blob { name, digest, size: *size, new: *new });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_line_says_phase_bytes_rate_time_left_and_tensor() {
        let line = plain("writing", "w", 1_200_000_000, 9_600_000_000, Duration::from_secs(2));
        assert_eq!(line, "writing: 1.20 GB of 9.60 GB (12 %), 600 MB/s, 14 s left, w");
        assert_eq!(shortened("model.layers.12.mlp.down_proj.weight"), "12.mlp.down_proj");
        assert_eq!(shortened("lm_head.weight"), "lm_head");
        // Nothing done yet, and no total: no division by zero.
        assert!(plain("writing", "", 0, 0, Duration::ZERO).contains("0 B of 0 B (0 %)"));
    }
}
