//! How producers pack small integers, as data: what plans say of it and what layout files declare.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a producer packs the integers of a weight, and how values come from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IntPacking {
    /// How the weight is packed. Its scales stand in the order of the same sides.
    pub weight: Packed,
    /// How zero points are packed, where some are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zeros: Option<Packed>,
    /// Bits of one integer: 2 to 8.
    pub bits: u32,
    /// Inputs that share a scale; 0 means all of them (a scale for each output).
    pub group: u64,
    /// Where zero is.
    pub zero: Zero,
}

/// Where the zero of packed integers is, counted in unsigned fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Zero {
    /// In the middle of the range: 8 of 4 bits, 128 of 8.
    Middle,
    /// Stored beside the weight.
    Stored,
    /// Stored, less one, wrapping around: the field 15 of 4 bits means 0.
    StoredLessOne,
}

/// How an array of words holds a matrix of small integers. Words are little-endian, and in a word
/// the lowest bits come first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Packed {
    /// Bits of a word: 8, 16, 32 or 64. The array's dtype has as many.
    pub word: u32,
    /// The side that the array's rows stand for: `out` for `[out, in]`, `in` for `[in, out]`. (For
    /// zero points groups take the place of inputs.)
    pub rows: Side,
    /// The side along which neighbours share a word.
    pub along: Side,
    /// Which of the neighbours that share a word each field holds, from the lowest bits up; bits
    /// above the last field are unused. Without it neighbours follow each other as one stream of
    /// bits, which may run on from word to word.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<u8>,
    /// What a field's bits mean.
    #[serde(default, skip_serializing_if = "Sign::is_offset")]
    pub sign: Sign,
}

/// A side of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Inputs: columns of the logical weight.
    In,
    /// Outputs: rows of the logical weight.
    Out,
}

/// What the bits of a packed integer mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sign {
    /// Unsigned, counted from the least value.
    #[default]
    Offset,
    /// Two's complement.
    Twos,
}

impl Sign {
    fn is_offset(&self) -> bool {
        *self == Sign::Offset
    }
}

impl Packed {
    /// What is wrong with it, whatever the sizes are.
    ///
    /// # Errors
    /// A word that no dtype has; fields that are no permutation of 0, 1, 2, ….
    pub fn check(&self) -> Result<(), String> {
        if !matches!(self.word, 8 | 16 | 32 | 64) {
            return Err(format!("a word has 8, 16, 32 or 64 bits, not {}", self.word));
        }
        let mut sorted = self.fields.clone();
        sorted.sort_unstable();
        if sorted.iter().enumerate().any(|(n, &field)| n != usize::from(field)) {
            let last = self.fields.len() - 1;
            return Err(format!("`fields` names each neighbour from 0 to {last} once"));
        }
        Ok(())
    }
}
