use super::scenario;
use super::simulate::{Score, score};

const SCENARIOS: &str = include_str!("../../../tests/data/draft-scenarios.json");

fn scores(text: &str) -> Vec<Score> {
    use rayon::prelude::*;

    let scenarios = scenario::parse("scenarios.json", text).unwrap();
    scenarios.par_iter().map(score).collect()
}

fn assert_met(scores: &[Score]) {
    let missed: Vec<&Score> = scores.iter().filter(|score| !score.met).collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn every_scenario_is_near_the_best_fixed_depth_and_never_slower_than_plain_decoding() {
    let scores = scores(SCENARIOS);
    assert_eq!(scores.len(), 28);
    assert_met(&scores);
}
