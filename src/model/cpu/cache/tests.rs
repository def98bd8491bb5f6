//! Caches under random use, against plain lists of tokens.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::keys::SEGMENT;
use super::{Carry, Keys, Layer, Sizes, State, Step};
use crate::cache::{Cache, Mark};

/// Of the layers under test: all tokens, windows of these, a state.
const WINDOWS: [Option<usize>; 5] = [None, Some(8), Some(100), Some(SEGMENT), Some(700)];

const SIZES: Sizes = Sizes { heads: 2, keys: 3, values: 1 };

/// Tokens that a state goes back at least.
const BACK: usize = 32;

/// A sequence, and what it must hold.
struct Sequence {
    cache: Cache<Layer>,
    tokens: Vec<u32>,
    marks: Vec<Mark<Layer>>,
}

fn new() -> Sequence {
    let keys = WINDOWS.map(|window| Layer::Keys(Keys::new(SIZES, window)));
    let latent = Sizes { heads: 1, keys: 3, values: 0 };
    let latent = Layer::Keys(Keys::new(latent, None));
    let layers = keys.into_iter().chain([latent, Layer::State(State::default())]).collect();
    Sequence { cache: Cache::new(layers), tokens: Vec::new(), marks: Vec::new() }
}

/// What a token leaves in a head: its position, itself, the head.
fn key(position: usize, token: u32, head: usize) -> [f32; 3] {
    [position as f32, token as f32, head as f32]
}

/// A recurrence that forgets nothing, exact in f32.
fn recur(held: &mut Carry, inputs: &[f32]) {
    for &token in inputs {
        held.state[0] = (held.state[0] * 31.0 + token) % 8191.0;
        held.conv.rotate_left(1);
        held.conv[2] = token;
    }
}

fn empty() -> Carry {
    Carry { conv: vec![0.0; 3], state: vec![1.0] }
}

impl Sequence {
    /// A pass over tokens; fails at a layer, if told to.
    fn write(&mut self, new: &[u32], fails_at: Option<usize>) {
        let from = self.tokens.len();
        let written = catch_unwind(AssertUnwindSafe(|| {
            for slot in 0..WINDOWS.len() + 2 {
                let fails = fails_at == Some(slot);
                match self.cache.layer_mut(slot) {
                    Layer::Keys(keys) => {
                        assert!(!fails, "told to");
                        let heads = if slot == WINDOWS.len() { 1 } else { SIZES.heads };
                        let of = |head| {
                            let each = new.iter().enumerate();
                            each.flat_map(move |(i, &token)| key(from + i, token, head))
                        };
                        let rows: Vec<f32> = (0..heads).flat_map(of).collect();
                        let values: Vec<f32> =
                            rows.chunks(3).map(|key| 2.0 * key[0] + key[1]).collect();
                        keys.append(Step { keys: &rows, values: &values, tokens: new.len() });
                    }
                    Layer::State(state) => {
                        let inputs: Vec<f32> = new.iter().map(|&token| token as f32).collect();
                        state.run(&inputs, 1, empty, |held, inputs| {
                            recur(held, inputs);
                            assert!(!fails, "told to");
                        });
                    }
                }
            }
        }));
        assert_eq!(written.is_err(), fails_at.is_some());
        match fails_at {
            Some(_) => self.cache.discard(),
            None => {
                self.cache.stage(new.len());
                self.tokens.extend(new);
            }
        }
    }

    fn settle(&mut self, offset: usize) {
        self.cache.settle(offset).unwrap();
        self.tokens.truncate(offset);
        self.marks.retain(|mark| mark.offset() <= offset);
    }

