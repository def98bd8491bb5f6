//! A conversation on the terminal.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use super::{INTERRUPTED, Screen, interrupted, opening, was_cancelled};
use crate::engine::{Engine, Options, Prompt, Request, Scheduler};
use crate::fault::{self, Code, Fault, Faults};

const HELP: &str = "\
  /set NAME VALUE      a parameter: temperature, top_k, top_p, min_p, seed, num_predict, stop, …
  /set system TEXT     the system message
  /set think | nothink whether the model is to think, where it can be told
  /set verbose | quiet whether rates are printed after each answer
  /show                parameters, system message and context
  /show template       the chat template
  /show messages       the conversation so far
  /clear               forget the conversation
  /bye                 leave (also Ctrl-D)
  \"\"\"                  begins and ends a message of several lines
  Ctrl-C               ends an answer
";

/// A conversation's state.
struct Talk<'a> {
    engine: &'a Engine,
    options: Options,
    system: Option<String>,
    /// Each message goes on as it is, without a template.
    raw: bool,
    screen: Screen,
    scheduler: Scheduler,
    /// The turns after the opening.
    turns: Vec<Value>,
}

/// What follows a line.
enum Next {
    Go,
    Leave,
}

/// Talks until the user leaves.
///
/// # Errors
/// When the terminal cannot be used. Faults of an answer are shown, and the talk goes on.
pub(super) fn talk(
    engine: &Engine,
    scheduler: Scheduler,
    options: Options,
    system: Option<String>,
    raw: bool,
    screen: Screen,
) -> Result<(), Faults> {
    let terminal = |error: ReadlineError| {
        Fault::new(Code::Io, format!("the terminal cannot be used: {error}"))
    };
    let mut editor = DefaultEditor::new().map_err(terminal)?;
    let history = history_file();
    if let Some(history) = &history {
        // Absent the first time.
        let _ = editor.load_history(history);
    }
    let raw = raw || !engine.can_chat();
    let mut talk = Talk { engine, options, system, raw, screen, scheduler, turns: Vec::new() };
    if raw {
        anstream::eprintln!(
            "No chat template is used: the model continues the text of each message."
        );
    }
    loop {
        let message = match read_message(&mut editor) {
            Ok(Some(message)) => message,
            Ok(None) => continue,
            Err(ReadlineError::Interrupted) => {
                anstream::eprintln!("Use Ctrl-D or /bye to leave.");
                continue;
            }
            Err(ReadlineError::Eof) => break,
            Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                anstream::eprintln!("That was not UTF-8, and is forgotten.");
                continue;
            }
            Err(error) => return Err(terminal(error).into()),
        };
        let _ = editor.add_history_entry(message.trim_end());
        match talk.line(&message) {
            Ok(Next::Go) => {}
            Ok(Next::Leave) => break,
            Err(fault) => anstream::eprintln!("{:?}", fault::report(fault)),
        }
    }
    engine.remember(&talk.scheduler);
    if let Some(history) = &history {
        let _ = editor.save_history(history);
    }
    Ok(())
}

/// A line, or the lines between two `"""`; `None` when there is nothing in it.
fn read_message(editor: &mut DefaultEditor) -> Result<Option<String>, ReadlineError> {
    let line = editor.readline(">>> ")?;
    let Some(begin) = line.trim_start().strip_prefix("\"\"\"") else {
        return Ok((!line.trim().is_empty()).then_some(line));
    };
    let mut message = begin.to_owned();
    loop {
        if let Some(end) = message.trim_end().strip_suffix("\"\"\"") {
            let text = end.strip_prefix('\n').unwrap_or(end);
            let text = text.strip_suffix('\n').unwrap_or(text);
            return Ok((!text.trim().is_empty()).then(|| text.to_owned()));
        }
        message.push('\n');
        message.push_str(&editor.readline("... ")?);
    }
}

