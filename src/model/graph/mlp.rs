//! Feed-forward networks: gated (Shazeer 2020) and plain (Vaswani et al. 2017).

use mlx_rs::Array;

use super::loader::Loader;
use super::matrix::Linear;
use super::ops::{Function, Result, last_axis};
use crate::decoder::parts;

/// down(function(gate(x)) × up(x)).
#[derive(Clone, Debug)]
pub struct GatedMlp {
    entry: Entry,
    down: Linear,
    function: Function,
}

#[derive(Clone, Debug)]
enum Entry {
    Split(Linear, Linear),
    /// Gate above up.
    Fused(Linear),
}

impl GatedMlp {
    /// Loads a gated MLP.
    pub fn load(from: &mut Loader, mlp: &parts::GatedMlp) -> Option<GatedMlp> {
        let entry = match &mlp.entry {
            parts::Entry::Split(gate, up) => {
                let (gate, up) = (Linear::load(from, gate), Linear::load(from, up));
                Some(Entry::Split(gate?, up?))
            }
            parts::Entry::Fused { both, .. } | parts::Entry::Plain(both) => {
                Linear::load(from, both).map(Entry::Fused)
            }
        };
        let down = Linear::load(from, &mlp.down);
        Some(GatedMlp { entry: entry?, down: down?, function: mlp.function })
    }

    /// `[…, hidden]` to the same.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let (gate, up) = match &self.entry {
            Entry::Split(gate, up) => (gate.forward(x)?, up.forward(x)?),
            Entry::Fused(both) => {
                let both = both.forward(x)?;
                let inner = both.dim(-1) / 2;
                (last_axis(&both, 0, inner)?, last_axis(&both, inner, 2 * inner)?)
            }
        };
        self.down.forward(&self.function.of(&gate)?.multiply(up)?)
    }
}

/// down(function(up(x))).
#[derive(Clone, Debug)]
pub struct Mlp {
    up: Linear,
    down: Linear,
    function: Function,
}

impl Mlp {
    /// Loads a plain MLP.
    pub fn load(from: &mut Loader, mlp: &parts::Mlp) -> Option<Mlp> {
        let (up, down) = (Linear::load(from, &mlp.up), Linear::load(from, &mlp.down));
        Some(Mlp { up: up?, down: down?, function: mlp.function })
    }

    /// `[…, hidden]` to the same.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        self.down.forward(&self.function.of(&self.up.forward(x)?)?)
    }
}
