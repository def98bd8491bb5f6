//! Choosing experts for tokens (Shazeer et al. 2017; DeepSeek-V3, 2024).
//!
//! Logits of all experts become scores; the best ones are chosen, by what is added to their scores
//! for this only, and perhaps from the best groups only; their scores, perhaps normalized, are the
//! weights that their outputs are summed with.

use crate::elements::{by_rows_of, exp, sigmoid};
use crate::vectorized::vectorized;

/// How logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// A softmax over all experts (Mixtral).
    Softmax,
    /// Ranked as they are; a softmax over the chosen ones (gpt-oss).
    SoftmaxOfChosen,
    /// 1 / (1 + e^-x) of each (DeepSeek-V3).
    Sigmoid,
}

/// How experts are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Router<'a> {
    /// Experts to choose from.
    pub experts: usize,
    /// Experts that are chosen for a token.
    pub top_k: usize,
    /// How logits become scores.
    pub scoring: Scoring,
    /// Added to scores where they are ranked, `[experts]`.
    pub correction: Option<&'a [f32]>,
    /// Groups of neighbouring experts.
    pub groups: usize,
    /// Groups that are chosen from: those whose best two experts have the highest sums.
    pub top_groups: usize,
    /// Whether weights are divided by their sum and 1e-20.
    pub normalize: bool,
    /// Multiplies weights.
    pub scale: f32,
    /// Multiplies the weight of each expert, `[experts]`.
    pub expert_scale: Option<&'a [f32]>,
}

/// The experts chosen for each token, `[tokens, top_k]`, the best first and of equals the first, and
/// their weights, `[tokens, top_k]`, from logits `[tokens, experts]`.
///
/// # Panics
/// When lengths do not fit each other, experts are no whole groups, or more are to be chosen than
/// there are.
pub fn route(router: &Router, logits: &[f32], chosen: &mut [u32], weights: &mut [f32]) {
    let Router { experts, top_k, groups, top_groups, .. } = *router;
    assert!(experts > 0 && logits.len().is_multiple_of(experts), "logits");
    assert!(groups > 0 && experts.is_multiple_of(groups), "{experts} experts in {groups} groups");
    assert!(top_groups > 0 && top_groups <= groups, "{top_groups} of {groups} groups");
    let open = experts / groups * top_groups;
    assert!(top_k > 0 && top_k <= open, "{top_k} of {open} experts");
    for each in [router.correction, router.expert_scale].into_iter().flatten() {
        assert_eq!(each.len(), experts, "of each expert");
    }
    let tokens = logits.len() / experts;
    assert!(chosen.len() == tokens * top_k && weights.len() == chosen.len(), "chosen");
    // Of each token the experts and their weights, so that threads write one array.
    let mut pairs = vec![0.0; 2 * chosen.len()];
    by_rows_of(&mut pairs, 2 * top_k, logits.len(), &|token, row| {
        let (chosen, weights) = row.split_at_mut(top_k);
        choose(router, &logits[token * experts..(token + 1) * experts], chosen, weights);
    });
    let rows = chosen.chunks_exact_mut(top_k).zip(weights.chunks_exact_mut(top_k));
    for ((chosen, weights), row) in rows.zip(pairs.chunks_exact(2 * top_k)) {
        let (experts, given) = row.split_at(top_k);
        chosen.iter_mut().zip(experts).for_each(|(to, expert)| *to = *expert as u32);
        weights.copy_from_slice(given);
    }
}

