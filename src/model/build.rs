//! Builds modules from a description: resolves names and values, and keeps count of tensors.
//!
//! Every fault is noted and building goes on, so that all that is wrong with a description, or a
//! model, is told at once.

use std::collections::{BTreeSet, HashSet};

use mlx_rs::{Array, Dtype};

use super::Compute;
use super::linear::Matrix;
use super::native::Memory;
use super::ops::{Function, Result as Computed};
use super::rope::Rope;
use super::source::{Tensor, TensorSource, Weight};
use crate::cache::LayerCache;
use crate::decoder::converted::Told;
use crate::decoder::description::{Activation, Converted, Expr, NormDefaults};
use crate::decoder::values::{Scope, shown};
use crate::expr::Reason;
use crate::fault::{Code, Fault, Faults};

/// What modules are built with.
pub struct Builder<'a> {
    source: &'a dyn TensorSource,
    known: HashSet<String>,
    used: HashSet<String>,
    /// How numbers are held.
    pub compute: Compute,
    /// Defaults of norms.
    pub norms: NormDefaults,
    /// What expressions see at this point.
    pub scope: Scope,
    path: Vec<String>,
    faults: Faults,
    slots: Vec<LayerCache>,
    ropes: Vec<Rope>,
    /// Of weights.
    pub memory: Memory,
    /// Bytes of weights that are not MLX's arrays.
    pub native_bytes: usize,
    /// Layers whose keys others read.
    pub read_by_others: BTreeSet<usize>,
}

