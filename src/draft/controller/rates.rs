//! How likely each position of a draft is accepted, given that all before it were.
//!
//! A rate may hold for a whole conversation or for a line of code, and nobody says which. So each
//! position keeps four averages, over the last 6, 25, 100 and 400 rounds that reached it, and
//! believes each by how well it foretold what came (a mixture of experts with a fixed share,
//! Herbster and Warmuth 1998). A short average that sees nothing for a while, because nothing is
//! drafted, forgets and falls back on the next longer one: that is how drafting is taken up again
//! after a stretch that could not be foretold.

use serde::{Deserialize, Serialize};

use super::random::Random;

/// Averages per position.
const EXPERTS: usize = 4;
/// How many rounds each average looks back on.
const WINDOWS: [f64; EXPERTS] = [6.0, 25.0, 100.0, 400.0];
/// After how many rounds without a look an average has forgotten all but 1/e.
const MEMORY: [f64; EXPERTS] = [24.0, 100.0, 400.0, 4000.0];
/// What is given back to every average after each round, so that none is written off.
const SHARE: f64 = 0.01;
/// The rate of the first position before anything was seen.
const FIRST: f64 = 0.8;
/// As many rounds the rate of the position before counts, where little was seen.
const PRIOR: f64 = 2.0;
/// As many rounds the next longer average counts.
const CHAIN: f64 = 1.0;
/// As many rounds what other sequences saw counts for a new one.
const INHERITED: f64 = 16.0;

/// Counts of one average.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Count {
    hits: f64,
    reaches: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Position {
    counts: [Count; EXPERTS],
    weights: [f64; EXPERTS],
    /// The round of the last look.
    at: f64,
}

impl Default for Position {
    fn default() -> Self {
        let weights = [1.0 / EXPERTS as f64; EXPERTS];
        Position { counts: Default::default(), weights, at: 0.0 }
    }
}

/// What an average believes: hits and misses, both above 0.
#[derive(Clone, Copy, Default)]
struct Belief {
    hits: f64,
    misses: f64,
}

impl Belief {
    fn mean(self) -> f64 {
        self.hits / (self.hits + self.misses)
    }
}

impl Position {
    /// The counts after what was forgotten until `now`.
    fn aged(&self, now: f64) -> [Count; EXPERTS] {
        let mut counts = self.counts;
        for (count, memory) in counts.iter_mut().zip(MEMORY) {
            let kept = (-(now - self.at) / memory).exp();
            count.hits *= kept;
            count.reaches *= kept;
        }
        counts
    }

    /// What each average believes; `before` is the rate of the position before.
    fn beliefs(&self, now: f64, before: f64) -> [Belief; EXPERTS] {
        let mut beliefs = [Belief::default(); EXPERTS];
        let (mut prior, mut weight) = (before, PRIOR);
        for (belief, count) in beliefs.iter_mut().zip(self.aged(now)).rev() {
            belief.hits = (count.hits + weight * prior).max(1e-9);
            belief.misses = (count.reaches - count.hits + weight * (1.0 - prior)).max(1e-9);
            (prior, weight) = (belief.mean(), CHAIN);
        }
        beliefs
    }

    fn mean(&self, beliefs: &[Belief; EXPERTS]) -> f64 {
        self.weights.iter().zip(beliefs).map(|(weight, belief)| weight * belief.mean()).sum()
    }

    fn observe(&mut self, now: f64, beliefs: &[Belief; EXPERTS], hit: bool) {
        for (weight, belief) in self.weights.iter_mut().zip(beliefs) {
            let rate = belief.mean().clamp(0.002, 0.998);
            *weight *= if hit { rate } else { 1.0 - rate };
        }
        let sum: f64 = self.weights.iter().sum();
        for weight in &mut self.weights {
            *weight = *weight / sum * (1.0 - SHARE) + SHARE / EXPERTS as f64;
        }
        self.counts = self.aged(now);
        self.at = now;
        for (count, window) in self.counts.iter_mut().zip(WINDOWS) {
            let kept = 1.0 - 1.0 / window;
            count.hits = count.hits * kept + f64::from(u8::from(hit));
            count.reaches = count.reaches * kept + 1.0;
        }
    }

    fn pick(&self, random: &mut Random) -> usize {
        let mut left = random.uniform();
        for (i, weight) in self.weights.iter().enumerate() {
            left -= weight;
            if left < 0.0 {
                return i;
            }
        }
        EXPERTS - 1
    }

