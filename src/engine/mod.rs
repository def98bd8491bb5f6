//! engine: a stored model and requests in, answers out.
//!
//! [`Engine`] holds a loaded model with everything that a conversation needs of it. A [`Request`]
//! is a plain text or a conversation; its answer streams through a callback as [`Event`]s and is
//! returned whole.
//!
//! Below that are tokens: a [`Sequence`] is one answer in the making and owns all of its state; a
//! [`Scheduler`] packs what is due of any number of them into one pass after the other, and keeps
//! what has been run ([`Prefixes`]), so that the next turn of a conversation runs only what is new.
//!
//! [`smoke`] is the check after `create`, and [`reference`] compares a model with what another
//! program computed.

mod load;
mod options;
mod prefixes;
pub mod reference;
mod scheduler;
mod sequence;
pub mod smoke;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

pub use load::{Engine, Loading, model};
pub use options::{Draft, Options};
pub use prefixes::{Beginning, Prefixes};
pub use scheduler::{Happened, Id, Scheduler};
pub use sequence::{Limits, Reason, Sequence, Start, Statistics};

use crate::chat::{Conversation, Piece, ToolCall, special_variables, spelled};
use crate::fault::{Code, Fault};
use crate::sample::{Choice, Sampler, StopStrings};
use crate::tokenizer::{Kept, Rendered};

/// What is to be answered.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// A text that the model goes on from, without a template.
    Plain(String),
    /// A conversation whose next message is the model's: objects with `role` and `content`.
    Chat {
        /// The messages.
        messages: Vec<Value>,
        /// Schemas of the tools that the model may call.
        tools: Vec<Value>,
    },
}

/// A prompt and how it is to be answered.
#[derive(Clone, Debug)]
pub struct Request {
    /// What is to be answered.
    pub prompt: Prompt,
    /// How.
    pub options: Options,
}

/// What happens while an answer is made.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A piece of the answer that is whole characters and no part of a mark or stop string.
    Piece(Piece),
    /// A token was chosen; only sent when the request asks for log-probabilities.
    Token(Choice),
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// What the reader sees.
    pub text: String,
    /// What the model thought before.
    pub thinking: String,
    /// How many of the tokens that was, its marks counted.
    pub thinking_tokens: usize,
    /// The tools that it called.
    pub calls: Vec<ToolCall>,
    /// The tokens of all of it, the ending one not counted.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub reason: Reason,
    /// How long it took.
    pub statistics: Statistics,
}

impl Answer {
    /// The message that stands for this answer in the rest of the conversation.
    pub fn message(&self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.text});
        if !self.thinking.is_empty() {
            message["reasoning_content"] = json!(self.thinking);
        }
        if !self.calls.is_empty() {
            let calls = self.calls.iter().map(|call| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"type": "function", "function": function})
            });
            message["tool_calls"] = calls.collect();
        }
        message
    }
}

impl Engine {
    /// The most tokens that prompt and answer may have together under these options.
    pub fn context(&self, options: &Options) -> usize {
        let bounds = [self.model.context(), self.model.exact_context(), options.context];
        bounds.into_iter().flatten().min().unwrap_or(usize::MAX)
    }

    /// A scheduler for a conversation with this model, that begins with what drafting was like before.
    pub fn scheduler(&self) -> Scheduler {
        let mut scheduler = Scheduler::for_talk();
        if let Some(drafting) = &self.drafting {
            scheduler.learn(drafting.load());
        }
        scheduler
    }

    /// Keeps what drafting was like, for the next time. It is no loss where that cannot be written.
    pub fn remember(&self, scheduler: &Scheduler) {
        if let Some(drafting) = &self.drafting {
            let _ = drafting.save(scheduler.learned());
        }
    }

