//! controller: acceptance and costs of past passes in, how deep to draft next out.
//!
//! A pure state machine. It drafts the depths that maximise expected committed tokens over measured
//! cost, over all sequences of a pass, since a pass's cost depends on how many tokens it carries
//! and not on whose they are. No cap: the drafter's limit alone bounds it.
//!
//! The product of the acceptance of positions ([`Rates`]) is what a draft commits; [`Costs`] says
//! what a pass of any width costs. Neither is known without drafting, so the controller also draws
//! both from what may be true (Thompson 1933) and tries what would win, on three accounts, kept in
//! passes of plain decoding:
//!
//! - the **bank** holds what drafting has gained against plain decoding, by measured costs, and a
//!   few passes to begin with. Nothing may be drafted that could overdraw it: whatever the drafter
//!   does, the time of plain decoding is exceeded by the income of the bank (0.4 %) and what it
//!   began with at most.
//! - the **purse** pays for trying while plain decoding seems best. It is filled slowly, faster
//!   where drafting has paid before, and by what a try gains.
//! - the **allowance** pays for trying other depths than the best while drafting.
//!
//! Drafting is preferred to plain decoding only where it gains more than what costs are uncertain
//! by. Learned state is kept across restarts by [`Memory`](state::Memory).

mod costs;
mod random;
mod rates;
pub mod scenario;
pub mod simulate;
pub mod state;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use costs::Costs;
use random::Random;
pub use rates::Rates;

/// The deepest draft of one sequence that is considered.
pub const DEEPEST: usize = 4096;

/// Passes of plain decoding that the bank begins with.
const BANK_START: f64 = 15.0;
/// The most that the bank holds.
const BANK_MOST: f64 = 200.0;
/// What bank and purse earn with each pass.
const INCOME: f64 = 0.004;
/// What the purse earns besides, where the bank is full.
const INCOME_WHERE_PAID: f64 = 0.01;
/// The part of a pass's gain that goes to the purse.
const GAIN_SHARE: f64 = 0.05;
const PURSE_START: f64 = 10.0;
const PURSE_MOST: f64 = 15.0;
/// What the allowance earns with each pass.
const ALLOWANCE: f64 = 0.008;
const ALLOWANCE_MOST: f64 = 5.0;
/// How much better than plain decoding drafting must be.
const LEAN: f64 = 1.008;
/// How often, while decoding plainly, all that was seen is doubted.
const DOUBT: f64 = 0.3;
/// Passes of plain decoding that come first.
const PLAIN_FIRST: usize = 3;
/// A token that is committed less often than this does not decide anything.
const NEGLIGIBLE: f64 = 1e-3;

/// What one sequence did in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Tokens drafted.
    pub drafted: usize,
    /// How many of them, from the first on, were accepted.
    pub accepted: usize,
}

/// What was planned for the pass in progress.
#[derive(Clone, Copy, Debug, Default)]
struct Planned {
    /// The best committed tokens over cost that were expected.
    rate: f64,
    /// Whether something else than the best is tried.
    trying: bool,
    /// Whether plain decoding seemed best.
    from_plain: bool,
}

/// Chooses depths for the sequences of one model on one device.
///
/// ```
/// use lathe::draft::controller::{Controller, Round};
///
/// let mut controller = Controller::default();
/// let mut sequence = controller.begin();
/// for _ in 0..50 {
///     let depths = controller.plan(&[(&sequence, 8)]);
///     let round = Round { drafted: depths[0], accepted: depths[0] };
///     controller.report(&mut [(&mut sequence, round)], Some(10.0 + depths[0] as f64));
/// }
/// assert!(controller.plan(&[(&sequence, 8)])[0] > 4);
/// ```
#[derive(Clone, Debug)]
pub struct Controller {
    learned: Learned,
    bank: f64,
    purse: f64,
    allowance: f64,
    random: Random,
    planned: Planned,
}

/// What a controller has learned: of all sequences together, and costs by number of sequences.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learned {
    rates: Rates,
    costs: BTreeMap<usize, Costs>,
}

/// One candidate token: how likely it is committed, and the sequence.
type Candidate = (f64, usize);

impl Default for Controller {
    fn default() -> Self {
        Controller::new(Learned::default())
    }
}

impl Controller {
    /// Begins with what was learned before.
    pub fn new(learned: Learned) -> Self {
        Controller {
            learned,
            bank: BANK_START,
            purse: PURSE_START,
            allowance: 1.0,
            random: Random::new(7),
            planned: Planned::default(),
        }
    }

    /// The acceptance of a new sequence, which expects what others saw.
    pub fn begin(&self) -> Rates {
        self.learned.rates.inherited()
    }

    /// What was learned, to be kept.
    pub fn learned(&self) -> &Learned {
        &self.learned
    }

