//! One answer in the making: the tokens of its prompt, those chosen, and all that they need.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::prefixes::Beginning;
use crate::draft::accept::{Proposal, accept};
use crate::draft::controller::{Rates, Round};
use crate::draft::drafter::{Committed, Drafter, Draw};
use crate::fault::Fault;
use crate::model::{Cache, Logits, Model, Span};
use crate::sample::{Choice, Sampler};

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
    /// Those of them that had been run before.
    pub reused_tokens: usize,
    /// Time to run the others, up to the first token of the answer.
    pub prefill: Duration,
    /// Tokens of the answer, the ending one not counted.
    pub answer_tokens: usize,
    /// Time from the first token of the answer to the last.
    pub decode: Duration,
    /// Passes that checked a draft.
    pub rounds: usize,
    /// Tokens that were drafted.
    pub drafted: usize,
    /// Those of them that were accepted.
    pub accepted: usize,
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

/// What is to be gone on from.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The prompt: at least one token.
    pub tokens: &'a [u32],
    /// How many of them other prompts may begin with: the ends of messages, and what stands before
    /// the words that ask for an answer, which many templates write otherwise once there is one.
    pub lasting: &'a [usize],
}

/// Where an answer may end.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most tokens of the answer.
    pub max_tokens: usize,
    /// Most tokens of prompt and answer together.
    pub context: usize,
    /// Tokens that end it.
    pub ends: Arc<BTreeSet<u32>>,
}

/// An answer in the making. It owns all that it needs and can be run beside any others.
pub struct Sequence {
    /// What has been run.
    ran: Beginning,
    /// Tokens that are known and not run: the rest of the prompt, or the last one chosen.
    pending: Vec<u32>,
    /// Offsets after which what has been run is kept, by descending offset.
    stops: Vec<usize>,
    sampler: Sampler,
    limits: Limits,
    statistics: Statistics,
    begin: Instant,
    first: Instant,
    ended: Option<Reason>,
    drafting: Option<Drafting>,
    /// What the pass in progress checks.
    proposals: Vec<Proposal>,
}

/// What drafts for a sequence, and how it fares.
struct Drafting {
    drafter: Box<dyn Drafter + Send>,
    rates: Rates,
    /// Tokens that the drafter has heard of.
    heard: usize,
}

/// The deepest draft of a model whose caches forget: as far as they go back.
const DEEPEST_THAT_FORGETS: usize = 60;

impl Sequence {
    /// An answer to a prompt, going on from a beginning of it.
    ///
    /// # Panics
    /// When the prompt is empty, or does not begin so and go on.
    pub(super) fn new(
        ran: Beginning,
        Start { tokens: prompt, lasting }: Start,
        mut sampler: Sampler,
        limits: Limits,
    ) -> Sequence {
        let (reused, all) = (ran.tokens.len(), prompt.len());
        assert!(reused < all && prompt.starts_with(&ran.tokens), "a prompt goes on");
        let begin = Instant::now();
        let statistics =
            Statistics { prompt_tokens: all, reused_tokens: reused, ..Statistics::default() };
        sampler.prompt(prompt);
        let mut stops = match ran.cache.forgets() {
            // The same prompt again has its last token to run.
            true => lasting.iter().copied().chain([all - 1]).collect(),
            false => vec![all],
        };
        stops.retain(|stop| (reused + 1..=all).contains(stop));
        stops.sort_unstable_by(|a, b| b.cmp(a));
        stops.dedup();
        let pending = prompt[reused..].to_vec();
        Sequence {
            ran,
            pending,
            stops,
            sampler,
            limits,
            statistics,
            begin,
            first: begin,
            ended: None,
            drafting: None,
            proposals: Vec::new(),
        }
    }

    /// Drafts from now on.
    pub(super) fn draft(&mut self, drafter: Box<dyn Drafter + Send>, rates: Rates) {
        self.drafting = Some(Drafting { drafter, rates, heard: 0 });
        self.tell();
    }

