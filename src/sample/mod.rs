//! sample: one row of logits in, the next token out.
//!
//! A [`Sampler`] holds the settings, the random numbers and the tokens of one sequence. It works
//! on `[vocabulary]` logits in f32 on the CPU, in this order: logit bias, repetition, presence and
//! frequency penalties, temperature, top-k, top-p, min-p, typical (the order of transformers'
//! logits processors, whose definitions are used). Temperature 0 takes the largest logit.
//!
//! Random numbers come from ChaCha8 (`rand_chacha`), whose sequence for a seed is the same on
//! every platform and in every version. One number of 53 bits is drawn for each sampled token, so
//! a sequence with a seed repeats.

mod filter;
mod stop;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

pub use filter::Distribution;
pub(crate) use stop::overlap;
pub use stop::{StopStrings, Stopped};

use crate::fault::{Code, Fault};

/// How tokens are chosen. The default is greedy, with everything else off.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Divides the logits; 0 is greedy, and so is what is too small to divide by.
    pub temperature: f32,
    /// Keeps the most likely tokens; 0 is off.
    pub top_k: usize,
    /// Keeps the fewest most likely tokens whose probabilities reach this sum (Holtzman et al.
    /// 2019), one at least; 1 is off.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as likely as the likeliest (Nguyen et al. 2024); 0 is
    /// off.
    pub min_p: f32,
    /// Keeps the tokens whose surprise is nearest the expected one, up to this probability
    /// (Meister et al. 2022); 1 is off.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of tokens that were there before (Keskar
    /// et al. 2019); 1 is off.
    pub repetition_penalty: f32,
    /// How many of the last tokens, the prompt's included, repetition looks at; `None` is all.
    pub repetition_window: Option<usize>,
    /// Subtracted from the logit of each token that the answer holds already.
    pub presence_penalty: f32,
    /// Subtracted once for each time that the answer holds the token already.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Makes the sequence repeatable.
    pub seed: Option<u64>,
    /// How many of the most likely tokens are reported with each choice; `None` reports nothing.
    pub logprobs: Option<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            repetition_window: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            logprobs: None,
        }
    }
}

impl Settings {
    /// Whether the choice is always the largest logit of what the model gives.
    pub fn is_plain_greedy(&self) -> bool {
        self.temperature == 0.0 && !self.changes_logits() && self.logprobs.is_none()
    }

    fn changes_logits(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || !self.logit_bias.is_empty()
    }

    /// Refuses values that make no sense, naming each.
    ///
    /// # Errors
    /// One fault of code `usage` for the first value out of its range.
    pub fn check(&self) -> Result<(), Fault> {
        let ranges = [
            ("temperature", self.temperature, 0.0, f32::MAX, "0 or more"),
            ("top_p", self.top_p, 0.0, 1.0, "from 0 to 1"),
            ("min_p", self.min_p, 0.0, 1.0, "from 0 to 1"),
            ("typical_p", self.typical_p, f32::MIN_POSITIVE, 1.0, "above 0 and at most 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                f32::MIN_POSITIVE,
                f32::MAX,
                "above 0 (1 is off)",
            ),
            ("presence_penalty", self.presence_penalty, f32::MIN, f32::MAX, "a number"),
            ("frequency_penalty", self.frequency_penalty, f32::MIN, f32::MAX, "a number"),
        ];
        for (name, value, least, most, range) in ranges {
            if !(least..=most).contains(&value) {
                let what = format!("{name} is {range}, not {value}");
                return Err(Fault::new(Code::Usage, what));
            }
        }
        Ok(())
    }
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Its id.
    pub id: u32,
    /// Natural logarithm of its probability as the model gave it, before any setting; present
    /// when `logprobs` is.
    pub logprob: Option<f32>,
    /// The most likely tokens and theirs, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// Chooses the tokens of one sequence.
pub struct Sampler {
    settings: Settings,
    random: ChaCha8Rng,
    /// All tokens of the sequence, where a setting looks back.
    history: Vec<u32>,
    /// How often the answer holds each token.
    counts: HashMap<u32, u32>,
}

impl Sampler {
    /// Begins a sequence.
    pub fn new(settings: Settings) -> Self {
        // Without a seed: the standard library's random keys.
        let seed = settings.seed.unwrap_or_else(|| RandomState::new().hash_one(0));
        let random = ChaCha8Rng::seed_from_u64(seed);
        Sampler { settings, random, history: Vec::new(), counts: HashMap::new() }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Tells what stands before the answer, for the repetition penalty.
    pub fn prompt(&mut self, ids: &[u32]) {
        if self.settings.repetition_penalty != 1.0 {
            self.history.extend_from_slice(ids);
        }
    }

    /// Tells which token became part of the answer.
    pub fn commit(&mut self, id: u32) {
        if self.settings.changes_logits() {
            self.history.push(id);
            *self.counts.entry(id).or_default() += 1;
        }
    }

    /// Chooses the next token from `[vocabulary]` logits and commits it. The logits are changed.
    ///
    /// # Errors
    /// When no logit is a finite number.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<Choice, Fault> {
        if self.settings.temperature > 0.0 {
            return self.choose(logits, |distribution, uniform| distribution.pick(uniform()));
        }
        let report = self.settings.logprobs.map(|count| Report::of(logits, count));
        self.adjust(logits);
        let id = largest(logits).ok_or_else(no_numbers)?;
        Ok(self.chosen(id, report))
    }

