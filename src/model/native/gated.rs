//! Gated MLPs as one operation.

use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use lathe_kernels::Gate;
use mlx_rs::{Array, Dtype};

use super::super::ops::Result;
use super::{Inputs, Native, RmsNorm, add_to, expect, multiply, normalized, row_major};
use crate::mlx::host::host_operation;

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

    /// `[…, in]`, normalized if there is a norm, to `[…, out]` in f32; added to `onto` if that is
    /// given.
    pub fn forward(
        self: &Arc<Self>,
        x: &Array,
        norm: Option<RmsNorm>,
        onto: Option<&Array>,
    ) -> Result<Array> {
        let width = self.gate.columns;
        let inputs = Inputs::new(x, width, onto, self.down.rows)?;
        norm.iter().try_for_each(|norm| norm.expect(width))?;
        let (mlp, arrays) = (self.clone(), inputs.arrays());
        let made = host_operation(&arrays, &inputs.shape, Dtype::Float32, move |views, out| {
            let inputs = row_major(views);
            let x = normalized(norm.as_ref(), cast_slice(&inputs[0]), width);
            let elements = x.len() / width * mlp.down.columns;
            let (mut gate, mut up) = (vec![0.0; elements], vec![0.0; elements]);
            multiply(&[&mlp.gate, &mlp.up], &x, &mut [&mut gate, &mut up]);
            mlp.function.apply(&mut gate, &up);
            multiply(&[&mlp.down], &gate, &mut [cast_slice_mut(out)]);
            add_to(out, inputs.get(1));
        });
        Ok(made?)
    }
}
