//! Each layer against its definition in f64, token by token, and sequences cut anywhere.

use super::*;
use crate::tests::environment::Environment;
use crate::tests::{Random, plain};
use crate::{Gemm, Instructions};

fn floats(random: &mut Random, count: usize, low: f32, high: f32) -> Vec<f32> {
    (0..count).map(|_| low + (random.float() + 1.0) / 2.0 * (high - low)).collect()
}

/// Each found is near beside the size of all wanted.
fn near(found: &[f32], wanted: &[f64], what: &str) {
    assert_eq!(found.len(), wanted.len());
    let square = wanted.iter().map(|x| x * x).sum::<f64>() / wanted.len().max(1) as f64;
    for (i, (&found, &wanted)) in found.iter().zip(wanted).enumerate() {
        let near = (f64::from(found) - wanted).abs() <= 1e-5 * wanted.abs().max(square.sqrt());
        assert!(near, "{what}: {i} is {found}, not {wanted}");
    }
}

/// Where sequences are cut: some of them from one token to the next.
fn cuts(tokens: usize) -> Vec<Vec<usize>> {
    let mut cuts = vec![vec![tokens]];
    if tokens > 1 {
        cuts.push(vec![1, tokens]);
        cuts.push((1..=tokens).collect());
        cuts.push(vec![tokens / 3, tokens / 3, tokens - 1, tokens]);
    }
    if tokens > 2 * MANY {
        cuts.push(vec![MANY + 1, tokens]);
        cuts.push(vec![MANY - 1, tokens - MANY + 1, tokens]);
    }
    cuts
}

fn sequences(mut of: impl FnMut(&[usize])) {
    for instructions in Instructions::ALL {
        if instructions.is_there() {
            for tokens in [1, 2, 7, MANY, 63, 64, 65, 150] {
                for cuts in cuts(tokens) {
                    Environment::run(instructions, false, || of(&cuts));
                }
            }
        }
    }
}

#[test]
fn convolutions_are_what_they_are_defined_to_be() {
    let mut random = Random(11);
    for (kernel, channels) in [(1, 9), (2, 8), (3, 33), (4, 600), (5, 17), (8, 40), (6, 1), (7, 3)]
    {
        let weight = floats(&mut random, kernel * channels, -1.0, 1.0);
        let bias = floats(&mut random, channels, -1.0, 1.0);
        for (bias, silu) in [(None, false), (Some(&bias[..]), true), (Some(&bias[..]), false)] {
            sequences(|cuts| {
                let tokens = cuts[cuts.len() - 1];
                // Beside other columns.
                let stride = channels + 5;
                let x = floats(&mut random, tokens * stride, -2.0, 2.0);
                let mut before = vec![0.0; (kernel - 1) * channels];
                let conv = Conv { kernel, weight: &weight, bias, silu };
                let mut found = Vec::new();
                let mut from = 0;
                for &to in cuts {
                    let part = Band::new(&x[from * stride..to * stride], stride, 2..2 + channels);
                    let mut out = vec![f32::NAN; (to - from) * channels];
                    super::conv(&conv, part, &mut before, &mut out);
                    found.extend(out);
                    from = to;
                }
                let at = |token: isize, channel: usize| match usize::try_from(token) {
                    Ok(token) => f64::from(x[token * stride + 2 + channel]),
                    Err(_) => 0.0,
                };
                let mut wanted = Vec::new();
                for token in 0..tokens as isize {
                    for channel in 0..channels {
                        let taps = (0..kernel).map(|tap| {
                            let token = token + tap as isize - (kernel as isize - 1);
                            f64::from(weight[tap * channels + channel]) * at(token, channel)
                        });
                        let sum = taps.sum::<f64>() + bias.map_or(0.0, |b| f64::from(b[channel]));
                        wanted.push(if silu { sum / (1.0 + (-sum).exp()) } else { sum });
                    }
                }
                near(&found, &wanted, &format!("{kernel} of {channels}, {cuts:?}"));
                let kept = tokens as isize - (kernel as isize - 1)..tokens as isize;
                let last = kept.flat_map(|token| (0..channels).map(move |c| at(token, c)));
                near(&before, &last.collect::<Vec<f64>>(), "before");
            });
        }
    }
}

