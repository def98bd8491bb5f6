//! Tensors that belong together: a weight and what stands beside it, by name.

use std::collections::HashMap;

use super::layout::{Layouts, Suffix};
use crate::read::{Inventory, TensorInfo};

/// Tensors whose names differ only in a suffix that some layout knows.
#[derive(Debug)]
pub struct Group<'a> {
    /// The name without suffix.
    pub base: &'a str,
    /// Suffix (none for a name that has no known suffix) and index of the tensor.
    pub members: Vec<(Option<Suffix>, u32)>,
}

impl Group<'_> {
    /// The member with this suffix.
    pub fn find(&self, suffix: Suffix) -> Option<u32> {
        self.members.iter().find(|(known, _)| *known == Some(suffix)).map(|(_, tensor)| *tensor)
    }
}

/// Groups an inventory's tensors, in the order of their first member.
pub fn groups<'a>(layouts: &Layouts, inventory: &'a Inventory) -> Vec<Group<'a>> {
    let bare = layouts.suffix("");
    let mut groups: Vec<Group> = Vec::new();
    let mut by_base: HashMap<&str, usize> = HashMap::with_capacity(inventory.tensors.len());
    for (index, tensor) in inventory.tensors.iter().enumerate() {
        let (base, suffix) = layouts.split(&tensor.name);
        let suffix = suffix.or(bare);
        let place = *by_base.entry(base).or_insert_with(|| {
            groups.push(Group { base, members: Vec::new() });
            groups.len() - 1
        });
        groups[place].members.push((suffix, index as u32));
    }
    groups
}

/// Finds a tensor by its whole name.
pub fn find<'a>(inventory: &'a Inventory, name: &str) -> Option<(u32, &'a TensorInfo)> {
    let tensors = &inventory.tensors;
    let index = tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name)).ok()?;
    Some((index as u32, &tensors[index]))
}
