//! The walk over a folder's groups: each becomes a weight, a fault or a warning.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use super::claims::Claims;
use super::file::Check;
use super::groups::Group;
use super::layout::{Layout, Layouts, Suffix};
use super::make::Material;
use super::matching::{Answer, Candidate, Options, Signature, producer};
use super::paths::Roots;
use super::sides::{Sides, Stands};
use super::{Classified, Input, Part, Weight, WeightKind};
use crate::dtype::{Dtype, DtypeClass};
use crate::fault::{Code, Fault, Faults, Warning};
use crate::op::Op;
use crate::read::{Inventory, TensorInfo, Values};

/// What an unquantized tensor's layout is called.
const FLOAT: &str = "float";
/// Names in a warning before the others are counted.
const NAMED: usize = 4;

/// The walk's state.
pub struct Sorting<'a> {
    layouts: &'a Layouts,
    inventory: &'a Inventory,
    claims: Claims<'a>,
    sides: Sides,
    values: Values<'a>,
    answers: HashMap<Signature, Rc<Answer>>,
    weights: Vec<Weight>,
    /// Tensors that serve weights of other groups.
    shared: HashSet<u32>,
    /// Companions that have no weight of their own, by suffix.
    orphans: Vec<(Suffix, u32)>,
    /// Suffixes of the companions that quantized weights have.
    companions: HashSet<Suffix>,
    notes: Notes,
    faults: Faults,
    float: Arc<str>,
}

/// Warnings of one kind, gathered: the words, then how many tensors and the first of them.
#[derive(Default)]
struct Notes(BTreeMap<(Code, String), Vec<String>>);

impl Notes {
    fn add(&mut self, code: Code, words: impl Into<String>, tensor: &str) {
        self.0.entry((code, words.into())).or_default().push(tensor.into());
    }

    fn into_warnings(self) -> impl Iterator<Item = Warning> {
        self.0.into_iter().map(|((code, words), tensors)| {
            let message = format!("{words}: {}", named(&tensors));
            Warning::new(code, message).on_tensor(tensors[0].clone())
        })
    }
}

