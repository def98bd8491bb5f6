//! `lathe run`

mod screen;
mod talk;

use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::args::{BackendArg, OutputArg, StoreArg};
use super::ui;
use crate::engine::{Answer, Draft, Engine, Event, Loading, Options, Prompt, Reason, Request};
use crate::fault::{Code, Fault, Faults};
use crate::store::Name;
use screen::Screen;

/// Talk to a model, or have it answer once
///
/// Without a prompt, and on a terminal, it is a conversation: type /help there. A prompt is
/// answered once; what is piped in is added to it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  lathe run smollm2                                  a conversation
  lathe run smollm2 \"Why is the sky blue?\"
  git diff | lathe run smollm2 \"Write a commit message for this:\"
  lathe run smollm2 --raw \"Once upon a time\" --temperature 0.8 --seed 7
  lathe run smollm2 \"Hi\" --output json | jq -r .text")]
pub struct Run {
    /// The model
    name: String,
    /// What to ask; several words are joined by spaces
    prompt: Vec<String>,
    /// System message, in place of the Modelfile's
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Go on from the prompt as it is, without the chat template
    #[arg(long, visible_alias = "no-template")]
    raw: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Print rates after each answer
    #[arg(short, long)]
    verbose: bool,
    /// Do not show what the model thinks before it answers
    #[arg(long)]
    hide_thinking: bool,
    /// Folder of policies that add to or replace the built-in ones
    #[arg(long, value_name = "DIR", help_heading = "Where")]
    policy_dir: Option<PathBuf>,
    #[command(flatten)]
    backend: BackendArg,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    store: StoreArg,
}

/// How tokens are chosen.
#[derive(Args)]
#[command(next_help_heading = "Answering")]
struct SamplingArgs {
    /// 0 always takes the likeliest token [default: the model's]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Take one of so many likeliest tokens
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    top_k: Option<u32>,
    /// Take one of the likeliest tokens that together reach this probability
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Leave out tokens less likely than this fraction of the likeliest
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    min_p: Option<f64>,
    /// Makes a sampled answer repeatable; -1 for another one each time
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = seed)]
    seed: Option<Seed>,
    /// Most tokens of the answer
    #[arg(long, short = 'n', value_name = "COUNT", allow_negative_numbers = true)]
    max_tokens: Option<usize>,
    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Whether the model is to think, where it can be told
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    think: Option<bool>,
    /// Any parameter of a Modelfile, such as repeat_penalty=1.1; may be given several times
    #[arg(long = "set", value_name = "NAME=VALUE")]
    parameters: Vec<String>,
    /// What drafts tokens that the model only checks; the answer is the same
    #[arg(long, value_enum, default_value_t = DraftName::Auto, value_name = "WHAT")]
    draft: DraftName,
    /// Draft so many tokens each time, instead of as many as pay here
    #[arg(long, value_name = "COUNT")]
    draft_depth: Option<usize>,
    /// With --output json: log-probabilities of each token and of so many alternatives
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    logprobs: Option<usize>,
}

/// What drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum DraftName {
    /// The best that there is for the model
    Auto,
    /// Nothing
    None,
    /// What followed when the last tokens stood in the text before
    Lookup,
}

impl SamplingArgs {
    /// The model's options with what was given on the command line.
    fn over(&self, mut options: Options) -> Result<Options, Fault> {
        for parameter in &self.parameters {
            let (name, value) = parameter.split_once('=').ok_or_else(|| {
                Fault::new(Code::Usage, format!("--set takes NAME=VALUE, not {parameter:?}"))
            })?;
            options.set(name.trim(), &Value::from(value))?;
        }
        let numbers = [
            ("temperature", self.temperature),
            ("top_k", self.top_k.map(f64::from)),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                options.set(name, &json!(number))?;
            }
        }
        if let Some(Seed(seed)) = self.seed {
            options.sampling.seed = seed;
            options.settle("seed");
        }
        if self.max_tokens.is_some() {
            options.max_tokens = self.max_tokens;
            options.settle("num_predict");
        }
        if self.think.is_some() {
            options.thinking = self.think;
        }
        if !self.stop.is_empty() {
            options.stops.clone_from(&self.stop);
            options.settle("stop");
        }
        options.sampling.logprobs = self.logprobs;
        options.draft = match self.draft {
            DraftName::Auto => Draft::Auto,
            DraftName::None => Draft::None,
            DraftName::Lookup => Draft::Lookup,
        };
        options.check()?;
        Ok(options)
    }
}

/// A seed; `None` for another one each time.
#[derive(Clone, Copy)]
struct Seed(Option<u64>);

fn seed(text: &str) -> Result<Seed, String> {
    match text.parse::<i128>() {
        Ok(number) if number < 0 => Ok(Seed(None)),
        Ok(number) if u64::try_from(number).is_ok() => Ok(Seed(u64::try_from(number).ok())),
        _ => Err(format!("a seed is a whole number, at most {}", u64::MAX)),
    }
}

/// Set by Ctrl-C; taken by the answer that it ends.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

pub fn run(args: &Run) -> Result<(), ui::Failure> {
    crate::system::ask_for_huge_pages_everywhere();
    let json = args.output.json();
    match ui::failing(json, start(args))? {
        Ended::Whole => Ok(()),
        // What there is of the answer has been printed, and why it ends is no news.
        Ended::Interrupted => Err(ui::Failure::shown(130)),
    }
}

/// How a run ended.
enum Ended {
    Whole,
    Interrupted,
}

