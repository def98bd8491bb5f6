//! One group of tensors against the layouts: which it has, or why it has none.

use std::sync::Arc;

use serde_json::Value;

use super::dims::{Bindings, Pattern, solve};
use super::file::Let;
use super::groups::{Group, find};
use super::layout::{Layout, Layouts, Suffix};
use super::paths::{ConfigPath, Roots, numbers};
use crate::dtype::Dtype;
use crate::fault::Code;
use crate::op::View;
use crate::read::Inventory;

/// A companion that was found: the tensor, and the run of it that is taken.
pub type Found = (u32, Option<View>);

/// What a weight turned out to be. Names of tensors are left out, so that weights of one kind
/// share one answer.
#[derive(Debug)]
pub enum Answer {
    /// It has this layout.
    Is {
        /// Index of the layout.
        layout: usize,
        /// What the names of its shape patterns stand for.
        bindings: Bindings,
        /// The value that the config told and the shapes contradict.
        overruled: Option<String>,
    },
    /// It has none; what is wrong with the layout that comes nearest.
    Not {
        /// Index of that layout.
        layout: usize,
        /// Code of the fault.
        code: Code,
        /// The fault, in words.
        message: String,
        /// Suffix of the tensor that is at fault.
        suffix: String,
    },
}

/// A weight and its surroundings, as far as layouts look.
pub struct Candidate<'a> {
    /// Its suffix.
    pub suffix: Suffix,
    /// Its tensor.
    pub tensor: u32,
    /// Its group.
    pub group: &'a Group<'a>,
}

/// What makes two weights of one kind: dtypes, shapes and what the config tells of them.
#[derive(PartialEq, Eq, Hash)]
pub struct Signature {
    members: Vec<(Option<Suffix>, Dtype, Vec<u64>)>,
    shared: Vec<(usize, usize, Dtype, Vec<u64>)>,
    told: Vec<(usize, usize, Vec<Vec<u64>>)>,
}

/// The layouts that a weight may have, with what each finds beside it.
pub struct Options<'a> {
    layouts: &'a Layouts,
    inventory: &'a Inventory,
    candidate: Candidate<'a>,
    /// Layout, its companions, and candidate values of its `let` names with whether the config
    /// told them.
    options: Vec<(usize, Vec<Option<Found>>, Vec<Told>)>,
}

/// Values for the names of a `let` entry, and whether the config told them.
type Told = Vec<(Vec<u64>, bool)>;

