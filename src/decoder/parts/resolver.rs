//! Values, names and sizes at one place of a description, and what is wrong with them.

use std::collections::{BTreeSet, HashSet};

use serde_json::Value as Json;

use super::{Described, Function, Linear, Matrix, Norm, NormWeight, Rope, Table};
use crate::decoder::description::{self, Activation, Expr, NormDefaults, NormOrName};
use crate::decoder::rope::{Given, Rotation};
use crate::decoder::values::{Scope, shown};
use crate::document::{Document, Step};
use crate::expr::Reason;
use crate::fault::{Code, Fault, Faults};

/// Sizes are counted in 32 bits by whatever computes with them.
const LARGEST: i64 = i32::MAX as i64;

/// A place in a description, and what has been found so far.
pub struct Resolver<'a> {
    document: Option<&'a Document>,
    pub(super) table: &'a Table<'a>,
    /// What expressions see here.
    pub(super) scope: Scope,
    /// Defaults of norms.
    pub(super) norms: NormDefaults,
    /// What names hang on.
    path: Vec<String>,
    /// Where in the policy file.
    at: Vec<Step>,
    used: HashSet<String>,
    pub(super) faults: Faults,
    /// Layers whose keys others read.
    pub(super) read_by_others: BTreeSet<usize>,
    /// Elements of a layer's part of the per-layer embedding, where there is one.
    pub(super) per_layer: Option<i64>,
    /// The furthest that a rotation reaches.
    pub(super) reach: Option<usize>,
}

