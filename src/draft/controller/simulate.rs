//! The controller against scenarios: what it reaches of the best fixed depth, and what it costs
//! against plain decoding.
//!
//! Chance belongs to the token and not to the round: whether a token can be foretold is drawn once
//! for each seed, so that depths are compared on the same text.

use rayon::prelude::*;
use serde::Serialize;

use super::random::Random;
use super::scenario::{Scenario, Segment};
use super::{Controller, Rates, Round};

/// Every scenario is run with each of these.
const SEEDS: [u64; 3] = [1, 2, 3];
/// Rounds of a segment that are not judged.
const LEARNING: usize = 300;
/// The least part of the best fixed depth's speed.
pub const LEAST_OF_BEST: f64 = 0.97;
/// The most time against plain decoding.
pub const MOST_TIME: f64 = 1.01;

/// How the controller did in one scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Score {
    /// The scenario.
    pub name: String,
    /// Tokens per second against the best fixed depth's, the worst of the segments, each the mean
    /// of its seeds; none where every segment ended before it was judged.
    pub of_best: Option<f64>,
    /// Time against plain decoding, the worst of the seeds.
    pub time_vs_plain: f64,
    /// Whether both are what they should be.
    pub met: bool,
    /// Each segment.
    pub segments: Vec<SegmentScore>,
}

/// How the controller did in one segment, the mean of the seeds.
#[derive(Clone, Debug, Serialize)]
pub struct SegmentScore {
    /// The fixed depth that is best with the first seed.
    pub best_depth: usize,
    /// As in the scenario.
    pub of_best: Option<f64>,
    /// The controller's depth, the mean over judged rounds.
    pub mean_depth: f64,
}

/// Runs a scenario.
pub fn score(scenario: &Scenario) -> Score {
    let runs: Vec<Run> = SEEDS.par_iter().map(|&seed| run(scenario, seed)).collect();
    let segments: Vec<SegmentScore> = (0..scenario.segments.len())
        .map(|i| {
            let of_best: Option<Vec<f64>> =
                runs.iter().map(|run| run.segments[i].of_best).collect();
            let depths = runs.iter().map(|run| run.segments[i].mean_depth);
            SegmentScore {
                best_depth: runs[0].segments[i].best_depth,
                of_best: of_best.map(|all| all.iter().sum::<f64>() / all.len() as f64),
                mean_depth: depths.sum::<f64>() / runs.len() as f64,
            }
        })
        .collect();
    let of_best = segments.iter().filter_map(|segment| segment.of_best).reduce(f64::min);
    let time_vs_plain = runs.iter().map(|run| run.time_vs_plain).fold(0.0, f64::max);
    let met = of_best.is_none_or(|part| part >= LEAST_OF_BEST) && time_vs_plain <= MOST_TIME;
    Score { name: scenario.name.clone(), of_best, time_vs_plain, met, segments }
}

struct Run {
    segments: Vec<SegmentScore>,
    time_vs_plain: f64,
}

/// What chance does to each token of one sequence.
struct Chance {
    /// A token is foretold where this is below the rate of its position.
    tokens: Vec<f64>,
    states: Vec<u8>,
}

impl Chance {
    fn new(segment: &Segment, sequence: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        // Sequences begin in different states.
        let mut state = (sequence % 2) as u8;
        let switch = segment.switch.unwrap_or(0.0);
        let mut chance = Chance { tokens: Vec::new(), states: Vec::new() };
        for _ in 0..segment.tokens {
            chance.tokens.push(random.uniform());
            chance.states.push(state);
            if segment.states.is_some() && random.uniform() < switch {
                state ^= 1;
            }
        }
        chance
    }

    /// How many of `drafted` tokens from `at` on are accepted.
    fn accepted(&self, segment: &Segment, at: usize, drafted: usize) -> usize {
        let holds = |&i: &usize| {
            // A sequence that is past its end begins again.
            let token = (at + i) % self.tokens.len();
            self.tokens[token] < segment.rates(self.states[token])[i]
        };
        (0..drafted).take_while(holds).count()
    }
}

