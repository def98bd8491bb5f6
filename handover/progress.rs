//! How the progress of `create` is shown: one line on a terminal, a line now and then elsewhere, one
//! JSON object a line for scripts, or nothing.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::{interrupt, ui};
use crate::write::{Made, Progress, SYNCING};

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
    /// Phase and tensor at hand, and when something was last said.
    state: Mutex<State>,
}

struct State {
    phase: &'static str,
    tensor: String,
    said: Instant,
}

impl Reporter {
    /// For work that reads `total` bytes.
    pub fn new(audience: Audience, total: u64) -> Self {
        let line = audience == Audience::People && std::io::stderr().is_terminal();
        let bar = if line { bar(total) } else { ProgressBar::hidden() };
        let now = Instant::now();
        let state = State { phase: "", tensor: String::new(), said: now };
        Reporter {
            audience,
            total,
            done: AtomicU64::new(0),
            begun: now,
            bar,
            state: Mutex::new(state),
        }
    }

    /// Ends the line; what is printed next begins on a clean one.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn event(&self, value: &serde_json::Value) {
        // A closed pipe ends quietly: nobody listens any more.
        let _ = writeln!(std::io::stdout().lock(), "{value}");
    }

    /// Says where things stand, when it is time to.
    fn tell(&self, done: u64) {
        if self.audience == Audience::Nobody {
            return;
        }
        let every = if self.audience == Audience::Scripts { EVENT_EVERY } else { PLAIN_EVERY };
        let line = {
            // Another thread is telling: nothing to wait for.
            let Ok(mut state) = self.state.try_lock() else { return };
            if state.said.elapsed() < every {
                return;
            }
            state.said = Instant::now();
            match self.audience {
                Audience::Scripts => json!({
                    "event": "progress",
                    "phase": state.phase,
                    "tensor": state.tensor,
                    "bytes": done,
                    "total": self.total,
                    "seconds": self.begun.elapsed().as_secs_f64(),
                })
                .to_string(),
                _ => plain(state.phase, done, self.total, self.begun.elapsed()),
            }
        };
        match self.audience {
            Audience::Scripts => {
                let _ = writeln!(std::io::stdout().lock(), "{line}");
            }
            _ if self.bar.is_hidden() => ui::note(&line),
            _ => {}
        }
    }
}

/// `writing: 1.20 GB of 9.80 GB (12 %), 512 MB/s, 17 s left`
fn plain(phase: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-3);
    let left = total.saturating_sub(done) as f64 / rate.max(1.0);
    let percent = 100.0 * done as f64 / total.max(1) as f64;
    format!(
        "{phase}: {} of {} ({percent:.0} %), {}/s, {left:.0} s left",
        ui::bytes(done),
        ui::bytes(total),
        ui::bytes(rate as u64)
    )
}

fn bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template(
        "{prefix} {bar:24.cyan/dim} {decimal_bytes}/{decimal_total_bytes} \
         {decimal_bytes_per_sec} {eta} left  {wide_msg:.dim}",
    );
    if let Ok(style) = style { bar.with_style(style) } else { bar }
}

impl Progress for Reporter {
    fn phase(&self, phase: &'static str) {
        if phase == SYNCING {
            interrupt::at_once();
        }
        self.state().phase = phase;
        self.bar.set_prefix(phase);
        if self.audience == Audience::Scripts {
            self.event(&json!({ "event": "phase", "phase": phase, "total": self.total }));
        }
    }

    fn tensor(&self, name: &str) {
        if self.audience == Audience::Nobody {
            return;
        }
        self.bar.set_message(name.to_string());
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
            self.event(&json!({
                "event": "blob",
                "name": name,
                "digest": made.digest,
                "size": made.size,
                "new": made.new,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_line_says_phase_bytes_rate_and_time_left() {
        let line = plain("writing", 1_200_000_000, 9_600_000_000, Duration::from_secs(2));
        assert_eq!(line, "writing: 1.20 GB of 9.60 GB (12 %), 600 MB/s, 14 s left");
        // Nothing done yet, and no total: no division by zero.
        plain("writing", 0, 0, Duration::ZERO);
    }
}