/// For one token; experts are given as floats, which numbers so small are exactly.
fn choose(router: &Router, logits: &[f32], chosen: &mut [f32], weights: &mut [f32]) {
    let mut scores = logits.to_vec();
    match router.scoring {
        Scoring::Softmax => softmax(&mut scores),
        Scoring::Sigmoid => sigmoids(&mut scores),
        Scoring::SoftmaxOfChosen => {}
    }
    let mut ranked = scores.clone();
    if let Some(correction) = router.correction {
        ranked.iter_mut().zip(correction).for_each(|(score, more)| *score += more);
    }
    if router.top_groups < router.groups {
        only_best_groups(&mut ranked, router.groups, router.top_groups);
    }
    for ((expert, _), (chosen, weight)) in
        best(&ranked, chosen.len()).into_iter().zip(chosen.iter_mut().zip(&mut *weights))
    {
        *chosen = expert as f32;
        *weight = scores[expert];
    }
    if router.scoring == Scoring::SoftmaxOfChosen {
        softmax(weights);
    }
    if router.normalize {
        let sum = weights.iter().sum::<f32>() + 1e-20;
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    for (weight, expert) in weights.iter_mut().zip(&*chosen) {
        *weight *= router.scale;
        if let Some(scale) = router.expert_scale {
            *weight *= scale[*expert as usize];
        }
    }
}

/// The best so many, the best first and of equals the first, and what they have.
fn best(ranked: &[f32], count: usize) -> Vec<(usize, f32)> {
    let mut best: Vec<(usize, f32)> = Vec::with_capacity(count + 1);
    for (index, &rank) in ranked.iter().enumerate() {
        // What is no number is worse than all others.
        let rank = if rank.is_nan() { f32::NEG_INFINITY } else { rank };
        if best.len() == count && best.last().is_some_and(|&(_, least)| least >= rank) {
            continue;
        }
        let at = best.partition_point(|&(_, better)| better >= rank);
        best.insert(at, (index, rank));
        best.truncate(count);
    }
    best
}

fn only_best_groups(ranked: &mut [f32], groups: usize, top_groups: usize) {
    let size = ranked.len() / groups;
    let goodness = |group: &[f32]| best(group, 2).iter().map(|(_, rank)| rank).sum::<f32>();
    let goodness: Vec<f32> = ranked.chunks_exact(size).map(goodness).collect();
    let kept = best(&goodness, top_groups);
    for (group, ranked) in ranked.chunks_exact_mut(size).enumerate() {
        if !kept.iter().any(|&(kept, _)| kept == group) {
            ranked.fill(f32::NEG_INFINITY);
        }
    }
}

vectorized! {
    fn softmax(x: &mut [f32]) {
        let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        x.iter_mut().for_each(|x| *x = exp(*x - most));
        let sum = x.iter().sum::<f32>();
        x.iter_mut().for_each(|x| *x /= sum);
    }

    fn sigmoids(x: &mut [f32]) {
        x.iter_mut().for_each(|x| *x = sigmoid(*x));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Instructions;
    use crate::tests::Random;
    use crate::tests::environment::Environment;

    /// By the definition, in f64, by sorting: those chosen and their weights, and all ranks.
    fn slowly(router: &Router, logits: &[f32]) -> (Vec<(usize, f64)>, Vec<f64>) {
        let softmax = |x: &[f64]| -> Vec<f64> {
            let sum: f64 = x.iter().map(|x| x.exp()).sum();
            x.iter().map(|x| x.exp() / sum).collect()
        };
        let logits: Vec<f64> = logits.iter().map(|&x| x.into()).collect();
        let scores = match router.scoring {
            Scoring::Softmax => softmax(&logits),
            Scoring::SoftmaxOfChosen => logits,
            Scoring::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        };
        let ranked: Vec<f64> = (0..scores.len())
            .map(|i| scores[i] + router.correction.map_or(0.0, |correction| correction[i].into()))
            .collect();
        let size = scores.len() / router.groups;
        let mut groups: Vec<(f64, usize)> = (0..router.groups)
            .map(|group| {
                let mut of: Vec<f64> = ranked[group * size..(group + 1) * size].to_vec();
                of.sort_by(|a, b| b.total_cmp(a));
                (of.iter().take(2).sum(), group)
            })
            .collect();
        groups.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let open = |expert: &usize| {
            groups[..router.top_groups].iter().any(|(_, group)| *group == expert / size)
        };
        let mut order: Vec<usize> = (0..scores.len()).filter(open).collect();
        order.sort_by(|&a, &b| ranked[b].total_cmp(&ranked[a]).then(a.cmp(&b)));
        order.truncate(router.top_k);
        let mut weights: Vec<f64> = order.iter().map(|&expert| scores[expert]).collect();
        if router.scoring == Scoring::SoftmaxOfChosen {
            weights = softmax(&weights);
        }
        let sum = if router.normalize { weights.iter().sum::<f64>() + 1e-20 } else { 1.0 };
        let scale = |expert: usize| {
            f64::from(router.scale) * router.expert_scale.map_or(1.0, |scale| scale[expert].into())
        };
        let weights = order.iter().zip(weights).map(|(&e, weight)| (e, weight / sum * scale(e)));
        (weights.collect(), ranked)
    }

    #[test]
    fn experts_are_chosen_as_defined() {
        let mut random = Random(21);
        for (tokens, experts, top_k, groups, top_groups) in [
            (1, 8, 2, 1, 1),
            (3, 1, 1, 1, 1),
            (5, 7, 7, 1, 1),
            (7, 64, 6, 8, 3),
            (9, 12, 4, 6, 2),
            (400, 256, 8, 8, 4),
        ] {
            let mut each = |count: usize, low: f32| -> Vec<f32> {
                (0..count).map(|_| low + random.float()).collect()
            };
            let (correction, expert_scale) = (each(experts, 0.0), each(experts, 2.0));
            let logits: Vec<f32> = each(tokens * experts, 0.0).iter().map(|x| x * 5.0).collect();
            for scoring in [Scoring::Softmax, Scoring::SoftmaxOfChosen, Scoring::Sigmoid] {
                for all in [false, true] {
                    let router = Router {
                        experts,
                        top_k,
                        scoring,
                        correction: all.then_some(&correction),
                        groups,
                        top_groups,
                        normalize: all,
                        scale: if all { 2.5 } else { 1.0 },
                        expert_scale: all.then_some(&expert_scale),
                    };
                    for instructions in Instructions::ALL {
                        if !instructions.is_there() {
                            continue;
                        }
                        let mut chosen = vec![u32::MAX; tokens * top_k];
                        let mut weights = vec![f32::NAN; tokens * top_k];
                        Environment::run(instructions, false, || {
                            route(&router, &logits, &mut chosen, &mut weights);
                        });
                        for (token, logits) in logits.chunks(experts).enumerate() {
                            let (wanted, ranked) = slowly(&router, logits);
                            for (i, (expert, weight)) in wanted.into_iter().enumerate() {
                                let (at, found) = (token * top_k + i, weights[token * top_k + i]);
                                if chosen[at] as usize != expert {
                                    // Equal but for roundings.
                                    let apart = ranked[chosen[at] as usize] - ranked[expert];
                                    assert!(apart.abs() < 1e-6, "{router:?} {logits:?}");
                                    continue;
                                }
                                let near = (f64::from(found) / weight - 1.0).abs() < 2e-6;
                                assert!(near, "{router:?}: {found}, not {weight}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn of_equals_the_first_are_chosen() {
        let router = Router {
            experts: 6,
            top_k: 2,
            scoring: Scoring::Sigmoid,
            correction: None,
            groups: 3,
            top_groups: 2,
            normalize: true,
            scale: 1.0,
            expert_scale: None,
        };
        let choose = |router: &Router, logits: &[f32; 6]| {
            let (mut chosen, mut weights) = ([9; 2], [f32::NAN; 2]);
            route(router, logits, &mut chosen, &mut weights);
            (chosen, weights)
        };
        let same = [0.0; 6];
        assert_eq!(choose(&router, &same), ([0, 1], [0.5; 2]));
        assert_eq!(choose(&router, &[0.0, 0.0, 0.0, 0.0, 0.0, 1.0]).0, [5, 0]);
        assert_eq!(
            choose(&Router { top_groups: 1, ..router }, &[1.0, 0.0, 0.0, 1.0, 1.0, 0.0]).0,
            [0, 1]
        );
        let everywhere = Router { top_groups: 3, ..router };
        assert_eq!(choose(&everywhere, &[f32::NAN, 0.0, -0.0, 0.0, f32::NAN, -1.0]).0, [1, 2]);
        // Nothing is left of any score.
        let (chosen, weights) = choose(&everywhere, &[-1e4; 6]);
        assert!(chosen == [0, 1] && weights == [0.0; 2], "{chosen:?} {weights:?}");
    }

    #[test]
    #[should_panic(expected = "5 of 4 experts")]
    fn more_than_there_are_are_not_chosen() {
        let router = Router {
            experts: 8,
            top_k: 5,
            scoring: Scoring::Softmax,
            correction: None,
            groups: 2,
            top_groups: 1,
            normalize: false,
            scale: 1.0,
            expert_scale: None,
        };
        route(&router, &[0.0; 8], &mut [0; 5], &mut [0.0; 5]);
    }
}