impl<'a> Options<'a> {
    /// Gathers what layouts could be meant.
    pub fn new(
        layouts: &'a Layouts,
        inventory: &'a Inventory,
        candidate: Candidate<'a>,
        scheme: Option<&Value>,
    ) -> Options<'a> {
        let weight = &inventory.tensors[candidate.tensor as usize];
        let roots = Roots {
            config: &inventory.config,
            quant_config: inventory.quant_config.as_ref(),
            scheme,
            base: candidate.group.base,
        };
        let fits = |layout: &Layout| {
            layout.weight.contains(&candidate.suffix)
                && layout.takes(weight.dtype)
                && layout.when.iter().all(|(path, expected)| {
                    path.values(&roots).iter().any(|value| value.as_str() == Some(expected))
                })
        };
        let gather = |(index, layout): (usize, &Layout)| {
            let found = layout.parts.iter().map(|part| {
                let own = part.suffixes.iter().find_map(|&suffix| candidate.group.find(suffix));
                own.map(|tensor| (tensor, None))
                    .or_else(|| shared(inventory, candidate.group.base, &part.shared))
            });
            (index, found.collect(), told(layout, &roots))
        };
        let mut options: Vec<_> =
            layouts.layouts.iter().enumerate().filter(|(_, l)| fits(l)).map(gather).collect();
        // A layout with conditions says more than one without.
        options.sort_by_key(|(index, ..)| layouts.layouts[*index].when.is_empty());
        Options { layouts, inventory, candidate, options }
    }

    /// Whether no layout has such a weight.
    pub fn is_empty(&self) -> bool {
        self.options.is_empty()
    }

    /// The companions that a layout found, by their place in the layout.
    pub fn found(&self, layout: usize) -> &[Option<Found>] {
        self.options.iter().find(|(index, ..)| *index == layout).map_or(&[], |(_, found, _)| found)
    }

    /// What answers are shared by.
    pub fn signature(&self) -> Signature {
        let tensors = &self.inventory.tensors;
        let members = self.candidate.group.members.iter().map(|(suffix, tensor)| {
            let tensor = &tensors[*tensor as usize];
            (*suffix, tensor.dtype, tensor.shape.clone())
        });
        let mut shared = Vec::new();
        let mut told = Vec::new();
        for (layout, found, lets) in &self.options {
            for (part, found) in found.iter().enumerate() {
                if let Some((tensor, Some(view))) = found {
                    let dtype = tensors[*tensor as usize].dtype;
                    shared.push((*layout, part, dtype, view.shape.clone()));
                }
            }
            for (n, values) in lets.iter().enumerate() {
                told.push((*layout, n, values.iter().map(|(values, _)| values.clone()).collect()));
            }
        }
        Signature { members: members.collect(), shared, told }
    }

    /// Tries the layouts.
    pub fn answer(&self) -> Answer {
        let mut nearest: Option<(usize, Answer)> = None;
        for (layout, found, told) in &self.options {
            match self.attempt(*layout, found, told) {
                Ok(answer) => return answer,
                Err((rank, answer)) => {
                    if nearest.as_ref().is_none_or(|(best, _)| rank > *best) {
                        nearest = Some((rank, answer));
                    }
                }
            }
        }
        nearest.map_or_else(
            || Answer::Not {
                layout: 0,
                code: Code::Unsupported,
                message: "no layout has such a weight".into(),
                suffix: String::new(),
            },
            |(_, answer)| answer,
        )
    }

    /// One layout: what it is, or what is wrong and how near it came.
    fn attempt(
        &self,
        index: usize,
        found: &[Option<Found>],
        told: &[Told],
    ) -> Result<Answer, (usize, Answer)> {
        let layout = &self.layouts.layouts[index];
        let not = |rank, code, message: String, suffix: &str| {
            (rank, Answer::Not { layout: index, code, message, suffix: suffix.to_string() })
        };
        if let Some(words) = &layout.file.refuse {
            return Err(not(usize::MAX, Code::Unsupported, words.clone(), ""));
        }
        let mut rank = 0;
        let mut wrong = None;
        for (part, found) in layout.parts.iter().zip(found) {
            let Some((tensor, _)) = found else {
                if !part.spec.optional {
                    let name = self.first_suffix(part.suffixes.first());
                    let message = format!("has no {name}, which {} needs", layout.name);
                    wrong.get_or_insert((Code::Companion, message, String::new()));
                }
                continue;
            };
            let dtype = self.inventory.tensors[*tensor as usize].dtype;
            let allowed = part.spec.dtype.as_slice();
            if allowed.contains(&dtype) {
                rank += 2;
            } else {
                rank += 1;
                let names: Vec<&str> = allowed.iter().map(|dtype| dtype.as_str()).collect();
                let message = format!("is {dtype}; {} needs {}", layout.name, names.join(" or "));
                wrong = Some((Code::BadScale, message, self.suffix_of(*tensor)));
            }
        }
        if let Some((code, message, suffix)) = wrong {
            return Err(not(rank, code, message, &suffix));
        }
        let extra = self.extra(layout);
        if let Some(suffix) = extra {
            let message = format!("stands beside it, which {} does not have", layout.name);
            return Err(not(rank, Code::Companion, message, &suffix));
        }

        let mut first_failure = None;
        let mut overruled = None;
        for bindings in combinations(layout, told) {
            match self.fit(layout, found, &bindings.values) {
                Ok(solved) => {
                    let overruled = overruled.filter(|_| !bindings.told);
                    return Ok(Answer::Is { layout: index, bindings: solved, overruled });
                }
                Err(failure) => {
                    if bindings.told && overruled.is_none() {
                        overruled = Some(bindings.words.clone());
                    }
                    first_failure.get_or_insert(failure);
                }
            }
        }
        let silent = layout.file.lets.iter().zip(told).find(|(_, values)| values.is_empty());
        if let Some((entry, _)) = silent {
            return Err(not(rank + 1, Code::BadConfig, self.untold(layout, entry), ""));
        }
        let (suffix, why) = first_failure.unwrap_or_default();
        Err(not(rank + 1, Code::BadScale, format!("{why} ({})", layout.name), &suffix))
    }

    /// What to say of names that the shapes leave open and the config does not tell.
    fn untold(&self, layout: &Layout, entry: &Let) -> String {
        let roots = Roots {
            config: &self.inventory.config,
            quant_config: self.inventory.quant_config.as_ref(),
            scheme: None,
            base: self.candidate.group.base,
        };
        let wrong = entry.config.iter().find_map(|path| {
            let value = ConfigPath::parse(path).values(&roots).into_iter().next()?;
            Some(format!("{path} is {value}, and not whole numbers"))
        });
        let lacks = || {
            let general = entry.config.iter().filter(|path| !path.contains("<b>"));
            let paths: Vec<&str> = general.map(String::as_str).collect();
            format!("there is no {}", paths.join(" and no "))
        };
        format!(
            "{} needs {} of config.json: {}",
            layout.name,
            entry.names.join(" and "),
            wrong.unwrap_or_else(lacks)
        )
    }

    /// Solves the shapes, with the first alternative of each companion's that fits.
    fn fit(
        &self,
        layout: &Layout,
        found: &[Option<Found>],
        known: &Bindings,
    ) -> Result<Bindings, (String, String)> {
        let tensors = &self.inventory.tensors;
        let weight = &tensors[self.candidate.tensor as usize];
        let there: Vec<(usize, &Found)> =
            found.iter().enumerate().filter_map(|(n, f)| f.as_ref().map(|f| (n, f))).collect();
        let alternatives: Vec<usize> =
            there.iter().map(|(part, _)| layout.parts[*part].shapes.len()).collect();
        let mut failure = None;
        for choice in choices(&alternatives) {
            let mut pairs: Vec<(&Pattern, &[u64])> = vec![(&layout.shape, &weight.shape)];
            for ((part, (tensor, view)), choice) in there.iter().zip(&choice) {
                let shape = match view {
                    Some(view) => &view.shape,
                    None => &tensors[*tensor as usize].shape,
                };
                pairs.push((&layout.parts[*part].shapes[*choice], shape));
            }
            match solve(&pairs, known.clone()) {
                Ok(solved) => return Ok(solved),
                Err((0, why)) => failure = failure.or(Some((String::new(), why))),
                Err((n, why)) => {
                    let (tensor, _) = there[n - 1].1;
                    failure = failure.or(Some((self.suffix_of(*tensor), why)));
                }
            }
        }
        Err(failure.unwrap_or_default())
    }

    /// A member of the group that the layout knows nothing of.
    fn extra(&self, layout: &Layout) -> Option<String> {
        let known = |suffix: &Suffix| {
            layout.weight.contains(suffix)
                || self.layouts.is_consumed(*suffix)
                || layout.parts.iter().any(|part| part.suffixes.contains(suffix))
        };
        let members = &self.candidate.group.members;
        let extra = members.iter().find(|(suffix, _)| suffix.is_none_or(|s| !known(&s)))?;
        Some(self.suffix_of(extra.1))
    }

    fn suffix_of(&self, tensor: u32) -> String {
        let name = &self.inventory.tensors[tensor as usize].name;
        name.strip_prefix(self.candidate.group.base).unwrap_or(name).to_string()
    }

    fn first_suffix(&self, suffix: Option<&Suffix>) -> String {
        suffix.map_or("scales".into(), |&suffix| self.layouts.suffixes[suffix as usize].clone())
    }
}

