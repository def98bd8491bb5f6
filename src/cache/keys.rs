//! Keys and values of one sequence in one layer: everything, or a sliding window.
//!
//! Both arrays are `[1, heads, room, dim]` (latent attention has but one, its values being a part
//! of its keys), in the order of the tokens, with room for more at the
//! end; writing fills it in place. A window's cache is compacted when the room is used up, and
//! keeps [`SLACK`] tokens more than the window, which is how far it can go back.

use std::ops::Range;

use mlx_rs::error::Exception;
use mlx_rs::ops::concatenate;
use mlx_rs::{Array, Dtype};

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

/// Where the keys and values of some tokens are written.
#[derive(Clone, Debug)]
pub struct Place {
    /// Keys `[1, heads, room, dim]`.
    pub keys: Array,
    /// Values, where they are kept.
    pub values: Option<Array>,
    /// Index of the first of those tokens.
    pub at: usize,
    /// Indices of what those tokens can see, themselves included.
    pub seen: Range<usize>,
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
        let place = self.open(keys.dtype(), shape_of(keys), values.map(shape_of), count)?;
        let written = |held: &Array, new: &Array| slice::with_part(held, 2, place.at as i32, new);
        let values = place.values.as_ref().zip(values);
        let values = values.map(|(held, values)| written(held, values)).transpose()?;
        self.written(written(&place.keys, keys)?, values, count);
        self.seen_by(first)
    }

    /// Where to write the keys and values of the next `count` tokens, for whom calls
    /// [`KeyCache::written`] with what that gives: until then this cache lacks them, so that what
    /// nobody else holds can be written in place. Keys and values are of `[heads, dim]` each.
    pub fn open(
        &mut self,
        dtype: Dtype,
        keys: [i32; 2],
        values: Option<[i32; 2]>,
        count: usize,
    ) -> Result<Place, Exception> {
        self.make_room(dtype, keys, values, count)?;
        let (keys, values) = self.arrays.take().ok_or_else(empty)?;
        let at = self.end - self.start;
        let seen = self.lowest(self.end) - self.start..at + count;
        Ok(Place { keys, values, at, seen })
    }

    /// Takes the arrays of a [`Place`] back, with `count` tokens written.
    pub fn written(&mut self, keys: Array, values: Option<Array>, count: usize) {
        self.arrays = Some((keys, values));
        self.end += count;
    }

    /// A copy of no more than the next token sees besides itself, so that this cache's own arrays
    /// stay its own.
    ///
    /// # Errors
    /// When MLX fails.
    pub fn latest(&self) -> Result<KeyCache, Exception> {
        let Some((keys, values)) = &self.arrays else { return Ok(self.clone()) };
        let start = self.lowest(self.end);
        let range = (start - self.start) as i32..(self.end - self.start) as i32;
        let copy = |held: &Array| -> Result<Array, Exception> {
            let copy = slice::part(held, 2, range.clone())?.contiguous()?;
            copy.eval()?;
            Ok(copy)
        };
        let arrays = Some((copy(keys)?, values.as_ref().map(copy).transpose()?));
        Ok(KeyCache { window: self.window, arrays, start, end: self.end })
    }

    /// What tokens from position `first` on can see, without writing.
    pub fn seen_by(&self, first: usize) -> Result<Seen, Exception> {
        let (keys, values) = self.arrays.as_ref().ok_or_else(empty)?;
        let lowest = self.lowest(first);
        let (from, to) = ((lowest - self.start) as i32, (self.end - self.start) as i32);
        let keys = slice::part(keys, 2, from..to)?;
        let values = match values {
            Some(values) => slice::part(values, 2, from..to)?,
            None => keys.clone(),
        };
        Ok(Seen { keys, values, start: lowest })
    }

    /// The first position that tokens from `first` on see and that is still here.
    fn lowest(&self, first: usize) -> usize {
        let lowest = self.window.map_or(0, |window| (first + 1).saturating_sub(window));
        lowest.max(self.start)
    }

    fn make_room(
        &mut self,
        dtype: Dtype,
        keys: [i32; 2],
        values: Option<[i32; 2]>,
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
        let grow = |held: Option<&Array>, [heads, dim]: [i32; 2]| -> Result<Array, Exception> {
            let fresh = mlx_rs::ops::zeros_dtype(&[1, heads, (room - keep) as i32, dim], dtype)?;
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

fn empty() -> Exception {
    Exception::custom("an empty cache has no keys")
}

/// Heads and elements of each.
fn shape_of(array: &Array) -> [i32; 2] {
    [array.dim(1), array.dim(3)]
}

impl Remembers for KeyCache {
    fn forgets(&self) -> bool {
        self.window.is_some()
    }

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
