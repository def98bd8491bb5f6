//! Tokens to hidden states, and hidden states to logits.

use mlx_rs::{Array, Dtype};

use super::build::Builder;
use super::linear::{Linear, Matrix};
use super::native::steps::{self, Held, Step};
use super::norm::Norm;
use super::ops::{Result, soft_cap, times};
use crate::decoder::description;

/// The embedding.
#[derive(Clone, Debug)]
pub struct Embed {
    /// Of the table.
    name: String,
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
    /// Reads the embedding, whose name has been found.
    pub fn build(to: &mut Builder, embed: &description::Embed, name: &str) -> Option<Embed> {
        let table = to.table(name)?;
        let scale = to.maybe_float(&embed.scale)?.map(|scale| scale as f32);
        let per_layer = match &embed.per_layer {
            Some(per_layer) if to.holds(&per_layer.when, true) => {
                Some(PerLayer::build(to, per_layer)?)
            }
            _ => None,
        };
        Some(Embed { name: name.into(), table, scale, per_layer })
    }

    /// Hidden states `[rows, tokens, hidden]` of tokens `[rows, tokens]`.
    pub fn forward(&self, tokens: &Array) -> Result<Array> {
        let rows = self.table.rows(tokens)?;
        match self.scale {
            Some(scale) if self.table.is_native() => {
                Ok(steps::run(vec![Step::Scale(scale)], Held::default(), &rows)?.0)
            }
            Some(scale) => times(&rows, scale),
            None => Ok(rows),
        }
    }

    /// Tokens that it has.
    pub fn tokens(&self) -> usize {
        let shape = self.table.shape();
        shape.first().map_or(0, |&rows| rows as usize)
    }

    /// Per-layer embeddings `[rows, tokens, layers, width]`, for models that have them.
    pub fn per_layer(&self, tokens: &Array, hidden: &Array) -> Result<Option<Array>> {
        let Some(per_layer) = &self.per_layer else { return Ok(None) };
        let shape = [tokens.dim(0), tokens.dim(1), -1, per_layer.width];
        let rows = times(&per_layer.table.rows(tokens)?, per_layer.scale)?.reshape(&shape)?;
        let projected = times(&per_layer.projection.forward(hidden)?, per_layer.projection_scale)?;
        let projected = per_layer.norm.forward(&projected.reshape(&shape)?)?;
        times(&projected.add(rows)?, per_layer.sum_scale).map(Some)
    }
}

impl PerLayer {
    fn build(to: &mut Builder, per_layer: &description::PerLayer) -> Option<PerLayer> {
        let table = {
            let found = per_layer.tensor.list().iter().find_map(|name| to.find(name));
            let name = match found {
                Some(name) => name,
                None => to.weight_name(per_layer.tensor.list().first()?)?,
            };
            to.table(&name)?
        };
        let projection = per_layer.projection.list().first()?;
        Some(PerLayer {
            table,
            scale: to.float_or(&per_layer.scale, 1.0)? as f32,
            projection: Linear::build(to, projection, false)?,
            projection_scale: to.float_or(&per_layer.projection_scale, 1.0)? as f32,
            norm: Norm::build(to, &per_layer.norm, false)?,
            sum_scale: to.float_or(&per_layer.sum_scale, 1.0)? as f32,
            width: to.int(&per_layer.width, "width")? as i32,
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
    /// Reads the head at the top of the model's names; a tied one is the embedding.
    pub fn build(to: &mut Builder, head: &description::Head, embed: &mut Embed) -> Option<Head> {
        let tied = to.holds(&head.tied, false);
        let names = head.tensor.list();
        let found = names.iter().find_map(|name| Some((name, to.find(name)?)));
        let linear = match found {
            // The embedding a second time, or nothing.
            found if tied && found.as_ref().is_none_or(|(_, full)| to.same(full, &embed.name)) => {
                if let Some((name, _)) = found {
                    to.pass_over(name);
                }
                embed.table = embed.table.clone().read_often(&mut to.memory);
                to.made(|| Linear::of(embed.table.clone(), None))
            }
            // A head that is there and another wins over the flag.
            found => {
                let name = found.map(|(name, _)| name).or(names.first())?;
                let bias = to.holds(&head.bias, false);
                Linear::build(to, name, bias)
            }
        };
        let scale = to.maybe_float(&head.scale)?.filter(|&scale| scale != 1.0);
        let cap = to.maybe_float(&head.soft_cap)?.filter(|&cap| cap != 0.0);
        Some(Head {
            linear: linear?,
            scale: scale.map(|scale| scale as f32),
            soft_cap: cap.map(|cap| cap as f32),
        })
    }

    /// Logits in f32.
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