    /// Its acceptance so far, and the most tokens that may be drafted for the next pass; `None` where
    /// nothing drafts or a prompt is being run.
    pub(super) fn may_draft(&self, model: &Model) -> Option<(&Rates, usize)> {
        let Drafting { drafter, rates, .. } = self.drafting.as_ref()?;
        if self.pending.len() != 1 || !self.stops.is_empty() {
            return None;
        }
        // The last token of a budget is decoded plainly.
        let at = self.ran.tokens.len() + 1;
        let left = self.limits.max_tokens.saturating_sub(self.statistics.answer_tokens + 1);
        let back = if self.ran.cache.forgets() { DEEPEST_THAT_FORGETS } else { usize::MAX };
        let room = self.limits.context.saturating_sub(at + 1);
        let most = [drafter.needs().deepest, left, back, room].into_iter().min().unwrap_or(0);
        let most = most.min(crate::draft::controller::DEEPEST);
        // Tokens of one pass are turned alike, and plain decoding may turn each by its own length.
        let turns = model.runs_again(self.ran.whole, at) || !model.turns_alike(at, at + most);
        Some((rates, if turns { 0 } else { most }))
    }

    /// Its acceptance, to be told of a round.
    pub(super) fn rates(&mut self) -> Option<&mut Rates> {
        self.drafting.as_mut().map(|drafting| &mut drafting.rates)
    }

    /// Drafts so many tokens for the next pass, at most.
    pub(super) fn propose(&mut self, depth: usize) {
        let Some(drafting) = self.drafting.as_mut().filter(|_| depth > 0) else { return };
        let settings = self.sampler.settings().clone();
        let sampler = &mut self.sampler;
        let mut draw = Draw { settings: &settings, uniform: &mut || sampler.uniform() };
        match drafting.drafter.propose(depth, &mut draw) {
            Ok(proposals) => self.proposals = proposals,
            // It is of no use any more, and the answer goes on without.
            Err(_) => self.drafting = None,
        }
    }

    /// Tells the drafter of the tokens that have become part of the sequence.
    fn tell(&mut self) {
        let Some(drafting) = &mut self.drafting else { return };
        let known = self.ran.tokens.iter().chain(&self.pending).skip(drafting.heard);
        let tokens: Vec<u32> = known.copied().collect();
        let run = Committed::plain(drafting.heard, &tokens);
        match drafting.drafter.committed(&run) {
            Ok(()) => drafting.heard += tokens.len(),
            Err(_) => self.drafting = None,
        }
    }

    /// Whether it is over.
    pub fn ended(&self) -> Option<Reason> {
        self.ended
    }

    /// Ends it.
    pub fn end(&mut self, reason: Reason) {
        self.ended.get_or_insert(reason);
    }

    /// How long it took so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// What it leaves for others that begin alike.
    pub(super) fn into_beginning(mut self) -> Beginning {
        self.ran.cache.discard();
        self.ran
    }

    /// Tokens that are due: more than one while a prompt is run.
    pub(super) fn due(&self) -> usize {
        self.pending.len()
    }

    /// The next tokens to be run, `most` of them at most; at least one.
    pub(super) fn span(&mut self, model: &Model, most: usize) -> Span {
        self.keep_up(model);
        let at = self.ran.tokens.len();
        let to_stop = self.stops.last().map_or(usize::MAX, |stop| stop - at);
        let count = self.pending.len().min(most.max(1)).min(to_stop);
        let logits = if count == self.pending.len() { Logits::Last } else { Logits::None };
        let mut span = Span::new(&self.pending[..count], at, logits);
        span.whole = self.ran.whole;
        if !self.proposals.is_empty() {
            span.tokens.extend(self.proposals.iter().map(|proposal| proposal.id));
            span.logits = Logits::All;
        }
        span
    }

    /// Where the model turns what it has been shown otherwise from the next token on, runs all of it
    /// again.
    fn keep_up(&mut self, model: &Model) {
        let whole = self.ran.tokens.len() + 1;
        if self.pending.len() == 1 && model.runs_again(self.ran.whole, whole) {
            let again = Beginning { tokens: Vec::new(), cache: model.new_cache(), whole };
            let ran = std::mem::replace(&mut self.ran, again);
            self.pending.splice(..0, ran.tokens);
        }
    }