/// Decodes one segment: `plan` says the depths for limits, and `done` hears the rounds and the
/// true cost.
fn decode(
    scenario: &Scenario,
    segment: &Segment,
    chances: &[Chance],
    mut plan: impl FnMut(&[usize]) -> Vec<usize>,
    mut done: impl FnMut(&[Round], f64),
) {
    let mut at = vec![0; chances.len()];
    let mut left = segment.tokens;
    while left > 0 {
        // What a sequence may draft and all of them still have to say.
        let each = left.div_ceil(chances.len());
        let limits = vec![scenario.drafter_limit.min(each - 1); chances.len()];
        let rounds: Vec<Round> = plan(&limits)
            .into_iter()
            .enumerate()
            .map(|(i, drafted)| Round {
                drafted,
                accepted: chances[i].accepted(segment, at[i], drafted),
            })
            .collect();
        for (at, round) in at.iter_mut().zip(&rounds) {
            *at += round.accepted + 1;
            left = left.saturating_sub(round.accepted + 1);
        }
        done(&rounds, scenario.cost_ms[rounds.iter().map(|round| round.drafted).sum::<usize>()]);
    }
}

fn run(scenario: &Scenario, seed: u64) -> Run {
    let mut controller = Controller::default();
    let mut rates: Vec<Rates> = (0..scenario.sequences).map(|_| controller.begin()).collect();
    let mut noise = Random::new(seed * 7919 + 13);
    let (mut time, mut plain) = (0.0, 0.0);
    let mut segments = Vec::new();
    for (i, segment) in scenario.segments.iter().enumerate() {
        let chances: Vec<Chance> = (0..scenario.sequences)
            .map(|s| Chance::new(segment, s, seed * 1_000_003 + i as u64 + s as u64 * 7_368_787))
            .collect();
        let fixed = |depth: usize| {
            let mut time = 0.0;
            let plan = |limits: &[usize]| limits.iter().map(|&limit| limit.min(depth)).collect();
            decode(scenario, segment, &chances, plan, |_, cost| time += cost);
            segment.tokens as f64 / time
        };
        let speeds: Vec<f64> = (0..=scenario.drafter_limit).map(fixed).collect();
        let best_depth = (0..speeds.len()).max_by(|&a, &b| speeds[a].total_cmp(&speeds[b]));
        let best_depth = best_depth.unwrap_or(0);

        // One cell for what both closures need.
        let state = std::cell::RefCell::new((&mut controller, &mut rates));
        let (mut passes, mut judged, mut tokens, mut cost, mut depth) = (0, 0, 0, 0.0, 0);
        let plan = |limits: &[usize]| {
            let (controller, rates) = &mut *state.borrow_mut();
            let sequences: Vec<(&Rates, usize)> =
                rates.iter().zip(limits.iter().copied()).collect();
            controller.plan(&sequences)
        };
        decode(scenario, segment, &chances, plan, |rounds, truly| {
            time += truly;
            passes += 1;
            if passes > LEARNING {
                judged += 1;
                cost += truly;
                tokens += rounds.iter().map(|round| round.accepted + 1).sum::<usize>();
                depth += rounds.iter().map(|round| round.drafted).sum::<usize>();
            }
            let mut measured = truly * (scenario.noise * noise.normal()).exp();
            if noise.uniform() < scenario.stalls.probability {
                measured *= scenario.stalls.factor;
            }
            let (controller, rates) = &mut *state.borrow_mut();
            let mut rounds: Vec<(&mut Rates, Round)> =
                rates.iter_mut().zip(rounds.iter().copied()).collect();
            controller.report(&mut rounds, Some(measured));
        });
        plain += (segment.tokens as f64 / scenario.sequences as f64).ceil() * scenario.cost_ms[0];
        segments.push(SegmentScore {
            best_depth,
            of_best: (judged > 0).then(|| tokens as f64 / cost / speeds[best_depth]),
            mean_depth: depth as f64 / (judged * scenario.sequences).max(1) as f64,
        });
    }
    Run { segments, time_vs_plain: time / plain }
}