impl<'a> Resolver<'a> {
    /// At the top of a description.
    pub fn new(described: Described<'a>, config: &Json, table: &'a Table<'a>) -> Resolver<'a> {
        Resolver {
            document: described.document,
            table,
            scope: described.decoder.scope(config),
            norms: described.decoder.norms.clone(),
            path: Vec::new(),
            at: vec!["decoder".into()],
            used: HashSet::new(),
            faults: Faults::default(),
            read_by_others: BTreeSet::new(),
            per_layer: None,
            reach: None,
        }
    }

    // ---- places and faults ----

    /// Resolves what stands under a key, or at an index of a list.
    pub fn within<T>(&mut self, step: impl Into<Step>, resolve: impl FnOnce(&mut Self) -> T) -> T {
        self.at.push(step.into());
        let resolved = resolve(self);
        self.at.pop();
        resolved
    }

    /// Resolves with names hanging on `path` too.
    pub fn under<T>(&mut self, path: &str, resolve: impl FnOnce(&mut Self) -> T) -> T {
        let depth = self.path.len();
        if !path.is_empty() {
            self.path.push(path.into());
        }
        let resolved = resolve(self);
        self.path.truncate(depth);
        resolved
    }

    /// Notes what is wrong with the value of a key.
    pub fn fault(&mut self, key: &str, message: impl Into<String>) {
        self.push(key, Fault::new(Code::Decoder, message));
    }

    /// The same of a tensor.
    pub fn fault_of(&mut self, key: &str, tensor: &str, message: impl Into<String>) {
        self.push(key, Fault::new(Code::Decoder, message).on_tensor(tensor));
    }

    /// Notes a fault of a key; without a tensor it is of what names hang on here.
    pub fn push(&mut self, key: &str, mut fault: Fault) {
        if fault.tensor.is_none() && !self.path.is_empty() {
            fault.tensor = Some(self.path.join("."));
        }
        if let Some(document) = self.document {
            let at = [self.at.as_slice(), &[Step::from(key)]].concat();
            fault = fault.at(&document.text, document.root.span_at(&at));
        }
        self.faults.push(fault);
    }

    // ---- values ----

    fn noted<T>(&mut self, key: &str, result: Result<T, Reason>) -> Option<T> {
        result.map_err(|reason| self.fault(key, format!("{key}: {reason}"))).ok()
    }

    fn needed<T>(&mut self, key: &str, expr: &Expr, value: Option<T>) -> Option<T> {
        let lacking = || format!("the config does not give it ({})", shown(expr));
        self.noted(key, value.ok_or_else(lacking))
    }

    /// A whole number that must be there, of which there is at least one and not too many.
    pub fn size(&mut self, key: &str, expr: &Expr) -> Option<i64> {
        let value = self.scope.int(expr);
        let value = self.noted(key, value)?;
        let value = self.needed(key, expr, value)?;
        if (1..=LARGEST).contains(&value) {
            return Some(value);
        }
        let message = format!("{key} is {value} ({}), and it should be above 0", shown(expr));
        let large = format!("{key} is {value} ({}), which is too large", shown(expr));
        self.fault(key, if value < 1 { message } else { large });
        None
    }

    /// A whole number, or `default` where the description or the config has none.
    pub fn int_or(&mut self, key: &str, expr: &Option<Expr>, default: i64) -> Option<i64> {
        let Some(expr) = expr else { return Some(default) };
        let value = self.scope.int(expr);
        Some(self.noted(key, value)?.unwrap_or(default))
    }

    /// A number that must be there.
    pub fn number(&mut self, key: &str, expr: &Expr) -> Option<f64> {
        let value = self.scope.float(expr);
        let value = self.noted(key, value)?;
        self.needed(key, expr, value)
    }

    /// A number, if the description and the config have one. `None` is a fault.
    pub fn maybe_number(&mut self, key: &str, expr: &Option<Expr>) -> Option<Option<f64>> {
        let Some(expr) = expr else { return Some(None) };
        let value = self.scope.float(expr);
        self.noted(key, value)
    }

    /// A number, or `default` where the description or the config has none.
    pub fn number_or(&mut self, key: &str, expr: &Option<Expr>, default: f64) -> Option<f64> {
        Some(self.maybe_number(key, expr)?.unwrap_or(default))
    }

    /// A condition, or `default` where the description has none. What cannot be told is a fault
    /// and does not hold.
    pub fn holds(&mut self, key: &str, expr: &Option<Expr>, default: bool) -> bool {
        let Some(expr) = expr else { return default };
        let value = self.scope.holds(expr);
        self.noted(key, value).unwrap_or(false)
    }

    /// The function that a description names, itself or by an expression.
    pub fn function(&mut self, key: &str, activation: &Activation) -> Option<Function> {
        if let Some(function) = Function::named(&activation.0) {
            return Some(function);
        }
        let expr = Expr::Text(activation.0.clone());
        let name = self.scope.text(&expr);
        let name = self.noted(key, name)?;
        let name = self.needed(key, &expr, name)?;
        let function = Function::named(&name);
        if function.is_none() {
            let known = Function::NAMES.join(", ");
            self.fault(key, format!("{key} `{name}` is not known; known are {known}"));
        }
        function
    }

    // ---- names and tensors ----

    /// The whole name of a name at this point.
    pub fn full_name(&self, name: &str) -> String {
        let mut full = self.path.join(".");
        if !full.is_empty() {
            full.push('.');
        }
        full + name
    }

    /// The whole name of a weight, with or without `.weight`, if the model has it.
    pub fn find(&self, name: &str) -> Option<String> {
        let full = self.full_name(name);
        let with_suffix = format!("{full}.weight");
        [with_suffix, full].into_iter().find(|name| self.table.get(name).is_some())
    }

    /// The whole name of a weight that must be there.
    pub fn weight_name(&mut self, key: &str, name: &str) -> Option<String> {
        let found = self.find(name);
        if found.is_none() {
            self.missing(key, &format!("{}.weight", self.full_name(name)));
        }
        found
    }

    fn missing(&mut self, key: &str, name: &str) {
        self.fault_of(key, name, "the decoder needs this tensor and it is missing");
    }

    /// Counts a weight, and a bias beside it, as used, if they are there.
    pub fn pass_over(&mut self, name: &str) {
        self.used.extend(self.find(name));
        self.used.insert(self.full_name(&format!("{name}.bias")));
    }

    /// The shape of a tensor, which counts as used.
    fn shape(&mut self, key: &str, name: &str, plain: bool) -> Option<Vec<u64>> {
        self.used.insert(name.into());
        let Some(held) = self.table.get(name).cloned() else {
            self.missing(key, name);
            return None;
        };
        if plain && held.quantized {
            let message = "this tensor is quantized and its module needs it plain";
            self.fault_of(key, name, message);
            return None;
        }
        Some(held.shape)
    }

    /// A tensor that is not a matrix, by its whole name; of so many elements, where that is known.
    pub fn vector(&mut self, key: &str, name: &str, elements: Option<i64>) -> Option<String> {
        let shape = self.shape(key, name, true)?;
        let found = product(&shape);
        if let Some(wanted) = elements {
            self.expect(key, name, "elements", found, wanted)?
        }
        Some(name.into())
    }

    /// The same by its name at this point.
    pub fn vector_at(&mut self, key: &str, name: &str, elements: Option<i64>) -> Option<String> {
        let name = self.full_name(name);
        self.vector(key, &name, elements)
    }

    /// A matrix by its whole name; `axes` is 3 for stacked ones.
    pub fn matrix(
        &mut self,
        key: &str,
        name: &str,
        transposed: bool,
        axes: usize,
    ) -> Option<Matrix> {
        let mut shape = self.shape(key, name, false)?;
        if shape.len() != axes {
            let message = format!("is {shape:?} where a tensor of {axes} axes is needed");
            self.fault_of(key, name, message);
            return None;
        }
        if shape.iter().any(|&axis| axis == 0 || axis > LARGEST as u64) {
            self.fault_of(key, name, format!("is {shape:?}, which nothing can multiply with"));
            return None;
        }
        if transposed {
            shape.swap(axes - 1, axes - 2);
        }
        Some(Matrix { name: name.into(), shape, transposed })
    }

    /// A projection of `inputs` elements, with its bias if it has one.
    pub fn linear(&mut self, key: &str, name: &str, bias: bool, inputs: i64) -> Option<Linear> {
        let weight = self.weight_name(key, name).and_then(|name| self.matrix(key, &name, false, 2));
        let bias = if bias {
            let rows = weight.as_ref().map(Matrix::outputs);
            Some(self.vector_at(key, &format!("{name}.bias"), rows)?)
        } else {
            None
        };
        let weight = weight?;
        self.expect(key, &weight.name.clone(), "columns", weight.inputs(), inputs)?;
        Some(Linear { weight, bias })
    }

    /// The same, and a fault unless it gives `outputs` elements.
    pub fn sized(
        &mut self,
        key: &str,
        name: &str,
        bias: bool,
        (outputs, inputs): (i64, i64),
    ) -> Option<Linear> {
        let linear = self.linear(key, name, bias, inputs)?;
        self.expect(key, &linear.weight.name, "rows", linear.weight.outputs(), outputs)?;
        Some(linear)
    }

    /// Notes a fault unless a tensor has the size that the description works out.
    pub fn expect(
        &mut self,
        key: &str,
        name: &str,
        what: &str,
        found: i64,
        wanted: i64,
    ) -> Option<()> {
        if found == wanted {
            return Some(());
        }
        self.fault_of(key, name, format!("has {found} {what} where the config makes {wanted}"));
        None
    }

    // ---- what modules share ----

    /// A norm of `width` elements; `None` when its condition does not hold (or it is faulty).
    pub fn norm(
        &mut self,
        key: &str,
        norm: &description::Norm,
        centred: bool,
        width: i64,
    ) -> Option<Norm> {
        self.within(key, |to| to.norm_here(norm, centred, width))
    }

    fn norm_here(&mut self, norm: &description::Norm, centred: bool, width: i64) -> Option<Norm> {
        if !self.holds("when", &norm.when, true) {
            return None;
        }
        let eps = match norm.eps.clone().or_else(|| self.norms.eps.clone()) {
            Some(eps) => self.number("eps", &eps)?,
            None => 1e-6,
        };
        let offset = norm.offset.clone().or_else(|| self.norms.offset.clone());
        let weight = match &norm.tensor {
            None => None,
            Some(name) => {
                let offset = self.number_or("offset", &offset, 0.0)?;
                let scale = self.number_or("scale", &norm.scale, 1.0)?;
                let name = self.weight_name("tensor", name)?;
                let name = self.vector("tensor", &name, Some(width))?;
                Some(NormWeight { name, offset, scale })
            }
        };
        let bias = match &norm.tensor {
            Some(name) if centred && self.holds("bias", &norm.bias, false) => {
                Some(self.vector_at("bias", &format!("{name}.bias"), Some(width))?)
            }
            _ => None,
        };
        Some(Norm { weight, bias, eps, centred })
    }

    /// A norm that may be absent from the description.
    pub fn maybe_norm(
        &mut self,
        key: &str,
        norm: &Option<description::Norm>,
        width: i64,
    ) -> Option<Norm> {
        self.norm(key, norm.as_ref()?, false, width)
    }

    /// A norm that may be given by name alone.
    pub fn named_norm(
        &mut self,
        key: &str,
        norm: &NormOrName,
        centred: bool,
        width: i64,
    ) -> Option<Norm> {
        match norm {
            NormOrName::Full(norm) => self.norm(key, norm, centred, width),
            NormOrName::Name(name) => {
                let norm = description::Norm { tensor: Some(name.clone()), ..Default::default() };
                self.norm(key, &norm, centred, width)
            }
        }
    }

    /// A rotation of heads of `head_dim` elements; `None` when its condition does not hold (or it
    /// is faulty).
    pub fn rope(&mut self, rope: &description::Rope, head_dim: i64) -> Option<Rope> {
        self.within("rope", |to| to.rope_here(rope, head_dim))
    }

    fn rope_here(&mut self, rope: &description::Rope, head_dim: i64) -> Option<Rope> {
        if !self.holds("when", &rope.when, true) {
            return None;
        }
        let head_dim = usize::try_from(head_dim).ok()?;
        let given = Given::of(&self.scope, rope, head_dim);
        let given = self.noted("parameters", given)?;
        let rotation = match Rotation::read(&given) {
            Ok(rotation) => rotation,
            Err(unclear) => {
                let code = if unclear.ambiguous { Code::Ambiguous } else { Code::Decoder };
                let fault = Fault::new(code, unclear.what).help(unclear.help);
                self.push("parameters", fault);
                return None;
            }
        };
        if 2 * rotation.pairs() > head_dim {
            let pairs = rotation.pairs();
            let message =
                format!("{pairs} pairs cannot be rotated in heads of {head_dim} elements");
            self.fault("parameters", message);
            return None;
        }
        self.reach = self.reach.max(rotation.reach);
        let interleaved = self.holds("interleaved", &rope.interleaved, false);
        let run_again = self.holds("run_again", &rope.run_again, false);
        Some(Rope { rotation, interleaved, run_again })
    }

    // ---- the end ----

    /// Notes a fault for each tensor that is neither used nor declared unused, by a glob or by what
    /// its name begins with. Gives the biases among them that are zeros, or may be: they change
    /// nothing.
    pub fn check_all_used(&mut self, unused: &[String], beginnings: &[String]) -> Vec<String> {
        let mut set = globset::GlobSetBuilder::new();
        for glob in unused {
            let parsed =
                globset::GlobBuilder::new(&glob.replace('.', "/")).literal_separator(true).build();
            match parsed {
                Ok(glob) => {
                    set.add(glob);
                }
                Err(error) => self.fault("unused", format!("`{glob}` is no glob: {error}")),
            }
        }
        let Ok(set) = set.build() else { return Vec::new() };
        let table = self.table;
        let left = table.names().filter(|name| {
            let passed_over = self.used.contains(*name)
                || set.is_match(name.replace('.', "/"))
                || beginnings.iter().any(|beginning| name.starts_with(beginning));
            !passed_over
        });
        // Some quantizers write a bias of zeros beside every projection.
        let is_idle = |name: &&String| name.ends_with(".bias") && table.may_be_zero(name);
        let (idle, left): (Vec<&String>, Vec<&String>) = left.partition(is_idle);
        let message = "the decoder neither uses this tensor nor declares it unused";
        let faults =
            left.into_iter().map(|name| Fault::new(Code::Decoder, message).on_tensor(name));
        self.faults.0.extend(faults);
        idle.into_iter().cloned().collect()
    }
}

/// Elements of a shape; as good as endless when they cannot be counted.
fn product(shape: &[u64]) -> i64 {
    let product = shape.iter().try_fold(1_u64, |all, &axis| all.checked_mul(axis));
    product.and_then(|all| i64::try_from(all).ok()).unwrap_or(i64::MAX)
}
