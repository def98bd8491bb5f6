//! What belongs to a quantized tensor lies beside it under its name and a suffix. A name alone
//! proves nothing: models have tensors of their own that end so.

use crate::dtype::Dtype;

/// A factor for each group.
pub const SCALE: &str = ".scale";
/// What is added in each group.
pub const BIAS: &str = ".bias";
/// A factor of the whole tensor, or of each of its experts.
pub const GLOBAL_SCALE: &str = ".global_scale";

/// All of them, in the order in which they are stored.
pub const ALL: [&str; 3] = [SCALE, BIAS, GLOBAL_SCALE];

/// What a tensor belongs to, when it is a companion: the name with the suffix taken off, when a
/// packed tensor of that name is there. `packed` gives the dtype of a tensor that is said to be
/// quantized, and none for the others.
pub fn base_of(name: &str, packed: impl Fn(&str) -> Option<Dtype>) -> Option<&str> {
    let base = ALL.iter().find_map(|suffix| name.strip_suffix(suffix))?;
    (packed(base) == Some(Dtype::U32)).then_some(base)
}
