//! Acceptance: the target's logits and a draft in, the tokens that are committed out.
//!
//! Exact: what is committed has the distribution that plain decoding would give it, whatever the
//! draft (Leviathan et al. 2023, Chen et al. 2023). A drafted token, which has the probability q
//! in the draft and p under the target and all settings, is accepted with probability min(1, p/q);
//! otherwise the token comes from what p has more than q. Greedy settings leave one token, so the
//! same rule compares. Penalties of a position know the drafted tokens before it, since those were
//! committed to the sampler when they were accepted.

use crate::fault::{Code, Fault};
use crate::sample::{Choice, Distribution, Sampler};

/// A drafted token.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// Its id.
    pub id: u32,
    /// The distribution that it was drawn from; none where it is certain, as what was looked up or
    /// is the likeliest.
    pub from: Option<Distribution>,
}

impl Proposal {
    /// A token that was not drawn.
    pub fn certain(id: u32) -> Self {
        Proposal { id, from: None }
    }
}

/// What became of a draft.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// The tokens to commit: those that were accepted, and one more of the target's own unless the
    /// answer ended before.
    pub choices: Vec<Choice>,
    /// How many of the drafted tokens were accepted.
    pub accepted: usize,
}

/// Checks a draft against `[proposals + 1, vocabulary]` logits of the target, of which row i is for
/// the place of proposal i. `goes_on` says of each token whether the answer goes on after it.
///
/// # Errors
/// When there are fewer rows, or no logit of a row is a finite number.
pub fn accept(
    sampler: &mut Sampler,
    logits: &mut [f32],
    vocabulary: usize,
    proposals: &[Proposal],
    goes_on: impl FnMut(&Choice) -> bool,
) -> Result<Accepted, Fault> {
    accept_by(decide, sampler, logits, vocabulary, proposals, goes_on)
}

/// A rule: the token that is committed, and whether it is the accepted proposal.
type Rule = fn(&Distribution, &Proposal, &mut dyn FnMut() -> f64) -> (u32, bool);

fn accept_by(
    rule: Rule,
    sampler: &mut Sampler,
    logits: &mut [f32],
    vocabulary: usize,
    proposals: &[Proposal],
    mut goes_on: impl FnMut(&Choice) -> bool,
) -> Result<Accepted, Fault> {
    let rows = proposals.len() + 1;
    if vocabulary == 0 || logits.len() != rows * vocabulary {
        let what = format!("{} logits are not {rows} rows of {vocabulary}", logits.len());
        return Err(Fault::new(Code::Internal, what));
    }
    let mut out = Accepted { choices: Vec::with_capacity(rows), accepted: 0 };
    for (i, row) in logits.chunks_exact_mut(vocabulary).enumerate() {
        let Some(proposal) = proposals.get(i) else {
            out.choices.push(sampler.sample(row)?);
            break;
        };
        let mut accepted = false;
        let choice = sampler.choose(row, |target, uniform| {
            let (id, as_drafted) = rule(target, proposal, uniform);
            accepted = as_drafted;
            id
        })?;
        out.accepted += usize::from(accepted);
        let ends = !goes_on(&choice);
        out.choices.push(choice);
        if !accepted || ends {
            break;
        }
    }
    Ok(out)
}

fn decide(
    target: &Distribution,
    proposal: &Proposal,
    uniform: &mut dyn FnMut() -> f64,
) -> (u32, bool) {
    // One token may follow: there is nothing to draw.
    if let [only] = target.ids[..] {
        return (only, only == proposal.id);
    }
    let drafted = proposal.from.as_ref().map_or(1.0, |from| from.probability(proposal.id));
    if uniform() * drafted < target.probability(proposal.id) {
        return (proposal.id, true);
    }
    (residual(target, proposal).pick(uniform()), false)
}

