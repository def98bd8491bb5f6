//! Feed-forward networks: gated (Shazeer 2020) and plain (Vaswani et al. 2017).

use std::sync::Arc;

use mlx_rs::Array;

use super::linear::Linear;
use super::loader::Loader;
use super::native::{Gated, Native};
use super::ops::{Function, Result, last_axis};
use crate::decoder::parts;

/// down(function(gate(x)) × up(x)).
#[derive(Clone, Debug)]
pub struct GatedMlp {
    entry: Entry,
    down: Linear,
    function: Function,
    /// All of it, where lathe's own kernels have it.
    native: Option<Arc<Gated>>,
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
        let function = mlp.function;
        let mut mlp = GatedMlp { entry: entry?, down: down?, function, native: None };
        mlp.native = from.made(|| mlp.natively())?;
        Some(mlp)
    }

    /// `[…, hidden]` to the same.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        self.down.forward(&self.inner(x)?)
    }

    /// All of it, where lathe's own kernels have it.
    pub fn native(&self) -> Option<&Arc<Gated>> {
        self.native.as_ref()
    }

    fn inner(&self, x: &Array) -> Result<Array> {
        let (gate, up) = match &self.entry {
            Entry::Split(gate, up) => Linear::forward_all([gate, up], x)?.into(),
            Entry::Fused(both) => {
                let both = both.forward(x)?;
                let inner = both.dim(-1) / 2;
                (last_axis(&both, 0, inner)?, last_axis(&both, inner, 2 * inner)?)
            }
        };
        self.function.of(&gate)?.multiply(up)
    }

    fn natively(&self) -> Result<Option<Arc<Gated>>> {
        let (Some(function), Some(down)) = (self.function.of_gate(), self.down.native()) else {
            return Ok(None);
        };
        let [gate, up] = match &self.entry {
            Entry::Split(gate, up) => [gate.native().cloned(), up.native().cloned()],
            Entry::Fused(both) => match both.native() {
                Some(both) => Native::halves(both)?.map(|half| Some(Arc::new(half))),
                None => return Ok(None),
            },
        };
        let (Some(gate), Some(up)) = (gate, up) else { return Ok(None) };
        Gated::new(function, [gate, up, down.clone()]).map(|gated| Some(Arc::new(gated)))
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
