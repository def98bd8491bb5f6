//! Mixtures of experts against their definition in f64, pair by pair.

use super::environment::Environment;
use super::*;

/// Stacked matrices and biases.
struct Stacked {
    stored: Stored,
    rows: usize,
    bias: Option<Vec<f32>>,
}

impl Stacked {
    fn new(form: Form, shape: [usize; 3], biased: bool, random: &mut Random) -> Stacked {
        let [count, rows, columns] = shape;
        let stored = Stored::new(form, count * rows, columns);
        let bias = biased.then(|| (0..count * rows).map(|_| random.float()).collect());
        Stacked { stored, rows, bias }
    }

    fn of(&self, expert: usize) -> Matrix<'_> {
        self.stored.matrix().part(expert * self.rows, self.rows)
    }

    /// By the definition.
    fn wanted(&self, expert: usize, x: &[f64]) -> Vec<f64> {
        let rows = expert * self.rows..(expert + 1) * self.rows;
        let columns = self.stored.columns;
        rows.map(|row| {
            let terms = x.iter().zip(row * columns..).map(|(x, at)| x * self.stored.value(at));
            terms.sum::<f64>() + self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[row]))
        })
        .collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Plain,
    Split,
    Halves,
    Interleaved,
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn clamped(gate: f64, up: f64, (limit, alpha): (f32, f32)) -> f64 {
    let (limit, alpha) = (f64::from(limit), f64::from(alpha));
    let gate = gate.min(limit);
    gate / (1.0 + (-alpha * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
}

#[test]
fn mixtures_are_what_they_are_defined_to_be() {
    let mut random = Random(31);
    let four = Form::Affine { bits: 4, group: 32, scales: Scales::Bf16 };
    for (form, count, top_k, width, inner, tokens) in [
        (Form::F32, 5, 2, 11, 7, 1),
        (Form::Bf16, 6, 3, 24, 33, 3),
        // Some experts have many tokens, some few, and one none.
        (Form::F32, 7, 2, 9, 12, 60),
        (four, 4, 2, 64, 32, 5),
        (four, 9, 4, 96, 64, 30),
    ] {
        for kind in [Kind::Plain, Kind::Split, Kind::Halves, Kind::Interleaved] {
            for (biased, clamp) in [(false, None), (true, None), (true, Some((0.7, 1.702)))] {
                let parts = if kind == Kind::Plain || kind == Kind::Split { 1 } else { 2 };
                let mut stack =
                    |rows, columns| Stacked::new(form, [count, rows, columns], biased, &mut random);
                let (first, second) = (stack(parts * inner, width), stack(inner, width));
                let last = stack(width, inner);
                let x: Vec<f32> = (0..tokens * width).map(|_| random.float()).collect();
                // The last expert is never chosen, the first by most.
                let named: Vec<u32> = (0..tokens * top_k)
                    .map(|pair| match (pair % top_k, pair / top_k) {
                        (0, token) if token % 3 > 0 => 0,
                        (i, token) => ((i + token) % (count - 1)) as u32,
                    })
                    .collect();
                let weights: Vec<f32> = named.iter().map(|_| random.float()).collect();
                let [first_of, second_of, last_of] =
                    [&first, &second, &last].map(|stack| move |expert| stack.of(expert));
                let bias = |stack: &'static str| match stack {
                    "first" => first.bias.as_deref(),
                    "second" => second.bias.as_deref(),
                    _ => last.bias.as_deref(),
                };
                let one = Stack { count, of: &first_of, bias: bias("first") };
                let two = Stack { count, of: &second_of, bias: bias("second") };
                let entry = match kind {
                    Kind::Plain => Entry::Plain(one),
                    Kind::Split => Entry::Split { gate: one, up: two },
                    Kind::Halves => Entry::Fused { both: one, interleaved: false },
                    Kind::Interleaved => Entry::Fused { both: one, interleaved: true },
                };
                let down = Stack { count, of: &last_of, bias: bias("last") };
                let experts = Experts { entry, function: Gate::Silu, clamp, down };
                let made = |from: usize, to: usize| {
                    let pairs = from * top_k..to * top_k;
                    let chosen =
                        Chosen { top_k, experts: &named[pairs.clone()], weights: &weights[pairs] };
                    let mut out = vec![f32::NAN; (to - from) * width];
                    let x = &x[from * width..to * width];
                    mixture(&experts, &chosen, x, &mut out, Gemm(plain));
                    out
                };
                let what = format!("{form:?}, {kind:?}, {biased}, {clamp:?}");
                for instructions in Instructions::ALL.into_iter().filter(|known| known.is_there()) {
                    let (found, _) = Environment::run(instructions, false, || made(0, tokens));
                    for (token, found) in found.chunks(width).enumerate() {
                        let x: Vec<f64> =
                            x[token * width..][..width].iter().map(|&x| x.into()).collect();
                        let (mut wanted, mut size) = (vec![0.0; width], 1.0);
                        for pair in token * top_k..(token + 1) * top_k {
                            let expert = named[pair] as usize;
                            let one = first.wanted(expert, &x);
                            let pairs: Vec<(f64, f64)> = match kind {
                                Kind::Plain => one.iter().map(|&up| (up, 1.0)).collect(),
                                Kind::Split => {
                                    one.into_iter().zip(second.wanted(expert, &x)).collect()
                                }
                                Kind::Halves => {
                                    (0..inner).map(|i| (one[i], one[inner + i])).collect()
                                }
                                Kind::Interleaved => {
                                    (0..inner).map(|i| (one[2 * i], one[2 * i + 1])).collect()
                                }
                            };
                            let clamp = clamp.filter(|_| kind != Kind::Plain);
                            let inner = pairs.into_iter().map(|(gate, up)| match clamp {
                                Some(clamp) => clamped(gate, up, clamp),
                                None => silu(gate) * up,
                            });
                            let inner: Vec<f64> = inner.collect();
                            let weight = f64::from(weights[pair]);
                            for (to, y) in wanted.iter_mut().zip(last.wanted(expert, &inner)) {
                                *to += weight * y;
                                size = f64::max(size, (weight * y).abs());
                            }
                        }
                        for (found, wanted) in found.iter().zip(&wanted) {
                            let near = (f64::from(*found) - wanted).abs() <= 1e-5 * size;
                            assert!(near, "{what}: token {token}: {found}, not {wanted}");
                        }
                    }
                }
                // Whatever other tokens there are, where products of rows do not depend on others.
                if tokens < MANY && form != four {
                    let alone: Vec<f32> =
                        (0..tokens).flat_map(|token| made(token, token + 1)).collect();
                    assert_eq!(alone, made(0, tokens), "{what}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "expert 2 of 2")]
fn experts_that_are_not_there_are_refused() {
    let stored = Stored::new(Form::F32, 8, 4);
    let of = |expert: usize| stored.matrix().part(expert * 4, 4);
    let stack = Stack { count: 2, of: &of, bias: None };
    let experts =
        Experts { entry: Entry::Plain(stack), function: Gate::Relu, clamp: None, down: stack };
    let chosen = Chosen { top_k: 1, experts: &[2], weights: &[1.0] };
    mixture(&experts, &chosen, &[0.0; 4], &mut [0.0; 4], Gemm(plain));
}
