//! Keys and values of one sequence in one layer: everything, or a sliding window.
//!
//! Both arrays are `[1, heads, room, dim]` (latent attention has but one, its values being a part
//! of its keys), in the order of the tokens, with room for more at the end. Operations want them in
//! one piece. A window's arrays are compacted when the room is used up, and keep [`SLACK`] tokens
//! more than the window, which is how far it can go back.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::ops::{concatenate, zeros_dtype};

use super::Kept;
use crate::mlx::slice;

/// Tokens by which the room grows, at least.
pub const STEP: usize = 256;

/// Tokens that a sliding window keeps beyond the window.
const SLACK: usize = 64;

/// Keys and values of one sequence in one layer.
#[derive(Clone, Debug)]
pub struct Keys {
    /// A token sees so many tokens, itself included.
    window: Option<usize>,
    /// Keys, and values unless the keys are these too.
    arrays: Option<(Kept, Option<Kept>)>,
    /// Position of the token at index 0.
    start: usize,
    /// Position after the last token that is written.
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

impl Keys {
    /// An empty cache; `window` is how many tokens a token sees, itself included.
    pub fn new(window: Option<usize>) -> Keys {
        Keys { window, arrays: None, start: 0, end: 0 }
    }

    /// Writes the keys and values of the next tokens, `[1, heads, n, dim]`. All before are settled.
    ///
    /// # Errors
    /// What MLX refuses.
    pub fn append(&mut self, keys: &Array, values: Option<&Array>) -> Result<(), Exception> {
        let count = keys.dim(2) as usize;
        let held = self.end - self.start;
        let room = self.arrays.as_ref().map_or(0, |(keys, _)| keys.array.dim(2) as usize);
        let mut keep = held;
        if held + count > room {
            keep = self.window.map_or(held, |window| held.min(window - 1 + SLACK));
        }
        let write = |held_array: Option<&Kept>, new: &Array| -> Result<Kept, Exception> {
            let grown;
            let array = match held_array {
                Some(kept) if held + count <= room => &kept.array,
                _ => {
                    grown = grow(held_array, held - keep..held, new)?;
                    &grown
                }
            };
            Ok(Kept::new(slice::with_part(array, 2, keep as i32, new)?))
        };
        let (held_keys, held_values) = match &self.arrays {
            Some((keys, values)) => (Some(keys), values.as_ref()),
            None => (None, None),
        };
        let written = write(held_keys, keys)?;
        let values = values.map(|values| write(held_values, values)).transpose()?;
        self.arrays = Some((written, values));
        self.start = self.end - keep;
        self.end += count;
        Ok(())
    }

    /// What tokens from position `first` on see.
    ///
    /// # Errors
    /// When nothing was written, and what MLX refuses.
    pub fn seen(&self, first: usize) -> Result<Seen, Exception> {
        let empty = || Exception::custom("an empty cache has no keys");
        let (keys, values) = self.arrays.as_ref().ok_or_else(empty)?;
        let start = self.lowest(first);
        let seen = (start - self.start) as i32..(self.end - self.start) as i32;
        let keys = slice::part(&keys.array, 2, seen.clone())?;
        let values = match values {
            Some(values) => slice::part(&values.array, 2, seen)?,
            None => keys.clone(),
        };
        Ok(Seen { keys, values, start })
    }

    /// The first position that tokens from `first` on see and that is still here.
    fn lowest(&self, first: usize) -> usize {
        let lowest = self.window.map_or(0, |window| (first + 1).saturating_sub(window));
        lowest.max(self.start)
    }

    /// See [`crate::cache::Layer`], as for what follows.
    pub fn forgets(&self) -> bool {
        self.window.is_some()
    }

    pub fn reaches(&self, offset: usize) -> bool {
        let lowest = self.window.map_or(0, |window| (offset + 1).saturating_sub(window));
        offset <= self.end && lowest >= self.start
    }

    pub fn settle(&mut self, offset: usize) {
        self.end = offset;
    }

    /// The window alone, in arrays of its own, so that writing on need not copy the others.
    pub fn latest(&self) -> Keys {
        let start = self.lowest(self.end);
        let range = (start - self.start) as i32..(self.end - self.start) as i32;
        let copy = |kept: &Kept| -> Result<Kept, Exception> {
            let copy = slice::part(&kept.array, 2, range.clone())?.contiguous()?;
            mlx_rs::transforms::async_eval([&copy])?;
            Ok(Kept::new(copy))
        };
        let copied = self.arrays.as_ref().map(|(keys, values)| {
            Ok::<_, Exception>((copy(keys)?, values.as_ref().map(copy).transpose()?))
        });
        match copied.transpose() {
            Ok(arrays) => Keys { window: self.window, arrays, start, end: self.end },
            // The same arrays are as good.
            Err(_) => self.clone(),
        }
    }

    pub fn allocations(&self, each: &mut dyn FnMut(usize, usize)) {
        let all = self.arrays.iter().flat_map(|(keys, values)| [Some(keys), values.as_ref()]);
        all.flatten().for_each(|kept| kept.tell(each));
    }

    pub fn arrays(&self) -> Vec<&Array> {
        let all = self.arrays.iter().flat_map(|(keys, values)| [Some(keys), values.as_ref()]);
        all.flatten().map(|kept| &kept.array).collect()
    }
}

/// Tokens `kept` of what is held, with room for at least those of `new`.
fn grow(held: Option<&Kept>, kept: Range<usize>, new: &Array) -> Result<Array, Exception> {
    let needed = kept.len() + new.dim(2) as usize;
    // In proportion, lest a long sequence is copied for each few tokens.
    let room = (needed + needed / 8).next_multiple_of(STEP);
    let fresh = [1, new.dim(1), (room - kept.len()) as i32, new.dim(3)];
    let fresh = zeros_dtype(&fresh, new.dtype())?;
    match held {
        Some(held) if !kept.is_empty() => {
            let kept = slice::part(&held.array, 2, kept.start as i32..kept.end as i32)?;
            concatenate(&[kept, fresh], 2)
        }
        _ => Ok(fresh),
    }
}
