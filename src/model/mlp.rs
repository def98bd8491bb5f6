//! Feed-forward networks: gated (Shazeer 2020) and plain (Vaswani et al. 2017).

use std::sync::Arc;

use mlx_rs::Array;

use super::build::Builder;
use super::linear::Linear;
use super::native::{Gated, Native};
use super::ops::{Function, Result, last_axis};
use crate::decoder::description;

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
    /// Reads a gated MLP.
    pub fn build(to: &mut Builder, mlp: &description::GatedMlp) -> Option<GatedMlp> {
        let function = to.function(&mlp.activation)?;
        let bias = to.holds(&mlp.bias, false);
        to.under(&mlp.path, |to| {
            let fused = mlp.gate_up.as_ref().filter(|name| to.find(name).is_some());
            let entry = match (fused, &mlp.gate, &mlp.up) {
                (Some(name), _, _) => Linear::build(to, name, bias).map(Entry::Fused),
                (None, Some(gate), Some(up)) => {
                    let gate = Linear::build(to, gate, bias);
                    let up = Linear::build(to, up, bias);
                    Some(Entry::Split(gate?, up?))
                }
                _ => {
                    to.fault("a gated MLP names neither gate and up nor gate_up");
                    None
                }
            };
            let down = Linear::build(to, &mlp.down, bias);
            let mut mlp = GatedMlp { entry: entry?, down: down?, function, native: None };
            mlp.native = to.made(|| mlp.natively())?;
            Some(mlp)
        })
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
    /// Reads a plain MLP.
    pub fn build(to: &mut Builder, mlp: &description::Mlp) -> Option<Mlp> {
        let function = to.function(&mlp.activation)?;
        let bias = to.holds(&mlp.bias, false);
        to.under(&mlp.path, |to| {
            let up = Linear::build(to, &mlp.up, bias);
            let down = Linear::build(to, &mlp.down, bias);
            Some(Mlp { up: up?, down: down?, function })
        })
    }

    /// `[…, hidden]` to the same.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        self.down.forward(&self.function.of(&self.up.forward(x)?)?)
    }
}
