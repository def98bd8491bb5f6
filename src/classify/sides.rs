//! Which side of a stacked weight is its inputs, proven by the sizes that the config tells.
//!
//! Producers store stacked experts `[experts, out, in]` or `[experts, in, out]`, and a wrong guess
//! gives numbers that look right. Where a weight's sides are equal, the others of its group tell.

use regex::Regex;

use super::dims::{Bindings, solve};
use super::file::ClaimsFile;
use super::layout::Layout;
use super::paths::{ConfigPath, Roots, numbers};
use crate::read::{Inventory, TensorInfo};

/// How a weight stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// As its layout says: outputs before inputs.
    AsSaid,
    /// With inputs before outputs.
    Turned,
}

/// The sizes that a config tells of stacked weights.
pub struct Sides {
    /// Names, and pairs of inputs and outputs that they may have.
    kinds: Vec<(Regex, Vec<[u64; 2]>)>,
}

/// What is known of a weight's sides.
enum Fits {
    /// Nothing: the config does not tell, or tells other sizes.
    Neither,
    One(Stands),
    Both,
}

impl Sides {
    /// Reads the sizes.
    pub fn new(claims: &ClaimsFile, inventory: &Inventory) -> Sides {
        let roots = Roots {
            config: &inventory.config,
            quant_config: inventory.quant_config.as_ref(),
            scheme: None,
            base: "",
        };
        let sizes = |name: &str| -> Vec<u64> {
            let paths = claims.sizes.get(name).into_iter().flatten();
            let values = paths.flat_map(|path| ConfigPath::parse(path).values(&roots));
            values.filter_map(|value| numbers(&value, 1)?.first().copied()).collect()
        };
        let kinds = claims.sides.iter().filter_map(|side| {
            let name = Regex::new(&format!("^(?:{})$", side.of)).ok()?;
            let outputs = sizes(&side.outputs);
            let pairs = sizes(&side.inputs).into_iter().flat_map(|inputs| {
                outputs.iter().map(move |outputs| [inputs, outputs.saturating_mul(side.times)])
            });
            Some((name, pairs.collect()))
        });
        Sides { kinds: kinds.collect() }
    }

    fn fits(&self, base: &str, bindings: &Bindings) -> Fits {
        let pairs = self.kinds.iter().find(|(name, _)| name.is_match(base));
        let [inputs, outputs] = ["in", "out"].map(|name| bindings.get(name).unwrap_or(0));
        let has = |pair| pairs.is_some_and(|(_, pairs)| pairs.contains(&pair));
        match (has([inputs, outputs]), has([outputs, inputs])) {
            (true, true) => Fits::Both,
            (true, false) => Fits::One(Stands::AsSaid),
            (false, true) => Fits::One(Stands::Turned),
            (false, false) => Fits::Neither,
        }
    }

    /// How a weight stands whose shapes were solved by a layout.
    ///
    /// # Errors
    /// Why it cannot be told, with both readings.
    pub fn stands(
        &self,
        inventory: &Inventory,
        layout: &Layout,
        base: &str,
        bindings: &Bindings,
    ) -> Result<Stands, String> {
        let stacked = !bindings.leading().is_empty();
        let turnable = layout.file.turnable;
        let told = match self.fits(base, bindings) {
            _ if !stacked => return Ok(Stands::AsSaid),
            Fits::One(stands) => Some(stands),
            // A layout that is never turned says it by its own name.
            Fits::Both | Fits::Neither if !turnable => Some(Stands::AsSaid),
            Fits::Both => self.told_by_others(inventory, layout, base),
            Fits::Neither => None,
        };
        match told {
            Some(Stands::Turned) if !turnable => Err(format!(
                "holds {}: the config's sizes are those of the second, and layout {} has only the \
                 first",
                readings(bindings),
                layout.name
            )),
            Some(stands) => Ok(stands),
            None => Err(format!(
                "holds {}, and neither the config's sizes nor the other experts' tensors tell which",
                readings(bindings)
            )),
        }
    }

    /// What the other weights of the same experts tell, when they agree.
    fn told_by_others(&self, inventory: &Inventory, layout: &Layout, base: &str) -> Option<Stands> {
        let group = &base[..base.rfind('.')? + 1];
        let from = inventory.tensors.partition_point(|tensor| tensor.name.as_str() < group);
        let others = inventory.tensors[from..].iter();
        let others = others.take_while(|tensor| tensor.name.starts_with(group));
        let one = |tensor: &TensorInfo| {
            let pairs = [(&layout.shape, tensor.shape.as_slice())];
            let bindings = solve(&pairs, Bindings::default()).ok()?;
            match self.fits(&tensor.name, &bindings) {
                Fits::One(stands) => Some(stands),
                Fits::Both | Fits::Neither => None,
            }
        };
        let of_layout = |tensor: &&TensorInfo| layout.takes(tensor.dtype) && tensor.name != base;
        let mut told = others.filter(of_layout).filter_map(one);
        let first = told.next()?;
        told.all(|stands| stands == first).then_some(first)
    }
}

/// Both ways to read a weight, in words.
fn readings(bindings: &Bindings) -> String {
    let [inputs, outputs] = ["in", "out"].map(|name| bindings.get(name).unwrap_or(0));
    format!(
        "{outputs} outputs of {inputs} inputs read as [.., out, in], or {inputs} outputs of \
         {outputs} inputs read as [.., in, out]"
    )
}