    fn is_sound(&self) -> bool {
        let counts = |count: &Count| {
            count.hits >= 0.0 && count.reaches >= count.hits - 1e-9 && count.reaches < 1e6
        };
        self.counts.iter().all(counts)
            && self.weights.iter().all(|weight| (0.0..=1.0).contains(weight))
            && (self.weights.iter().sum::<f64>() - 1.0).abs() < 1e-6
            && self.at.is_finite()
    }
}

/// Rates of acceptance by position.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Rates {
    positions: Vec<Position>,
    /// Rounds until now.
    now: f64,
}

impl Rates {
    /// Takes in one round: of `drafted` tokens the first `accepted` were right.
    pub fn observe(&mut self, drafted: usize, accepted: usize) {
        self.now += 1.0;
        let seen = drafted.min(accepted + 1);
        if self.positions.len() < seen {
            self.positions.resize_with(seen, Position::default);
        }
        let mut before = FIRST;
        for (i, position) in self.positions.iter_mut().take(seen).enumerate() {
            let beliefs = position.beliefs(self.now, before);
            before = position.mean(&beliefs);
            position.observe(self.now, &beliefs, i < accepted);
        }
    }

    /// The rates that are most likely, of positions 0 to `limit`.
    pub fn means(&self, limit: usize) -> Vec<f64> {
        let mut before = FIRST;
        let rate = |i: usize| {
            if let Some(position) = self.positions.get(i) {
                before = position.mean(&position.beliefs(self.now, before));
            }
            before
        };
        (0..limit).map(rate).collect()
    }

    /// Rates drawn from all that may be true; `fresh` as though nothing had been seen yet.
    pub fn draws(&self, limit: usize, fresh: bool, random: &mut Random) -> Vec<f64> {
        let none = Position::default();
        let mut before = FIRST;
        let draw = |i: usize| {
            let known = self.positions.get(i).filter(|_| !fresh);
            let position = known.unwrap_or(&none);
            let beliefs = position.beliefs(self.now, before);
            let Belief { hits, misses } = beliefs[position.pick(random)];
            let drawn = random.beta(hits, misses);
            // Positions of which nothing is known are alike.
            before = if known.is_some() { position.mean(&beliefs) } else { drawn };
            drawn
        };
        (0..limit).map(draw).collect()
    }

    /// What a new sequence begins with: what these saw, but open to be taught otherwise.
    pub fn inherited(&self) -> Self {
        let mut rates = self.clone();
        for count in rates.positions.iter_mut().flat_map(|position| &mut position.counts) {
            let kept = (INHERITED / count.reaches.max(INHERITED)).min(1.0);
            count.hits *= kept;
            count.reaches *= kept;
        }
        rates
    }

    /// Whether these can have been learned; a file may hold anything.
    pub(super) fn is_sound(&self) -> bool {
        self.now.is_finite()
            && self.positions.len() <= super::DEEPEST
            && self.positions.iter().all(|position| position.is_sound() && position.at <= self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(rates: &Rates) -> f64 {
        rates.means(1)[0]
    }

    #[test]
    fn a_collapse_is_believed_within_ten_rounds() {
        let mut rates = Rates::default();
        let mut random = Random::new(3);
        for _ in 0..2000 {
            let accepted = (0..4).take_while(|_| random.uniform() < 0.9).count();
            rates.observe(4, accepted);
        }
        assert!((first(&rates) - 0.9).abs() < 0.08, "{}", first(&rates));
        (0..10).for_each(|_| rates.observe(4, 0));
        assert!(first(&rates) < 0.25, "{}", first(&rates));
        // Where nothing is drafted any more, it is taken for a stretch that will pass.
        (0..300).for_each(|_| rates.observe(0, 0));
        assert!(first(&rates) > 0.5, "{}", first(&rates));
    }

    #[test]
    fn positions_that_were_not_reached_are_like_the_one_before() {
        let mut rates = Rates::default();
        (0..200).for_each(|_| rates.observe(1, 1));
        let means = rates.means(3);
        assert!(means[0] > 0.97 && means[1] == means[0] && means[2] == means[0], "{means:?}");
        let mut random = Random::new(1);
        let draws = rates.draws(3, false, &mut random);
        assert!(draws.iter().all(|rate| (0.0..=1.0).contains(rate)));
    }

    #[test]
    fn a_new_sequence_knows_what_others_saw_and_learns() {
        let mut others = Rates::default();
        (0..500).for_each(|i| others.observe(2, usize::from(i % 2 == 0)));
        let mut new = others.inherited();
        assert!((first(&new) - first(&others)).abs() < 0.1);
        (0..12).for_each(|_| new.observe(2, 2));
        assert!(first(&new) > first(&others) + 0.1, "{}", first(&new));
    }
}