/// The first names, and how many more there are.
fn named(names: &[String]) -> String {
    let shown = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl<'a> Sorting<'a> {
    /// Begins a walk.
    pub fn new(layouts: &'a Layouts, inventory: &'a Inventory) -> Sorting<'a> {
        Sorting {
            layouts,
            inventory,
            claims: Claims::new(&layouts.claims, inventory),
            sides: Sides::new(&layouts.claims, inventory),
            values: Values::new(inventory),
            answers: HashMap::new(),
            weights: Vec::with_capacity(inventory.tensors.len()),
            shared: HashSet::new(),
            orphans: Vec::new(),
            companions: HashSet::new(),
            notes: Notes::default(),
            faults: Faults::default(),
            float: FLOAT.into(),
        }
    }

    /// Takes the next group.
    pub fn group(&mut self, group: &Group) {
        let weights: Vec<_> = group
            .members
            .iter()
            .filter_map(|&(suffix, tensor)| {
                let suffix = suffix.filter(|&suffix| self.layouts.is_weight(suffix))?;
                Some(Candidate { suffix, tensor, group })
            })
            .collect();
        if weights.is_empty() {
            self.without_weight(group);
            return;
        }
        // Two weights under one base name have one output name; the plan refuses that, and here
        // the companions could belong to either.
        if weights.len() > 1 && group.members.len() > weights.len() {
            let names = weights.iter().map(|weight| self.tensor(weight.tensor).name.clone());
            let names: Vec<String> = names.collect();
            let message = format!("{} are both weights of {}", names.join(" and "), group.base);
            self.faults.push(
                Fault::new(Code::NameCollision, message)
                    .on_tensor(names[0].clone())
                    .help("remove the one that does not belong to the model"),
            );
            return;
        }
        for weight in weights {
            self.weight(group, weight);
        }
    }

    /// Ends the walk.
    ///
    /// # Errors
    /// All that was found wrong.
    pub fn finish(mut self) -> Result<Classified, Faults> {
        for (suffix, orphan) in std::mem::take(&mut self.orphans) {
            if self.shared.contains(&orphan) {
                continue;
            }
            let tensor = self.tensor(orphan);
            if self.is_own(suffix, tensor) {
                self.plain(orphan);
                continue;
            }
            let message = "belongs to a quantized weight that is not there";
            let fault = Fault::new(Code::Companion, message).in_file(self.file(tensor));
            self.faults.push(
                fault
                    .on_tensor(tensor.name.clone())
                    .help("the folder is incomplete: download it again"),
            );
        }
        let in_vain =
            self.claims.in_vain(&self.inventory.tensors).into_iter().map(|(says, names)| {
                let words = format!("the config {says} modules that the folder does not have");
                Warning::new(Code::ConfigDisagrees, format!("{words}: {}", named(&names)))
            });
        let in_vain: Vec<Warning> = in_vain.collect();
        let mut weights = self.weights;
        weights.sort_by(|a, b| a.name.cmp(&b.name));
        let warnings = self.notes.into_warnings().chain(in_vain).collect();
        self.faults.or(Classified { weights, warnings })
    }

    fn tensor(&self, index: u32) -> &'a TensorInfo {
        &self.inventory.tensors[index as usize]
    }

    fn file(&self, tensor: &TensorInfo) -> &'a str {
        &self.inventory.shards[tensor.shard as usize].name
    }

    fn without_weight(&mut self, group: &Group) {
        for &(suffix, tensor) in &group.members {
            match suffix {
                Some(suffix) if self.layouts.is_consumed(suffix) => self.drop_stray(tensor),
                Some(suffix) => self.orphans.push((suffix, tensor)),
                None => self.plain(tensor),
            }
        }
    }

    /// Whether a tensor without a weight is one of the model's own that is only called like a
    /// companion: floats whose name does not itself speak of a weight (`.weight_scale`), of a dtype
    /// and a number of axes that no layout has for such a companion.
    fn is_own(&self, suffix: Suffix, tensor: &TensorInfo) -> bool {
        let speaks_of_weight = self.layouts.suffixes[suffix as usize].contains("weight");
        let parts = self.layouts.layouts.iter().flat_map(|layout| &layout.parts);
        let can_be = parts.filter(|part| part.suffixes.contains(&suffix)).any(|part| {
            let axes = tensor.shape.len();
            part.spec.dtype.as_slice().contains(&tensor.dtype)
                && part.shapes.iter().any(|shape| shape.has_room(axes))
        });
        tensor.dtype.class() == DtypeClass::Float && !speaks_of_weight && !can_be
    }

    fn drop_stray(&mut self, tensor: u32) {
        let words = "dropped: only its producer's runtime has use for it";
        self.notes.add(Code::StrayCompanion, words, &self.tensor(tensor).name);
    }

    fn weight(&mut self, group: &Group, weight: Candidate) {
        let tensor = self.tensor(weight.tensor);
        let class = tensor.dtype.class();
        let alone = group.members.len() == 1;
        if class == DtypeClass::Float {
            self.float(group, weight.tensor);
            return;
        }
        let scheme = self.claims.scheme(group.base);
        let (suffix, index) = (weight.suffix, weight.tensor);
        let scheme = scheme.map(|(_, group)| group);
        let options = Options::new(self.layouts, self.inventory, weight, scheme);
        if options.is_empty() {
            match class {
                DtypeClass::Integer if alone => self.plain(index),
                _ => self.unknown(tensor),
            }
            return;
        }
        // Integers that stand alone are tables or masks, unless they are named as weights.
        let bare = self.layouts.suffixes[suffix as usize].is_empty();
        if class == DtypeClass::Integer && alone && (bare || tensor.shape.len() < 2) {
            self.plain(index);
            return;
        }
        let signature = options.signature();
        let answer = self.answers.get(&signature).cloned().unwrap_or_else(|| {
            let answer = Rc::new(options.answer());
            self.answers.insert(signature, answer.clone());
            answer
        });
        match &*answer {
            Answer::Not { code: Code::Companion, .. } if alone && tensor.dtype == Dtype::F8E4M3 => {
                self.unscaled(tensor);
            }
            Answer::Not { layout, code, message, suffix } => {
                let name = format!("{}{suffix}", group.base);
                let named = if suffix.is_empty() { &tensor.name } else { &name };
                let layout = &self.layouts.layouts[*layout];
                self.faults.push(
                    Fault::new(*code, message.clone())
                        .in_file(self.file(tensor))
                        .on_tensor(named.clone())
                        .help(format!("layout {}: {}", layout.name, layout.rule.because)),
                );
            }
            Answer::Is { layout, bindings, overruled } => {
                if let Some(told) = overruled {
                    let words = format!("the config says {told}, the shapes say otherwise");
                    self.notes.add(Code::ConfigDisagrees, words, &tensor.name);
                }
                let found = options.found(*layout);
                let layout = &self.layouts.layouts[*layout];
                let stands = self.sides.stands(self.inventory, layout, group.base, bindings);
                let turned = match stands {
                    Ok(stands) => stands == Stands::Turned,
                    Err(message) => {
                        let fault = Fault::new(Code::BadScale, message).in_file(self.file(tensor));
                        self.faults.push(fault.on_tensor(tensor.name.clone()));
                        return;
                    }
                };
                let (inventory, weight) = (self.inventory, index);
                let material = Material { inventory, layout, bindings, turned, weight, found };
                self.quantized(group, layout, &material);
            }
        }
    }

    fn quantized(&mut self, group: &Group, layout: &Layout, material: &Material) {
        let tensor = self.tensor(material.weight);
        for (tensor, view) in material.found.iter().flatten() {
            if view.is_some() {
                self.shared.insert(*tensor);
            }
        }
        let beside = layout.parts.iter().flat_map(|part| &part.suffixes);
        self.companions.extend(beside.filter(|suffix| group.find(**suffix).is_some()));
        if let Err(fault) = self.check(layout, material) {
            self.faults.push(fault);
            return;
        }
        let made = match material.make() {
            Ok(made) => made,
            Err(message) => {
                let fault = Fault::new(Code::Unsupported, message).in_file(self.file(tensor));
                self.faults.push(fault.on_tensor(tensor.name.clone()));
                return;
            }
        };
        if let Some(why) = made.inexact {
            let words = format!("re-quantized ({}; {why})", layout.name);
            self.notes.add(Code::Requantized, words, &tensor.name);
        }
        if self.claims.denies(group.base) {
            let words = "the config says that these are not quantized, but they are";
            self.notes.add(Code::ConfigDisagrees, words, &tensor.name);
        }
        let roots = Roots {
            config: &self.inventory.config,
            quant_config: self.inventory.quant_config.as_ref(),
            scheme: None,
            base: group.base,
        };
        self.weights.push(Weight {
            name: match made.bare {
                true => group.base.to_string(),
                false => format!("{}.weight", group.base),
            },
            layout: layout.name.clone(),
            producer: producer(layout, &roots),
            dtype: made.dtype,
            shape: made.shape,
            kind: made.kind,
        });
    }

    /// Looks at the few numbers that headers do not tell.
    fn check(&self, layout: &Layout, material: &Material) -> Result<(), Fault> {
        let shape = ["out", "in"].map(|name| material.bindings.get(name).unwrap_or(0) as i64);
        let group = material.bindings.get("group").unwrap_or(0).max(1) as i64;
        let pairs = layout.parts.iter().zip(material.found);
        for (part, (check, found)) in
            pairs.filter_map(|(part, found)| Some((part, (part.spec.check?, found.as_ref()?))))
        {
            let tensor = self.tensor(found.0);
            let fault = |code, message: String| {
                Err(Fault::new(code, message).in_file(self.file(tensor)).on_tensor(&*tensor.name))
            };
            match check {
                Check::Positive => {
                    let numbers = self.values.floats(tensor)?.unwrap_or_default();
                    if let Some(bad) = numbers.iter().find(|n| !n.is_finite() || **n <= 0.0) {
                        let message = format!("{} is {bad}, which decodes to nothing", part.name);
                        return fault(Code::BadScale, message);
                    }
                }
                Check::Sequential => {
                    let numbers = self.values.integers(tensor)?.unwrap_or_default();
                    let ordered = numbers.iter().enumerate().all(|(i, &n)| n == i as i64 / group);
                    if !ordered {
                        let message = "permutes the inputs (GPTQ act-order), which MLX cannot hold";
                        return fault(Code::Unsupported, message.into());
                    }
                }
                Check::Shape => {
                    let numbers = self.values.integers(tensor)?.unwrap_or_default();
                    if !numbers.is_empty() && numbers != shape {
                        let message = format!("says {numbers:?}, but its weight holds {shape:?}");
                        return fault(Code::BadScale, message);
                    }
                }
            }
        }
        Ok(())
    }

    /// A weight of plain floats; what stands beside it is left from a quantization that was not
    /// done.
    fn float(&mut self, group: &Group, index: u32) {
        self.plain(index);
        for &(suffix, tensor) in &group.members {
            let Some(suffix) = suffix.filter(|_| tensor != index) else { continue };
            if self.layouts.is_weight(suffix) && self.layouts.suffixes[suffix as usize] == ".weight"
            {
                continue;
            }
            let info = self.tensor(tensor);
            if self.layouts.is_droppable(suffix) {
                let words = "dropped: its weight is plain floats, so it scales nothing";
                self.notes.add(Code::StrayCompanion, words, &info.name);
            } else {
                let message = "changes the model's results, but its weight is plain floats";
                let fault = Fault::new(Code::Companion, message).in_file(self.file(info));
                self.faults.push(fault.on_tensor(info.name.clone()));
            }
        }
    }

    fn plain(&mut self, index: u32) {
        let tensor = self.tensor(index);
        match tensor.dtype {
            Dtype::F8E4M3 => return self.unscaled(tensor),
            dtype if dtype.class() == DtypeClass::Float8 => return self.unknown(tensor),
            _ => {}
        }
        if let Some(module) = tensor.name.strip_suffix(".weight")
            && tensor.dtype.is_float()
            && !self.claims.is_empty()
            && self.claims.promises(module, &tensor.shape)
        {
            let words = "the config says that these are quantized, but they are plain floats";
            self.notes.add(Code::ConfigDisagrees, words, &tensor.name);
        }
        self.weights.push(Weight {
            name: tensor.name.clone(),
            layout: self.float.clone(),
            producer: None,
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            kind: WeightKind::Plain(Part {
                suffix: "",
                sources: vec![Input { tensor: index, view: None }],
                ops: vec![Op::Copy],
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
            }),
        });
    }

    fn unscaled(&mut self, tensor: &TensorInfo) {
        let message = "is of 8-bit floats without a scale beside them: its values are not known";
        self.faults.push(
            Fault::new(Code::Companion, message)
                .in_file(self.file(tensor))
                .on_tensor(tensor.name.clone())
                .help(
                    "a scale is a tensor beside it, such as .weight_scale or .weight_scale_inv: \
                     take a copy that has them, or the model in BF16",
                ),
        );
    }

    fn unknown(&mut self, tensor: &TensorInfo) {
        let message = format!("{} {:?}: no layout has such a tensor", tensor.dtype, tensor.shape);
        self.faults.push(
            Fault::new(Code::Unsupported, message)
                .in_file(self.file(tensor))
                .on_tensor(tensor.name.clone())
                .help("policies/sources/ holds the layouts that are known"),
        );
    }
}
