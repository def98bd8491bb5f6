//! What passes cost, by the number of drafted tokens in them.
//!
//! A width's cost is a mean of logarithms, in which a sample far off counts as the limit of what
//! noise explains (Huber 1964): one stall does not matter, and several in a row are believed. Of a
//! width's first two samples the smaller counts, of three the middle one: the first time of a
//! shape often builds something. Widths that were never tried lie between their neighbours, and
//! may be as cheap as the lower or as dear as the upper of them.

use serde::{Deserialize, Serialize};

/// As many samples a mean holds at most; older ones fade.
const WINDOW: f64 = 600.0;
/// After how many passes without one a width's samples have faded to 1/e.
const MEMORY: f64 = 4000.0;
/// Variance of log cost per unit of log width, between widths that were not tried.
const ROUGHNESS: f64 = 0.25;
/// Deviation of log cost that a single sample may be off by, beside the noise.
const EARLY: f64 = 0.1;
/// Deviations of noise beyond which a sample is cut.
const CUT: f64 = 2.5;

/// As many samples beyond the cut in a row are no stalls: the cost is another one now.
const LASTING: i32 = 6;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Cell {
    /// Logarithms of the first three samples.
    first: Vec<f64>,
    mean: f64,
    samples: f64,
    /// How many samples in a row lay beyond the cut, negative for below.
    beyond: i32,
    /// The pass of the last sample.
    at: f64,
}

/// The belief about the logarithm of a cost.
#[derive(Clone, Copy, Debug)]
pub struct Belief {
    /// Its mean.
    pub mean: f64,
    /// Its variance.
    pub variance: f64,
}

impl Belief {
    /// The most likely cost.
    pub fn cost(self) -> f64 {
        self.mean.exp()
    }

    /// After `distance` of log width without a sample.
    fn drifted(self, distance: f64) -> Self {
        Belief { variance: self.variance + ROUGHNESS * distance, ..self }
    }
}

/// Costs of passes of one number of sequences.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Costs {
    sequences: usize,
    /// By the number of drafted tokens.
    cells: Vec<Cell>,
    /// Deviation of the logarithm of noise.
    noise: f64,
    now: f64,
    #[serde(skip)]
    beliefs: Vec<Belief>,
}

impl Costs {
    /// Nothing is known.
    pub fn new(sequences: usize) -> Self {
        Costs { sequences, cells: Vec::new(), noise: 0.1, now: 0.0, beliefs: Vec::new() }
    }

    /// Makes room for passes of up to `widest` drafted tokens.
    pub fn reach(&mut self, widest: usize) {
        if self.cells.len() <= widest {
            self.cells.resize_with(widest + 1, Cell::default);
        }
        if self.beliefs.len() < self.cells.len() {
            self.believe();
        }
    }

    /// Samples of a width, three at most.
    pub fn tried(&self, drafted: usize) -> usize {
        self.cells.get(drafted).map_or(0, |cell| cell.first.len())
    }

    /// The widest that was tried.
    pub fn widest(&self) -> usize {
        self.cells.iter().rposition(|cell| !cell.first.is_empty()).unwrap_or(0)
    }

    /// What is believed of a width within [`Costs::reach`].
    pub fn belief(&self, drafted: usize) -> Belief {
        self.beliefs[drafted]
    }

    /// A measured cost, cut to what noise explains and without what noise adds to a mean.
    pub fn without_stalls(&self, drafted: usize, cost: f64) -> f64 {
        let believed = self.beliefs[drafted].cost();
        let most = (3.0 * self.noise).exp();
        cost.clamp(believed / most, believed * most) / (0.5 * self.noise * self.noise).exp()
    }

    /// Takes in one measured cost, which is above 0.
    pub fn observe(&mut self, drafted: usize, cost: f64) {
        self.now += 1.0;
        self.reach(drafted);
        let sample = cost.ln();
        let cell = &mut self.cells[drafted];
        if cell.first.len() < 3 {
            cell.first.push(sample);
            let mut sorted = cell.first.clone();
            sorted.sort_by(f64::total_cmp);
            cell.mean = sorted[sorted.len() / 3];
            cell.samples = sorted.len() as f64;
        } else {
            let off = sample - cell.mean;
            // The median of absolute deviations, followed step by step.
            self.noise *= if off.abs() > 0.6745 * self.noise { 1.03 } else { 0.97 };
            self.noise = self.noise.clamp(0.005, 0.5);
            let cut = CUT * self.noise;
            cell.beyond = match off.abs() > cut {
                false => 0,
                true if off > 0.0 => cell.beyond.max(0) + 1,
                true => cell.beyond.min(0) - 1,
            };
            let kept = (-(self.now - cell.at) / MEMORY).exp();
            cell.samples = (cell.samples * kept + 1.0).min(WINDOW);
            cell.mean += off.clamp(-cut, cut) / cell.samples;
            if cell.beyond.abs() >= LASTING {
                (cell.mean, cell.samples, cell.beyond) = (sample, 1.0, 0);
            }
        }
        cell.at = self.now;
        self.believe();
    }

