//! Tokens in, tokens out: a prompt is run through the model in chunks, then one token at a time.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use mlx_rs::Array;
use mlx_rs::transforms::eval;

use crate::cache::{Cache, Mark};
use crate::fault::{Code, Fault};
use crate::model::{Batch, Logits, Model};
use crate::sample::{Choice, Sampler};

/// Tokens of a prompt that one forward pass takes: enough to keep the products large, few enough
/// that their activations stay small beside the weights.
const CHUNK: usize = 512;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model ended it, or a stop string did.
    Stop,
    /// It reached the most tokens asked for, or the end of the context.
    Length,
    /// The caller ended it.
    Cancelled,
}

impl Reason {
    /// `stop`, `length` or `cancelled`.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Stop => "stop",
            Reason::Length => "length",
            Reason::Cancelled => "cancelled",
        }
    }
}

/// How long an answer took, and what it needed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Statistics {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that the session still held.
    pub reused_tokens: usize,
    /// Time to run the others, up to the first token of the answer.
    pub prefill: Duration,
    /// Tokens of the answer, the ending one not counted.
    pub answer_tokens: usize,
    /// Time from the first token of the answer to the last.
    pub decode: Duration,
}

impl Statistics {
    /// Prompt tokens run per second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens - self.reused_tokens, self.prefill)
    }

    /// Answer tokens made per second, the first not counted (it comes with the prompt).
    pub fn decode_rate(&self) -> f64 {
        rate(self.answer_tokens.saturating_sub(1), self.decode)
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

/// What a conversation leaves in memory, so that its next turn runs only what is new.
#[derive(Default)]
pub struct Session {
    held: Held,
    /// Places of what is held to come back to, by ascending offset, for models whose caches forget:
    /// where the messages of the last prompts ended, and where the prompts did.
    marks: Vec<Mark>,
}

/// Places that a session keeps: those of two turns.
const MARKS: usize = 4;

/// Tokens that have been run.
#[derive(Default)]
struct Held {
    cache: Option<Cache>,
    /// Those in it.
    tokens: Vec<u32>,
    /// Length of the sequence as which the first of them were run together: as many of them, or
    /// more. Each of the others was run when the sequence ended with it.
    whole: usize,
}

impl Held {
    /// Whether its first `count` tokens are turned as those of a sequence of `length`.
    fn turned_as(&self, model: &Model, count: usize, length: usize) -> bool {
        model.turns_alike(self.whole, length)
            && (count <= self.whole || model.turns_alike(count, length))
    }
}

impl Session {
    /// Forgets the conversation.
    pub fn clear(&mut self) {
        *self = Session::default();
    }

    /// Bytes held by the cache.
    pub fn bytes(&self) -> usize {
        let marks: usize = self.marks.iter().map(Mark::bytes).sum();
        self.held.cache.as_ref().map_or(0, Cache::bytes) + marks
    }

    /// Goes back to the longest beginning that the prompt shares with what is held, and leaves at
    /// least one token to run. Gives the number of tokens that need not be run again.
    fn reuse(&mut self, model: &Model, prompt: &[u32]) -> Result<usize, Fault> {
        let shared = self.held.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let shared = shared.min(prompt.len() - 1);
        let mut held = std::mem::take(&mut self.held);
        let mut cache = held.cache.take().unwrap_or_else(|| model.new_cache());
        // Marks beyond are of tokens that are not those of this prompt.
        self.marks.retain(|mark| mark.offset() <= shared);
        let turned = |count: usize| held.turned_as(model, count, prompt.len());
        let count = if cache.reaches(shared) && turned(shared) {
            cache.rollback(shared)?;
            shared
        } else if let Some(mark) = self.marks.iter().rfind(|mark| turned(mark.offset())) {
            cache.return_to(mark)?;
            mark.offset()
        } else {
            cache = model.new_cache();
            0
        };
        self.marks.retain(|mark| mark.offset() <= count);
        held.tokens.truncate(count);
        self.held = Held { cache: Some(cache), tokens: held.tokens, whole: prompt.len() };
        Ok(count)
    }

    /// Makes the present end a place to come back to, where writing on would forget it.
    fn mark(&mut self) -> Result<(), Fault> {
        let Some(cache) = self.held.cache.as_ref() else { return Ok(()) };
        let known = self.marks.last().is_some_and(|mark| mark.offset() == cache.offset());
        if cache.forgets() && cache.offset() > 0 && !known {
            self.marks.push(cache.mark()?);
            let beyond = self.marks.len().saturating_sub(MARKS);
            self.marks.drain(..beyond);
        }
        Ok(())
    }

    /// Runs tokens that only fill the cache, in chunks; false when it was stopped between them.
    fn fill(
        &mut self,
        model: &Model,
        tokens: &[u32],
        go_on: &dyn Fn() -> bool,
    ) -> Result<bool, Fault> {
        for chunk in tokens.chunks(CHUNK) {
            if !go_on() {
                return Ok(false);
            }
            step(model, self, chunk, None)?;
        }
        Ok(true)
    }

    /// Where the model turns what it has been shown otherwise from the next token on, runs that
    /// again; false when it was stopped meanwhile.
    fn keep_up(&mut self, model: &Model, go_on: &dyn Fn() -> bool) -> Result<bool, Fault> {
        let length = self.held.tokens.len() + 1;
        if !model.runs_again(self.held.whole, length) {
            return Ok(true);
        }
        let held = std::mem::take(self).held;
        self.held.whole = length;
        self.fill(model, &held.tokens, go_on)
    }
}

/// What is to be gone on from.
#[derive(Clone, Copy)]
pub(super) struct Prompt<'a> {
    /// At least one token.
    pub tokens: &'a [u32],
    /// How many of them the next prompt of a conversation begins with in any case: those before
    /// what asks for an answer, which many templates write otherwise once there is one.
    pub lasting: usize,
}

