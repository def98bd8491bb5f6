//! Which tokens may follow, and how likely each is: temperature, top-k, top-p, min-p, typical.
//!
//! Definitions are those of transformers' logits processors, ties included: a token exactly as
//! likely as the last one kept by top-k or typical is kept as well.

use std::cmp::Ordering;

use super::Settings;

/// Tokens that may follow, the most likely first, and their probabilities, which sum to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Probability of each.
    pub probabilities: Vec<f64>,
}

/// A token and its logit.
#[derive(Clone, Copy)]
struct Candidate {
    id: u32,
    logit: f32,
}

impl Distribution {
    /// A single token.
    pub(super) fn certain(id: u32) -> Self {
        Distribution { ids: vec![id], probabilities: vec![1.0] }
    }

    /// The distribution of `[vocabulary]` logits under the settings; `None` when no logit is a
    /// finite number. The temperature is not 0.
    pub(super) fn filtered(logits: &[f32], settings: &Settings) -> Option<Self> {
        let mut candidates: Vec<Candidate> = logits
            .iter()
            .enumerate()
            .map(|(id, &logit)| Candidate { id: id as u32, logit: logit / settings.temperature })
            .filter(|candidate| candidate.logit > f32::NEG_INFINITY)
            .collect();
        if candidates.is_empty() || candidates.iter().any(|c| c.logit == f32::INFINITY) {
            return None;
        }
        top_k(&mut candidates, settings.top_k);
        top_p(&mut candidates, settings.top_p);
        min_p(&mut candidates, settings.min_p);
        typical(&mut candidates, settings.typical_p);
        candidates.sort_unstable_by(likelier);
        let probabilities = softmax(&candidates);
        Some(Distribution { ids: candidates.iter().map(|c| c.id).collect(), probabilities })
    }

    /// The token at `uniform` in [0, 1) of the cumulative distribution.
    pub fn pick(&self, uniform: f64) -> u32 {
        let mut left = uniform;
        for (&id, &probability) in self.ids.iter().zip(&self.probabilities) {
            left -= probability;
            if left < 0.0 {
                return id;
            }
        }
        // Rounding left a little: the last token.
        self.ids.last().copied().unwrap_or_default()
    }

    /// The probability of a token; 0 for those that may not follow.
    pub fn probability(&self, id: u32) -> f64 {
        self.ids.iter().position(|&known| known == id).map_or(0.0, |at| self.probabilities[at])
    }
}

/// Ids of the largest logits, the largest first.
pub(super) fn most_likely(logits: &[f32], count: usize) -> Vec<u32> {
    let mut candidates: Vec<Candidate> =
        logits.iter().enumerate().map(|(id, &logit)| Candidate { id: id as u32, logit }).collect();
    front(&mut candidates, count);
    candidates.truncate(count);
    candidates.into_iter().map(|c| c.id).collect()
}

/// The larger logit first, then the smaller id.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Brings the `count` likeliest candidates to the front, in order.
fn front(candidates: &mut [Candidate], count: usize) {
    let count = count.min(candidates.len());
    if count < candidates.len() && count > 0 {
        candidates.select_nth_unstable_by(count - 1, likelier);
    }
    candidates[..count].sort_unstable_by(likelier);
}

fn softmax(candidates: &[Candidate]) -> Vec<f64> {
    let most = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = candidates.iter().map(|c| f64::from(c.logit - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

fn top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k == 0 || k >= candidates.len() {
        return;
    }
    candidates.select_nth_unstable_by(k - 1, likelier);
    let least = candidates[k - 1].logit;
    candidates.retain(|c| c.logit >= least);
}

/// Keeps a token when those before it do not reach `p` yet.
fn top_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 {
        return;
    }
    let most = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
    let weight = |c: &Candidate| f64::from(c.logit - most).exp();
    let needed = f64::from(p) * candidates.iter().map(weight).sum::<f64>();
    // Sorting a whole vocabulary takes many times longer than the few tokens that matter.
    let mut sorted = 64;
    loop {
        front(candidates, sorted);
        let mut before = 0.0;
        for (i, candidate) in candidates.iter().enumerate().take(sorted) {
            if before >= needed && i > 0 {
                candidates.truncate(i);
                return;
            }
            before += weight(candidate);
        }
        if sorted >= candidates.len() {
            return;
        }
        sorted *= 8;
    }
}

fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p <= 0.0 {
        return;
    }
    let most = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
    candidates.retain(|c| f64::from(c.logit - most).exp() >= f64::from(p));
}

fn typical(candidates: &mut Vec<Candidate>, mass: f32) {
    if mass >= 1.0 {
        return;
    }
    let probabilities = softmax(candidates);
    let entropy: f64 = probabilities.iter().filter(|&&p| p > 0.0).map(|p| -p * p.ln()).sum();
    let mut ranked: Vec<(f64, f64, Candidate)> = probabilities
        .iter()
        .zip(candidates.iter())
        .map(|(&p, &candidate)| ((-p.ln() - entropy).abs(), p, candidate))
        .collect();
    ranked.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then_with(|| likelier(&a.2, &b.2)));
    let mut sum = 0.0;
    let reached = ranked.iter().position(|&(_, p, _)| {
        sum += p;
        sum >= f64::from(mass)
    });
    let furthest = ranked[reached.unwrap_or(ranked.len() - 1)].0;
    *candidates =
        ranked.into_iter().take_while(|ranked| ranked.0 <= furthest).map(|r| r.2).collect();
}
