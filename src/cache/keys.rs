//! Keys and values of one sequence in one layer: everything, or a sliding window.
//!
//! Both arrays are `[1, heads, room, dim]` (latent attention has but one, its values being a part
//! of its keys), in the order of the tokens, with room for more at the
//! end; writing fills it in place. A window's cache is compacted when the room is used up, and
//! keeps [`SLACK`] tokens more than the window, which is how far it can go back.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::ops::concatenate;

use super::Remembers;
use crate::mlx::slice;

/// Tokens by which the room grows.
const STEP: usize = 256;

/// Tokens that a sliding window keeps beyond the window.
pub const SLACK: usize = 64;

/// Keys and values of one sequence in one layer.
#[derive(Clone, Debug)]
pub struct KeyCache {
    /// A token sees so many tokens, itself included.
    window: Option<usize>,
    arrays: Option<(Array, Option<Array>)>,
    /// Position of the token at index 0.
    start: usize,
    /// Tokens written.
    end: usize,
}

/// The keys and values that a chunk of tokens can see, `[1, heads, n, dim]`.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Keys.
    pub keys: Array,
    /// Values; the keys again where none are kept.
    pub values: Array,
    /// Position of the first.
    pub start: usize,
}

impl KeyCache {
    /// An empty cache; `window` is how many tokens a token sees, itself included.
    pub fn new(window: Option<usize>) -> KeyCache {
        KeyCache { window, arrays: None, start: 0, end: 0 }
    }

    /// Tokens written.
    pub fn offset(&self) -> usize {
        self.end
    }

    /// Writes the keys and values of the next tokens, `[1, heads, n, dim]`, and gives what those
    /// tokens can see.
    pub fn append(&mut self, keys: &Array, values: Option<&Array>) -> Result<Seen, Exception> {
        let first = self.end;
        let count = keys.dim(2) as usize;
        self.make_room(keys, values, count)?;
        let at = (first - self.start) as i32;
        if let Some((held_keys, held_values)) = &mut self.arrays {
            *held_keys = slice::with_part(held_keys, 2, at, keys)?;
            if let (Some(held), Some(values)) = (held_values, values) {
                *held = slice::with_part(held, 2, at, values)?;
            }
        }
        self.end += count;
        self.seen_by(first)
    }

    /// What tokens from position `first` on can see, without writing.
    pub fn seen_by(&self, first: usize) -> Result<Seen, Exception> {
        let Some((keys, values)) = &self.arrays else {
            return Err(Exception::custom("an empty cache has no keys"));
        };
        let lowest = self.window.map_or(0, |window| (first + 1).saturating_sub(window));
        let lowest = lowest.max(self.start);
        let (from, to) = ((lowest - self.start) as i32, (self.end - self.start) as i32);
        let keys = slice::part(keys, 2, from..to)?;
        let values = match values {
            Some(values) => slice::part(values, 2, from..to)?,
            None => keys.clone(),
        };
        Ok(Seen { keys, values, start: lowest })
    }

    fn make_room(
        &mut self,
        keys: &Array,
        values: Option<&Array>,
        count: usize,
    ) -> Result<(), Exception> {
        let room = self.arrays.as_ref().map_or(0, |(keys, _)| keys.dim(2) as usize);
        if self.end - self.start + count <= room {
            return Ok(());
        }
        let keep = self.window.map_or(usize::MAX, |window| window - 1 + SLACK);
        let keep = keep.min(self.end - self.start);
        let room = (keep + count).div_ceil(STEP) * STEP;
        let kept = self.end - self.start - keep..self.end - self.start;
        let grow = |held: Option<&Array>, new: &Array| -> Result<Array, Exception> {
            let mut shape = new.shape().to_vec();
            shape[2] = (room - keep) as i32;
            let fresh = mlx_rs::ops::zeros_dtype(&shape, new.dtype())?;
            match held {
                Some(held) if keep > 0 => {
                    let kept = kept.start as i32..kept.end as i32;
                    concatenate(&[slice::part(held, 2, kept)?, fresh], 2)
                }
                _ => Ok(fresh),
            }
        };
        let held = self.arrays.as_ref();
        let grown_keys = grow(held.map(|held| &held.0), keys)?;
        let held_values = held.and_then(|held| held.1.as_ref());
        let grown_values = values.map(|values| grow(held_values, values)).transpose()?;
        self.arrays = Some((grown_keys, grown_values));
        self.start = self.end - keep;
        Ok(())
    }
}

impl Remembers for KeyCache {
    fn reaches(&self, offset: usize) -> bool {
        let lowest = self.window.map_or(0, |window| (offset + 1).saturating_sub(window));
        offset <= self.end && lowest >= self.start
    }

    fn rollback(&mut self, offset: usize) {
        self.end = offset;
    }

    fn arrays(&self) -> Vec<&Array> {
        let arrays = self.arrays.iter();
        arrays.flat_map(|(keys, values)| std::iter::once(keys).chain(values)).collect()
    }
}
