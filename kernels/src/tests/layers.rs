//! No layer that is made of several kernels meets a subnormal number, whatever decays in it.

use super::subnormal::{check, tails};
use super::*;

#[test]
fn recurrent_layers_meet_none() {
    let mut random = Random(14);
    for tokens in [1, 3, 70, 200] {
        let (channels, kernel) = (600, 4);
        let x = random.activations(tokens * channels);
        let [weight, bias] = [kernel, 1]
            .map(|rows| (0..rows * channels).map(|_| random.wide(-6.0, 1.0)).collect::<Vec<f32>>());
        check(&format!("convolutions of {tokens}"), || {
            let conv = Conv { kernel, weight: &weight, bias: Some(&bias), silu: true };
            let mut before = vec![0.0; (kernel - 1) * channels];
            let mut out = vec![f32::NAN; tokens * channels];
            crate::conv(&conv, Band::whole(&x, channels), &mut before, &mut out);
            out
        });
        // Values of every size, and those that gates close to nothing; then nothing for so long
        // that states decay to zero.
        let (heads, width) = (4, 32);
        let mut data: Vec<Vec<f32>> =
            (0..3).map(|_| random.activations(2 * tokens * heads * width)).collect();
        data.push(tails(2 * tokens * heads * width, -55.0));
        let gates = tails(2 * tokens * heads, -55.0);
        for (least, v) in [(-0.3, 2), (-3.0, 3), (-130.0, 2)] {
            for v in [&data[v], &data[3]] {
                let decay: Vec<f32> =
                    (0..gates.len()).map(|i| least * (i % 13) as f32 / 12.0).collect();
                check(&format!("a gated delta net of {tokens}, {least}"), || {
                    let of = |data| Band::whole(data, heads * width);
                    let (q, k, v) = (of(&data[0]), of(&data[1]), of(v));
                    let given = GatedDelta {
                        key_heads: 2,
                        value_heads: heads,
                        q,
                        k,
                        v,
                        decay: &decay,
                        write: &gates,
                    };
                    let given = GatedDelta { q: q.columns(0..64), k: k.columns(0..64), ..given };
                    let (mut state, mut out) = (
                        vec![0.0; heads * width * width],
                        vec![f32::NAN; v.rows() * heads * width],
                    );
                    gated_delta(&given, &mut state, &mut out, Gemm(plain));
                    out.extend(&state);
                    fade(&given, &mut state, &mut out);
                    out
                });
                let dt: Vec<f32> = gates.iter().map(|gate| 10.0 * gate).collect();
                check(&format!("mamba-2 of {tokens}, {least}"), || {
                    let of = |data| Band::whole(data, heads * width);
                    let (b, c) = (of(&data[0]).columns(0..64), of(&data[1]).columns(0..64));
                    let (a, d) = (&[least; 4], &[1e-6, 1.0, -3.0, 0.0]);
                    let given = Mamba2 { heads, groups: 2, x: of(v), b, c, dt: &dt, a, d };
                    let (mut state, mut out) = (
                        vec![0.0; heads * width * width],
                        vec![f32::NAN; 2 * tokens * heads * width],
                    );
                    mamba2(&given, &mut state, &mut out, Gemm(plain));
                    out.extend(&state);
                    let dt = vec![0.3; dt.len()];
                    let none = vec![0.0; v.len()];
                    for _ in 0..400_usize.div_ceil(tokens) {
                        let mut more = vec![f32::NAN; v.len()];
                        let given = Mamba2 { x: of(&none), dt: &dt, a: &[-1.0; 4], ..given };
                        mamba2(&given, &mut state, &mut more, Gemm(plain));
                        out.extend(&more);
                    }
                    assert!(state.iter().all(|&s| s == 0.0));
                    out
                });
            }
        }
    }
}

/// What a gated delta net gives while nothing more is written to its state.
fn fade(given: &GatedDelta, state: &mut [f32], out: &mut Vec<f32>) {
    let (none, decay) = (vec![0.0; given.write.len()], vec![-0.3; given.write.len()]);
    for _ in 0..400_usize.div_ceil(given.v.rows()) {
        let mut more = vec![f32::NAN; given.v.rows() * given.v.width()];
        let given = GatedDelta { decay: &decay, write: &none, ..*given };
        gated_delta(&given, state, &mut more, Gemm(plain));
        out.extend(&more);
    }
    assert!(state.iter().all(|&s| s == 0.0));
}

#[test]
fn mixtures_meet_none() {
    let mut random = Random(15);
    let (count, width, inner, top_k) = (16, 64, 96, 4);
    for form in [Form::F32, Form::Mxfp4, Form::Affine { bits: 4, group: 32, scales: Scales::Bf16 }]
    {
        let (up, down) =
            (Stored::wide(form, count * inner, width), Stored::wide(form, count * width, inner));
        let up_of = |expert: usize| up.matrix().part(expert * inner, inner);
        let down_of = |expert: usize| down.matrix().part(expert * width, width);
        let up = Stack { count, of: &up_of, bias: None };
        let entry = Entry::Split { gate: up, up };
        let down = Stack { count, of: &down_of, bias: None };
        let experts = Experts { entry, function: Gate::Silu, clamp: None, down };
        for scoring in [Scoring::Softmax, Scoring::SoftmaxOfChosen, Scoring::Sigmoid] {
            for tokens in [1, 60] {
                let x: Vec<f32> = (0..tokens * width).map(|_| random.wide(-6.0, 1.0)).collect();
                let logits: Vec<f32> =
                    (0..tokens * count).map(|_| random.wide(-3.0, 2.0)).collect();
                check(&format!("a mixture of {form:?} for {tokens}, {scoring:?}"), || {
                    let router = Router {
                        experts: count,
                        top_k,
                        scoring,
                        correction: None,
                        groups: 4,
                        top_groups: 2,
                        normalize: true,
                        scale: 2.5,
                        expert_scale: None,
                    };
                    let (mut chosen, mut weights) =
                        (vec![0; tokens * top_k], vec![f32::NAN; tokens * top_k]);
                    route(&router, &logits, &mut chosen, &mut weights);
                    let chosen = Chosen { top_k, experts: &chosen, weights: &weights };
                    let mut out = vec![f32::NAN; x.len()];
                    mixture(&experts, &chosen, &x, &mut out, Gemm(plain));
                    out
                });
            }
        }
    }
}