/// Finds a companion that serves several weights, and this weight's run of it.
fn shared(
    inventory: &Inventory,
    base: &str,
    entries: &[(regex::Regex, String, Option<[u64; 2]>)],
) -> Option<Found> {
    entries.iter().find_map(|(regex, name, part)| {
        let captures = regex.captures(base)?;
        let index: u64 = captures.name("index")?.as_str().parse().ok()?;
        let mut full = String::new();
        captures.expand(name, &mut full);
        let (tensor, info) = find(inventory, &full)?;
        let (&count, rest) = info.shape.split_first()?;
        let each: u64 = rest.iter().product();
        let mut shape = rest.to_vec();
        let mut start = index * each;
        if let Some([which, of]) = part {
            let rows = shape.first_mut().filter(|rows| rows.is_multiple_of(*of))?;
            *rows /= of;
            start += which * (each / of);
        }
        (index < count).then_some((tensor, Some(View { start, shape })))
    })
}

/// What the config tells of a layout's `let` names, then the defaults.
fn told(layout: &Layout, roots: &Roots) -> Vec<Told> {
    layout
        .file
        .lets
        .iter()
        .zip(&layout.lets)
        .map(|(entry, paths)| {
            let mut values: Told = Vec::new();
            let config = paths.iter().flat_map(|path| path.values(roots));
            for value in config.filter_map(|value| numbers(&value, entry.names.len())) {
                if !values.iter().any(|(known, _)| *known == value) {
                    values.push((value, true));
                }
            }
            for value in &entry.default {
                if !values.iter().any(|(known, _)| known == value) {
                    values.push((value.clone(), false));
                }
            }
            values
        })
        .collect()
}

struct Combination {
    values: Bindings,
    told: bool,
    words: String,
}

/// Every combination of the candidate values; one without values when there are none.
fn combinations(layout: &Layout, told: &[Told]) -> Vec<Combination> {
    let sizes: Vec<usize> = told.iter().map(|values| values.len().max(1)).collect();
    choices(&sizes)
        .into_iter()
        .map(|choice| {
            let mut combination =
                Combination { values: Bindings::default(), told: false, words: String::new() };
            for ((entry, values), choice) in layout.file.lets.iter().zip(told).zip(choice) {
                let Some((values, told)) = values.get(choice) else { continue };
                for (name, value) in entry.names.iter().zip(values) {
                    combination.values.set(name, *value);
                }
                if *told {
                    combination.told = true;
                    combination.words = format!("{} = {values:?}", entry.names.join(", "));
                }
            }
            combination
        })
        .collect()
}

/// Every choice of one out of each of `sizes`, the first ones first.
fn choices(sizes: &[usize]) -> Vec<Vec<usize>> {
    sizes.iter().fold(vec![Vec::new()], |all, &size| {
        let longer = |choice: &Vec<usize>| {
            let choice = choice.clone();
            (0..size).map(move |n| [choice.as_slice(), &[n]].concat())
        };
        all.iter().flat_map(longer).collect()
    })
}

/// The producer's name: the config's own word, else the layout's.
pub fn producer(layout: &Layout, roots: &Roots) -> Option<Arc<str>> {
    let told = layout.producer_from.iter().flat_map(|path| path.values(roots));
    let told = told.filter_map(|value| value.as_str().map(Arc::from)).next();
    told.or_else(|| layout.file.producer.as_deref().map(Arc::from))
}