    /// How many tokens to draft for each sequence of the next pass: at most its limit, which is
    /// the least of what its drafter can do and what its budget leaves, less the one token that a
    /// pass always gives.
    pub fn plan(&mut self, sequences: &[(&Rates, usize)]) -> Vec<usize> {
        let plain = vec![0; sequences.len()];
        self.planned = Planned { from_plain: true, ..Planned::default() };
        let widest: usize = sequences.iter().map(|&(_, limit)| limit.min(DEEPEST)).sum();
        let count = sequences.len();
        if widest == 0 {
            return plain;
        }
        let costs = self.learned.costs.entry(count).or_insert_with(|| Costs::new(count));
        costs.reach(widest);
        if costs.tried(0) < PLAIN_FIRST {
            return plain;
        }
        let reach = widest.min(2 * costs.widest() + count);
        let likely = in_order(sequences, |rates, limit| rates.means(limit));
        let (best, rate) = best(costs, &likely[..reach.min(likely.len())], count, self.bank);
        self.planned = Planned { rate, trying: false, from_plain: best == 0 };

        let purse = if best == 0 { self.purse } else { self.allowance };
        let mut depths = plain;
        let mut take = |candidates: &[Candidate]| {
            candidates.iter().for_each(|&(_, sequence)| depths[sequence] += 1);
        };
        if purse > 0.0 {
            let fresh = best == 0 && self.random.uniform() < DOUBT;
            let random = &mut self.random;
            let drawn = in_order(sequences, |rates, limit| rates.draws(limit, fresh, random));
            let within = &drawn[..reach.min(drawn.len())];
            let tried = winner(costs, within, count, self.bank, best == 0, &mut self.random);
            let expected = count as f64 + likely.iter().take(tried).map(|x| x.0).sum::<f64>();
            let regret = (costs.belief(tried).cost() - expected / rate) / costs.belief(0).cost();
            if tried != best && regret <= purse {
                self.planned.trying = true;
                take(&drawn[..tried]);
                return depths;
            }
        }
        take(&likely[..best]);
        depths
    }

    /// Takes in what the pass did: each sequence's round, and what the pass cost, in milliseconds
    /// or any other unit. `None` where it carried other work too.
    pub fn report(&mut self, rounds: &mut [(&mut Rates, Round)], cost: Option<f64>) {
        for (rates, round) in rounds.iter_mut() {
            rates.observe(round.drafted, round.accepted);
            self.learned.rates.observe(round.drafted, round.accepted);
        }
        let Some(cost) = cost.filter(|cost| cost.is_finite() && *cost > 0.0) else { return };
        let count = rounds.len();
        if count == 0 {
            return;
        }
        let drafted: usize = rounds.iter().map(|(_, round)| round.drafted).sum();
        let accepted: usize = rounds.iter().map(|(_, round)| round.accepted).sum();
        let costs = self.learned.costs.entry(count).or_insert_with(|| Costs::new(count));
        costs.observe(drafted, cost);
        if costs.tried(0) == 0 {
            return;
        }
        let plain = costs.belief(0).cost();
        let believed = costs.belief(drafted).cost() / plain;
        let paid = match drafted {
            0 => 1.0,
            _ => costs.without_stalls(drafted, cost) / plain,
        };
        let tokens = (count + accepted) as f64;
        let gain = tokens / count as f64 - paid;
        self.bank += gain + INCOME * paid;
        self.purse += (INCOME + INCOME_WHERE_PAID * (self.bank / BANK_MOST).max(0.0)) * believed;
        self.allowance += ALLOWANCE * believed;
        if self.planned.trying {
            let regret = believed - tokens / self.planned.rate / plain;
            match self.planned.from_plain {
                true => self.purse -= regret,
                false => self.allowance -= regret,
            }
        } else {
            self.purse += GAIN_SHARE * gain.max(0.0);
        }
        self.bank = self.bank.min(BANK_MOST);
        self.purse = self.purse.min(PURSE_MOST);
        self.allowance = self.allowance.min(ALLOWANCE_MOST);
    }
}

/// The tokens that all sequences may draft, the likeliest to be committed first. A sequence's own
/// stay in order, since none is likelier than the one before.
fn in_order(
    sequences: &[(&Rates, usize)],
    mut rates: impl FnMut(&Rates, usize) -> Vec<f64>,
) -> Vec<Candidate> {
    let mut all = Vec::new();
    for (i, &(known, limit)) in sequences.iter().enumerate() {
        let mut committed = 1.0;
        for rate in rates(known, limit.min(DEEPEST)) {
            committed *= rate;
            all.push((committed, i));
        }
    }
    if sequences.len() > 1 {
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
    }
    all
}

/// Whether the bank can pay for a pass that commits nothing of what it drafts.
fn affordable(costs: &Costs, drafted: usize, bank: f64) -> bool {
    drafted == 0 || costs.belief(drafted).cost() / costs.belief(0).cost() - 1.0 <= bank
}

/// The best number of drafted tokens among those whose cost is known, and committed tokens over
/// cost there.
fn best(costs: &Costs, likely: &[Candidate], count: usize, bank: f64) -> (usize, f64) {
    let plain = count as f64 / costs.belief(0).cost();
    let mut best = (0, plain);
    let mut committed = count as f64;
    for (i, candidate) in likely.iter().enumerate() {
        let drafted = i + 1;
        committed += candidate.0;
        let belief = costs.belief(drafted);
        let rate = committed / belief.cost();
        let unsure = (belief.variance + costs.belief(0).variance).sqrt();
        if rate > best.1.max(plain * LEAN * (1.0 + unsure))
            && costs.tried(drafted) > 0
            && affordable(costs, drafted, bank)
        {
            best = (drafted, rate);
        }
    }
    best
}

/// The number of drafted tokens that wins if the rates are as drawn and costs are as drawn here;
/// `first` is the cheapest that beats plain decoding.
fn winner(
    costs: &Costs,
    drawn: &[Candidate],
    count: usize,
    bank: f64,
    first: bool,
    random: &mut Random,
) -> usize {
    let mut cost = |drafted: usize| {
        let belief = costs.belief(drafted);
        (belief.mean + belief.variance.sqrt() * random.normal()).exp()
    };
    let mut committed = count as f64;
    let mut top = (0, committed / cost(0));
    for (i, candidate) in drawn.iter().enumerate() {
        let drafted = i + 1;
        committed += candidate.0;
        let rate = committed / cost(drafted);
        if rate > top.1 && affordable(costs, drafted, bank) {
            top = (drafted, rate);
            if first {
                break;
            }
        }
        if candidate.0 < NEGLIGIBLE {
            break;
        }
    }
    top.0
}

#[cfg(test)]
mod tests;
