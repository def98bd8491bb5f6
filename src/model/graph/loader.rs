//! Loads the tensors that the parts of a network name.
//!
//! Every fault is noted and loading goes on, so that all that is wrong with a model's tensors is
//! told at once. What is there, and of which size, has been checked before (`decoder::parts`).

use mlx_rs::{Array, Dtype};

use super::Layer;
use super::ops::Result as Computed;
use crate::decoder::parts::{self, Parts};
use crate::dtype::Dtype as Stored;
use crate::fault::{Code, Fault, Faults};
use crate::model::source::{TensorSource, Weight};

/// What modules are loaded with.
pub struct Loader<'a> {
    source: &'a dyn TensorSource,
    /// Of activations, and of weights that are not quantized.
    pub dtype: Dtype,
    faults: Faults,
    layers: Vec<Layer>,
    /// The slots of attention that later layers read, by layer.
    shared: Vec<(usize, usize)>,
    ropes: Vec<parts::Rope>,
}

/// What loading leaves beside the modules.
pub struct Loaded {
    /// An empty cache's layers, by slot.
    pub layers: Vec<Layer>,
    /// The different rotations, by number.
    pub ropes: Vec<parts::Rope>,
}

impl<'a> Loader<'a> {
    /// A loader of a model's tensors. Of 16 bits, activations are in the model's own dtype.
    pub fn new(source: &'a dyn TensorSource, parts: &Parts, dtype: Dtype) -> Loader<'a> {
        let (layers, shared, ropes) = (Vec::new(), Vec::new(), Vec::new());
        let dtype = match dtype {
            Dtype::Bfloat16 if is_half(source, parts) => Dtype::Float16,
            dtype => dtype,
        };
        Loader { source, dtype, faults: Faults::default(), layers, shared, ropes }
    }

    /// The result of a computation while loading.
    pub fn made<T>(&mut self, make: impl FnOnce() -> Computed<T>) -> Option<T> {
        match make() {
            Ok(value) => Some(value),
            Err(error) => {
                self.faults.push(crate::mlx::Error::from(error).into());
                None
            }
        }
    }

    pub(super) fn read(&mut self, name: &str) -> Option<Weight> {
        match self.source.tensor(name) {
            Ok(Some(weight)) => Some(weight),
            Ok(None) => self.fault("this tensor was there and is gone", name),
            Err(fault) => {
                self.faults.push(fault);
                None
            }
        }
    }

    fn fault<T>(&mut self, message: &str, tensor: &str) -> Option<T> {
        self.faults.push(Fault::new(Code::Internal, message).on_tensor(tensor));
        None
    }

    /// A tensor that is not a matrix, in the dtype of activations.
    pub fn vector(&mut self, name: &str) -> Option<Array> {
        let dtype = self.dtype;
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
                self.fault("this tensor is quantized and its module needs it plain", name)
            }
        }
    }

    /// The same where there may be none; `None` is a fault.
    pub fn maybe_vector(&mut self, name: &Option<String>) -> Option<Option<Array>> {
        match name {
            Some(name) => self.vector(name).map(Some),
            None => Some(None),
        }
    }

    /// The same in f32.
    pub fn maybe_wide(&mut self, name: &Option<String>) -> Option<Option<Array>> {
        match name {
            Some(name) => self.vector_as(name, Dtype::Float32).map(Some),
            None => Some(None),
        }
    }

    /// A place in every sequence's cache.
    pub fn slot(&mut self, empty: Layer) -> usize {
        self.layers.push(empty);
        self.layers.len() - 1
    }

    /// Notes where a layer's keys are, for later ones that read them.
    pub fn shares(&mut self, layer: usize, slot: usize) {
        self.shared.push((layer, slot));
    }

    /// Where another layer's keys are.
    pub fn slot_of(&mut self, layer: usize) -> Option<usize> {
        let found = self.shared.iter().find(|(known, _)| *known == layer).map(|(_, slot)| *slot);
        if found.is_none() {
            let message = format!("layer {layer}, whose keys are read, has none");
            self.faults.push(Fault::new(Code::Decoder, message));
        }
        found
    }

    /// The number of a rotation: one for all modules that rotate alike.
    pub fn rope(&mut self, rope: &parts::Rope) -> usize {
        self.ropes.iter().position(|known| known == rope).unwrap_or_else(|| {
            self.ropes.push(rope.clone());
            self.ropes.len() - 1
        })
    }

    /// What is left beside the modules, if there is no fault.
    pub fn finish(self) -> Result<Loaded, Faults> {
        let Loader { layers, ropes, .. } = self;
        self.faults.or(Loaded { layers, ropes })
    }
}

/// Whether a model's own floats are F16: those of its embedding, or of its last norm where the
/// embedding's have no 16 bits.
fn is_half(source: &dyn TensorSource, parts: &Parts) -> bool {
    let norms = parts.norm.iter().filter_map(|step| match step {
        parts::Step::Norm(norm) => norm.weight.as_ref().map(|weight| &weight.name),
        _ => None,
    });
    let floats = std::iter::once(&parts.embed.table.name).chain(norms).filter_map(|name| {
        match source.tensor(name) {
            Ok(Some(Weight::Float(tensor))) => Some(tensor.dtype),
            Ok(Some(Weight::Quantized(quantized))) => Some(quantized.scales.dtype),
            _ => None,
        }
    });
    let mut short = floats.filter(|dtype| matches!(dtype, Stored::F16 | Stored::BF16));
    short.next() == Some(Stored::F16)
}
