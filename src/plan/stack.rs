//! Stacking: weights of single experts become one piece, in numeric order and without a gap.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::RuleRef;
use crate::classify::Weight;
use crate::fault::{Code, Fault, Faults};
use crate::policy::{Decider, Policy};

/// A weight, or several stacked, with the decision about it.
pub(super) struct Piece<'w> {
    pub name: String,
    /// Members in the order in which they are stacked; one for a weight that is not stacked.
    pub members: Vec<&'w Weight>,
    /// The expert group's blob.
    pub group: Option<String>,
    /// Why it is stacked.
    pub stack: Option<Arc<RuleRef>>,
}

impl Piece<'_> {
    /// Logical shape of the whole.
    pub fn shape(&self) -> Vec<u64> {
        let shape = &self.members[0].shape;
        match self.group {
            None => shape.clone(),
            Some(_) => [&[self.members.len() as u64], shape.as_slice()].concat(),
        }
    }
}

/// Weights in output order: plain ones by name, then stacked experts by name.
pub(super) fn pieces<'w>(
    policy: &Policy,
    decider: &mut Decider,
    weights: &'w [Weight],
    faults: &mut Faults,
) -> Vec<Piece<'w>> {
    let mut plain = Vec::new();
    let mut stacks: BTreeMap<String, Stacking<'w>> = BTreeMap::new();
    for weight in weights {
        match decider.dropped(&weight.name) {
            Ok(None) => {}
            Ok(Some(_)) => continue,
            Err(fault) => {
                faults.push(fault);
                continue;
            }
        }
        let Some(expert) = policy.expert(&weight.name) else {
            let name = weight.name.clone();
            plain.push(Piece { name, members: vec![weight], group: None, stack: None });
            continue;
        };
        let stacking = stacks.entry(expert.stacked()).or_insert_with(|| Stacking {
            blob: expert.blob(),
            group: expert.group().to_string(),
            rest: expert.rest().to_string(),
            rule: expert.rule.info.clone(),
            members: BTreeMap::new(),
        });
        let index = expert.written();
        match expert.number() {
            Some(number) => {
                if let Some(other) = stacking.members.insert(number, weight) {
                    let message = format!("expert {index} is there twice, also as {}", other.name);
                    faults.push(Fault::new(Code::BadExperts, message).on_tensor(&weight.name));
                }
            }
            None => faults.push(
                Fault::new(Code::BadExperts, format!("`{index}` is not the number of an expert"))
                    .on_tensor(&weight.name)
                    .help("experts are numbered 0, 1, 2, … without signs or leading zeros"),
            ),
        }
    }
    plain.sort_by(|a, b| a.name.cmp(&b.name));
    check_even(&stacks, faults);
    check_apart(&stacks, &plain, faults);
    for (name, stacking) in stacks {
        if let Some(piece) = stacking.piece(name, faults) {
            plain.push(piece);
        }
    }
    plain
}

/// The experts of one stacked tensor, by number.
struct Stacking<'w> {
    blob: String,
    /// The groups of the rule's pattern: what the experts hang on, and the rest.
    group: String,
    rest: String,
    rule: Arc<RuleRef>,
    members: BTreeMap<u32, &'w Weight>,
}

impl<'w> Stacking<'w> {
    fn piece(self, name: String, faults: &mut Faults) -> Option<Piece<'w>> {
        let count = self.members.len();
        let first = *self.members.values().next()?;
        let before = faults.0.len();
        let last = *self.members.keys().next_back()? as usize;
        if last + 1 != count {
            let missing: Vec<String> = (0..=last as u32)
                .filter(|number| !self.members.contains_key(number))
                .take(5)
                .map(|number| number.to_string())
                .collect();
            faults.push(
                Fault::new(
                    Code::BadExperts,
                    format!(
                        "{count} experts, but numbers up to {last}: missing {}",
                        missing.join(", ")
                    ),
                )
                .on_tensor(&name)
                .help(format!(
                    "the folder is incomplete, or the pattern of {} does not match them all",
                    place(&self.rule)
                )),
            );
        }
        for weight in self.members.values() {
            if (weight.dtype, &weight.shape, &weight.layout)
                != (first.dtype, &first.shape, &first.layout)
            {
                faults.push(
                    Fault::new(
                        Code::BadExperts,
                        format!(
                            "{} {:?} ({}) cannot stack with {} {} {:?} ({})",
                            weight.dtype,
                            weight.shape,
                            weight.layout,
                            first.name,
                            first.dtype,
                            first.shape,
                            first.layout
                        ),
                    )
                    .on_tensor(&weight.name),
                );
            }
        }
        (faults.0.len() == before).then(|| Piece {
            name,
            members: self.members.into_values().collect(),
            group: Some(self.blob),
            stack: Some(self.rule),
        })
    }
}

/// Where a rule stands.
fn place(rule: &RuleRef) -> String {
    format!("rule {} ({}:{})", rule.id, rule.file, rule.line)
}

/// No expert stands apart from the others of its kind.
fn check_apart(stacks: &BTreeMap<String, Stacking>, plain: &[Piece], faults: &mut Faults) {
    let kinds: std::collections::HashMap<(&str, &str), &Stacking> = stacks
        .values()
        .map(|stacking| ((stacking.group.as_str(), stacking.rest.as_str()), stacking))
        .collect();
    if kinds.is_empty() {
        return;
    }
    for piece in plain {
        let name = piece.name.as_str();
        for (at, _) in name.match_indices('.') {
            let Some((number, rest)) = name[at + 1..].split_once('.') else { break };
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            if !is_number {
                continue;
            }
            if let Some(stacking) = kinds.get(&(&name[..at], rest)) {
                let message = format!(
                    "it is left apart, but {} others of {} are stacked",
                    stacking.members.len(),
                    stacking.group
                );
                faults.push(
                    Fault::new(Code::BadExperts, message).on_tensor(name).help(format!(
                        "the pattern of {} does not match it",
                        place(&stacking.rule)
                    )),
                );
            }
        }
    }
}

/// All projections of a group have the same number of experts.
fn check_even(stacks: &BTreeMap<String, Stacking>, faults: &mut Faults) {
    let mut groups: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for (name, stacking) in stacks {
        groups.entry(&stacking.blob).or_default().push((name, stacking.members.len()));
    }
    for (group, members) in groups {
        let most = members.iter().map(|(_, count)| *count).max().unwrap_or(0);
        for (name, count) in members.iter().filter(|(_, count)| *count != most) {
            faults.push(
                Fault::new(
                    Code::BadExperts,
                    format!("{count} experts, but others of {group} have {most}"),
                )
                .on_tensor(*name),
            );
        }
    }
}