fn start(args: &Run) -> Result<Ended, Faults> {
    let name = Name::parse(&args.name)?;
    let store = args.store.open()?;
    // The model's name is checked before a long prompt is read.
    store.manifest(&name)?;
    let prompt = prompt(args)?;
    if prompt.is_none() && args.output.json() {
        return Err(Fault::new(Code::Usage, "--output json takes a prompt").into());
    }
    let engine = Engine::load(
        &store,
        &name,
        Loading { policy_dir: args.policy_dir.as_deref(), backend: args.backend.backend() },
    )?;
    let options = args.sampling.over(engine.defaults.clone())?;
    watch(prompt.is_none());
    let system = args.system.clone().or_else(|| engine.system.clone());
    let screen = Screen::new(!args.hide_thinking, args.verbose);
    match prompt {
        Some(prompt) => once(args, &engine, options, system, &prompt, screen),
        None => {
            let mut scheduler = engine.scheduler();
            scheduler.fix_depth(args.sampling.draft_depth);
            talk::talk(&engine, scheduler, options, system, args.raw, screen).map(|()| Ended::Whole)
        }
    }
}

/// Lets Ctrl-C end an answer, and what else asks a program to end a conversation too.
fn watch(conversation: bool) {
    // Where signals cannot be caught they end the program.
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
    let stdin = std::io::stdin();
    let terminal = conversation.then(|| tcgetattr(&stdin).ok()).flatten();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if conversation && signal != SIGINT {
                if let Some(terminal) = &terminal {
                    let _ = tcsetattr(&stdin, OptionalActions::Now, terminal);
                }
                let _ = emulate_default_handler(signal);
            }
            INTERRUPTED.store(true, Ordering::Relaxed);
        }
    });
}

/// The prompt of the command line and of a pipe; `None` for a conversation.
fn prompt(args: &Run) -> Result<Option<String>, Fault> {
    let mut prompt = args.prompt.join(" ");
    let mut stdin = std::io::stdin();
    let piped = !stdin.is_terminal();
    if piped {
        let mut text = String::new();
        stdin
            .read_to_string(&mut text)
            .map_err(|error| Fault::io("read", "standard input", &error))?;
        let text = if args.raw { text.as_str() } else { text.trim_end() };
        if !prompt.is_empty() && !text.is_empty() {
            prompt.push_str("\n\n");
        }
        prompt.push_str(text);
    }
    if prompt.is_empty() && piped {
        return Err(Fault::new(Code::Usage, "there is no prompt, and nothing was piped in"));
    }
    Ok((!prompt.is_empty()).then_some(prompt))
}

fn once(
    args: &Run,
    engine: &Engine,
    options: Options,
    system: Option<String>,
    prompt: &str,
    mut screen: Screen,
) -> Result<Ended, Faults> {
    let prompt = if args.raw || !engine.can_chat() {
        Prompt::Plain(prompt.to_owned())
    } else {
        let mut messages = opening(engine, system.as_deref());
        messages.push(json!({"role": "user", "content": prompt}));
        Prompt::Chat { messages, tools: Vec::new() }
    };
    let request = Request { prompt, options };
    let json = args.output.json();
    let mut tokens = Vec::new();
    let mut scheduler = engine.scheduler();
    scheduler.fix_depth(args.sampling.draft_depth);
    let answer = engine.answer(&mut scheduler, &request, &|| !interrupted(), &mut |event| {
        if let Event::Token(choice) = &event {
            tokens.push(json!({
                "token": engine.tokenizer().token(choice.id),
                "id": choice.id,
                "logprob": choice.logprob,
                "top": choice.top.iter().map(|(id, logprob)| json!({
                    "token": engine.tokenizer().token(*id), "id": id, "logprob": logprob,
                })).collect::<Vec<_>>(),
            }));
        }
        if !json {
            screen.show(&event)?;
        }
        if interrupted() {
            std::ops::ControlFlow::Break(())
        } else {
            std::ops::ControlFlow::Continue(())
        }
    })?;
    if json {
        ui::print_json(&document(engine, &answer, tokens, args));
    } else {
        screen.end(&answer, engine, &mut scheduler)?;
    }
    engine.remember(&scheduler);
    Ok(if interrupted() { Ended::Interrupted } else { Ended::Whole })
}

/// The messages that a conversation begins with.
fn opening(engine: &Engine, system: Option<&str>) -> Vec<Value> {
    let system = system.map(|text| json!({"role": "system", "content": text}));
    system.into_iter().chain(engine.messages.iter().cloned()).collect()
}

fn document(engine: &Engine, answer: &Answer, tokens: Vec<Value>, args: &Run) -> Value {
    let statistics = &answer.statistics;
    let calls: Vec<Value> = answer
        .calls
        .iter()
        .map(|call| json!({"name": call.name, "arguments": call.arguments}))
        .collect();
    let mut document = json!({
        "model": args.name,
        "text": answer.text,
        "thinking": answer.thinking,
        "tool_calls": calls,
        "tokens": answer.tokens,
        "reason": answer.reason.as_str(),
        "statistics": {
            "load_seconds": engine.load_time().as_secs_f64(),
            "prompt_tokens": statistics.prompt_tokens,
            "prefill_seconds": statistics.prefill.as_secs_f64(),
            "drafted": statistics.drafted,
            "accepted": statistics.accepted,
            "rounds": statistics.rounds,
            "prefill_tokens_per_second": statistics.prefill_rate(),
            "answer_tokens": statistics.answer_tokens,
            "decode_seconds": statistics.decode.as_secs_f64(),
            "decode_tokens_per_second": statistics.decode_rate(),
            "peak_bytes": screen::peak_bytes(engine),
        },
    });
    if args.sampling.logprobs.is_some() {
        document["logprobs"] = tokens.into();
    }
    document
}

/// Whether an answer was ended by the user.
fn was_cancelled(answer: &Answer) -> bool {
    answer.reason == Reason::Cancelled
}