/// One generation: where it may end.
pub(super) struct Limits<'a> {
    /// Most tokens of the answer.
    pub max_tokens: usize,
    /// Most tokens of prompt and answer together.
    pub context: usize,
    /// Whether a token ends the answer.
    pub is_end: &'a dyn Fn(u32) -> bool,
}

/// Runs a prompt and generates tokens, each given to `on_token` as it is chosen. Whether prefill
/// goes on is asked of `go_on` between chunks.
pub(super) fn generate(
    model: &Model,
    session: &mut Session,
    Prompt { tokens: prompt, lasting }: Prompt,
    sampler: &mut Sampler,
    limits: &Limits,
    go_on: &dyn Fn() -> bool,
    on_token: &mut dyn FnMut(&Choice) -> ControlFlow<Reason>,
) -> Result<(Reason, Statistics), Fault> {
    let begin = Instant::now();
    let reused = session.reuse(model, prompt)?;
    let mut statistics =
        Statistics { prompt_tokens: prompt.len(), reused_tokens: reused, ..Default::default() };
    sampler.prompt(prompt);
    // Every token but the last only fills the cache.
    let lasting = lasting.clamp(reused, prompt.len() - 1);
    for part in [reused..lasting, lasting..prompt.len() - 1] {
        if !session.fill(model, &prompt[part], go_on)? {
            return Ok((Reason::Cancelled, statistics));
        }
        session.mark()?;
    }
    let mut next = prompt[prompt.len() - 1];
    let mut first = begin;
    let mut logits = Vec::new();
    loop {
        if !session.keep_up(model, go_on)? {
            return Ok((Reason::Cancelled, statistics));
        }
        step(model, session, &[next], Some(&mut logits))?;
        let choice = sampler.sample(&mut logits)?;
        let now = Instant::now();
        if statistics.answer_tokens == 0 {
            statistics.prefill = now - begin;
            first = now;
        }
        if (limits.is_end)(choice.id) {
            return Ok((Reason::Stop, statistics));
        }
        if limits.max_tokens == 0 {
            return Ok((Reason::Length, statistics));
        }
        statistics.answer_tokens += 1;
        statistics.decode = now - first;
        if let ControlFlow::Break(reason) = on_token(&choice) {
            return Ok((reason, statistics));
        }
        let full = session.held.tokens.len() + 1 >= limits.context;
        if statistics.answer_tokens >= limits.max_tokens || full {
            return Ok((Reason::Length, statistics));
        }
        next = choice.id;
    }
}

/// Runs tokens through the model and evaluates; writes the last token's logits when asked.
fn step(
    model: &Model,
    session: &mut Session,
    tokens: &[u32],
    logits: Option<&mut Vec<f32>>,
) -> Result<(), Fault> {
    let Held { cache, tokens: before, whole } = &mut session.held;
    let cache = cache.get_or_insert_with(|| model.new_cache());
    let wanted = if logits.is_some() { Logits::Last } else { Logits::None };
    let mut batch = Batch::one(tokens, before.len(), wanted);
    batch.rows[0].whole = *whole;
    let output = model.forward(&batch, &mut [&mut *cache]);
    // A pass that failed half-way leaves layers at different offsets.
    let evaluated = output.and_then(|output| {
        let arrays: Vec<&Array> = output.logits.iter().chain(cache.arrays()).collect();
        eval(arrays).map_err(failed)?;
        logits.map_or(Ok(()), |logits| last_row(output.logits.as_ref(), logits))
    });
    match evaluated {
        Ok(()) => session.held.tokens.extend_from_slice(tokens),
        Err(_) => session.clear(),
    }
    evaluated
}

/// Of evaluated logits `[1, n, vocabulary]` in f32 those of the last of the n.
fn last_row(logits: Option<&Array>, out: &mut Vec<f32>) -> Result<(), Fault> {
    let Some(logits) = logits else {
        return Err(Fault::new(Code::Internal, "a pass gave no logits"));
    };
    let vocabulary = logits.shape().last().map_or(0, |&n| n as usize);
    let flat: &[f32] = logits.try_as_slice().map_err(|error| {
        Fault::new(Code::Compute, format!("the logits cannot be read: {error}"))
    })?;
    out.clear();
    out.extend_from_slice(&flat[flat.len() - vocabulary..]);
    Ok(())
}

pub(super) fn failed(error: mlx_rs::error::Exception) -> Fault {
    crate::mlx::Error::from(error).into()
}