/// What the target has more than the draft, as a distribution.
fn residual(target: &Distribution, proposal: &Proposal) -> Distribution {
    let drafted = |id: u32| match &proposal.from {
        Some(from) => from.probability(id),
        None => f64::from(u8::from(id == proposal.id)),
    };
    let more = target.ids.iter().zip(&target.probabilities);
    let more: Vec<(u32, f64)> = more
        .map(|(&id, &probability)| (id, probability - drafted(id)))
        .filter(|&(_, probability)| probability > 0.0)
        .collect();
    let sum: f64 = more.iter().map(|&(_, probability)| probability).sum();
    if sum <= 0.0 {
        // The two agree but for rounding.
        return target.clone();
    }
    Distribution {
        ids: more.iter().map(|&(id, _)| id).collect(),
        probabilities: more.iter().map(|&(_, probability)| probability / sum).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Settings;

    const VOCABULARY: usize = 8;
    const DRAWS: usize = 100_000;

    /// Logits of a model that knows the last two tokens.
    fn target(context: &[u32], of: u32) -> Vec<f32> {
        let last = |back: usize| context.iter().rev().nth(back).copied().unwrap_or(9);
        let mut state = last(0) * 31 + last(1) * 7 + of * 1009 + 1;
        let mut logit = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1u32 << 24) as f32 * 3.0
        };
        (0..VOCABULARY).map(|_| logit()).collect()
    }

    /// A draft of two tokens from another model.
    fn draft(context: &[u32], certain: bool, sampler: &mut Sampler) -> Vec<Proposal> {
        let mut context = context.to_vec();
        let plain = Sampler::new(Settings { temperature: 0.9, top_k: 6, ..Settings::default() });
        (0..2)
            .map(|_| {
                let from = plain.distribution(&mut target(&context, 1)).unwrap();
                let id = if certain { from.ids[0] } else { from.pick(sampler.uniform()) };
                context.push(id);
                Proposal { id, from: (!certain).then_some(from) }
            })
            .collect()
    }

    /// The first `length` tokens of an answer, by drafting.
    fn drafted(settings: &Settings, rule: Rule, certain: bool, length: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(settings.clone());
        sampler.prompt(&[3, 1]);
        let mut drawing = Sampler::new(Settings {
            seed: settings.seed.map(|seed| seed + 1_000_000_007),
            ..Settings::default()
        });
        let mut tokens = vec![3, 1];
        while tokens.len() < length + 2 {
            let proposals = draft(&tokens, certain, &mut drawing);
            let mut logits = Vec::new();
            for i in 0..=proposals.len() {
                let before: Vec<u32> = proposals[..i].iter().map(|p| p.id).collect();
                logits.extend(target(&[&tokens[..], &before].concat(), 0));
            }
            let accepted =
                accept_by(rule, &mut sampler, &mut logits, VOCABULARY, &proposals, |_| true);
            tokens.extend(accepted.unwrap().choices.iter().map(|choice| choice.id));
        }
        tokens[2..length + 2].to_vec()
    }

    /// The probability of each answer of two tokens, by the sampler's own distributions.
    fn expected(settings: &Settings) -> Vec<f64> {
        let mut all = vec![0.0; VOCABULARY * VOCABULARY];
        let mut sampler = Sampler::new(settings.clone());
        sampler.prompt(&[3, 1]);
        let first = sampler.distribution(&mut target(&[3, 1], 0)).unwrap();
        for (&a, &probability) in first.ids.iter().zip(&first.probabilities) {
            let mut sampler = Sampler::new(settings.clone());
            sampler.prompt(&[3, 1]);
            sampler.commit(a);
            let second = sampler.distribution(&mut target(&[3, 1, a], 0)).unwrap();
            for (&b, &after) in second.ids.iter().zip(&second.probabilities) {
                all[a as usize * VOCABULARY + b as usize] = probability * after;
            }
        }
        all
    }

    /// Whether draws fit what is expected: chi-squared with p above 0.01 (critical value after
    /// Wilson and Hilferty 1931), and nothing that cannot be.
    fn fits(settings: &Settings, rule: Rule, certain: bool) -> bool {
        let expected = expected(settings);
        let mut seen = vec![0usize; expected.len()];
        for i in 0..DRAWS {
            let settings = Settings { seed: Some(i as u64), ..settings.clone() };
            let answer = drafted(&settings, rule, certain, 2);
            seen[answer[0] as usize * VOCABULARY + answer[1] as usize] += 1;
        }
        if expected.iter().zip(&seen).any(|(&probability, &seen)| probability == 0.0 && seen > 0) {
            return false;
        }
        // Rare answers together.
        let (mut sum, mut cells, mut rare) = (0.0, 0, (0.0, 0.0));
        for (probability, &seen) in expected.iter().zip(&seen) {
            let expected = probability * DRAWS as f64;
            if expected < 10.0 {
                rare = (rare.0 + expected, rare.1 + seen as f64);
            } else {
                sum += (seen as f64 - expected).powi(2) / expected;
                cells += 1;
            }
        }
        if rare.0 >= 10.0 {
            sum += (rare.1 - rare.0).powi(2) / rare.0;
            cells += 1;
        }
        let freedom = f64::from(cells - 1);
        let part = 2.0 / (9.0 * freedom);
        sum < freedom * (1.0 - part + 2.326 * part.sqrt()).powi(3)
    }

    fn settings() -> [Settings; 2] {
        [
            Settings { temperature: 1.0, ..Settings::default() },
            Settings {
                temperature: 0.8,
                top_k: 6,
                top_p: 0.95,
                min_p: 0.02,
                repetition_penalty: 1.3,
                presence_penalty: 0.4,
                frequency_penalty: 0.3,
                ..Settings::default()
            },
        ]
    }

    #[test]
    fn drawn_drafts_leave_the_targets_distribution() {
        for settings in settings() {
            assert!(fits(&settings, decide, false), "{settings:?}");
        }
    }

    #[test]
    fn certain_drafts_leave_the_targets_distribution() {
        for settings in settings() {
            assert!(fits(&settings, decide, true), "{settings:?}");
        }
    }

    #[test]
    fn wrong_rules_are_caught() {
        // Draws from the whole of p instead of what it has more than q.
        let whole: Rule = |target, proposal, uniform| {
            let drafted = proposal.from.as_ref().map_or(1.0, |q| q.probability(proposal.id));
            match uniform() * drafted < target.probability(proposal.id) {
                true => (proposal.id, true),
                false => (target.pick(uniform()), false),
            }
        };
        assert!(!fits(&settings()[1], whole, false));
        assert!(!fits(&settings()[0], whole, true));
    }

    #[test]
    fn greedy_answers_are_those_of_plain_decoding_under_penalties_too() {
        let penalties =
            Settings { repetition_penalty: 1.5, presence_penalty: 0.7, ..settings()[0].clone() };
        for settings in [Settings::default(), Settings { temperature: 0.0, ..penalties }] {
            let mut plain = Sampler::new(settings.clone());
            plain.prompt(&[3, 1]);
            let mut tokens = vec![3, 1];
            for _ in 0..200 {
                tokens.push(plain.sample(&mut target(&tokens, 0)).unwrap().id);
            }
            for certain in [true, false] {
                let settings = Settings { seed: Some(5), ..settings.clone() };
                assert_eq!(drafted(&settings, decide, certain, 200), tokens[2..]);
            }
        }
    }

    #[test]
    fn an_end_inside_a_draft_ends_it_and_logprobs_are_the_targets() {
        let settings = Settings { logprobs: Some(2), ..Settings::default() };
        let mut plain = Sampler::new(settings.clone());
        let mut context = vec![3, 1];
        let mut choices = Vec::new();
        for _ in 0..3 {
            choices.push(plain.sample(&mut target(&context, 0)).unwrap());
            context.push(choices[choices.len() - 1].id);
        }
        let proposals: Vec<Proposal> =
            choices[..2].iter().map(|choice| Proposal::certain(choice.id)).collect();
        let rows = || (2..5).flat_map(|n| target(&context[..n], 0)).collect::<Vec<f32>>();
        let mut sampler = Sampler::new(settings.clone());
        let all = accept(&mut sampler, &mut rows(), VOCABULARY, &proposals, |_| true).unwrap();
        assert_eq!(all, Accepted { choices: choices.clone(), accepted: 2 });
        let mut sampler = Sampler::new(settings);
        let end = choices[0].id;
        let goes_on = |choice: &Choice| choice.id != end;
        let cut = accept(&mut sampler, &mut rows(), VOCABULARY, &proposals, goes_on).unwrap();
        assert_eq!(cut, Accepted { choices: choices[..1].to_vec(), accepted: 1 });
        assert!(accept(&mut sampler, &mut [0.0; 9], VOCABULARY, &proposals, |_| true).is_err());
    }
}
