//! The recurrence against its definition, token by token in f64.

use mlx_rs::Array;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::{Inputs, Recurrence, Sizes};

/// Inputs as plain numbers.
struct Plain {
    sizes: Sizes,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    decay: Vec<f32>,
    write: Option<Vec<f32>>,
}

/// Numbers between -1 and 1.
fn numbers(random: &mut ChaCha8Rng, count: i32) -> Vec<f32> {
    (0..count).map(|_| random.next_u32() as f32 / u32::MAX as f32 * 2.0 - 1.0).collect()
}

fn unit(mut rows: Vec<f32>, width: i32) -> Vec<f32> {
    for row in rows.chunks_mut(width as usize) {
        let size = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        row.iter_mut().for_each(|x| *x /= size);
    }
    rows
}

impl Plain {
    fn new(random: &mut ChaCha8Rng, sizes: Sizes, delta: bool) -> Plain {
        let Sizes { tokens, key_heads, group, key_dim, value_dim } = sizes;
        let (keys, heads) = (tokens * key_heads * key_dim, tokens * key_heads * group);
        let decay = numbers(random, heads).iter().map(|x| (x - 1.0) * 0.2).collect();
        Plain {
            sizes,
            queries: unit(numbers(random, keys), key_dim),
            keys: unit(numbers(random, keys), key_dim),
            values: numbers(random, heads * value_dim),
            decay,
            write: delta.then(|| numbers(random, heads).iter().map(|x| x.abs()).collect()),
        }
    }

    /// Those of some tokens.
    fn inputs(&self, from: i32, to: i32) -> Inputs {
        let Sizes { tokens, key_heads, group, key_dim, value_dim } = self.sizes;
        let part = |data: &[f32], shape: &[i32]| {
            let width = data.len() / tokens as usize;
            let shape: Vec<i32> = std::iter::once(to - from).chain(shape.iter().copied()).collect();
            Array::from_slice(&data[from as usize * width..to as usize * width], &shape)
        };
        let heads = key_heads * group;
        Inputs {
            queries: part(&self.queries, &[key_heads, key_dim]),
            keys: part(&self.keys, &[key_heads, key_dim]),
            values: part(&self.values, &[heads, value_dim]),
            decay: part(&self.decay, &[heads]),
            write: self.write.as_ref().map(|write| part(write, &[heads])),
        }
    }

    /// What is read at each token, and the last state.
    fn expected(&self) -> (Vec<f64>, Vec<f64>) {
        let Sizes { tokens, key_heads, group, key_dim, value_dim } = self.sizes;
        let [tokens, heads, group, key_dim, value_dim] =
            [tokens, key_heads * group, group, key_dim, value_dim].map(|size| size as usize);
        let mut out = vec![0.0; tokens * heads * value_dim];
        let mut states = vec![0.0; heads * key_dim * value_dim];
        for token in 0..tokens {
            for head in 0..heads {
                let state = &mut states[head * key_dim * value_dim..][..key_dim * value_dim];
                let row = (token * heads / group + head / group) * key_dim;
                let (key, query) = (&self.keys[row..][..key_dim], &self.queries[row..][..key_dim]);
                let at = token * heads + head;
                let decay = f64::from(self.decay[at]).exp();
                state.iter_mut().for_each(|x| *x *= decay);
                for column in 0..value_dim {
                    let read = |by: &[f32], state: &[f64]| -> f64 {
                        let rows = by.iter().enumerate();
                        rows.map(|(i, &x)| f64::from(x) * state[i * value_dim + column]).sum()
                    };
                    let mut taken = f64::from(self.values[at * value_dim + column]);
                    if let Some(write) = &self.write {
                        taken = f64::from(write[at]) * (taken - read(key, state));
                    }
                    for (i, &key) in key.iter().enumerate() {
                        state[i * value_dim + column] += f64::from(key) * taken;
                    }
                    out[at * value_dim + column] = read(query, state);
                }
            }
        }
        (out, states)
    }

    /// Run in chunks of a size.
    fn run(&self, chunk: i32) -> (Vec<f32>, Vec<f32>) {
        let recurrence = Recurrence::new(self.write.is_some());
        let (mut outs, mut state) = (Vec::new(), None);
        for from in (0..self.sizes.tokens).step_by(chunk as usize) {
            let inputs = self.inputs(from, (from + chunk).min(self.sizes.tokens));
            let (out, after) = recurrence.run(&inputs, state).unwrap();
            outs.extend(floats(&out));
            state = Some(after);
        }
        (outs, floats(&state.unwrap()))
    }

    fn check(&self, what: &str) {
        let expected = self.expected();
        for chunk in [1, 5, 64, 65, self.sizes.tokens] {
            let found = self.run(chunk);
            for (found, expected) in [(found.0, &expected.0), (found.1, &expected.1)] {
                assert_eq!(found.len(), expected.len());
                let differences =
                    found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs());
                let largest = differences.fold(0.0, f64::max);
                assert!(largest < 2e-5, "{what}, chunks of {chunk}: {largest}");
            }
        }
    }
}

fn floats(array: &Array) -> Vec<f32> {
    let array = array.contiguous().unwrap();
    array.eval().unwrap();
    array.as_slice::<f32>().to_vec()
}

#[test]
fn chunks_of_any_size_give_what_single_tokens_do() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for (key_heads, group) in [(2, 3), (1, 1)] {
        let sizes = Sizes { tokens: 150, key_heads, group, key_dim: 24, value_dim: 10 };
        for delta in [true, false] {
            Plain::new(&mut random, sizes, delta).check(&format!("{sizes:?}, delta {delta}"));
        }
    }
}

/// Of equal keys that forget nothing, where powers of a block's matrix grow beyond all bounds.
#[test]
fn repeated_tokens_are_as_exact() {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let sizes = Sizes { tokens: 200, key_heads: 1, group: 1, key_dim: 16, value_dim: 8 };
    let mut plain = Plain::new(&mut random, sizes, true);
    plain.keys = plain.keys[..16].repeat(200);
    plain.decay.fill(0.0);
    plain.write = Some(vec![0.999; 200]);
    plain.check("equal keys");
}
