//! The backend on a CPU: lathe's own kernels (`kernels/`) on rows of f32 in plain memory, weights in
//! the form that they are stored in.
//!
//! Enters: the parts of a network, resolved and checked, and where its tensors are. A [`Network`]
//! takes passes to logits then, walking its tree of modules; there is one file for each kind.

mod attention;
mod cache;
mod conv;
mod delta;
mod ends;
mod latent;
mod loader;
mod mamba;
mod matrix;
mod memory;
mod mlp;
mod module;
mod moe;
mod norm;
mod short_conv;
mod walk;

pub use cache::Layer;

use std::panic::{AssertUnwindSafe, catch_unwind};

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
    bytes: usize,
}

impl Network {
    /// Loads the tensors that the parts name.
    ///
    /// # Errors
    /// All faults of tensors that cannot be loaded.
    pub fn load(source: &dyn TensorSource, parts: &Parts) -> Result<Network, Faults> {
        // The kernels' threads call BLAS, each for itself.
        crate::mlx::device::set_blas_threads(1);
        let mut from = Loader::new(source);
        let mut embed = Embed::load(&mut from, &parts.embed);
        let layers = parts.layers.iter().map(|steps| Module::load_all(&mut from, steps)).collect();
        let norm = Module::load_all(&mut from, &parts.norm);
        let head = embed.as_mut().and_then(|embed| Head::load(&mut from, &parts.head, embed));
        let Loaded { layers: slots, ropes, bytes } = from.finish()?;
        let (Some(embed), Some(head)) = (embed, head) else {
            return Err(Fault::new(Code::Internal, "a model without faults lacks an end").into());
        };
        Ok(Network { embed, layers, norm, head, slots, ropes, bytes })
    }

    /// An empty cache's layers.
    pub fn layers(&self) -> Vec<Layer> {
        self.slots.clone()
    }

    /// Tokens that the embedding has.
    pub fn vocabulary(&self) -> usize {
        self.embed.vocabulary()
    }

    /// Bytes of its weights.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// One pass; what it writes of the caches is staged, or left half-way when it fails.
    ///
    /// # Errors
    /// When a kernel fails: sizes that do not fit each other, which is a fault of lathe.
    pub fn forward(&self, pass: &Pass, caches: &mut [&mut Cache<Layer>]) -> Result<Output, Fault> {
        catch_unwind(AssertUnwindSafe(|| self.compute(pass, caches))).map_err(|panic| {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
            let said = said.unwrap_or("no message");
            Fault::new(Code::Internal, format!("a pass failed: {said}"))
        })
    }

    fn compute(&self, pass: &Pass, caches: &mut [&mut Cache<Layer>]) -> Output {
        let tokens = pass.spans.iter().flat_map(|span| &span.tokens);
        let tokens: Vec<usize> = tokens.map(|&token| token as usize).collect();
        let mut walk = Walk::new(pass, caches, &self.ropes);
        let mut x = self.embed.forward(&tokens);
        walk.per_layer = self.embed.per_layer(&tokens, &x);
        let tap = |x: &[f32]| Rows::Host { data: x.to_vec(), width: x.len() / tokens.len() };
        let mut taps: Vec<(Tap, Rows)> = Vec::new();
        for (number, layer) in self.layers.iter().enumerate() {
            x = run(layer, x, &mut walk);
            if pass.taps.contains(&Tap::Layer(number)) {
                taps.push((Tap::Layer(number), tap(&x)));
            }
        }
        let wanted = pass.wanted();
        let hidden = self.embed.hidden();
        let rows_of = |x: &[f32]| -> Vec<f32> {
            wanted.iter().flat_map(|&row| &x[row * hidden..(row + 1) * hidden]).copied().collect()
        };
        let last = pass.taps.contains(&Tap::Last);
        let ending = if last || !self.norm.iter().all(Module::is_of_rows) {
            let all = run(&self.norm, x, &mut walk);
            if last {
                taps.push((Tap::Last, tap(&all)));
            }
            rows_of(&all)
        } else if wanted.is_empty() {
            Vec::new()
        } else {
            // Those are enough that somebody looks at.
            run(&self.norm, rows_of(&x), &mut Walk::of_rows(wanted.len()))
        };
        let data = if wanted.is_empty() { Vec::new() } else { self.head.forward(&ending) };
        let taps = pass.taps.iter().filter_map(|wanted| {
            taps.iter().find(|(tap, _)| tap == wanted).map(|(_, rows)| rows.clone())
        });
        Output { logits: Rows::Host { data, width: self.head.vocabulary() }, taps: taps.collect() }
    }
}
