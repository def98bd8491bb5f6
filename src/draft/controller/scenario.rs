//! Files of scenarios for the controller: what drafts would be accepted and what passes cost.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::document::Document;
use crate::fault::{Code, Fault, Faults};
use crate::path;

/// The most tokens of a segment.
const MOST_TOKENS: usize = 10_000_000;
/// The most sequences of a pass.
const MOST_SEQUENCES: usize = 256;
/// The most widths of a scenario.
const MOST_WIDTHS: usize = 65_536;

/// A file of scenarios.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFile {
    /// 1.
    pub version: u64,
    /// The scenarios.
    pub scenarios: Vec<Scenario>,
}

/// A drafter, a device, and what is decoded.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// The deepest draft.
    pub drafter_limit: usize,
    /// How many sequences each pass holds; 1 where it is not said.
    #[serde(default = "one")]
    pub sequences: usize,
    /// Milliseconds of a pass that drafts 0 … `drafter_limit` × `sequences` tokens.
    pub cost_ms: Vec<f64>,
    /// Deviation of the logarithm of the noise on a measured cost.
    pub noise: f64,
    /// What else happens to measured costs.
    pub stalls: Stalls,
    /// What is decoded, one after the other.
    pub segments: Vec<Segment>,
}

fn one() -> usize {
    1
}

/// Measured costs that are too large.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stalls {
    /// How often.
    pub probability: f64,
    /// How many times too large.
    pub factor: f64,
}

/// Tokens of one kind.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Segment {
    /// How many, of all sequences together.
    pub tokens: usize,
    /// The probability that draft i is accepted if all before it were.
    #[serde(default)]
    pub accept: Option<Vec<f64>>,
    /// Two such lists, of which one holds at a time.
    #[serde(default)]
    pub states: Option<[Vec<f64>; 2]>,
    /// The probability that the state changes after a token.
    #[serde(default)]
    pub switch: Option<f64>,
}

impl Segment {
    /// The rates of acceptance in a state.
    pub fn rates(&self, state: u8) -> &[f64] {
        match (&self.states, &self.accept) {
            (Some(states), _) => &states[usize::from(state)],
            (None, Some(accept)) => accept,
            (None, None) => &[],
        }
    }
}

/// Reads a file of scenarios; `name` is what faults call it.
///
/// # Errors
/// Faults of code `scenario` that point at what is wrong, all at once.
pub fn parse(name: &str, text: &str) -> Result<Vec<Scenario>, Faults> {
    let document = Document::parse(name, text).map_err(recoded)?;
    let file: ScenarioFile = document.decode().map_err(recoded)?;
    let mut check = Check { document: &document, faults: Faults::default() };
    if file.version != 1 {
        check.fault(path!["version"], format!("version {} is not known, only 1", file.version));
    }
    if file.scenarios.is_empty() {
        check.fault(path!["scenarios"], "there is no scenario".into());
    }
    for (i, scenario) in file.scenarios.iter().enumerate() {
        let earlier = file.scenarios[..i].iter().any(|other| other.name == scenario.name);
        if earlier {
            let what = format!("another scenario is called {} too", scenario.name);
            check.fault(path!["scenarios", i, "name"], what);
        }
        check.scenario(i, scenario);
    }
    check.faults.or(file.scenarios)
}

fn recoded(fault: Fault) -> Faults {
    Fault { code: Code::Scenario, ..fault }.into()
}

struct Check<'a> {
    document: &'a Document,
    faults: Faults,
}

