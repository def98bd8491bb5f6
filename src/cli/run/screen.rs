//! How answers look: streamed, thinking dimmed, rates after them.

use std::io::{ErrorKind, IsTerminal, Write};
use std::ops::ControlFlow;

use crate::chat::{Piece, ToolCall};
use crate::engine::{Answer, Engine, Event, Reason, Scheduler};
use crate::fault::Fault;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Where an answer is shown.
pub(super) struct Screen {
    /// Whether thinking is shown, where it can be dimmed.
    pub thinking: bool,
    /// Whether rates are printed.
    pub verbose: bool,
    terminal: bool,
    dimmed: bool,
    line_open: bool,
    /// Why nothing can be written any more.
    failed: Option<std::io::Error>,
}

impl Screen {
    pub(super) fn new(thinking: bool, verbose: bool) -> Self {
        let terminal = std::io::stdout().is_terminal();
        Screen { thinking, verbose, terminal, dimmed: false, line_open: false, failed: None }
    }

    /// Shows a piece. Breaks when nobody reads any more.
    pub(super) fn show(&mut self, event: &Event) -> ControlFlow<()> {
        let Event::Piece(piece) = event else { return ControlFlow::Continue(()) };
        match piece {
            // In a file or a pipe there is no dimming: only the answer belongs there.
            Piece::Thinking(_) if !self.thinking || !self.terminal => ControlFlow::Continue(()),
            Piece::Thinking(text) => {
                let start = if self.dimmed { "" } else { DIM };
                self.dimmed = true;
                self.write(&format!("{start}{text}"))
            }
            Piece::Text(text) => {
                let start = self.brighten();
                self.write(&format!("{start}{text}"))
            }
            Piece::Call(call) => {
                let start = self.brighten();
                let newline = if self.line_open { "\n" } else { "" };
                self.write(&format!("{start}{newline}{}\n", call_text(call)))
            }
        }
    }

    /// Ends an answer: its line, why it ended when that is unusual, its rates.
    ///
    /// # Errors
    /// When some of it could not be written, and not just because nobody reads any more.
    pub(super) fn end(
        &mut self,
        answer: &Answer,
        engine: &Engine,
        scheduler: &mut Scheduler,
    ) -> Result<(), Fault> {
        let start = if self.dimmed { PLAIN } else { "" };
        self.dimmed = false;
        let newline = if self.line_open { "\n" } else { "" };
        let _ = self.write(&format!("{start}{newline}"));
        self.line_open = false;
        let mut err = anstream::stderr().lock();
        if answer.text.is_empty() && answer.calls.is_empty() && !answer.thinking.is_empty() {
            let _ = writeln!(err, "{DIM}({}){PLAIN}", all_thinking(answer.reason));
        } else if answer.reason == Reason::Length && self.terminal {
            let _ = writeln!(err, "{DIM}(ended at the most tokens allowed){PLAIN}");
        }
        if self.verbose {
            let _ =
                write!(err, "{DIM}{}{PLAIN}", rates(answer, engine, scheduler.prefixes().bytes()));
        }
        match self.failed.take().filter(|error| error.kind() != ErrorKind::BrokenPipe) {
            Some(error) => Err(Fault::io("write", "standard output", &error)),
            None => Ok(()),
        }
    }

    /// What ends dimming and sets the answer apart from the thinking before it.
    fn brighten(&mut self) -> String {
        if !std::mem::take(&mut self.dimmed) {
            return String::new();
        }
        format!("{PLAIN}{}\n", if self.line_open { "\n" } else { "" })
    }

    fn write(&mut self, text: &str) -> ControlFlow<()> {
        let mut out = anstream::stdout().lock();
        if let Some(last) = text.trim_end_matches(PLAIN).trim_end_matches(DIM).chars().last() {
            self.line_open = last != '\n';
        }
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}

/// What there is to say of an answer without a word for the reader.
fn all_thinking(reason: Reason) -> &'static str {
    match reason {
        Reason::Stop => "the model thought, and ended without an answer",
        Reason::Length => {
            "the model was still thinking at the most tokens allowed: -n allows more, --think false \
             asks it not to"
        }
        Reason::Cancelled => "the model was still thinking",
    }
}

fn call_text(call: &ToolCall) -> String {
    format!("{}({})", call.name, call.arguments)
}

/// The rates of an answer, line by line.
fn rates(answer: &Answer, engine: &Engine, cache: usize) -> String {
    let s = &answer.statistics;
    let run = s.prompt_tokens - s.reused_tokens;
    let reused = if s.reused_tokens > 0 {
        format!(" ({} of {} kept from before)", s.reused_tokens, s.prompt_tokens)
    } else {
        String::new()
    };
    let mut text = format!(
        "load     {:8.2} s\nprefill  {:8.2} s  {run} tokens  {:.1} tokens/s{reused}\n\
         decode   {:8.2} s  {} tokens  {:.1} tokens/s\ncache    {:8.1} MB\n",
        engine.load_time().as_secs_f64(),
        s.prefill.as_secs_f64(),
        s.prefill_rate(),
        s.decode.as_secs_f64(),
        s.answer_tokens,
        s.decode_rate(),
        cache as f64 / 1e6,
    );
    if s.rounds > 0 {
        text.push_str(&format!(
            "drafts   {:8} tokens in {} passes, {} accepted\n",
            s.drafted, s.rounds, s.accepted
        ));
    }
    if let Some(peak) = peak_bytes(engine) {
        text.push_str(&format!("peak     {:8.1} MB of weights and arrays\n", peak as f64 / 1e6));
    }
    text
}

/// The most bytes that weights and MLX's arrays had at once.
pub(super) fn peak_bytes(engine: &Engine) -> Option<usize> {
    mlx_rs::memory::peak_memory().ok().map(|arrays| arrays + engine.model().native_bytes())
}
