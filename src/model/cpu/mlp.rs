//! Feed-forward networks: gated (Shazeer 2020) and plain (Vaswani et al. 2017).

use lathe_kernels::Gate;

use super::loader::Loader;
use super::matrix::Linear;
use crate::decoder::parts;

/// down(function(gate(x)) × up(x)).
#[derive(Clone, Debug)]
pub struct GatedMlp {
    gate: Linear,
    up: Linear,
    down: Linear,
    function: Gate,
}

impl GatedMlp {
    /// Loads a gated MLP.
    pub fn load(from: &mut Loader, mlp: &parts::GatedMlp) -> Option<GatedMlp> {
        let entry = match &mlp.entry {
            parts::Entry::Split(gate, up) => {
                let (gate, up) = (from.linear(gate), from.linear(up));
                Some((gate?, up?))
            }
            parts::Entry::Fused { both, .. } | parts::Entry::Plain(both) => {
                // Gate above up.
                from.linear(both).map(|both| {
                    let half = both.outputs() / 2;
                    (both.part(0, half), both.part(half, half))
                })
            }
        };
        let down = from.linear(&mlp.down);
        let (gate, up) = entry?;
        Some(GatedMlp { gate, up, down: down?, function: mlp.function.gate() })
    }

    /// `[tokens, hidden]` to the same.
    pub fn forward(&self, x: &[f32]) -> Vec<f32> {
        let mut made = Linear::forward_all(&[&self.gate, &self.up], x);
        if let [gate, up] = &mut made[..] {
            self.function.apply(gate, up);
        }
        self.down.forward(&made[0])
    }
}

/// down(function(up(x))).
#[derive(Clone, Debug)]
pub struct Mlp {
    up: Linear,
    down: Linear,
    function: Gate,
}

impl Mlp {
    /// Loads a plain MLP.
    pub fn load(from: &mut Loader, mlp: &parts::Mlp) -> Option<Mlp> {
        let (up, down) = (from.linear(&mlp.up), from.linear(&mlp.down));
        Some(Mlp { up: up?, down: down?, function: mlp.function.gate() })
    }

    /// `[tokens, hidden]` to the same.
    pub fn forward(&self, x: &[f32]) -> Vec<f32> {
        let mut inner = self.up.forward(x);
        self.function.of(&mut inner);
        self.down.forward(&inner)
    }
}