impl Check<'_> {
    fn fault(&mut self, path: &[crate::document::Step], what: String) {
        self.faults.push(self.document.fault(Code::Scenario, path, what));
    }

    fn scenario(&mut self, i: usize, scenario: &Scenario) {
        let Scenario { drafter_limit: limit, sequences, .. } = *scenario;
        let widths = limit.saturating_mul(sequences).saturating_add(1);
        if !(1..=MOST_SEQUENCES).contains(&sequences) {
            let what = format!("sequences are 1 to {MOST_SEQUENCES}, not {sequences}");
            self.fault(path!["scenarios", i, "sequences"], what);
        } else if limit > super::DEEPEST || widths > MOST_WIDTHS {
            let what = format!("a drafter of {limit} tokens is too deep to be simulated");
            self.fault(path!["scenarios", i, "drafter_limit"], what);
        } else if scenario.cost_ms.len() != widths {
            let what = format!(
                "cost_ms has {} numbers; 0 to {} drafted tokens need {widths}",
                scenario.cost_ms.len(),
                widths - 1
            );
            self.fault(path!["scenarios", i, "cost_ms"], what);
        }
        for (j, &cost) in scenario.cost_ms.iter().enumerate() {
            if !(1e-9..=1e9).contains(&cost) {
                let what = format!("a cost is above 0 and at most 1e9 ms, not {cost}");
                self.fault(path!["scenarios", i, "cost_ms", j], what);
            }
        }
        if !(0.0..=2.0).contains(&scenario.noise) {
            let what = format!("noise is from 0 to 2, not {}", scenario.noise);
            self.fault(path!["scenarios", i, "noise"], what);
        }
        if !(0.0..=1.0).contains(&scenario.stalls.probability) {
            let what = format!("a probability is from 0 to 1, not {}", scenario.stalls.probability);
            self.fault(path!["scenarios", i, "stalls", "probability"], what);
        }
        if !(1e-3..=1e6).contains(&scenario.stalls.factor) {
            let what = format!("factor is from 0.001 to 1e6, not {}", scenario.stalls.factor);
            self.fault(path!["scenarios", i, "stalls", "factor"], what);
        }
        if scenario.segments.is_empty() {
            self.fault(path!["scenarios", i, "segments"], "there is no segment".into());
        }
        for (j, segment) in scenario.segments.iter().enumerate() {
            self.segment(i, j, segment, limit);
        }
    }

    fn segment(&mut self, i: usize, j: usize, segment: &Segment, limit: usize) {
        let at = path!["scenarios", i, "segments", j].to_vec();
        let below = |steps: &[crate::document::Step]| [&at[..], steps].concat();
        if !(1..=MOST_TOKENS).contains(&segment.tokens) {
            let what = format!("tokens are 1 to {MOST_TOKENS}, not {}", segment.tokens);
            self.fault(&below(path!["tokens"]), what);
        }
        match (&segment.accept, &segment.states) {
            (Some(accept), None) => self.rates(&below(path!["accept"]), accept, limit),
            (None, Some(states)) => {
                for (k, rates) in states.iter().enumerate() {
                    self.rates(&below(path!["states", k]), rates, limit);
                }
            }
            _ => self.fault(&at, "a segment has either `accept` or `states`".into()),
        }
        match (segment.switch, &segment.states) {
            (Some(switch), Some(_)) if !(0.0..=1.0).contains(&switch) => {
                let what = format!("a probability is from 0 to 1, not {switch}");
                self.fault(&below(path!["switch"]), what);
            }
            (None, Some(_)) => self.fault(&at, "`states` needs `switch`".into()),
            (Some(_), None) => {
                self.fault(&below(path!["switch"]), "`switch` needs `states`".into());
            }
            _ => {}
        }
    }

    fn rates(&mut self, at: &[crate::document::Step], rates: &[f64], limit: usize) {
        if rates.len() < limit {
            let what = format!("{} rates for a drafter of {limit} tokens", rates.len());
            self.fault(at, what);
        }
        for (k, &rate) in rates.iter().enumerate() {
            if !(0.0..=1.0).contains(&rate) {
                let path = [at, path![k]].concat();
                self.fault(&path, format!("a rate of acceptance is from 0 to 1, not {rate}"));
            }
        }
    }
}
