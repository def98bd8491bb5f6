//! Loads the tensors that the parts of a network name.
//!
//! Every fault is noted and loading goes on, so that all that is wrong with a model's tensors is
//! told at once. What is there, and of which size, has been checked before (`decoder::parts`).

use std::sync::Arc;

use super::Layer;
use super::matrix::{Floats, Linear, Matrix, floats};
use super::memory::Memory;
use crate::decoder::parts;
use crate::fault::{Code, Fault, Faults};
use crate::model::source::{TensorSource, Weight};

/// What modules are loaded with.
pub struct Loader<'a> {
    source: &'a dyn TensorSource,
    faults: Faults,
    layers: Vec<Layer>,
    /// The slots of attention that later layers read, by layer.
    shared: Vec<(usize, usize)>,
    ropes: Vec<parts::Rope>,
    memory: Memory,
    bytes: usize,
}

/// What loading leaves beside the modules.
pub struct Loaded {
    /// An empty cache's layers, by slot.
    pub layers: Vec<Layer>,
    /// The different rotations, by number.
    pub ropes: Vec<parts::Rope>,
    /// Bytes of weights.
    pub bytes: usize,
}

impl<'a> Loader<'a> {
    /// A loader of a model's tensors.
    pub fn new(source: &'a dyn TensorSource) -> Loader<'a> {
        Loader {
            source,
            faults: Faults::default(),
            layers: Vec::new(),
            shared: Vec::new(),
            ropes: Vec::new(),
            memory: Memory::new(),
            bytes: 0,
        }
    }

    fn read(&mut self, name: &str) -> Option<Weight> {
        match self.source.tensor(name) {
            Ok(Some(weight)) => Some(weight),
            Ok(None) => self.fault(Code::Internal, "this tensor was there and is gone", name),
            Err(fault) => {
                self.faults.push(fault);
                None
            }
        }
    }

    fn fault<T>(&mut self, code: Code, message: &str, tensor: &str) -> Option<T> {
        self.faults.push(Fault::new(code, message).on_tensor(tensor));
        None
    }

    /// A tensor that is not a matrix, in f32.
    pub fn vector(&mut self, name: &str) -> Option<Floats> {
        let read = match self.read(name)? {
            Weight::Float(tensor) => floats(&tensor),
            Weight::Quantized(_) => None,
        };
        match read {
            Some(floats) => Some(floats.into()),
            None => {
                let message = "this tensor is not of F32, F16 or BF16, as its module needs it";
                self.fault(Code::Decoder, message, name)
            }
        }
    }

    /// The same where there may be none; `None` is a fault.
    pub fn maybe_vector(&mut self, name: &Option<String>) -> Option<Option<Floats>> {
        match name {
            Some(name) => self.vector(name).map(Some),
            None => Some(None),
        }
    }

    /// A matrix that every token is multiplied with, or stacked ones.
    pub fn matrix(&mut self, matrix: &parts::Matrix) -> Option<Arc<Matrix>> {
        let matrix = self.table(matrix)?;
        Some(Arc::new(self.often(matrix)))
    }

    /// A matrix of which only single rows are read.
    pub fn table(&mut self, matrix: &parts::Matrix) -> Option<Matrix> {
        let weight = self.read(&matrix.name)?;
        match Matrix::new(&weight, matrix.transposed) {
            Some(made) => {
                self.bytes += made.bytes();
                Some(made)
            }
            None => {
                let message = "lathe's kernels have no product for how this tensor is stored; \
                               --backend graph may have one";
                self.fault(Code::Decoder, message, &matrix.name)
            }
        }
    }

    /// The same matrix for whom reads it for every token.
    pub fn often(&mut self, matrix: Matrix) -> Matrix {
        matrix.read_often(&mut self.memory)
    }

    /// A projection.
    pub fn linear(&mut self, linear: &parts::Linear) -> Option<Linear> {
        let (matrix, bias) = (self.matrix(&linear.weight), self.maybe_vector(&linear.bias));
        Some(Linear { matrix: matrix?, bias: bias? })
    }

    /// The same where there may be none; `None` is a fault.
    pub fn maybe_linear(&mut self, linear: &Option<parts::Linear>) -> Option<Option<Linear>> {
        match linear {
            Some(linear) => self.linear(linear).map(Some),
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
        let Loader { layers, ropes, bytes, .. } = self;
        self.faults.or(Loaded { layers, ropes, bytes })
    }
}
