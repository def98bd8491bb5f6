//! Loads the tensors that the parts of a network name.
//!
//! Every fault is noted and loading goes on, so that all that is wrong with a model's tensors is
//! told at once. What is there, and of which size, has been checked before (`decoder::parts`).

use mlx_rs::{Array, Dtype};

use super::Compute;
use super::linear::Matrix;
use super::native::Memory;
use super::ops::Result as Computed;
use super::rope::Rope;
use super::source::{TensorSource, Weight};
use crate::cache::LayerCache;
use crate::decoder::parts;
use crate::fault::{Code, Fault, Faults};

/// What modules are loaded with.
pub struct Loader<'a> {
    source: &'a dyn TensorSource,
    /// How numbers are held.
    pub compute: Compute,
    faults: Faults,
    slots: Vec<LayerCache>,
    ropes: Vec<Rope>,
    /// Of weights.
    pub memory: Memory,
    /// Bytes of weights that are not MLX's arrays.
    pub native_bytes: usize,
}

impl<'a> Loader<'a> {
    /// A loader of a model's tensors.
    pub fn new(source: &'a dyn TensorSource, compute: Compute) -> Loader<'a> {
        Loader {
            source,
            compute,
            faults: Faults::default(),
            slots: Vec::new(),
            ropes: Vec::new(),
            memory: Memory::new(),
            native_bytes: 0,
        }
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

    fn read(&mut self, name: &str) -> Option<Weight> {
        match self.source.tensor(name) {
            Ok(Some(weight)) => Some(weight),
            Ok(None) => {
                let message = "this tensor was there and is gone";
                self.faults.push(Fault::new(Code::Internal, message).on_tensor(name));
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
                self.faults.push(Fault::new(Code::Internal, message).on_tensor(name));
                None
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

    /// A matrix, quantized or not.
    pub fn matrix(&mut self, matrix: &parts::Matrix) -> Option<Matrix> {
        self.table(matrix).map(|matrix| matrix.read_often(&mut self.memory))
    }

    /// A matrix of which only single rows are read.
    pub fn table(&mut self, matrix: &parts::Matrix) -> Option<Matrix> {
        let weight = self.read(&matrix.name)?;
        let Compute { dtype, on_cpu } = self.compute;
        let made = self.made(|| Matrix::new(&weight, matrix.transposed, dtype, on_cpu))?;
        self.native_bytes += made.bytes();
        Some(made)
    }

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

    /// The caches' slots and the different rotations, if there is no fault.
    pub fn finish(self) -> Result<(Vec<LayerCache>, Vec<Rope>), Faults> {
        self.faults.or((self.slots, self.ropes))
    }
}
