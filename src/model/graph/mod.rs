//! The backend for GPUs: operations of MLX alone.
//!
//! Enters: the parts of a network, resolved and checked, and where its tensors are. A [`Network`]
//! takes passes to logits then, walking its tree of modules; there is one file for each kind. What
//! it works on are lazy arrays: a pass makes a graph of operations and gives it to the device.

mod attention;
mod cache;
mod conv;
mod delta;
mod ends;
mod latent;
mod loader;
mod mamba;
mod matrix;
mod mlp;
mod module;
mod moe;
mod norm;
mod ops;
mod recurrence;
mod rope;
mod scores;
mod short_conv;
mod walk;

pub use cache::Layer;

use mlx_rs::{Array, Dtype};

use self::ends::{Embed, Head};
use self::loader::{Loaded, Loader};
use self::module::{Module, run};
use self::walk::Walk;
use super::pass::{Output, Pass, Rows, Tap};
use super::source::TensorSource;
use crate::cache::Cache;
use crate::decoder::parts::{self, Parts};
use crate::fault::{Code, Fault, Faults};

/// A network that this backend computes.
pub struct Network {
    embed: Embed,
    layers: Vec<Vec<Module>>,
    norm: Vec<Module>,
    head: Head,
    /// An empty cache's.
    slots: Vec<Layer>,
    ropes: Vec<parts::Rope>,
}

impl Network {
    /// Loads the tensors that the parts name. Activations, and weights that are not quantized, are of
    /// `dtype`; BF16 stands for the model's own one of 16 bits.
    ///
    /// # Errors
    /// All faults of tensors that cannot be loaded.
    pub fn load(source: &dyn TensorSource, parts: &Parts, dtype: Dtype) -> Result<Network, Faults> {
        let mut from = Loader::new(source, parts, dtype);
        let embed = Embed::load(&mut from, &parts.embed);
        let layers = parts.layers.iter().map(|steps| Module::load_all(&mut from, steps)).collect();
        let norm = Module::load_all(&mut from, &parts.norm);
        let head = embed.as_ref().and_then(|embed| Head::load(&mut from, &parts.head, embed));
        let Loaded { layers: slots, ropes } = from.finish()?;
        let (Some(embed), Some(head)) = (embed, head) else {
            return Err(Fault::new(Code::Internal, "a model without faults lacks an end").into());
        };
        Ok(Network { embed, layers, norm, head, slots, ropes })
    }

    /// An empty cache's layers.
    pub fn layers(&self) -> Vec<Layer> {
        self.slots.clone()
    }

    /// Tokens that the embedding has.
    pub fn vocabulary(&self) -> usize {
        self.embed.vocabulary()
    }

    /// One pass; what it writes of the caches is staged, or left half-way when it fails. What it gives
    /// is under way on the device, together with what it writes: should that fail, as whoever asks
    /// for the numbers is told, the caches are of no use any more.
    ///
    /// # Errors
    /// What MLX refuses.
    pub fn forward(&self, pass: &Pass, caches: &mut [&mut Cache<Layer>]) -> Result<Output, Fault> {
        Ok(self.compute(pass, caches).map_err(crate::mlx::Error::from)?)
    }

    fn compute(&self, pass: &Pass, caches: &mut [&mut Cache<Layer>]) -> ops::Result<Output> {
        let tokens: Vec<u32> = pass.spans.iter().flat_map(|span| &span.tokens).copied().collect();
        let tokens = Array::from_slice(&tokens, &[tokens.len() as i32]);
        let mut walk = Walk::new(pass, caches, &self.ropes);
        let mut x = self.embed.forward(&tokens)?;
        walk.per_layer = self.embed.per_layer(&tokens, &x)?;
        let mut taps: Vec<(Tap, Array)> = Vec::new();
        for (number, layer) in self.layers.iter().enumerate() {
            x = run(layer, &x, &mut walk)?;
            if pass.taps.contains(&Tap::Layer(number)) {
                taps.push((Tap::Layer(number), x.clone()));
            }
        }
        let wanted = pass.wanted();
        let last = pass.taps.contains(&Tap::Last);
        let ending = if last || !self.norm.iter().all(Module::is_of_rows) {
            let all = run(&self.norm, &x, &mut walk)?;
            let ending = chosen(&all, &wanted)?;
            taps.push((Tap::Last, all));
            ending
        } else {
            // Those are enough that somebody looks at.
            run(&self.norm, &chosen(&x, &wanted)?, &mut walk)?
        };
        let logits = match wanted.len() {
            0 => None,
            _ => Some(self.head.forward(&ending)?),
        };
        let taps = pass.taps.iter().filter_map(|wanted| {
            taps.iter().find(|(tap, _)| tap == wanted).map(|(_, rows)| rows.clone())
        });
        let taps: Vec<Array> = taps.collect();
        let written = caches.iter().flat_map(|cache| cache.layers()).flat_map(Layer::arrays);
        mlx_rs::transforms::async_eval(written.chain(&logits).chain(&taps))?;
        let taps = taps.into_iter().map(Rows::Device).collect();
        let none = || Rows::Host { data: Vec::new(), width: self.head.vocabulary() };
        Ok(Output { logits: logits.map_or_else(none, Rows::Device), taps })
    }
}

/// Some rows of `x` `[tokens, hidden]`, ascending.
fn chosen(x: &Array, rows: &[usize]) -> ops::Result<Array> {
    match rows {
        [first, .., last] if last - first + 1 == rows.len() => ops::part(x, 0, &(*first..last + 1)),
        [only] => ops::part(x, 0, &(*only..only + 1)),
        _ => {
            let rows: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
            x.take_axis(Array::from_slice(&rows, &[rows.len() as i32]), 0)
        }
    }
}