    /// Beliefs about all widths from the samples of some: between two of those a random walk over
    /// the logarithm of the width.
    fn believe(&mut self) {
        let widths: Vec<f64> =
            (0..self.cells.len()).map(|m| ((self.sequences + m) as f64).ln()).collect();
        let known: Vec<Option<Belief>> =
            self.cells.iter().map(|cell| self.measured(cell)).collect();
        // The nearest known width on either side, and what it says of this one.
        let mut left = vec![None; known.len()];
        let mut nearest: Option<(usize, Belief)> = None;
        for m in 0..known.len() {
            nearest = known[m].map(|belief| (m, belief)).or(nearest);
            left[m] = nearest.map(|(at, belief)| belief.drifted(widths[m] - widths[at]));
        }
        let mut nearest: Option<(usize, Belief)> = None;
        let mut beliefs = vec![Belief { mean: 0.0, variance: 1.0 }; known.len()];
        for m in (0..known.len()).rev() {
            nearest = known[m].map(|belief| (m, belief)).or(nearest);
            let right = nearest.map(|(at, belief)| belief.drifted(widths[at] - widths[m]));
            beliefs[m] = match (known[m], left[m], right) {
                (Some(measured), ..) => measured,
                (None, Some(left), Some(right)) => between(left, right),
                (None, one, other) => one.or(other).unwrap_or(beliefs[m]),
            };
        }
        self.beliefs = beliefs;
    }

    fn measured(&self, cell: &Cell) -> Option<Belief> {
        let samples = (cell.samples * (-(self.now - cell.at) / MEMORY).exp()).max(0.5);
        let variance = self.noise.powi(2) / samples + (EARLY / samples).powi(2);
        (!cell.first.is_empty()).then_some(Belief { mean: cell.mean, variance })
    }

    /// What is kept across restarts: open to be taught otherwise.
    pub(super) fn faded(&self) -> Self {
        let mut costs = self.clone();
        for cell in &mut costs.cells {
            cell.samples = cell.samples.min(3.0);
            (cell.at, cell.beyond) = (0.0, 0);
        }
        costs.now = 0.0;
        costs
    }

    /// Whether these can have been measured; a file may hold anything.
    pub(super) fn is_sound(&self, sequences: usize) -> bool {
        let cell = |cell: &Cell| {
            cell.first.len() <= 3
                && cell.first.iter().chain([&cell.mean]).all(|log| log.abs() < 50.0)
                && (0.0..=WINDOW).contains(&cell.samples)
                && cell.at <= self.now
                && cell.beyond.abs() < 1 << 20
        };
        self.sequences == sequences
            && (0.005..=0.5).contains(&self.noise)
            && self.now.is_finite()
            && self.cells.len() <= sequences.saturating_mul(super::DEEPEST) + 1
            && self.cells.iter().all(cell)
    }
}

/// Between two known widths the cost may rise anywhere.
fn between(left: Belief, right: Belief) -> Belief {
    let sum = left.variance + right.variance;
    let step = 0.5 * (right.mean - left.mean);
    Belief {
        mean: (left.mean * right.variance + right.mean * left.variance) / sum,
        variance: left.variance * right.variance / sum + step * step,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_do_not_count_and_lasting_changes_do() {
        let mut costs = Costs::new(1);
        for i in 0..200 {
            costs.observe(2, if i % 20 == 0 { 80.0 } else { 10.0 });
        }
        assert!((costs.belief(2).cost() / 10.0 - 1.0).abs() < 0.02, "{}", costs.belief(2).cost());
        for _ in 0..3000 {
            costs.observe(2, 20.0);
        }
        assert!(costs.belief(2).cost() > 19.0, "{}", costs.belief(2).cost());
    }

    #[test]
    fn a_first_pass_that_builds_something_does_not_count() {
        let mut costs = Costs::new(1);
        costs.observe(1, 500.0);
        costs.observe(1, 10.0);
        assert!((costs.belief(1).cost() - 10.0).abs() < 1e-9);
    }

    #[test]
    fn an_untried_width_beside_a_cliff_may_be_on_either_side_of_it() {
        let mut costs = Costs::new(1);
        for _ in 0..10 {
            costs.observe(4, 10.0);
            costs.observe(6, 40.0);
        }
        let belief = costs.belief(5);
        assert!(belief.cost() > 15.0 && belief.cost() < 27.0);
        assert!((40f64.ln() - belief.mean) / belief.variance.sqrt() < 1.1);
        costs.reach(9);
        assert!(costs.belief(9).variance > costs.belief(7).variance);
    }
}
