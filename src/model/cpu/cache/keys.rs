//! Keys and values of one sequence in one layer: everything, or a sliding window.
//!
//! They lie in segments of up to [`SEGMENT`] tokens, `[heads, room, width]` each. A full one is
//! sealed: nobody writes it again, so that any number of sequences and marks share it. The last one
//! is the sequence's own and grows. A window drops segments that nobody sees any more.

use std::sync::Arc;

use lathe_kernels::Heads;

/// Tokens of a segment.
pub const SEGMENT: usize = 256;

/// Tokens that a new segment has room for.
const LEAST: usize = 32;

/// Tokens that a sliding window keeps beyond the window: how far it can go back.
const SLACK: usize = 64;

/// The sizes of what a token leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Heads of keys and values.
    pub heads: usize,
    /// Elements of a key.
    pub keys: usize,
    /// Elements of a value; 0 where the keys are the values too (latent attention).
    pub values: usize,
}

/// Keys and values of one sequence in one layer.
#[derive(Clone, Debug)]
pub struct Keys {
    sizes: Sizes,
    /// A token sees so many tokens, itself included.
    window: Option<usize>,
    sealed: Vec<Sealed>,
    tail: Segment,
    /// Position of the first token that is held.
    start: usize,
    /// Position after the last token that is written.
    end: usize,
}

/// The first `rows` tokens of a sealed segment.
#[derive(Clone, Debug)]
struct Sealed {
    segment: Arc<Segment>,
    rows: usize,
}

#[derive(Clone, Debug, Default)]
struct Segment {
    /// `[heads, room, width]`.
    keys: Vec<f32>,
    values: Vec<f32>,
    room: usize,
    /// Tokens that are there.
    rows: usize,
}

/// Keys and values of some tokens to be written, `[heads, tokens, width]` each; no values where the
/// keys are the values too.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Keys.
    pub keys: &'a [f32],
    /// Values.
    pub values: &'a [f32],
    /// How many.
    pub tokens: usize,
}

impl Keys {
    /// An empty cache; `window` is how many tokens a token sees, itself included.
    pub fn new(sizes: Sizes, window: Option<usize>) -> Keys {
        let (sealed, tail) = (Vec::new(), Segment::default());
        Keys { sizes, window, sealed, tail, start: 0, end: 0 }
    }

    /// Writes the next tokens. All before are settled.
    pub fn append(&mut self, step: Step) {
        self.drop_unseen();
        let mut done = 0;
        while done < step.tokens {
            if self.tail.rows == SEGMENT {
                self.seal();
            }
            let count = (step.tokens - done).min(SEGMENT - self.tail.rows);
            self.tail.make_room(&self.sizes, count);
            self.tail.write(&self.sizes, step, done, count);
            done += count;
        }
        self.end += step.tokens;
    }

    /// The blocks of keys and of values that a token at position `first` and those after it see, and
    /// the position of the first.
    pub fn seen(&self, first: usize) -> (Vec<Heads<'_>>, Vec<Heads<'_>>, usize) {
        let lowest = self.lowest(first);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let mut at = self.start;
        let sealed = self.sealed.iter().map(|part| (&*part.segment, part.rows));
        for (segment, rows) in sealed.chain([(&self.tail, self.tail.rows)]) {
            let from = lowest.saturating_sub(at);
            if from < rows {
                keys.push(segment.block(
                    &segment.keys,
                    self.sizes.heads,
                    self.sizes.keys,
                    from,
                    rows,
                ));
                values.push(match self.sizes.values {
                    0 => keys[keys.len() - 1],
                    width => segment.block(&segment.values, self.sizes.heads, width, from, rows),
                });
            }
            at += rows;
        }
        (keys, values, lowest)
    }

    /// The first position that tokens from `first` on see and that is still here.
    fn lowest(&self, first: usize) -> usize {
        let lowest = self.window.map_or(0, |window| (first + 1).saturating_sub(window));
        lowest.max(self.start)
    }

