//! Against distributions worked out by hand; `tests/reference/compare_sampling.py` compares with
//! transformers' logits processors.

use super::*;

/// Logits whose softmax is these probabilities.
fn logits(probabilities: &[f64]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln() as f32).collect()
}

fn sampled() -> Settings {
    Settings { temperature: 1.0, ..Settings::default() }
}

/// `(id, probability)` under the settings, in order of likelihood.
fn distribution(probabilities: &[f64], settings: Settings) -> Vec<(u32, f64)> {
    let distribution = Sampler::new(settings).distribution(&mut logits(probabilities)).unwrap();
    distribution.ids.into_iter().zip(distribution.probabilities).collect()
}

fn assert_near(actual: &[(u32, f64)], expected: &[(u32, f64)]) {
    let ids = |list: &[(u32, f64)]| list.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    assert_eq!(ids(actual), ids(expected));
    for ((_, a), (_, e)) in actual.iter().zip(expected) {
        assert!((a - e).abs() < 1e-6, "{actual:?} is not {expected:?}");
    }
}

#[test]
fn temperature_sharpens() {
    // Squares of the probabilities at half the temperature: 0.36, 0.09, 0.01.
    let settings = Settings { temperature: 0.5, ..sampled() };
    let expected = [(1, 0.36 / 0.46), (0, 0.09 / 0.46), (2, 0.01 / 0.46)];
    assert_near(&distribution(&[0.3, 0.6, 0.1], settings), &expected);
}

#[test]
fn top_k_keeps_the_likeliest() {
    let settings = Settings { top_k: 2, ..sampled() };
    let expected = [(1, 0.5 / 0.8), (3, 0.3 / 0.8)];
    assert_near(&distribution(&[0.1, 0.5, 0.1, 0.3], settings), &expected);
}

#[test]
fn top_k_keeps_ties() {
    let settings = Settings { top_k: 1, ..sampled() };
    assert_near(&distribution(&[0.4, 0.4, 0.2], settings), &[(0, 0.5), (1, 0.5)]);
}

#[test]
fn top_p_keeps_the_fewest_that_reach_it() {
    let settings = Settings { top_p: 0.7, ..sampled() };
    // 0.5 does not reach 0.7; 0.5 + 0.25 does.
    let expected = [(0, 0.5 / 0.75), (1, 0.25 / 0.75)];
    assert_near(&distribution(&[0.5, 0.25, 0.15, 0.1], settings), &expected);
    let tiny = Settings { top_p: 1e-6, ..sampled() };
    assert_near(&distribution(&[0.5, 0.3, 0.2], tiny), &[(0, 1.0)]);
}

#[test]
fn top_p_over_a_large_vocabulary() {
    // 5000 equal tokens: half of them make 0.5, in order of id. Needs more than one step.
    let settings = Settings { top_p: 0.5, ..sampled() };
    let kept = distribution(&vec![1.0 / 5000.0; 5000], settings);
    assert_eq!(kept.len(), 2500);
    assert!(kept.iter().enumerate().all(|(i, (id, _))| i == *id as usize));
}

#[test]
fn min_p_is_relative_to_the_likeliest() {
    let settings = Settings { min_p: 0.3, ..sampled() };
    let expected = [(0, 0.6 / 0.8), (1, 0.2 / 0.8)];
    assert_near(&distribution(&[0.6, 0.2, 0.15, 0.05], settings), &expected);
}

#[test]
fn typical_keeps_the_expected_surprise() {
    // Entropy of 0.5, 0.3, 0.2 is 1.0297; surprises 0.693, 1.204, 1.609 are 0.337, 0.174 and
    // 0.580 from it: 0.3 comes first, and with 0.5 reaches 0.6.
    let settings = Settings { typical_p: 0.6, ..sampled() };
    let expected = [(0, 0.5 / 0.8), (1, 0.3 / 0.8)];
    assert_near(&distribution(&[0.5, 0.3, 0.2], settings), &expected);
    let settings = Settings { typical_p: 0.25, ..sampled() };
    assert_near(&distribution(&[0.5, 0.3, 0.2], settings), &[(1, 1.0)]);
}

#[test]
fn repetition_divides_and_multiplies() {
    let settings = Settings { repetition_penalty: 2.0, ..Settings::default() };
    let mut sampler = Sampler::new(settings);
    sampler.prompt(&[0, 1, 1]);
    let mut logits = vec![4.0, -1.0, 1.5];
    sampler.adjust(&mut logits);
    assert_eq!(logits, [2.0, -2.0, 1.5]);
}

