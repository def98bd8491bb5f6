//! What has happened so far, as Prometheus reads it.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::Statistics;

/// Counts since the server began.
#[derive(Default)]
pub struct Metrics {
    /// Requests, by the hundreds of their status.
    responses: [AtomicU64; 6],
    prompt_tokens: AtomicU64,
    reused_tokens: AtomicU64,
    answer_tokens: AtomicU64,
    answers: AtomicU64,
    cancelled: AtomicU64,
}

impl Metrics {
    /// Notes a response.
    pub fn responded(&self, status: u16) {
        self.responses[usize::from(status / 100).min(5)].fetch_add(1, Ordering::Relaxed);
    }

    /// Notes an answer that ended.
    pub fn answered(&self, statistics: &Statistics) {
        let add = |to: &AtomicU64, count: usize| to.fetch_add(count as u64, Ordering::Relaxed);
        add(&self.answers, 1);
        add(&self.prompt_tokens, statistics.prompt_tokens);
        add(&self.reused_tokens, statistics.reused_tokens);
        add(&self.answer_tokens, statistics.answer_tokens);
    }

    /// Notes an answer whose client went away.
    pub fn cancelled(&self) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
    }

    /// The text that Prometheus reads.
    pub fn text(&self, loaded: usize, active: usize) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "# TYPE lathe_http_responses_total counter");
        for (class, count) in self.responses.iter().enumerate().skip(1) {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(out, "lathe_http_responses_total{{class=\"{class}xx\"}} {count}");
        }
        let counters = [
            ("answers", &self.answers),
            ("answers_cancelled", &self.cancelled),
            ("prompt_tokens", &self.prompt_tokens),
            ("prompt_tokens_reused", &self.reused_tokens),
            ("answer_tokens", &self.answer_tokens),
        ];
        for (name, count) in counters {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(out, "# TYPE lathe_{name}_total counter\nlathe_{name}_total {count}");
        }
        for (name, value) in [("models_loaded", loaded), ("requests_active", active)] {
            let _ = writeln!(out, "# TYPE lathe_{name} gauge\nlathe_{name} {value}");
        }
        out
    }
}
