//! Tokens in, tokens out: a prompt is run through the model in chunks, then one token at a time.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use mlx_rs::Array;
use mlx_rs::transforms::eval;

use crate::cache::Cache;
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
    /// The same as it was at the end of the last prompt, for models that cannot go back there.
    prompt: Option<Held>,
}

/// Tokens that have been run.
#[derive(Clone, Default)]
struct Held {
    cache: Option<Cache>,
    /// Those in it.
    tokens: Vec<u32>,
    /// Length of the sequence as which the first of them were run together: as many of them, or
    /// more. Each of the others was run when the sequence ended with it.
    whole: usize,
}

impl Held {
    /// Whether its first `count` tokens are those that a run of `prompt` needs: the same, still
    /// there, and turned as those of a sequence of that length.
    fn serves(&self, model: &Model, prompt: &[u32], count: usize) -> bool {
        let alike = model.turns_alike(self.whole, prompt.len())
            && (count <= self.whole || model.turns_alike(count, prompt.len()));
        let reaches = self.cache.as_ref().is_some_and(|cache| cache.reaches(count));
        alike && reaches && count < prompt.len() && prompt.starts_with(&self.tokens[..count])
    }
}

impl Session {
    /// Forgets the conversation.
    pub fn clear(&mut self) {
        *self = Session::default();
    }

    /// Bytes held by the cache.
    pub fn bytes(&self) -> usize {
        self.held.cache.as_ref().map_or(0, Cache::bytes)
    }

    /// Goes back to the longest beginning that the prompt shares with what is held, and leaves at
    /// least one token to run. Gives the number of tokens that need not be run again.
    fn reuse(&mut self, model: &Model, prompt: &[u32]) -> Result<usize, Fault> {
        let shared = self.held.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let shared = shared.min(prompt.len() - 1);
        let earlier = self.prompt.take().map(|held| (held.tokens.len(), held));
        let mut found = std::iter::once((shared, std::mem::take(&mut self.held))).chain(earlier);
        let found = found.find(|(count, held)| held.serves(model, prompt, *count));
        let (count, mut held) = found.unwrap_or_default();
        held.cache.get_or_insert_with(|| model.new_cache()).rollback(count)?;
        held.tokens.truncate(count);
        held.whole = prompt.len();
        self.held = held;
        Ok(count)
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
    prompt: &[u32],
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
    if !session.fill(model, &prompt[reused..prompt.len() - 1], go_on)? {
        return Ok((Reason::Cancelled, statistics));
    }
    let cannot_go_back = |cache: &Cache| cache.offset() > 0 && !cache.reaches(cache.offset() - 1);
    let held = &session.held;
    session.prompt = held.cache.as_ref().is_some_and(cannot_go_back).then(|| held.clone());
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
    Fault::new(Code::Compute, format!("MLX: {}", error.what()))
}
