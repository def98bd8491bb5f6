//! Kernels that are on their way.

pub struct Route<'a> {
    pub top_k: usize,
    /// 0 softmax, 1 softmax of chosen, 2 sigmoid
    pub scores: u8,
    pub correction: Option<&'a [f32]>,
    pub groups: usize,
    pub top_groups: usize,
    pub normalize: bool,
    pub scale: f32,
    pub expert_scale: Option<&'a [f32]>,
}

fn softmax(x: &[f32]) -> Vec<f32> {
    let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let e: Vec<f32> = x.iter().map(|x| (x - most).exp()).collect();
    let s: f32 = e.iter().sum();
    e.iter().map(|e| e / s).collect()
}

pub fn route(logits: &[f32], experts: usize, how: &Route) -> (Vec<u32>, Vec<f32>) {
    let (mut chosen, mut weights) = (Vec::new(), Vec::new());
    for row in logits.chunks_exact(experts) {
        let scores: Vec<f32> = match how.scores {
            0 => softmax(row),
            1 => row.to_vec(),
            _ => row.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        };
        let mut ranked = scores.clone();
        if let Some(c) = how.correction {
            ranked.iter_mut().zip(c).for_each(|(r, c)| *r += c);
        }
        if how.top_groups < how.groups {
            let size = experts / how.groups;
            let mut good: Vec<(f32, usize)> = ranked
                .chunks_exact(size)
                .map(|g| {
                    let mut g = g.to_vec();
                    g.sort_by(|a, b| b.total_cmp(a));
                    g[..2.min(size)].iter().sum::<f32>()
                })
                .zip(0..)
                .collect();
            good.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            for (_, g) in &good[how.top_groups..] {
                ranked[g * size..(g + 1) * size].fill(f32::NEG_INFINITY);
            }
        }
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|&a, &b| ranked[b].total_cmp(&ranked[a]).then(a.cmp(&b)));
        let picked = &order[..how.top_k];
        let mut w: Vec<f32> = picked.iter().map(|&e| scores[e]).collect();
        if how.scores == 1 {
            w = softmax(&w);
        }
        if how.normalize {
            let s = w.iter().sum::<f32>() + 1e-20;
            w.iter_mut().for_each(|w| *w /= s);
        }
        for (w, &e) in w.iter_mut().zip(picked) {
            *w *= how.scale * how.expert_scale.map_or(1.0, |s| s[e]);
        }
        chosen.extend(picked.iter().map(|&e| e as u32));
        weights.extend(w);
    }
    (chosen, weights)
}
