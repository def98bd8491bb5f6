//! Products with the chosen ones of stacked matrices.

use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use lathe_kernels::product;
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::super::ops::Result;
use super::{BLAS, Native, row_major};
use crate::mlx::host::host_operation;

impl Native {
    /// Stacked matrices: `x` `[tokens, 1 or k, 1, in]` and experts `[tokens, k]` give
    /// `[tokens, k, 1, out]` in f32; zeros of experts that are not there.
    pub fn apply_experts(self: &Arc<Self>, x: &Array, experts: &Array) -> Result<Array> {
        let x = x.as_dtype(Dtype::Float32)?;
        let experts = experts.as_dtype(Dtype::Uint32)?;
        let (tokens, chosen) = (experts.dim(0), experts.dim(-1));
        let fits = x.ndim() == 4 && x.dim(0) == tokens && x.dim(-1) as usize == self.columns;
        if !fits || !(x.dim(1) == 1 || x.dim(1) == chosen) {
            let message = format!(
                "an array {:?} does not fit experts of {} columns for {tokens} tokens",
                x.shape(),
                self.columns
            );
            return Err(Exception::custom(message));
        }
        let shared = x.dim(1) == 1;
        let shape = [tokens, chosen, 1, self.rows as i32];
        let chosen = chosen as usize;
        let native = self.clone();
        let made = host_operation(&[&x, &experts], &shape, Dtype::Float32, move |views, out| {
            let inputs = row_major(views);
            let x: &[f32] = cast_slice(&inputs[0]);
            let x_row = |pair: usize| {
                let row = if shared { pair / chosen } else { pair };
                &x[row * native.columns..(row + 1) * native.columns]
            };
            native.gather(cast_slice(&inputs[1]), x_row, cast_slice_mut(out));
        });
        Ok(made?)
    }

    /// Products of the rows of `x` with the expert of each, expert by expert.
    fn gather<'x>(&self, experts: &[u32], x_row: impl Fn(usize) -> &'x [f32], out: &mut [f32]) {
        let rows = self.rows;
        let mut pairs: Vec<usize> = (0..experts.len()).collect();
        pairs.sort_by_key(|&pair| experts[pair]);
        for same in pairs.chunk_by(|&a, &b| experts[a] == experts[b]) {
            let expert = experts[same[0]] as usize;
            if expert >= self.stacked() {
                same.iter().for_each(|pair| out[pair * rows..(pair + 1) * rows].fill(0.0));
                continue;
            }
            let matrix = self.matrix(expert);
            if let [pair] = *same {
                product(x_row(pair), &matrix, &mut out[pair * rows..(pair + 1) * rows], BLAS);
                continue;
            }
            let x: Vec<f32> = same.iter().flat_map(|&pair| x_row(pair)).copied().collect();
            let mut products = vec![0.0; same.len() * rows];
            product(&x, &matrix, &mut products, BLAS);
            for (&pair, product) in same.iter().zip(products.chunks_exact(rows)) {
                out[pair * rows..(pair + 1) * rows].copy_from_slice(product);
            }
        }
    }
}