    /// Each layer holds what the tokens from `first` on see, and nothing else.
    fn check(&self, first: usize) {
        assert_eq!(self.cache.offset() + self.cache.staged(), self.tokens.len());
        for (slot, layer) in self.cache.layers().iter().enumerate() {
            let Layer::Keys(keys) = layer else { continue };
            let window = WINDOWS.get(slot).copied().flatten();
            let lowest = window.map_or(0, |window| (first + 1).saturating_sub(window));
            let (keys, values, start) = keys.seen(first);
            assert_eq!(start, lowest);
            let mut position = start;
            for (keys, values) in keys.iter().zip(&values) {
                assert_eq!(keys.rows, values.rows);
                for row in 0..keys.rows {
                    for head in 0..keys.heads {
                        let found = &keys.data[head * keys.stride + row * 3..][..3];
                        let wanted = key(position, self.tokens[position], head);
                        assert_eq!(found, wanted);
                        if values.width == 1 {
                            let found = values.data[head * values.stride + row];
                            assert_eq!(found, 2.0 * wanted[0] + wanted[1]);
                        }
                    }
                    position += 1;
                }
            }
            assert_eq!(position, self.tokens.len());
        }
        let mut wanted = empty();
        self.tokens.iter().for_each(|&token| recur(&mut wanted, &[token as f32]));
        let Some(Layer::State(state)) = self.cache.layers().last() else { panic!() };
        let found = state.clone().run(&[], 1, empty, |held, inputs| {
            recur(held, inputs);
            held.clone()
        });
        assert_eq!(found, wanted);
    }
}

#[test]
fn caches_are_lists_of_tokens() {
    for seed in 0..40 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut below = |count: usize| random.next_u32() as usize % count;
        let mut all = vec![new()];
        for _ in 0..60 {
            let sequences = all.len();
            let at = below(sequences);
            let sequence = &mut all[at];
            let length = sequence.tokens.len();
            match below(10) {
                // A pass: a token, a draft, a chunk; sometimes one that fails before.
                0..5 => {
                    let count = [1, 1 + below(16), 1 + below(700)][below(3)];
                    let tokens: Vec<u32> = (0..count).map(|_| below(1000) as u32).collect();
                    if below(4) == 0 {
                        sequence.write(&tokens, Some(below(WINDOWS.len() + 2)));
                        sequence.check(length);
                    }
                    sequence.write(&tokens, None);
                    sequence.check(length);
                    // Drafts are accepted in part, chunks as a whole or not at all.
                    let kept = match count <= BACK {
                        true => below(count + 1),
                        false => [0, count][below(2)],
                    };
                    sequence.settle(length + kept);
                    sequence.check(length + kept);
                }
                5 => {
                    let back = length.saturating_sub(below(80));
                    if sequence.cache.reaches(back) {
                        sequence.settle(back);
                        sequence.check(back);
                    }
                }
                6 => {
                    let mark = sequence.cache.mark();
                    assert_eq!(mark.offset(), length);
                    sequence.marks.push(mark);
                }
                7 if !sequence.marks.is_empty() => {
                    let mark = sequence.marks.swap_remove(below(sequence.marks.len()));
                    sequence.cache.return_to(&mark).unwrap();
                    sequence.tokens.truncate(mark.offset());
                    sequence.marks.retain(|other| other.offset() <= mark.offset());
                    sequence.check(mark.offset());
                }
                8 if sequences < 5 => {
                    let (cache, tokens) = (sequence.cache.share(), sequence.tokens.clone());
                    all.push(Sequence { cache, tokens, marks: Vec::new() });
                }
                9 if sequences > 1 => drop(all.swap_remove(at)),
                _ => {}
            }
        }
        for sequence in &all {
            sequence.check(sequence.tokens.len());
        }
    }
}

/// A copy of a long sequence takes no memory for what both hold, and neither does a second one.
#[test]
fn what_is_sealed_is_shared() {
    let mut sequence = new();
    for _ in 0..20 {
        let from = sequence.tokens.len() as u32;
        sequence.write(&(from..from + 100).collect::<Vec<u32>>(), None);
        sequence.cache.commit();
    }
    let alone = sequence.cache.bytes();
    let copies = [sequence.cache.share(), sequence.cache.share()];
    let mut known = std::collections::HashMap::new();
    for cache in copies.iter().chain([&sequence.cache]) {
        cache.allocations(&mut |at, bytes| _ = known.insert(at, bytes));
    }
    let together: usize = known.values().sum();
    assert!(together <= alone + 2 * 4 * 64, "{together} bytes of three, {alone} of one");
    // Old segments of windows are gone.
    let Layer::Keys(small) = &sequence.cache.layers()[1] else { panic!() };
    let mut held = 0;
    small.allocations(&mut |_, bytes| held += bytes);
    assert!(held <= 2 * SEGMENT * 2 * 4 * 4, "{held} bytes of a window of 8");
}