#[test]
fn repetition_looks_back_as_far_as_told() {
    let settings =
        Settings { repetition_penalty: 2.0, repetition_window: Some(2), ..Settings::default() };
    let mut sampler = Sampler::new(settings);
    sampler.prompt(&[0, 1]);
    sampler.commit(2);
    let mut logits = vec![4.0, 4.0, 4.0];
    sampler.adjust(&mut logits);
    assert_eq!(logits, [4.0, 2.0, 2.0]);
}

#[test]
fn presence_and_frequency_count_the_answer_only() {
    let settings =
        Settings { presence_penalty: 0.5, frequency_penalty: 0.25, ..Settings::default() };
    let mut sampler = Sampler::new(settings);
    sampler.prompt(&[0]);
    for id in [1, 2, 2] {
        sampler.commit(id);
    }
    let mut logits = vec![1.0, 1.0, 1.0];
    sampler.adjust(&mut logits);
    assert_eq!(logits, [1.0, 0.25, 0.0]);
}

#[test]
fn bias_forbids_and_forces() {
    let settings =
        Settings { logit_bias: vec![(0, f32::NEG_INFINITY), (2, 100.0)], ..Settings::default() };
    let mut sampler = Sampler::new(settings);
    assert_eq!(sampler.sample(&mut [5.0, 4.0, 3.0]).unwrap().id, 2);
    let forbidden = Settings { logit_bias: vec![(1, f32::NEG_INFINITY)], ..sampled() };
    assert_near(&distribution(&[0.25, 0.5, 0.25], forbidden), &[(0, 0.5), (2, 0.5)]);
}

#[test]
fn logprobs_are_the_models_own() {
    let settings = Settings {
        temperature: 0.1,
        top_k: 1,
        logprobs: Some(2),
        seed: Some(1),
        ..Settings::default()
    };
    let choice = Sampler::new(settings).sample(&mut logits(&[0.2, 0.7, 0.1])).unwrap();
    assert_eq!(choice.id, 1);
    assert!((choice.logprob.unwrap() - 0.7f32.ln()).abs() < 1e-6);
    assert_eq!(choice.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 0]);
    assert!((choice.top[1].1 - 0.2f32.ln()).abs() < 1e-6);
}

#[test]
fn a_seed_repeats_and_frequencies_follow_the_distribution() {
    let probabilities = [0.5, 0.3, 0.15, 0.05];
    let draw = |seed| {
        let mut sampler = Sampler::new(Settings { seed: Some(seed), ..sampled() });
        (0..20_000).map(|_| sampler.sample(&mut logits(&probabilities)).unwrap().id).collect()
    };
    let first: Vec<u32> = draw(42);
    assert_eq!(first, draw(42));
    assert_ne!(first, draw(43));
    for (id, p) in probabilities.iter().enumerate() {
        let share = first.iter().filter(|&&drawn| drawn as usize == id).count() as f64 / 20_000.0;
        // Five standard deviations.
        let allowed = 5.0 * (p * (1.0 - p) / 20_000.0).sqrt();
        assert!((share - p).abs() < allowed, "token {id}: {share}, expected {p}");
    }
}

#[test]
fn random_numbers_are_chacha8() {
    // ChaCha8Rng::seed_from_u64(0): these must never change, or seeds would not repeat.
    let mut sampler = Sampler::new(Settings { seed: Some(0), ..sampled() });
    let drawn: Vec<u64> = (0..3).map(|_| (sampler.uniform() * 1e9) as u64).collect();
    assert_eq!(drawn, FIRST_OF_SEED_0);
}

/// The first three numbers of seed 0, times 1e9.
const FIRST_OF_SEED_0: [u64; 3] = [709_075_415, 465_921_722, 699_143_242];

#[test]
fn greedy_takes_the_first_of_equals_and_no_random_number() {
    let mut sampler = Sampler::new(Settings::default());
    assert!(sampler.settings().is_plain_greedy());
    assert_eq!(sampler.sample(&mut [1.0, 3.0, 3.0]).unwrap().id, 1);
    assert_eq!(sampler.sample(&mut [f32::NAN, 3.0, 4.0]).unwrap().id, 2);
}

#[test]
fn no_numbers_are_a_fault() {
    for bad in [[f32::NAN; 2], [f32::NEG_INFINITY; 2]] {
        for settings in [Settings::default(), sampled()] {
            let fault = Sampler::new(settings).sample(&mut bad.clone()).unwrap_err();
            assert_eq!(fault.code, Code::Compute);
        }
    }
}

