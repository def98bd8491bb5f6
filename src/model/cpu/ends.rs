//! Tokens to hidden states, and hidden states to logits.

use std::sync::Arc;

use super::loader::Loader;
use super::matrix::{Linear, Matrix};
use super::norm::Norm;
use crate::decoder::parts;

/// The embedding.
#[derive(Clone, Debug)]
pub struct Embed {
    table: Matrix,
    scale: Option<f32>,
    per_layer: Option<PerLayer>,
}

/// Per-layer embeddings (Gemma 3n, Gemma 4): for each token and layer, a row of a table plus a
/// normalized projection of the main embedding.
#[derive(Clone, Debug)]
struct PerLayer {
    table: Matrix,
    scale: f32,
    projection: Linear,
    projection_scale: f32,
    norm: Norm,
    sum_scale: f32,
    width: usize,
}

impl Embed {
    /// Loads the embedding.
    pub fn load(from: &mut Loader, embed: &parts::Embed) -> Option<Embed> {
        let table = from.table(&embed.table);
        let scale = embed.scale.map(|scale| scale as f32);
        let per_layer = match &embed.per_layer {
            Some(per_layer) => Some(PerLayer::load(from, per_layer)?),
            None => None,
        };
        Some(Embed { table: table?, scale, per_layer })
    }

    /// Tokens that it has.
    pub fn vocabulary(&self) -> usize {
        self.table.rows
    }

    /// Elements of a hidden state.
    pub fn hidden(&self) -> usize {
        self.table.columns
    }

    /// Hidden states `[tokens, hidden]`.
    pub fn forward(&self, tokens: &[usize]) -> Vec<f32> {
        let mut rows = self.table.rows_of(tokens.iter().copied());
        if let Some(scale) = self.scale {
            lathe_kernels::scale(&mut rows, scale);
        }
        rows
    }

    /// Per-layer embeddings `[tokens, layers × width]` and the width, for models that have them.
    pub fn per_layer(&self, tokens: &[usize], hidden: &[f32]) -> Option<(Vec<f32>, usize)> {
        let PerLayer { table, scale, projection, projection_scale, norm, sum_scale, width } =
            self.per_layer.as_ref()?;
        let mut projected = projection.forward(hidden);
        lathe_kernels::scale(&mut projected, *projection_scale);
        let mut sum = norm.forward(&projected, *width);
        let rows = table.rows_of(tokens.iter().copied());
        for (sum, row) in sum.iter_mut().zip(&rows) {
            *sum = (*sum + row * scale) * sum_scale;
        }
        Some((sum, *width))
    }
}

impl PerLayer {
    fn load(from: &mut Loader, per_layer: &parts::PerLayer) -> Option<PerLayer> {
        let (table, projection) =
            (from.table(&per_layer.table), from.linear(&per_layer.projection));
        let norm = Norm::load(from, &per_layer.norm);
        Some(PerLayer {
            table: table?,
            scale: per_layer.scale as f32,
            projection: projection?,
            projection_scale: per_layer.projection_scale as f32,
            norm: norm?,
            sum_scale: per_layer.sum_scale as f32,
            width: per_layer.width as usize,
        })
    }
}

/// The head.
#[derive(Clone, Debug)]
pub struct Head {
    linear: Linear,
    scale: Option<f32>,
    soft_cap: Option<f32>,
}

impl Head {
    /// Loads the head; a tied one is the embedding.
    pub fn load(from: &mut Loader, head: &parts::Head, embed: &mut Embed) -> Option<Head> {
        let linear = match &head.linear {
            Some(linear) => from.linear(linear)?,
            None => {
                embed.table = from.often(embed.table.clone());
                Linear { matrix: Arc::new(embed.table.clone()), bias: None }
            }
        };
        let [scale, soft_cap] = [head.scale, head.soft_cap].map(|it| it.map(|it| it as f32));
        Some(Head { linear, scale, soft_cap })
    }

    /// Tokens that it knows.
    pub fn vocabulary(&self) -> usize {
        self.linear.outputs()
    }

    /// Logits `[tokens, vocabulary]` of hidden states.
    pub fn forward(&self, hidden: &[f32]) -> Vec<f32> {
        let mut logits = self.linear.forward(hidden);
        if let Some(scale) = self.scale {
            lathe_kernels::scale(&mut logits, scale);
        }
        if let Some(cap) = self.soft_cap {
            lathe_kernels::soft_cap(&mut logits, cap);
        }
        logits
    }
}
