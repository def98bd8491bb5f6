//! Gated MLPs as one step.

use std::sync::Arc;

use lathe_kernels::Gate;

use super::super::ops::Result;
use super::{Native, expect, multiply};

/// down(function(gate(x)) × up(x)).
#[derive(Debug)]
pub struct Gated {
    function: Gate,
    gate: Arc<Native>,
    up: Arc<Native>,
    down: Arc<Native>,
}

impl Gated {
    /// Of a gate and what it opens, `[inner, in]`, and a projection `[out, inner]`.
    pub fn new(function: Gate, [gate, up, down]: [Arc<Native>; 3]) -> Result<Gated> {
        let sizes = [gate.columns, gate.rows, down.columns];
        expect("the sizes of a gated MLP", &sizes, &[up.columns, up.rows, up.rows])?;
        Ok(Gated { function, gate, up, down })
    }

    /// Elements of a token that enter and that leave.
    pub(super) fn widths(&self) -> [usize; 2] {
        [self.gate.columns, self.down.rows]
    }

    /// `[tokens, in]` to `[tokens, out]`.
    pub(super) fn run(&self, x: &[f32]) -> Vec<f32> {
        let tokens = x.len() / self.gate.columns;
        let inner = tokens * self.down.columns;
        let (mut gate, mut up) = (vec![0.0; inner], vec![0.0; inner]);
        multiply(&[&self.gate, &self.up], x, &mut [&mut gate, &mut up]);
        self.function.apply(&mut gate, &up);
        let mut out = vec![0.0; tokens * self.down.rows];
        multiply(&[&self.down], &gate, &mut [&mut out]);
        out
    }
}
