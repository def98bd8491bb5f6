//! Many answers at once: each step packs one pass from whatever is due.
//!
//! A sequence that is answering has one token due, and gets it in every pass. Prompts are run beside
//! them in chunks, in the order in which they came; while others wait for their next token a chunk is
//! so small that a pass takes not much longer than theirs alone. What has been run is kept
//! ([`Prefixes`]), so that prompts that begin alike run only what is new.

use std::time::{Duration, Instant};

use super::options::Draft;
use super::prefixes::Prefixes;
use super::sequence::{Limits, Reason, Sequence, Start, Statistics};
use crate::draft::controller::{Controller, Learned, Round};
use crate::draft::lookup::Lookup;
use crate::fault::Fault;
use crate::model::{Cache, Model, Pass, Span};
use crate::sample::{Choice, Sampler};

/// Tokens of prompts that one pass takes: enough to keep the products large, few enough that their
/// activations stay small beside the weights.
const CHUNK: usize = 512;

/// Tokens of prompts that one pass takes at least, whoever waits.
const LEAST: usize = 16;

/// How much longer a pass may take for prompts that are run beside answers.
const LONGER: f64 = 2.0;

/// A sequence's name in a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u64);

/// What came of a step for a sequence.
#[derive(Debug)]
pub enum Happened {
    /// A token of the answer was chosen.
    Chose(Choice),
    /// It is over.
    Ended(Reason),
    /// A pass that it was in failed. It is over, and its cache as it was before that.
    Failed(Fault),
}

/// Runs sequences beside each other.
#[derive(Default)]
pub struct Scheduler {
    sequences: Vec<(Id, Sequence)>,
    last: u64,
    prefixes: Prefixes,
    pace: Pace,
    controller: Controller,
    depth: Option<usize>,
}

/// Repeated tokens after which lookup proposes.
const REPEATED: usize = 2;

/// A pass and whose spans are in it.
struct Packed {
    pass: Pass,
    /// The sequences, by their places.
    sequences: Vec<usize>,
    /// Tokens of prompts in it.
    prompts: usize,
}

/// How long passes take.
#[derive(Debug, Default)]
struct Pace {
    /// Of answers alone, in seconds.
    answers: Option<f64>,
    /// For each token of a prompt.
    token: Option<f64>,
}

impl Scheduler {
    /// One for a single conversation: what it keeps takes an eighth of the machine's memory at most.
    pub fn for_talk() -> Scheduler {
        let budget = crate::write::machine_memory() / 8;
        Scheduler::new(usize::try_from(budget).unwrap_or(usize::MAX))
    }

    /// One that keeps what has been run within so many bytes.
    pub fn new(budget: usize) -> Scheduler {
        Scheduler { prefixes: Prefixes::new(budget), ..Scheduler::default() }
    }

    /// Begins an answer to a prompt, which has at least one token.
    ///
    /// # Errors
    /// When a cache cannot go back where it says that it can: a fault of lathe.
    pub fn add(
        &mut self,
        model: &Model,
        start: Start,
        sampler: Sampler,
        limits: Limits,
        draft: Draft,
    ) -> Result<Id, Fault> {
        let ran = self.prefixes.find(model, start.tokens)?;
        let mut sequence = Sequence::new(ran, start, sampler, limits);
        match draft {
            Draft::None => {}
            Draft::Auto | Draft::Lookup => {
                sequence.draft(Box::new(Lookup::new(REPEATED)), self.controller.begin());
            }
        }
        self.last += 1;
        self.sequences.push((Id(self.last), sequence));
        Ok(Id(self.last))
    }

    /// Begins with what drafting was like before.
    pub fn learn(&mut self, learned: Learned) {
        self.controller = Controller::new(learned);
    }

    /// Drafts so many tokens at most, whatever pays; `None` lets what is measured decide.
    pub fn fix_depth(&mut self, depth: Option<usize>) {
        self.depth = depth;
    }

    /// What drafting is like.
    pub fn learned(&self) -> &Learned {
        self.controller.learned()
    }

    /// Takes a sequence out, over or not, and keeps what it has run.
    pub fn remove(&mut self, id: Id) -> Option<Statistics> {
        let at = self.sequences.iter().position(|(known, _)| *known == id)?;
        let (_, sequence) = self.sequences.remove(at);
        let statistics = sequence.statistics();
        self.prefixes.keep(sequence.into_beginning());
        Some(statistics)
    }

    /// A sequence.
    pub fn get(&self, id: Id) -> Option<&Sequence> {
        self.sequences.iter().find(|(known, _)| *known == id).map(|(_, sequence)| sequence)
    }

    /// What has been run and is kept.
    pub fn prefixes(&mut self) -> &mut Prefixes {
        &mut self.prefixes
    }

    /// Whether no sequence has anything due.
    pub fn is_idle(&self) -> bool {
        self.sequences.iter().all(|(_, sequence)| sequence.ended().is_some())
    }