    /// The cache of its tokens.
    pub(super) fn cache(&mut self) -> &mut Cache {
        &mut self.ran.cache
    }

    /// Takes in what a pass over its span gave: the logits of the span's wanted tokens, `[wanted,
    /// vocabulary]`. Gives the tokens that it chose, and what others may begin with, where this is
    /// such a place. See whether it has [`ended`](Sequence::ended) after that.
    ///
    /// # Errors
    /// When the logits are no numbers.
    pub(super) fn take(
        &mut self,
        span: &Span,
        logits: &mut [f32],
    ) -> Result<(Vec<Choice>, Option<Beginning>), Fault> {
        if !self.proposals.is_empty() {
            return Ok((self.take_draft(logits)?, None));
        }
        self.ran.cache.commit();
        let rest = self.pending.split_off(span.tokens.len());
        self.ran.tokens.append(&mut std::mem::replace(&mut self.pending, rest));
        let beginning = self.beginning();
        if logits.is_empty() {
            return Ok((Vec::new(), beginning));
        }
        let choice = self.sampler.sample(logits)?;
        let choices = self.note(choice).into_iter().collect();
        self.tell();
        Ok((choices, beginning))
    }

    /// The same of a span that checked a draft: what was accepted, and one token more.
    fn take_draft(&mut self, logits: &mut [f32]) -> Result<Vec<Choice>, Fault> {
        let proposals = std::mem::take(&mut self.proposals);
        let width = logits.len() / (proposals.len() + 1);
        let Limits { max_tokens, context, ends } = self.limits.clone();
        let (mut made, mut at) = (self.statistics.answer_tokens, self.ran.tokens.len() + 1);
        let goes_on = |choice: &Choice| {
            (made, at) = (made + 1, at + 1);
            !ends.contains(&choice.id) && made < max_tokens && at < context
        };
        let accepted = accept(&mut self.sampler, logits, width, &proposals, goes_on)?;
        self.statistics.rounds += 1;
        self.statistics.drafted += proposals.len();
        self.statistics.accepted += accepted.accepted;
        let mut choices = Vec::new();
        for choice in accepted.choices {
            // What was chosen before has been run in this pass.
            self.ran.tokens.append(&mut self.pending);
            choices.extend(self.note(choice));
        }
        self.ran.cache.settle(self.ran.tokens.len())?;
        self.tell();
        Ok(choices)
    }

    /// What became of the last round, for the controller.
    pub(super) fn round_since(&self, before: Statistics) -> Round {
        Round {
            drafted: self.statistics.drafted - before.drafted,
            accepted: self.statistics.accepted - before.accepted,
        }
    }

    /// What others may begin with, where what has been run ends at such a place.
    fn beginning(&mut self) -> Option<Beginning> {
        let at = self.ran.tokens.len();
        self.stops.pop_if(|stop| *stop <= at)?;
        let (tokens, whole) = (self.ran.tokens.clone(), self.ran.whole);
        Some(Beginning { tokens, cache: self.ran.cache.share(), whole })
    }

    /// Notes a token that was chosen after all that has been run; `None` when it ends the answer and
    /// is no part of it.
    fn note(&mut self, choice: Choice) -> Option<Choice> {
        let now = Instant::now();
        if self.statistics.answer_tokens == 0 {
            self.statistics.prefill = now - self.begin;
            self.first = now;
        }
        if self.limits.ends.contains(&choice.id) {
            self.ended = Some(Reason::Stop);
            return None;
        }
        if self.limits.max_tokens == 0 {
            self.ended = Some(Reason::Length);
            return None;
        }
        self.statistics.answer_tokens += 1;
        self.statistics.decode = now - self.first;
        self.pending.push(choice.id);
        let full = self.ran.tokens.len() + 1 >= self.limits.context;
        if self.statistics.answer_tokens >= self.limits.max_tokens || full {
            self.ended = Some(Reason::Length);
        }
        Some(choice)
    }
}
