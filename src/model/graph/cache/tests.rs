//! Caches under random use, against plain lists of tokens.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::keys::STEP;
use super::{Carry, Keys, Layer, State};
use crate::cache::{Cache, Mark};
use crate::model::graph::ops::Result;

/// Of the layers under test: all tokens, windows of these, keys alone, a state.
const WINDOWS: [Option<usize>; 4] = [None, Some(8), Some(100), Some(STEP)];

/// The slots of the others.
const ALONE: usize = WINDOWS.len();
const STATE: usize = ALONE + 1;

const HEADS: usize = 2;

/// Tokens that a state goes back at least.
const BACK: usize = 32;

/// A sequence, and what it must hold.
struct Sequence {
    cache: Cache<Layer>,
    tokens: Vec<u32>,
    marks: Vec<Mark<Layer>>,
}

fn new() -> Sequence {
    let mut layers: Vec<Layer> =
        WINDOWS.iter().map(|&window| Layer::Keys(Keys::new(window))).collect();
    layers.extend([Layer::Keys(Keys::new(None)), Layer::State(State::default())]);
    Sequence { cache: Cache::new(layers), tokens: Vec::new(), marks: Vec::new() }
}

/// What tokens leave in all heads, `[heads, tokens, 3]`: positions, themselves, the head.
fn keys_of(from: usize, tokens: &[u32]) -> Vec<f32> {
    let of = |head: usize| {
        let each = tokens.iter().enumerate();
        each.flat_map(move |(i, &token)| [(from + i) as f32, token as f32, head as f32])
    };
    (0..HEADS).flat_map(of).collect()
}

fn values_of(keys: &[f32]) -> Vec<f32> {
    keys.chunks(3).map(|key| 2.0 * key[0] + key[1]).collect()
}

fn floats(array: &Array) -> Vec<f32> {
    let array = array.contiguous().unwrap();
    array.eval().unwrap();
    array.as_slice::<f32>().to_vec()
}

/// A recurrence that forgets nothing, exact in f32.
fn recur([state, last]: [f32; 2], inputs: &[f32]) -> [f32; 2] {
    let next = |[state, _]: [f32; 2], &token: &f32| [(state * 31.0 + token) % 8191.0, token];
    inputs.iter().fold([state, last], next)
}

const EMPTY: [f32; 2] = [1.0, 0.0];

/// The same on arrays.
fn step(before: Option<Carry>, inputs: &[Array]) -> Result<(Carry, ())> {
    let before =
        before.map_or(EMPTY, |held| [floats(&held.state.unwrap())[0], floats(&held.conv)[0]]);
    let [state, last] = recur(before, &floats(&inputs[0]));
    let state = Some(Array::from_f32(state));
    Ok((Carry { conv: Array::from_f32(last), state }, ()))
}

impl Sequence {
    /// A pass over tokens; fails at a layer, if told to.
    fn write(&mut self, new: &[u32], fails_at: Option<usize>) {
        let written = (0..=STATE).try_for_each(|slot| self.write_in(slot, new, fails_at));
        assert_eq!(written.is_err(), fails_at.is_some());
        match fails_at {
            Some(_) => self.cache.discard(),
            None => {
                self.cache.stage(new.len());
                self.tokens.extend(new);
            }
        }
    }

    fn write_in(&mut self, slot: usize, new: &[u32], fails_at: Option<usize>) -> Result<()> {
        let told = || match fails_at == Some(slot) {
            true => Err(Exception::custom("told to")),
            false => Ok(()),
        };
        let (from, count) = (self.tokens.len(), new.len() as i32);
        match self.cache.layer_mut(slot) {
            Layer::Keys(layer) => {
                told()?;
                let keys = keys_of(from, new);
                let values = Array::from_slice(&values_of(&keys), &[1, HEADS as i32, count, 1]);
                let keys = Array::from_slice(&keys, &[1, HEADS as i32, count, 3]);
                layer.append(&keys, (slot != ALONE).then_some(&values))
            }
            Layer::State(state) => {
                let inputs: Vec<f32> = new.iter().map(|&token| token as f32).collect();
                let inputs = vec![Array::from_slice(&inputs, &[count])];
                state.run(inputs, |before, inputs| {
                    let made = step(before, inputs)?;
                    told()?;
                    Ok(made)
                })
            }
        }
    }