    /// One pass over what is due. Gives what came of it, in the order of the sequences.
    pub fn step(&mut self, model: &Model) -> Vec<(Id, Happened)> {
        let Packed { pass, sequences: packed, prompts } = self.pack(model);
        if pass.spans.is_empty() {
            return Vec::new();
        }
        let begin = Instant::now();
        let all = self.sequences.iter_mut().enumerate();
        let mut sequences: Vec<&mut (Id, Sequence)> =
            all.filter(|(at, _)| packed.contains(at)).map(|(_, sequence)| sequence).collect();
        let mut results = run(model, &pass.spans, &mut sequences);
        if results.iter().all(Result::is_err) && results.len() > 1 {
            // Whose fault it is shows when each is alone, and the others go on.
            let each = pass.spans.chunks(1).zip(sequences.chunks_mut(1));
            results = each.flat_map(|(span, sequence)| run(model, span, sequence)).collect();
        }
        let took = begin.elapsed();
        let (mut happened, mut rounds) = (Vec::new(), Vec::new());
        for ((id, sequence), (span, result)) in
            sequences.into_iter().zip(pass.spans.iter().zip(results))
        {
            let before = sequence.statistics();
            match result.and_then(|mut logits| sequence.take(span, &mut logits)) {
                Ok((choices, beginning)) => {
                    beginning.into_iter().for_each(|beginning| self.prefixes.keep(beginning));
                    let chose = choices.into_iter().map(|choice| (*id, Happened::Chose(choice)));
                    happened.extend(chose);
                    happened.extend(sequence.ended().map(|why| (*id, Happened::Ended(why))));
                    let round = sequence.round_since(before);
                    rounds.extend(sequence.rates().map(|rates| (rates, round)));
                }
                Err(fault) => {
                    sequence.end(Reason::Cancelled);
                    happened.push((*id, Happened::Failed(fault)));
                }
            }
        }
        // What a draft costs is told by passes that carried nothing but answers that may draft.
        let alone = prompts == 0 && rounds.len() == pass.spans.len();
        if !rounds.is_empty() && prompts == 0 {
            let cost = alone.then_some(1e3 * took.as_secs_f64());
            self.controller.report(&mut rounds, cost);
        }
        let plain = rounds.iter().all(|(_, round): &(_, Round)| round.drafted == 0);
        self.pace.took(prompts, pass.spans.len(), plain, took);
        happened
    }

    /// What is due, and whose it is: all answers' next tokens with their drafts, and as much of prompts
    /// as there is room for.
    fn pack(&mut self, model: &Model) -> Packed {
        let running = |(_, sequence): &(Id, Sequence)| sequence.ended().is_none();
        let answering = |entry: &(Id, Sequence)| running(entry) && entry.1.due() == 1;
        let answers = self.sequences.iter().any(answering);
        let mut room = if answers { self.pace.chunk() } else { CHUNK };
        self.draft(model);
        let mut packed = Packed { pass: Pass::default(), sequences: Vec::new(), prompts: 0 };
        for (at, entry) in self.sequences.iter_mut().enumerate() {
            let answers = answering(entry);
            if !running(entry) || !answers && room == 0 {
                continue;
            }
            let span = entry.1.span(model, if answers { CHUNK } else { room });
            if !answers {
                room -= span.tokens.len().min(room);
                packed.prompts += span.tokens.len();
            }
            packed.pass.spans.push(span);
            packed.sequences.push(at);
        }
        packed
    }

    /// Lets drafters propose as many tokens as pay.
    fn draft(&mut self, model: &Model) {
        let running = self.sequences.iter().enumerate();
        let running = running.filter(|(_, (_, sequence))| sequence.ended().is_none());
        let may: Vec<_> = running
            .filter_map(|(at, (_, sequence))| Some((at, sequence.may_draft(model)?)))
            .collect();
        if may.is_empty() {
            return;
        }
        let limits: Vec<_> = may.iter().map(|(_, limit)| *limit).collect();
        let depths = match self.depth {
            Some(depth) => limits.iter().map(|(_, limit)| depth.min(*limit)).collect(),
            None => self.controller.plan(&limits),
        };
        let places: Vec<usize> = may.into_iter().map(|(at, _)| at).collect();
        for (at, depth) in places.into_iter().zip(depths) {
            self.sequences[at].1.propose(depth);
        }
    }
}

/// One pass over spans of as many sequences, which these have to settle. Gives each one's wanted
/// logits. When the pass fails nothing has changed, and the fault is each one's.
fn run(
    model: &Model,
    spans: &[Span],
    sequences: &mut [&mut (Id, Sequence)],
) -> Vec<Result<Vec<f32>, Fault>> {
    let pass = Pass { spans: spans.to_vec(), taps: Vec::new() };
    let output = {
        let caches = sequences.iter_mut().map(|(_, sequence)| sequence.cache());
        model.forward(&pass, &mut caches.collect::<Vec<&mut Cache>>())
    };
    let logits = output.and_then(|output| {
        let width = output.logits.width();
        Ok((output.logits.into_host()?, width))
    });
    match logits {
        Err(fault) => {
            sequences.iter_mut().for_each(|(_, sequence)| sequence.cache().discard());
            spans.iter().map(|_| Err(fault.clone())).collect()
        }
        Ok((logits, width)) => {
            let mut rest = &logits[..];
            let each = spans.iter().map(|span| {
                let (own, others) = rest.split_at(span.wanted().len() * width);
                rest = others;
                Ok(own.to_vec())
            });
            each.collect()
        }
    }
}

impl Pace {
    /// Tokens of prompts beside answers.
    fn chunk(&self) -> usize {
        match (self.answers, self.token) {
            (Some(answers), Some(token)) if token > 0.0 => {
                ((LONGER * answers / token) as usize).clamp(LEAST, CHUNK)
            }
            _ => LEAST,
        }
    }

    /// Notes what a pass took, with so many tokens of prompts in it and so many spans; whether answers
    /// were plain.
    fn took(&mut self, prompts: usize, spans: usize, plain: bool, time: Duration) {
        let seconds = time.as_secs_f64();
        let follow = |known: &mut Option<f64>, new: f64| {
            *known = Some(known.map_or(new, |known| 0.8 * known + 0.2 * new));
        };
        match prompts {
            0 if plain => follow(&mut self.answers, seconds),
            tokens if tokens >= LEAST => {
                let alone = if spans > 1 { self.answers.unwrap_or(0.0) } else { 0.0 };
                follow(&mut self.token, (seconds - alone).max(0.0) / tokens as f64);
            }
            _ => {}
        }
    }
}