    /// Makes the tail a sealed segment.
    fn seal(&mut self) {
        let segment = std::mem::take(&mut self.tail);
        if segment.rows > 0 {
            let rows = segment.rows;
            self.sealed.push(Sealed { segment: Arc::new(segment), rows });
        }
    }

    /// Drops sealed segments that no token from `end - SLACK` on sees.
    fn drop_unseen(&mut self) {
        let Some(window) = self.window else { return };
        let needed = (self.end + 1).saturating_sub(window + SLACK);
        let mut gone = 0;
        for part in &self.sealed {
            if self.start + part.rows > needed {
                break;
            }
            self.start += part.rows;
            gone += 1;
        }
        self.sealed.drain(..gone);
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
        let mut beyond = self.end - offset;
        self.end = offset;
        let of_tail = beyond.min(self.tail.rows);
        self.tail.rows -= of_tail;
        beyond -= of_tail;
        while beyond > 0 {
            let Some(Sealed { segment, rows }) = self.sealed.pop() else { break };
            let left = rows - beyond.min(rows);
            beyond -= rows - left;
            if left > 0 {
                match Arc::try_unwrap(segment) {
                    // Nobody else has it: it is written on.
                    Ok(segment) => self.tail = Segment { rows: left, ..segment },
                    Err(segment) => self.sealed.push(Sealed { segment, rows: left }),
                }
            }
        }
        if self.sealed.is_empty() && self.tail.rows == 0 {
            self.start = offset;
        }
    }

    pub fn share(&mut self) -> Keys {
        self.seal();
        self.clone()
    }

    pub fn latest(&mut self) -> Keys {
        let mut latest = self.share();
        let lowest = self.lowest(self.end);
        let unseen = |part: &Sealed, start: usize| start + part.rows <= lowest;
        while latest.sealed.first().is_some_and(|part| unseen(part, latest.start)) {
            latest.start += latest.sealed.remove(0).rows;
        }
        latest
    }

    pub fn allocations(&self, each: &mut dyn FnMut(usize, usize)) {
        for part in &self.sealed {
            each(Arc::as_ptr(&part.segment) as usize, part.segment.bytes());
        }
        if self.tail.room > 0 {
            each(self.tail.keys.as_ptr() as usize, self.tail.bytes());
        }
    }
}

impl Segment {
    fn bytes(&self) -> usize {
        size_of_val(&self.keys[..]) + size_of_val(&self.values[..])
    }

    /// Rows `from..to` of all heads.
    fn block<'a>(
        &self,
        data: &'a [f32],
        heads: usize,
        width: usize,
        from: usize,
        to: usize,
    ) -> Heads<'a> {
        Heads {
            data: &data[from * width..],
            heads,
            rows: to - from,
            width,
            stride: self.room * width,
        }
    }

    /// Room for `count` tokens more.
    fn make_room(&mut self, sizes: &Sizes, count: usize) {
        let needed = self.rows + count;
        if needed <= self.room {
            return;
        }
        let room = needed.next_power_of_two().clamp(LEAST, SEGMENT);
        let grown = |held: &[f32], width: usize| {
            let mut grown = vec![0.0; sizes.heads * room * width];
            for head in 0..if self.rows > 0 { sizes.heads } else { 0 } {
                let rows = &held[head * self.room * width..][..self.rows * width];
                grown[head * room * width..][..rows.len()].copy_from_slice(rows);
            }
            grown
        };
        (self.keys, self.values) =
            (grown(&self.keys, sizes.keys), grown(&self.values, sizes.values));
        self.room = room;
    }

    /// Writes `count` tokens of a step from `done` on.
    fn write(&mut self, sizes: &Sizes, step: Step, done: usize, count: usize) {
        let (room, at) = (self.room, self.rows);
        let put = |held: &mut [f32], new: &[f32], width: usize| {
            for head in 0..sizes.heads {
                let from = &new[(head * step.tokens + done) * width..][..count * width];
                held[(head * room + at) * width..][..from.len()].copy_from_slice(from);
            }
        };
        put(&mut self.keys, step.keys, sizes.keys);
        if sizes.values > 0 {
            put(&mut self.values, step.values, sizes.values);
        }
        self.rows += count;
    }
}