    fn too_long(&self, prompt: &str, context: usize) -> Fault {
        let what = match self.model.exact_context() {
            Some(exact) if exact == context => format!(
                "the prompt has {prompt} tokens; the decoder of the model's policy is exact up to \
                 {context}, with the answer (`exact_context`)"
            ),
            _ => format!(
                "the prompt has {prompt} tokens; the model's context holds {context} with the answer"
            ),
        };
        Fault::new(Code::ContextTooLong, what).help("shorten the prompt")
    }

    /// Time that loading took.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// The text that the model reads for a prompt, and where control tokens stand in it that are
    /// not meant.
    ///
    /// # Errors
    /// When the model has no chat template, or it refuses the conversation.
    pub fn render(&self, prompt: &Prompt, options: &Options) -> Result<Rendered, Fault> {
        self.render_up_to(prompt, options, true)
    }

    /// The same, with what asks for the answer or without.
    fn render_up_to(
        &self,
        prompt: &Prompt,
        options: &Options,
        add_generation_prompt: bool,
    ) -> Result<Rendered, Fault> {
        let (messages, tools) = match prompt {
            Prompt::Plain(text) => return Ok(text.clone().into()),
            Prompt::Chat { messages, tools } => (messages, tools),
        };
        let template = match &self.tool_template {
            Some(template) if !tools.is_empty() => template,
            _ => self.template.as_ref().ok_or_else(no_template)?,
        };
        let template = template.as_ref().map_err(Clone::clone)?;
        let mut messages = messages.clone();
        let answers = self.answers.as_ref().map_err(Clone::clone)?;
        let marked = spelled::mark(&mut messages, &self.controls, answers)?;
        let rendered = template.render(&Conversation {
            messages,
            tools: tools.clone(),
            thinking: options.thinking,
            add_generation_prompt,
            variables: special_variables(self.tokenizer.special_texts()),
        })?;
        Ok(match marked {
            true => spelled::unmark(&rendered, &self.controls),
            false => rendered.into(),
        })
    }

    /// The ids of what a prompt was rendered to.
    ///
    /// # Errors
    /// When it cannot be tokenized.
    pub fn encode(&self, prompt: &Prompt, rendered: &Rendered) -> Result<Vec<u32>, Fault> {
        match prompt {
            Prompt::Plain(text) => self.tokenizer.encode(text),
            Prompt::Chat { .. } => self.controls.encode(&self.tokenizer, rendered),
        }
    }

    /// How many tokens of a rendered conversation stand before what asks for the answer. Only
    /// models whose caches forget need it; for the others, and where it cannot be told, all of them.
    fn lasting(&self, request: &Request, rendered: &str, ids: &[u32]) -> usize {
        let Prompt::Chat { .. } = &request.prompt else { return ids.len() };
        if !self.model.new_cache().forgets() {
            return ids.len();
        }
        let messages = self.render_up_to(&request.prompt, &request.options, false).ok();
        let tail = messages.and_then(|messages| rendered.strip_prefix(messages.text.as_str()));
        let tail = tail.and_then(|tail| self.tokenizer.encode_rendered(tail).ok());
        match tail {
            Some(tail) if ids.ends_with(&tail) => ids.len() - tail.len(),
            _ => ids.len(),
        }
    }