impl Talk<'_> {
    fn line(&mut self, line: &str) -> Result<Next, Fault> {
        let Some(command) = line.trim().strip_prefix('/') else {
            self.answer(line)?;
            return Ok(Next::Go);
        };
        let (command, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match (command, rest.trim()) {
            ("bye" | "exit" | "quit", _) => return Ok(Next::Leave),
            ("help" | "?", _) => anstream::eprint!("{HELP}"),
            ("clear", _) => {
                self.turns.clear();
                self.scheduler.prefixes().clear();
                anstream::eprintln!("The conversation is forgotten.");
            }
            ("set", rest) => self.set(rest)?,
            ("show", rest) => self.show(rest)?,
            _ => {
                let what = format!("there is no command /{command}");
                return Err(Fault::new(Code::Usage, what).help("/help lists them"));
            }
        }
        Ok(Next::Go)
    }

    fn set(&mut self, what: &str) -> Result<(), Fault> {
        let what = what.strip_prefix("parameter ").unwrap_or(what).trim();
        let (name, value) = what.split_once(char::is_whitespace).unwrap_or((what, ""));
        let value = value.trim().trim_matches('"');
        match name {
            "think" => self.options.thinking = Some(true),
            "nothink" => self.options.thinking = Some(false),
            "verbose" => self.screen.verbose = true,
            "quiet" => self.screen.verbose = false,
            "system" => self.system = (!value.is_empty()).then(|| value.to_owned()),
            "" => return Err(Fault::new(Code::Usage, "/set takes a name and a value")),
            _ => self.options.set(name, &Value::from(value))?,
        }
        Ok(())
    }

    fn show(&self, what: &str) -> Result<(), Fault> {
        match what {
            "template" => {
                let template = self.engine.template_source().unwrap_or("There is none.");
                anstream::println!("{}", template.trim_end());
            }
            "messages" => {
                for message in
                    opening(self.engine, self.system.as_deref()).iter().chain(&self.turns)
                {
                    let role = message["role"].as_str().unwrap_or("?");
                    anstream::println!("{role}: {}", message["content"].as_str().unwrap_or(""));
                }
            }
            "system" => {
                anstream::println!("{}", self.system.as_deref().unwrap_or("There is none."))
            }
            "" | "parameters" | "info" => self.show_parameters(),
            _ => {
                let what = format!("there is nothing called {what} to show");
                return Err(Fault::new(Code::Usage, what)
                    .help("/show takes nothing, template, messages or system"));
            }
        }
        Ok(())
    }

    fn show_parameters(&self) {
        let sampling = &self.options.sampling;
        let count = |count: Option<usize>| count.map_or("-".into(), |count| count.to_string());
        let rows = [
            ("temperature", sampling.temperature.to_string()),
            ("top_k", sampling.top_k.to_string()),
            ("top_p", sampling.top_p.to_string()),
            ("min_p", sampling.min_p.to_string()),
            ("typical_p", sampling.typical_p.to_string()),
            ("repeat_penalty", sampling.repetition_penalty.to_string()),
            ("repeat_last_n", count(sampling.repetition_window)),
            ("presence_penalty", sampling.presence_penalty.to_string()),
            ("frequency_penalty", sampling.frequency_penalty.to_string()),
            ("seed", sampling.seed.map_or("-".into(), |seed| seed.to_string())),
            ("num_predict", count(self.options.max_tokens)),
            ("stop", self.options.stops.join("  ")),
            ("think", self.options.thinking.map_or("-".into(), |think| think.to_string())),
            ("context", self.engine.context(&self.options).to_string()),
            ("system", self.system.clone().unwrap_or_else(|| "-".into())),
        ];
        for (name, value) in rows {
            anstream::println!("{name:<18} {value}");
        }
    }

    /// Answers a message. An answer that the user ended stays in the conversation as far as it
    /// went; a message without any answer does not.
    fn answer(&mut self, message: &str) -> Result<(), Fault> {
        let prompt = if self.raw {
            Prompt::Plain(message.to_owned())
        } else {
            let mut messages = opening(self.engine, self.system.as_deref());
            messages.extend(self.turns.iter().cloned());
            messages.push(user(message));
            Prompt::Chat { messages, tools: Vec::new() }
        };
        let request = Request { prompt, options: self.options.clone() };
        INTERRUPTED.store(false, Ordering::Relaxed);
        let screen = &mut self.screen;
        let answer = self.engine.answer(
            &mut self.scheduler,
            &request,
            &|| !interrupted(),
            &mut |event| {
                screen.show(&event)?;
                if interrupted() {
                    std::ops::ControlFlow::Break(())
                } else {
                    std::ops::ControlFlow::Continue(())
                }
            },
        )?;
        INTERRUPTED.store(false, Ordering::Relaxed);
        self.screen.end(&answer, self.engine, &mut self.scheduler)?;
        let nothing = was_cancelled(&answer) && answer.text.is_empty();
        if !(self.raw || nothing) {
            self.turns.push(user(message));
            self.turns.push(answer.message());
        }
        Ok(())
    }
}

fn user(message: &str) -> Value {
    json!({"role": "user", "content": message})
}

/// Where earlier messages are kept; `None` where there is no home.
fn history_file() -> Option<PathBuf> {
    use etcetera::BaseStrategy;
    let dir = etcetera::choose_base_strategy().ok()?.data_dir().join("lathe");
    std::fs::create_dir_all(&dir).ok()?;
    Some(dir.join("run-history"))
}