    fn settle(&mut self, offset: usize) {
        self.cache.settle(offset).unwrap();
        self.tokens.truncate(offset);
        self.marks.retain(|mark| mark.offset() <= offset);
    }

    /// Each layer holds what the tokens from `first` on see, and nothing else.
    fn check(&mut self, first: usize) {
        assert_eq!(self.cache.offset() + self.cache.staged(), self.tokens.len());
        if self.tokens.is_empty() {
            return;
        }
        for (slot, layer) in self.cache.layers().iter().enumerate() {
            match layer {
                Layer::Keys(layer) => {
                    let window = WINDOWS.get(slot).copied().flatten();
                    let lowest = window.map_or(0, |window| (first + 1).saturating_sub(window));
                    let seen = layer.seen(first).unwrap();
                    assert_eq!(seen.start, lowest);
                    let wanted = keys_of(lowest, &self.tokens[lowest..]);
                    assert_eq!(floats(&seen.keys), wanted);
                    let values = if slot == ALONE { wanted } else { values_of(&wanted) };
                    assert_eq!(floats(&seen.values), values);
                }
                Layer::State(state) => {
                    let tokens: Vec<f32> = self.tokens.iter().map(|&token| token as f32).collect();
                    let mut found = EMPTY;
                    // On a copy, so that what must be run again stays so.
                    let next = vec![Array::from_slice(&[0.0f32], &[1])];
                    let run = state.clone().run(next, |before, inputs| {
                        found = before.as_ref().map_or(EMPTY, |held| {
                            [floats(held.state.as_ref().unwrap())[0], floats(&held.conv)[0]]
                        });
                        step(before, inputs)
                    });
                    run.unwrap();
                    assert_eq!(found, recur(EMPTY, &tokens));
                }
            }
        }
    }
}

#[test]
fn caches_are_lists_of_tokens() {
    for seed in 0..12 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut below = |count: usize| random.next_u32() as usize % count;
        let mut all = vec![new()];
        for _ in 0..50 {
            let sequences = all.len();
            let at = below(sequences);
            let sequence = &mut all[at];
            let length = sequence.tokens.len();
            match below(10) {
                // A pass: a token, a draft, a chunk; sometimes one that fails before.
                0..5 => {
                    let count = [1, 1 + below(16), 1 + below(400)][below(3)];
                    let tokens: Vec<u32> = (0..count).map(|_| below(1000) as u32).collect();
                    if below(4) == 0 {
                        sequence.write(&tokens, Some(below(STATE + 1)));
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
                8 if sequences < 4 => {
                    let (cache, tokens) = (sequence.cache.share(), sequence.tokens.clone());
                    all.push(Sequence { cache, tokens, marks: Vec::new() });
                }
                9 if sequences > 1 => drop(all.swap_remove(at)),
                _ => {}
            }
        }
        for sequence in &mut all {
            sequence.check(sequence.tokens.len());
        }
    }
}

/// A copy of a long sequence takes no memory for what both hold, until one of them writes on.
#[test]
fn copies_hold_the_same_arrays() {
    let mut sequence = new();
    for _ in 0..20 {
        let from = sequence.tokens.len() as u32;
        sequence.write(&(from..from + 100).collect::<Vec<u32>>(), None);
        sequence.cache.commit();
    }
    let alone = sequence.cache.bytes();
    let copies = [sequence.cache.share(), sequence.cache.share()];
    let together = |caches: &[&Cache<Layer>]| -> usize {
        let mut known = std::collections::HashMap::new();
        for cache in caches {
            cache.allocations(&mut |number, bytes| {
                known.insert(number, bytes);
            });
        }
        known.values().sum()
    };
    assert_eq!(together(&[&sequence.cache, &copies[0], &copies[1]]), alone);
    sequence.write(&[1], None);
    sequence.cache.commit();
    assert!(together(&[&sequence.cache, &copies[0], &copies[1]]) > alone);
    assert_eq!(together(&[&copies[0], &copies[1]]), alone);
    // A window holds no more than itself, what it can go back, and some room.
    let Layer::Keys(small) = &sequence.cache.layers()[1] else { panic!() };
    let mut held = 0;
    small.allocations(&mut |_, bytes| held += bytes);
    assert!(held <= 2 * STEP * HEADS * 4 * 4, "{held} bytes of a window of 8");
}