    /// Answers a request, by a scheduler that no other sequence is in. Events are given to `on_event`
    /// as they happen; breaking there ends the answer with [`Reason::Cancelled`], and so does `go_on`
    /// when it says no between two passes.
    ///
    /// # Errors
    /// As [`Engine::begin`], or when a pass fails.
    pub fn answer(
        &self,
        scheduler: &mut Scheduler,
        request: &Request,
        go_on: &dyn Fn() -> bool,
        on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Answer, Fault> {
        let mut answering = self.begin(scheduler, request)?;
        let ended = loop {
            if !go_on() {
                break Ok(Reason::Cancelled);
            }
            let happened = scheduler.step(&self.model).into_iter();
            let mut heard = happened.map(|(_, happened)| answering.hear(happened, on_event));
            match heard.find(|heard| !matches!(heard, Ok(None))) {
                None => {}
                Some(heard) => break heard.map(|reason| reason.unwrap_or(Reason::Cancelled)),
            }
        };
        match ended {
            Ok(reason) => Ok(answering.end(scheduler, reason, on_event)),
            Err(fault) => {
                scheduler.remove(answering.id());
                Err(fault)
            }
        }
    }

    /// Begins to answer a request beside whatever else a scheduler of this model has.
    ///
    /// # Errors
    /// When the prompt cannot be rendered, is empty, or is longer than the context.
    pub fn begin(
        &self,
        scheduler: &mut Scheduler,
        request: &Request,
    ) -> Result<Answering<'_>, Fault> {
        let options = &request.options;
        options.check()?;
        let rendered = self.render(&request.prompt, options)?;
        let context = self.context(options);
        // What is far too long is not tokenized to find out.
        let least = self.tokenizer.least_tokens(&rendered.text, context);
        if least >= context {
            return Err(self.too_long(&format!("at least {least}"), context));
        }
        let ids = self.encode(&request.prompt, &rendered)?;
        if ids.is_empty() {
            return Err(Fault::new(Code::Usage, "there is nothing to answer: the prompt is empty"));
        }
        if ids.len() >= context {
            return Err(self.too_long(&ids.len().to_string(), context));
        }
        let words = Words::new(self, request, &rendered.text)?;
        let lasting = [self.lasting(request, &rendered.text, &ids)];
        let start = Start { tokens: &ids, lasting: &lasting };
        let limits = Limits {
            max_tokens: options.max_tokens.unwrap_or(usize::MAX),
            context,
            ends: Arc::new(self.tokenizer.ends().clone()),
        };
        let sampler = Sampler::new(options.sampling.clone());
        let id = scheduler.add(&self.model, start, sampler, limits, options.draft)?;
        Ok(Answering { id, words })
    }
}

/// An answer in the making, whose tokens a scheduler has.
pub struct Answering<'e> {
    id: Id,
    words: Words<'e>,
}

impl Answering<'_> {
    /// Its sequence in the scheduler.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Hears what happened to its sequence, and tells what came of it; why it is over, when it is.
    ///
    /// # Errors
    /// When a pass failed.
    pub fn hear(
        &mut self,
        happened: Happened,
        on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Option<Reason>, Fault> {
        match happened {
            Happened::Failed(fault) => Err(fault),
            Happened::Ended(reason) => Ok(Some(reason)),
            Happened::Chose(choice) => {
                let id = choice.id;
                if self.words.wants_tokens && on_event(Event::Token(choice)).is_break() {
                    return Ok(Some(Reason::Cancelled));
                }
                match self.words.push(id, on_event) {
                    ControlFlow::Break(reason) => Ok(Some(reason)),
                    ControlFlow::Continue(()) => Ok(None),
                }
            }
        }
    }

    /// Ends it, for this reason, and takes its sequence out.
    pub fn end(
        self,
        scheduler: &mut Scheduler,
        reason: Reason,
        on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Answer {
        let Answering { id, mut words } = self;
        let statistics = scheduler.remove(id).unwrap_or_default();
        // What was held back in case it became a stop string or a mark.
        if reason != Reason::Cancelled {
            let _ = words.finish(on_event);
        }
        words.answer(reason, statistics)
    }
}

/// Tokens on their way to words: decoded, watched for stop strings, taken apart.
struct Words<'a> {
    stream: crate::tokenizer::Stream<'a>,
    stops: StopStrings,
    stopped: bool,
    /// Whether the request asks for log-probabilities.
    wants_tokens: bool,
    /// Whether the answer ends with the first call.
    one_call: bool,
    /// `None` for plain prompts, whose answers are shown as they are.
    parser: Option<crate::chat::AnswerParser<'a>>,
    answer: Answer,
}