impl<'a> Builder<'a> {
    /// A builder at the top of a model's names.
    pub fn new(source: &'a dyn TensorSource, scope: Scope, compute: Compute) -> Builder<'a> {
        Builder {
            source,
            known: source.names().into_iter().collect(),
            used: HashSet::new(),
            compute,
            norms: NormDefaults::default(),
            scope,
            path: Vec::new(),
            faults: Faults::default(),
            slots: Vec::new(),
            ropes: Vec::new(),
            memory: Memory::new(),
            native_bytes: 0,
            read_by_others: BTreeSet::new(),
        }
    }

    // ---- faults ----

    /// Notes a fault of the description or the model.
    pub fn fault(&mut self, message: impl Into<String>) {
        self.once(Fault::new(Code::Decoder, message));
    }

    /// The same, with what to do about it.
    pub fn fault_with_help(&mut self, message: impl Into<String>, help: impl Into<String>) {
        self.once(Fault::new(Code::Decoder, message).help(help));
    }

    /// What is wrong with a config is wrong in every layer: it is told once.
    fn once(&mut self, fault: Fault) {
        let told = |known: &Fault| known.message == fault.message && known.tensor.is_none();
        if !self.faults.0.iter().any(told) {
            self.faults.push(fault);
        }
    }

    fn note<T>(&mut self, result: Result<T, Reason>, what: &str) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(reason) => {
                let place = self.path.join(".");
                let place = if place.is_empty() { String::new() } else { format!(" of {place}") };
                self.fault(format!("{what}{place}: {reason}"));
                None
            }
        }
    }

    /// The result of a computation while building.
    pub fn made<T>(&mut self, make: impl FnOnce() -> Computed<T>) -> Option<T> {
        match make() {
            Ok(value) => Some(value),
            Err(error) => {
                self.faults.push(crate::mlx::Error::from(error).into());
                None
            }
        }
    }

    /// Lets expressions see whether the model is a converted copy.
    pub fn tell_converted(&mut self, converted: &Converted) {
        let mut names: Vec<&String> = self.known.iter().collect();
        names.sort();
        let shaped = names.into_iter().filter_map(|name| {
            let weight = self.source.tensor(name).ok()??;
            let Weight::Float(tensor) = weight else { return None };
            let shape = tensor.shape.iter().map(|&axis| axis.unsigned_abs().into());
            Some((name.as_str(), shape.collect()))
        });
        match converted.told(&self.scope, shaped) {
            Ok(told) => {
                self.scope.set("converted", cel::Value::Bool(told == Told::Converted));
            }
            Err(reason) => self.fault(reason),
        }
    }

    // ---- values ----

    /// A whole number that must be there.
    pub fn int(&mut self, expr: &Expr, what: &str) -> Option<i64> {
        let value = self.scope.int(expr);
        let value = self.note(value, what)?;
        self.needed(value, expr, what)
    }

    /// A number that must be there.
    pub fn float(&mut self, expr: &Expr, what: &str) -> Option<f64> {
        let value = self.scope.float(expr);
        let value = self.note(value, what)?;
        self.needed(value, expr, what)
    }

    fn needed<T>(&mut self, value: Option<T>, expr: &Expr, what: &str) -> Option<T> {
        let reason = format!("the config does not give it ({})", shown(expr));
        self.note(value.ok_or(reason), what)
    }

    /// A number, or `default` where the description or the config has none.
    pub fn float_or(&mut self, expr: &Option<Expr>, default: f64) -> Option<f64> {
        Some(self.maybe_float(expr)?.unwrap_or(default))
    }

    /// A number, if the description and the config have one that is not 0. `None` is a fault.
    pub fn maybe_float(&mut self, expr: &Option<Expr>) -> Option<Option<f64>> {
        let Some(expr) = expr else { return Some(None) };
        let value = self.scope.float(expr);
        self.note(value, "a value")
    }

    /// A whole number, or `default` where the description or the config has none.
    pub fn int_or(&mut self, expr: &Option<Expr>, default: i64) -> Option<i64> {
        let Some(expr) = expr else { return Some(default) };
        let value = self.scope.int(expr);
        Some(self.note(value, "a value")?.unwrap_or(default))
    }

    /// A condition, or `default` where the description has none. What cannot be told is a fault
    /// and does not hold.
    pub fn holds(&mut self, expr: &Option<Expr>, default: bool) -> bool {
        let Some(expr) = expr else { return default };
        let value = self.scope.holds(expr);
        self.note(value, "a condition").unwrap_or(false)
    }

    /// The function that a description names, itself or by an expression.
    pub fn function(&mut self, activation: &Activation) -> Option<Function> {
        if let Some(function) = Function::named(&activation.0) {
            return Some(function);
        }
        let expr = Expr::Text(activation.0.clone());
        let name = self.scope.text(&expr);
        let name = self.note(name, "activation")?;
        let name = self.needed(name, &expr, "activation")?;
        let function = Function::named(&name);
        if function.is_none() {
            let known = Function::NAMES.join(", ");
            self.fault(format!("activation `{name}` is not known; known are {known}"));
        }
        function
    }

    // ---- names and tensors ----

    /// Builds with names hanging on `path` too.
    pub fn under<T>(&mut self, path: &str, build: impl FnOnce(&mut Self) -> T) -> T {
        let depth = self.path.len();
        if !path.is_empty() {
            self.path.push(path.into());
        }
        let built = build(self);
        self.path.truncate(depth);
        built
    }

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
        [with_suffix, full].into_iter().find(|name| self.known.contains(name))
    }

    /// Whether the model has a tensor of this whole name.
    pub fn has(&self, name: &str) -> bool {
        self.known.contains(name)
    }

    /// The whole name of a weight that must be there.
    pub fn weight_name(&mut self, name: &str) -> Option<String> {
        let found = self.find(name);
        if found.is_none() {
            self.missing(&format!("{}.weight", self.full_name(name)));
        }
        found
    }

    fn missing(&mut self, name: &str) {
        let fault = Fault::new(Code::Decoder, "the decoder needs this tensor and it is missing");
        self.faults.push(fault.on_tensor(name));
    }

    /// Counts a weight, and a bias beside it, as used without reading them, if they are there.
    pub fn pass_over(&mut self, name: &str) {
        self.used.extend(self.find(name));
        self.used.insert(self.full_name(&format!("{name}.bias")));
    }

    fn read(&mut self, name: &str) -> Option<Weight> {
        self.used.insert(name.into());
        match self.source.tensor(name) {
            Ok(Some(weight)) => Some(weight),
            Ok(None) => {
                self.missing(name);
                None
            }
            Err(fault) => {
                self.faults.push(fault);
                None
            }
        }
    }

    /// A tensor that is not a matrix, in the compute dtype.
    pub fn vector(&mut self, name: &str) -> Option<Array> {
        let dtype = self.compute.dtype;
        self.vector_as(name, dtype)
    }

    /// A tensor that is not a matrix, in a dtype of its own.
    pub fn vector_as(&mut self, name: &str, dtype: Dtype) -> Option<Array> {
        match self.read(name)? {
            Weight::Float(tensor) => self.made(|| {
                let array = tensor.array()?.as_dtype(dtype)?;
                array.eval()?;
                Ok(array)
            }),
            Weight::Quantized(_) => {
                let message = "this tensor is quantized and its module needs it plain";
                self.faults.push(Fault::new(Code::Decoder, message).on_tensor(name));
                None
            }
        }
    }

    /// Whether two weights are stored as the same numbers.
    pub fn same(&self, one: &str, other: &str) -> bool {
        let tensor = |name: &str| match self.source.tensor(name) {
            Ok(Some(Weight::Float(tensor))) => Some(tensor),
            _ => None,
        };
        let parts = |tensor: Tensor| (tensor.dtype, tensor.shape, tensor.bytes);
        let (one, other) = (tensor(one).map(parts), tensor(other).map(parts));
        one.is_some() && one == other
    }

    /// A matrix, quantized or not.
    pub fn matrix(&mut self, name: &str, transposed: bool) -> Option<Matrix> {
        self.stored(name, transposed).map(|matrix| matrix.read_often(&mut self.memory))
    }

    /// A matrix of which only single rows are read.
    pub fn table(&mut self, name: &str) -> Option<Matrix> {
        self.stored(name, false)
    }

    fn stored(&mut self, name: &str, transposed: bool) -> Option<Matrix> {
        let weight = self.read(name)?;
        let compute = self.compute;
        let made = self.made(|| Matrix::new(&weight, transposed, compute.dtype, compute.on_cpu))?;
        self.native_bytes += made.bytes();
        Some(made)
    }

    /// Notes a fault unless a tensor has the size that the description works out.
    pub fn expect(&mut self, name: &str, what: &str, found: i64, wanted: i64) -> Option<()> {
        if found == wanted {
            return Some(());
        }
        let message = format!("has {found} {what} where the config makes {wanted}");
        let fault = Fault::new(Code::Decoder, message).on_tensor(self.full_name(name));
        self.faults.push(fault);
        None
    }

    // ---- what modules share ----

    /// A place in every sequence's cache.
    pub fn slot(&mut self, empty: LayerCache) -> usize {
        self.slots.push(empty);
        self.slots.len() - 1
    }

    /// One rope for all modules that rotate alike.
    pub fn shared_rope(&mut self, mut rope: Rope) -> Rope {
        for known in &self.ropes {
            rope.id = known.id;
            if *known == rope {
                return rope;
            }
        }
        rope.id = self.ropes.len();
        self.ropes.push(rope.clone());
        rope
    }

    // ---- the end ----

    /// Notes a fault for each tensor that is neither used nor declared unused, by a glob or by what
    /// its name begins with.
    pub fn check_all_used(&mut self, unused: &[String], beginnings: &[String]) {
        let mut set = globset::GlobSetBuilder::new();
        for glob in unused {
            let parsed =
                globset::GlobBuilder::new(&glob.replace('.', "/")).literal_separator(true).build();
            match parsed {
                Ok(glob) => {
                    set.add(glob);
                }
                Err(error) => self.fault(format!("unused: `{glob}` is no glob: {error}")),
            }
        }
        let Ok(set) = set.build() else { return };
        let left: Vec<&String> = self
            .known
            .iter()
            .filter(|name| !self.used.contains(*name) && !set.is_match(name.replace('.', "/")))
            .filter(|name| !beginnings.iter().any(|beginning| name.starts_with(beginning)))
            .collect();
        // A bias of zeros, which some quantizers add to every layer, changes nothing.
        let is_nothing = |name: &str| {
            let weight = if name.ends_with(".bias") { self.source.tensor(name) } else { Ok(None) };
            matches!(weight, Ok(Some(Weight::Float(tensor))) if tensor.is_zero())
        };
        let mut left: Vec<String> =
            left.into_iter().filter(|name| !is_nothing(name)).cloned().collect();
        left.sort();
        for name in left {
            let message = "the decoder neither uses this tensor nor declares it unused";
            self.faults.push(Fault::new(Code::Decoder, message).on_tensor(name));
        }
    }

    /// The caches' slots and the different rotations, if there is no fault.
    pub fn finish(self) -> Result<(Vec<LayerCache>, Vec<Rope>), Faults> {
        self.faults.or((self.slots, self.ropes))
    }
}
