//! The tensors that there are: names, shapes, and whether they are quantized.

use std::collections::BTreeMap;

/// A tensor, as far as headers tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The shape of its elements, unpacked.
    pub shape: Vec<u64>,
    /// Whether it is quantized.
    pub quantized: bool,
}

/// Two questions that headers do not answer.
pub trait Content {
    /// Whether all elements are zero.
    fn is_zero(&self, name: &str) -> bool;
    /// Whether two tensors are stored as the same numbers.
    fn same(&self, one: &str, other: &str) -> bool;
}

/// The tensors of a model, by the names that its policy knows.
#[derive(Default)]
pub struct Table<'a> {
    tensors: BTreeMap<String, TensorSpec>,
    content: Option<&'a dyn Content>,
}

impl<'a> Table<'a> {
    /// Of headers alone: where it takes elements to tell, the model is given the benefit of doubt.
    pub fn of_headers(tensors: BTreeMap<String, TensorSpec>) -> Table<'a> {
        Table { tensors, content: None }
    }

    /// Of tensors that can be read.
    pub fn with_content(
        tensors: BTreeMap<String, TensorSpec>,
        content: &'a dyn Content,
    ) -> Table<'a> {
        Table { tensors, content: Some(content) }
    }

    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = &String> + Clone {
        self.tensors.keys()
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// A tensor by name.
    pub fn get(&self, name: &str) -> Option<&TensorSpec> {
        self.tensors.get(name)
    }

    /// Names and shapes of what is not quantized.
    pub fn plain(&self) -> impl Iterator<Item = (&str, Vec<u64>)> {
        let plain = self.tensors.iter().filter(|(_, held)| !held.quantized);
        plain.map(|(name, held)| (name.as_str(), held.shape.clone()))
    }

    /// Whether all elements are zero, or may be.
    pub fn may_be_zero(&self, name: &str) -> bool {
        self.content.is_none_or(|content| content.is_zero(name))
    }

    /// Whether two tensors are the same numbers, or may be.
    pub fn may_be_same(&self, one: &str, other: &str) -> bool {
        let known = self.get(one).is_some() && self.get(one) == self.get(other);
        known && (one == other || self.content.is_none_or(|content| content.same(one, other)))
    }
}
