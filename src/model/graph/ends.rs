//! Tokens to hidden states, and hidden states to logits.

use mlx_rs::{Array, Dtype};

use super::loader::Loader;
use super::matrix::{Linear, Matrix};
use super::norm::Norm;
use super::ops::{Result, soft_cap, times};
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
    width: i32,
}

impl Embed {
    /// Loads the embedding.
    pub fn load(from: &mut Loader, embed: &parts::Embed) -> Option<Embed> {
        let table = from.matrix(&embed.table)?;
        let scale = embed.scale.map(|scale| scale as f32);
        let per_layer = match &embed.per_layer {
            Some(per_layer) => Some(PerLayer::load(from, per_layer)?),
            None => None,
        };
        Some(Embed { table, scale, per_layer })
    }

    /// Hidden states `[tokens, hidden]` of tokens, U32 `[tokens]`.
    pub fn forward(&self, tokens: &Array) -> Result<Array> {
        let rows = self.table.rows_of(tokens)?;
        match self.scale {
            Some(scale) => times(&rows, scale),
            None => Ok(rows),
        }
    }

    /// Tokens that it has.
    pub fn vocabulary(&self) -> usize {
        self.table.rows()
    }

    /// Per-layer embeddings `[tokens, layers, width]`, for models that have them.
    pub fn per_layer(&self, tokens: &Array, hidden: &Array) -> Result<Option<Array>> {
        let Some(per_layer) = &self.per_layer else { return Ok(None) };
        let shape = [tokens.dim(0), -1, per_layer.width];
        let rows = times(&per_layer.table.rows_of(tokens)?, per_layer.scale)?.reshape(&shape)?;
        let projected = times(&per_layer.projection.forward(hidden)?, per_layer.projection_scale)?;
        let projected = per_layer.norm.forward(&projected.reshape(&shape)?)?;
        times(&projected.add(rows)?, per_layer.sum_scale).map(Some)
    }
}

impl PerLayer {
    fn load(from: &mut Loader, per_layer: &parts::PerLayer) -> Option<PerLayer> {
        Some(PerLayer {
            table: from.matrix(&per_layer.table)?,
            scale: per_layer.scale as f32,
            projection: Linear::load(from, &per_layer.projection)?,
            projection_scale: per_layer.projection_scale as f32,
            norm: Norm::load(from, &per_layer.norm)?,
            sum_scale: per_layer.sum_scale as f32,
            width: per_layer.width,
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
    pub fn load(from: &mut Loader, head: &parts::Head, embed: &Embed) -> Option<Head> {
        let linear = match &head.linear {
            Some(linear) => Linear::load(from, linear)?,
            None => Linear::of(embed.table.clone()),
        };
        let [scale, soft_cap] = [head.scale, head.soft_cap].map(|it| it.map(|it| it as f32));
        Some(Head { linear, scale, soft_cap })
    }

    /// Tokens that it knows.
    pub fn vocabulary(&self) -> usize {
        self.linear.outputs()
    }

    /// Logits in f32, `[tokens, vocabulary]`, of hidden states.
    pub fn forward(&self, hidden: &Array) -> Result<Array> {
        let mut logits = self.linear.forward(hidden)?.as_dtype(Dtype::Float32)?;
        if let Some(scale) = self.scale {
            logits = times(&logits, scale)?;
        }
        if let Some(cap) = self.soft_cap {
            logits = soft_cap(&logits, cap)?;
        }
        Ok(logits)
    }
}