    /// Commits what `pick` chooses from the distribution that the settings make of `[vocabulary]`
    /// logits and random numbers in [0, 1). The logits are changed.
    ///
    /// # Errors
    /// When no logit is a finite number.
    pub fn choose(
        &mut self,
        logits: &mut [f32],
        pick: impl FnOnce(&Distribution, &mut dyn FnMut() -> f64) -> u32,
    ) -> Result<Choice, Fault> {
        let report = self.settings.logprobs.map(|count| Report::of(logits, count));
        let distribution = self.distribution(logits)?;
        let id = pick(&distribution, &mut || self.uniform());
        Ok(self.chosen(id, report))
    }

    fn chosen(&mut self, id: u32, report: Option<Report>) -> Choice {
        self.commit(id);
        match report {
            None => Choice { id, logprob: None, top: Vec::new() },
            Some(report) => Choice { id, logprob: Some(report.of_token(id)), top: report.top },
        }
    }

    /// What the settings make of `[vocabulary]` logits: the tokens that may follow and their
    /// probabilities. Greedy settings give one token. Changes neither history nor random numbers.
    ///
    /// # Errors
    /// When no logit is a finite number.
    pub fn distribution(&self, logits: &mut [f32]) -> Result<Distribution, Fault> {
        self.adjust(logits);
        let first = largest(logits).ok_or_else(no_numbers)?;
        // Also where dividing by the temperature leaves no number: all of the weight is on one.
        let scaled = logits[first as usize] / self.settings.temperature;
        if self.settings.temperature == 0.0 || !scaled.is_finite() {
            return Ok(Distribution::certain(first));
        }
        Distribution::filtered(logits, &self.settings).ok_or_else(no_numbers)
    }

    /// The next random number, uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Bias and penalties.
    fn adjust(&self, logits: &mut [f32]) {
        let settings = &self.settings;
        for &(id, bias) in &settings.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        if settings.repetition_penalty != 1.0 {
            let window = settings.repetition_window.unwrap_or(usize::MAX);
            let start = self.history.len().saturating_sub(window);
            let mut seen = self.history[start..].to_vec();
            seen.sort_unstable();
            seen.dedup();
            for id in seen {
                if let Some(logit) = logits.get_mut(id as usize) {
                    let by = settings.repetition_penalty;
                    *logit = if *logit < 0.0 { *logit * by } else { *logit / by };
                }
            }
        }
        if settings.presence_penalty != 0.0 || settings.frequency_penalty != 0.0 {
            for (&id, &count) in &self.counts {
                if let Some(logit) = logits.get_mut(id as usize) {
                    *logit -= settings.presence_penalty + settings.frequency_penalty * count as f32;
                }
            }
        }
    }
}

/// The index of the largest logit, the first of equals; `None` when none is a number.
pub fn largest(logits: &[f32]) -> Option<u32> {
    // Many at once, which an index beside them would prevent.
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (lines, rest) = logits.as_chunks::<32>();
    let mut most = [f32::NEG_INFINITY; 32];
    for line in lines {
        most.iter_mut().zip(line).for_each(|(most, &logit)| *most = larger(*most, logit));
    }
    let most = most.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger);
    let index = logits.iter().position(|&logit| logit == most).filter(|_| most.is_finite());
    index.and_then(|id| u32::try_from(id).ok())
}

fn no_numbers() -> Fault {
    Fault::new(Code::Compute, "the model gives no numbers for the next token")
        .help("its weights are damaged or its description is wrong; `lathe verify` checks them")
}

/// Log-probabilities as the model gave them.
struct Report {
    log_sum: f64,
    logits: Vec<f32>,
    top: Vec<(u32, f32)>,
}

impl Report {
    fn of(logits: &[f32], count: usize) -> Self {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
        let log_sum = f64::from(most) + sum.ln();
        let mut report = Report { log_sum, logits: logits.to_vec(), top: Vec::new() };
        let ids = filter::most_likely(logits, count);
        report.top = ids.into_iter().map(|id| (id, report.of_token(id))).collect();
        report
    }

    fn of_token(&self, id: u32) -> f32 {
        let logit = self.logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        (f64::from(logit) - self.log_sum) as f32
    }
}

#[cfg(test)]
mod tests;
