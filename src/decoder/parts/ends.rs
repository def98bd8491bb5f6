//! The whole of a network, its layers, and what is before and after them.

use cel::Value as CelValue;
use indexmap::IndexMap;

use super::resolver::Resolver;
use super::{Embed, Head, Matrix, Parts, PerLayer, Step};
use crate::decoder::converted::Told;
use crate::decoder::description::{self, Decoder, Expr};
use crate::fault::Faults;

impl Resolver<'_> {
    /// All of a description.
    ///
    /// # Errors
    /// All that is wrong, what differs only in the tensor as one.
    pub fn resolve(mut self, decoder: &Decoder) -> Result<Parts, Faults> {
        self.values("let", &decoder.values);
        self.tell_converted(decoder);
        let Some((root, embedding)) = self.root_of(decoder) else {
            return Err(self.faults);
        };
        let embed = self.under(&root, |to| {
            to.within("embed", |to| to.embed(&decoder.embed, &decoder.layers.count, &embedding))
        });
        // Without an embedding nothing tells how wide the layers are.
        let hidden = embed.as_ref().map_or(0, |embed| embed.table.inputs());
        if hidden == 0 {
            return Err(self.faults.grouped());
        }
        let layers = self.under(&root, |to| to.within("layers", |to| to.layers(decoder, hidden)));
        let norm = self.under(&root, |to| {
            to.within("norm", |to| to.steps(&decoder.norm, 0, hidden, Some(hidden)))
        });
        let table = embed.as_ref().map(|embed| embed.table.clone());
        let head = table.and_then(|table| self.within("head", |to| to.head(&decoder.head, &table)));
        let context = self.int_or("context", &decoder.context, 0);
        let beyond = self.names_beyond(decoder, &root);
        let idle_biases = self.check_all_used(&decoder.unused, &beyond);
        let exact = self.int_or("exact_context", &decoder.exact_context, 0);
        let exact_context = exact.and_then(|exact| usize::try_from(exact).ok()).filter(|&n| n > 0);
        let context = context.and_then(|context| usize::try_from(context).ok()).filter(|&c| c > 0);
        // A rotation may stretch it further than the config's own number says.
        let context = context.map(|context| context.max(self.reach.unwrap_or(0)));
        let mut layers = layers.unwrap_or_default();
        for step in layers.iter_mut().flatten() {
            step.share(&self.read_by_others);
        }
        if !self.faults.0.is_empty() {
            return Err(self.faults.grouped());
        }
        match (embed, head) {
            (Some(embed), Some(head)) => {
                Ok(Parts { embed, layers, norm, head, context, exact_context, idle_biases })
            }
            _ => {
                self.fault("embed", "the network has no beginning or no end");
                Err(self.faults)
            }
        }
    }

    /// Adds the values of a `let`.
    fn values(&mut self, key: &str, values: &IndexMap<String, Expr>) {
        for (name, expr) in values {
            match self.scope.value(expr) {
                Ok(value) => self.scope.set(name, value.unwrap_or(CelValue::Null)),
                Err(reason) => {
                    self.within(key, |to| to.fault(name, format!("{name}: {reason}")));
                }
            }
        }
    }

    /// Lets expressions see whether the model is a converted copy.
    fn tell_converted(&mut self, decoder: &Decoder) {
        let Some(converted) = &decoder.converted else { return };
        match converted.told(&self.scope, self.table.plain()) {
            Ok(told) => {
                self.scope.set("converted", CelValue::Bool(told == Told::Converted));
            }
            Err(reason) => self.fault("converted", reason),
        }
    }

    /// The root under which the embedding is, and the embedding's whole name.
    fn root_of(&mut self, decoder: &Decoder) -> Option<(String, String)> {
        let has = |name: &str| self.table.get(name).is_some();
        if let Some((root, full)) = decoder.embedding(has) {
            return Some((root.to_owned(), full));
        }
        if let Some((root, _, head)) = decoder.head_alone(self.table.names())
            && self.within("head", |to| to.holds("tied", &decoder.head.tied, false))
        {
            return Some((root.to_owned(), head));
        }
        let names = decoder.embed.tensor.list().join(" or ");
        let roots =
            decoder.roots().map(|root| format!("\"{root}\"")).collect::<Vec<_>>().join(", ");
        self.fault("root", format!("the model has no embedding {names} under any of {roots}"));
        None
    }

    fn layers(&mut self, decoder: &Decoder, hidden: i64) -> Option<Vec<Vec<Step>>> {
        let layers = &decoder.layers;
        let count = self.size("count", &layers.count)?;
        if count > self.table.len() as i64 {
            let tensors = self.table.len();
            let message =
                format!("the config makes {count} layers, and the model has {tensors} tensors");
            self.fault("count", message);
            return None;
        }
        let of_model = self.scope.clone();
        let mut resolved = Vec::new();
        for layer in 0..count {
            self.scope = of_model.clone();
            self.scope.set("layer", CelValue::Int(layer));
            let path = layers.tensor.replace("{i}", &layer.to_string());
            let steps = self.under(&path, |to| {
                if let Some(kind) = &layers.kind {
                    match to.scope.value(kind) {
                        Ok(value) => to.scope.set("type", value.unwrap_or(CelValue::Null)),
                        Err(reason) => to.fault("type", format!("type: {reason}")),
                    }
                }
                to.values("let", &layers.values);
                to.within("steps", |to| {
                    to.steps(&layers.steps, layer as usize, hidden, Some(hidden))
                })
            });
            resolved.push(steps);
        }
        self.scope = of_model;
        Some(resolved)
    }

    /// What the names of layers begin with that stand after the decoder's and that it does not use.
    fn names_beyond(&mut self, decoder: &Decoder, root: &str) -> Vec<String> {
        let layers = &decoder.layers;
        let count = self.scope.int(&layers.count).ok().flatten().unwrap_or(0);
        let more = self.within("layers", |to| to.int_or("beyond", &layers.beyond, 0)).unwrap_or(0);
        // As many as there are tensors for, whatever the config says.
        let more = more.clamp(0, self.table.len() as i64);
        let name = |layer: i64| format!("{}.", layers.tensor.replace("{i}", &layer.to_string()));
        self.under(root, |to| {
            (0..more).map(|next| to.full_name(&name(count.saturating_add(next)))).collect()
        })
    }

    fn embed(&mut self, embed: &description::Embed, layers: &Expr, name: &str) -> Option<Embed> {
        let table = self.matrix("tensor", name, false, 2)?;
        let scale = self.maybe_number("scale", &embed.scale)?;
        let per_layer = match &embed.per_layer {
            Some(per_layer) => self.within("per_layer", |to| {
                if !to.holds("when", &per_layer.when, true) {
                    return Some(None);
                }
                to.embed_per_layer(per_layer, layers, &table).map(Some)
            })?,
            None => None,
        };
        Some(Embed { table, scale, per_layer })
    }

    fn embed_per_layer(
        &mut self,
        per_layer: &description::PerLayer,
        layers: &Expr,
        embedding: &Matrix,
    ) -> Option<PerLayer> {
        let width = self.size("width", &per_layer.width)?;
        let all = width * self.size("layers", layers)?;
        let names = per_layer.tensor.list();
        let name = names.iter().find(|name| self.find(name).is_some()).or(names.first())?;
        let name = self.weight_name("tensor", name)?;
        let table = self.matrix("tensor", &name, false, 2)?;
        self.expect("tensor", &name, "columns", table.inputs(), all)?;
        self.expect("tensor", &name, "rows", table.outputs(), embedding.outputs())?;
        let projection = per_layer.projection.list().first()?;
        let sizes = (all, embedding.inputs());
        let resolved = PerLayer {
            table,
            scale: self.number_or("scale", &per_layer.scale, 1.0)?,
            projection: self.sized("projection", projection, false, sizes)?,
            projection_scale: self.number_or(
                "projection_scale",
                &per_layer.projection_scale,
                1.0,
            )?,
            norm: self.norm("norm", &per_layer.norm, false, width)?,
            sum_scale: self.number_or("sum_scale", &per_layer.sum_scale, 1.0)?,
            width: width as i32,
        };
        self.per_layer = Some(width);
        Some(resolved)
    }

    /// The head, at the top of the model's names; a tied one is the embedding.
    fn head(&mut self, head: &description::Head, embedding: &Matrix) -> Option<Head> {
        let tied = self.holds("tied", &head.tied, false);
        let names = head.tensor.list();
        let found = names.iter().find_map(|name| Some((name, self.find(name)?)));
        let is_copy = |full: &String| self.table.may_be_same(full, &embedding.name);
        let linear = match found {
            // The embedding a second time, or nothing.
            found if tied && found.as_ref().is_none_or(|(_, full)| is_copy(full)) => {
                if let Some((name, _)) = found {
                    self.pass_over(name);
                }
                None
            }
            // A head that is there and another wins over the flag.
            found => {
                let name = found.map(|(name, _)| name).or(names.first())?;
                let bias = self.holds("bias", &head.bias, false);
                Some(self.linear("tensor", name, bias, embedding.inputs())?)
            }
        };
        let scale = self.maybe_number("scale", &head.scale)?.filter(|&scale| scale != 1.0);
        let soft_cap = self.maybe_number("soft_cap", &head.soft_cap)?.filter(|&cap| cap != 0.0);
        Some(Head { linear, scale, soft_cap })
    }
}