impl<'a> Words<'a> {
    fn new(engine: &'a Engine, request: &Request, rendered: &str) -> Result<Self, Fault> {
        let (kept, parser) = match &request.prompt {
            Prompt::Plain(_) => (Kept::None, None),
            Prompt::Chat { tools, .. } => {
                let answers = engine.answers.as_ref().map_err(Clone::clone)?;
                (engine.tokenizer.kept(answers.marks()), Some(answers.answer(rendered, tools)))
            }
        };
        Ok(Words {
            stream: engine.tokenizer.stream(kept),
            stops: StopStrings::new(request.options.stops.iter().cloned()),
            stopped: false,
            wants_tokens: request.options.sampling.logprobs.is_some(),
            one_call: request.options.one_call,
            parser,
            answer: Answer {
                text: String::new(),
                thinking: String::new(),
                thinking_tokens: 0,
                calls: Vec::new(),
                tokens: Vec::new(),
                reason: Reason::Stop,
                statistics: Statistics::default(),
            },
        })
    }

    fn push(
        &mut self,
        id: u32,
        on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> ControlFlow<Reason> {
        self.answer.tokens.push(id);
        // A stop string may be a special token that no reader sees, or hold one.
        let shown = match self.stream.hidden(id) {
            Some(special) => self.stops.push_hidden(&special),
            None => self.stops.push(&self.stream.push(id)),
        };
        self.stopped = shown.stop;
        let thought = self.parser.as_ref().is_some_and(crate::chat::AnswerParser::thinks);
        let mut pieces = self.pieces(&shown.text);
        let thinks = self.parser.as_ref().is_some_and(crate::chat::AnswerParser::thinks);
        self.answer.thinking_tokens += usize::from(thought || thinks);
        let last = self.cut_behind_a_call(&mut pieces);
        match self.show(pieces, on_event) {
            ControlFlow::Break(()) => ControlFlow::Break(Reason::Cancelled),
            ControlFlow::Continue(()) if last || shown.stop => ControlFlow::Break(Reason::Stop),
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
        }
    }

    /// Where only one call is wanted: leaves out what comes behind it, and says that it is there.
    fn cut_behind_a_call(&self, pieces: &mut Vec<Piece>) -> bool {
        let call = pieces.iter().position(|piece| matches!(piece, Piece::Call(_)));
        let call = call.filter(|_| self.one_call);
        pieces.truncate(call.map_or(pieces.len(), |call| call + 1));
        call.is_some()
    }

    fn finish(&mut self, on_event: &mut dyn FnMut(Event) -> ControlFlow<()>) -> ControlFlow<()> {
        if self.one_call && !self.answer.calls.is_empty() {
            return ControlFlow::Continue(());
        }
        let mut rest = String::new();
        if !self.stopped {
            let shown = self.stops.push(&self.stream.finish());
            rest.push_str(&shown.text);
            rest.push_str(&self.stops.finish());
        }
        let mut pieces = self.pieces(&rest);
        if let Some(parser) = &mut self.parser {
            pieces.extend(parser.finish());
        }
        self.cut_behind_a_call(&mut pieces);
        self.show(pieces, on_event)
    }

    fn pieces(&mut self, text: &str) -> Vec<Piece> {
        match &mut self.parser {
            Some(parser) => parser.push(text),
            None if text.is_empty() => Vec::new(),
            None => vec![Piece::Text(text.to_owned())],
        }
    }

    fn show(
        &mut self,
        pieces: Vec<Piece>,
        on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for piece in pieces {
            match &piece {
                Piece::Text(text) => self.answer.text.push_str(text),
                Piece::Thinking(text) => self.answer.thinking.push_str(text),
                Piece::Call(call) => self.answer.calls.push(call.clone()),
            }
            on_event(Event::Piece(piece))?;
        }
        ControlFlow::Continue(())
    }

    fn answer(self, reason: Reason, statistics: Statistics) -> Answer {
        Answer { reason, statistics, ..self.answer }
    }
}

fn no_template() -> Fault {
    Fault::new(Code::Template, "the model has no chat template, so it cannot hold a conversation")
        .help("give it a plain prompt with --raw, or a Jinja TEMPLATE in its Modelfile")
}