#[test]
fn settings_out_of_range_are_named() {
    for (settings, name) in [
        (Settings { temperature: -1.0, ..Settings::default() }, "temperature"),
        (Settings { top_p: -0.1, ..Settings::default() }, "top_p"),
        (Settings { min_p: 1.5, ..Settings::default() }, "min_p"),
        (Settings { typical_p: f32::NAN, ..Settings::default() }, "typical_p"),
        (Settings { repetition_penalty: 0.0, ..Settings::default() }, "repetition_penalty"),
    ] {
        let fault = settings.check().unwrap_err();
        assert!(fault.message.contains(name), "{fault}");
    }
    assert!(Settings::default().check().is_ok());
}

#[test]
fn stop_strings_never_leak() {
    let text = "one two END three";
    let all: Vec<char> = text.chars().collect();
    for size in 1..=5 {
        let mut stops = StopStrings::new(["END".into(), "EN?".into(), String::new()]);
        let mut shown = String::new();
        for chunk in all.chunks(size) {
            let piece = stops.push(&chunk.iter().collect::<String>());
            shown.push_str(&piece.text);
            assert!("one two ".starts_with(&shown), "leaked {shown:?}");
            if piece.stop {
                break;
            }
        }
        assert_eq!(shown, "one two ");
        assert_eq!(stops.push("more"), Stopped { text: String::new(), stop: true });
    }
}

#[test]
fn what_was_no_stop_string_is_shown_after_all() {
    let mut stops = StopStrings::new(["</end>".into(), "é!".into()]);
    assert_eq!(stops.push("a </e").text, "a ");
    assert_eq!(stops.push("x").text, "</ex");
    assert_eq!(stops.push("é").text, "");
    assert_eq!(stops.finish(), "é");
}

#[test]
fn a_stop_string_may_be_hidden_or_partly_so() {
    let text = [("a", false), ("b", false), ("<|end|>", true), ("\n", false), ("c", false)];
    for (stop, shown) in [
        ("<|end|>", "ab"),
        ("b<|end|>", "a"),
        ("<|end|>\nc", "ab"),
        ("|end|>\n", "ab"),
        ("b\n", "ab\nc"),
        ("<|end|>x", "ab\nc"),
        ("zz", "ab\nc"),
    ] {
        let mut stops = StopStrings::new([stop.into()]);
        let mut found = String::new();
        for (piece, hidden) in text {
            let piece = if hidden { stops.push_hidden(piece) } else { stops.push(piece) };
            found.push_str(&piece.text);
            if piece.stop {
                break;
            }
        }
        found.push_str(&stops.finish());
        assert_eq!(found, shown, "{stop:?}");
    }
}

#[test]
fn a_temperature_too_small_to_divide_by_is_greedy() {
    for temperature in [1e-40, f32::MIN_POSITIVE, 1e-38] {
        for logits in [[1.0, 9.0, 3.0], [-1.0, -0.5, -3.0], [-1.0, 0.0, -3.0]] {
            let mut sampler = Sampler::new(Settings { temperature, ..Settings::default() });
            let choice = sampler.sample(&mut logits.to_vec()).unwrap();
            assert_eq!(choice.id, 1, "{temperature} {logits:?}");
        }
    }
}

#[test]
fn the_largest_logit_is_the_first_of_equals_and_a_number() {
    let numbers = |count: usize| (0..count).map(|i| ((i * 37) % 101) as f32 - 50.0);
    for count in 1..140 {
        let mut logits: Vec<f32> = numbers(count).collect();
        let slow = |logits: &[f32]| {
            let each = logits.iter().enumerate().filter(|(_, logit)| !logit.is_nan());
            each.rev().max_by(|a, b| a.1.total_cmp(b.1)).map(|(id, _)| id as u32)
        };
        assert_eq!(largest(&logits), slow(&logits), "{count}");
        logits[count / 2] = f32::NAN;
        let only = slow(&logits);
        assert_eq!(largest(&logits), only, "{count}");
        logits[count / 3] = f32::INFINITY;
        assert_eq!(largest(&logits), None, "{count}");
    }
    assert_eq!(largest(&[]), None);
    assert_eq!(largest(&[f32::NAN; 40]), None);
    assert_eq!(largest(&[f32::NEG_INFINITY; 40]), None);
}