#[test]
fn gated_delta_nets_are_what_they_are_defined_to_be() {
    let mut random = Random(12);
    for (key_heads, value_heads, key_dim, value_dim) in
        [(1, 1, 5, 7), (2, 4, 16, 16), (3, 3, 24, 9), (1, 6, 32, 40)]
    {
        let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
        let stride = 2 * keys + values;
        // Decays that forget nothing, most, and all.
        for least in [-1e-3, -1.0, -90.0] {
            sequences(|cuts| {
                let tokens = cuts[cuts.len() - 1];
                let qkv = floats(&mut random, tokens * stride, -1.0, 1.0);
                let decay = floats(&mut random, tokens * value_heads, least, 0.0);
                let write = floats(&mut random, tokens * value_heads, 0.0, 1.0);
                let first = floats(&mut random, value_heads * key_dim * value_dim, -1.0, 1.0);
                let (mut state, mut found, mut from) = (first.clone(), Vec::new(), 0);
                for &to in cuts {
                    let band =
                        |columns| Band::new(&qkv[from * stride..to * stride], stride, columns);
                    let given = GatedDelta {
                        key_heads,
                        value_heads,
                        q: band(0..keys),
                        k: band(keys..2 * keys),
                        v: band(2 * keys..stride),
                        decay: &decay[from * value_heads..to * value_heads],
                        write: &write[from * value_heads..to * value_heads],
                    };
                    let mut out = vec![f32::NAN; (to - from) * values];
                    gated_delta(&given, &mut state, &mut out, Gemm(plain));
                    found.extend(out);
                    from = to;
                }
                let mut s: Vec<f64> = first.iter().map(|&x| x.into()).collect();
                let mut wanted = Vec::new();
                for (token, row) in qkv.chunks(stride).enumerate() {
                    for head in 0..value_heads {
                        let of_key = head / (value_heads / key_heads) * key_dim;
                        let unit = |from: usize| -> Vec<f64> {
                            let x = row[from..from + key_dim].iter().map(|&x| f64::from(x));
                            let size = (x.clone().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                            x.map(|x| x / size).collect()
                        };
                        let (q, k) = (unit(of_key), unit(keys + of_key));
                        let s = &mut s[head * key_dim * value_dim..][..key_dim * value_dim];
                        let forget = f64::from(decay[token * value_heads + head]).exp();
                        let write = f64::from(write[token * value_heads + head]);
                        s.iter_mut().for_each(|s| *s *= forget);
                        for j in 0..value_dim {
                            let held: f64 = (0..key_dim).map(|i| k[i] * s[i * value_dim + j]).sum();
                            let v = f64::from(row[2 * keys + head * value_dim + j]);
                            let u = write * (v - held);
                            (0..key_dim).for_each(|i| s[i * value_dim + j] += k[i] * u);
                            let read = (0..key_dim).map(|i| q[i] * s[i * value_dim + j]);
                            wanted.push(read.sum::<f64>() / (key_dim as f64).sqrt());
                        }
                    }
                }
                let what = format!("{value_heads} of {key_dim} x {value_dim}, {least}, {cuts:?}");
                near(&found, &wanted, &what);
                near(&state, &s, &format!("state of {what}"));
            });
        }
    }
}

#[test]
fn mamba2_is_what_it_is_defined_to_be() {
    let mut random = Random(13);
    for (heads, groups, dim, size) in [(1, 1, 3, 5), (4, 2, 16, 32), (3, 1, 9, 24), (6, 3, 8, 40)] {
        let (inner, shared) = (heads * dim, groups * size);
        let stride = inner + 2 * shared;
        for most in [1e-3, 1.0, 90.0] {
            sequences(|cuts| {
                let tokens = cuts[cuts.len() - 1];
                let xbc = floats(&mut random, tokens * stride, -1.0, 1.0);
                let dt = floats(&mut random, tokens * heads, 0.0, most);
                let a = floats(&mut random, heads, -2.0, -0.1);
                let d = floats(&mut random, heads, -1.0, 1.0);
                let first = floats(&mut random, heads * dim * size, -1.0, 1.0);
                let (mut state, mut found, mut from) = (first.clone(), Vec::new(), 0);
                for &to in cuts {
                    let band =
                        |columns| Band::new(&xbc[from * stride..to * stride], stride, columns);
                    let given = Mamba2 {
                        heads,
                        groups,
                        x: band(0..inner),
                        b: band(inner..inner + shared),
                        c: band(inner + shared..stride),
                        dt: &dt[from * heads..to * heads],
                        a: &a,
                        d: &d,
                    };
                    let mut out = vec![f32::NAN; (to - from) * inner];
                    mamba2(&given, &mut state, &mut out, Gemm(plain));
                    found.extend(out);
                    from = to;
                }
                let mut s: Vec<f64> = first.iter().map(|&x| x.into()).collect();
                let mut wanted = Vec::new();
                for (token, row) in xbc.chunks(stride).enumerate() {
                    let at = |i: usize| f64::from(row[i]);
                    for head in 0..heads {
                        let of_group = inner + head / (heads / groups) * size;
                        let dt = f64::from(dt[token * heads + head]);
                        let decay = (dt * f64::from(a[head])).exp();
                        for p in 0..dim {
                            let x = at(head * dim + p);
                            let s = &mut s[(head * dim + p) * size..][..size];
                            let mut y = f64::from(d[head]) * x;
                            for (n, s) in s.iter_mut().enumerate() {
                                *s = decay * *s + dt * x * at(of_group + n);
                                y += *s * at(of_group + shared + n);
                            }
                            wanted.push(y);
                        }
                    }
                }
                let what = format!("{heads} of {dim} x {size}, {most}, {cuts:?}");
                near(&found, &wanted, &what);
                near(&state, &s, &format!("state of {what}"));
            });
        }
    }
}
