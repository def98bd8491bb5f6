//! Attention by lathe's own kernels: what they need of it when it is built, and in each pass.

use std::sync::Arc;

use mlx_rs::{Array, Dtype};

use super::{Attention, Gate, Keys, Projections, keys_in, no_keys};
use crate::cache::keys::Seen;
use crate::model::batch::Pass;
use crate::model::linear::Linear;
use crate::model::native::steps::{Held, Step};
use crate::model::native::{self, GateOf, Line, Part};
use crate::model::norm::Norm;
use crate::model::ops::Result;

impl Attention {
    /// All of it, where lathe's own kernels have it.
    pub(super) fn natively(&self) -> Result<Option<native::Attention>> {
        let (heads, kv_heads) = (self.heads as usize, self.kv_heads as usize);
        let dim = self.head_dim as usize;
        // What lathe's own kernels lack are other norms than theirs.
        let norms = |norm: &Option<Norm>| match norm {
            Some(norm) => norm.native().cloned().map(Some),
            None => Some(None),
        };
        let own_norms = match &self.keys {
            Keys::Own { k_norm, v_norm, .. } => norms(k_norm).zip(norms(v_norm)),
            Keys::Of(_) => Some((None, None)),
        };
        let gate = match &self.gate {
            None => Some(None),
            Some(Gate { projection, function, .. }) => {
                let of = projection.as_ref().map(|projection| projection.native().cloned());
                let function = function.of_gate();
                let missing = matches!(of, Some(None));
                let of = |function| GateOf { function, projection: of.flatten() };
                function.filter(|_| !missing).map(of).map(Some)
            }
        };
        let (Some(q_norm), Some((k_norm, value_norm)), Some(gate)) =
            (norms(&self.q_norm), own_norms, gate)
        else {
            return Ok(None);
        };
        let projections = match (&self.q, &self.keys) {
            (Projections::Fused(qkv), Keys::Own { .. }) => {
                let Some(qkv) = qkv.native() else { return Ok(None) };
                let rows = self.q_rows();
                let part = |from, count| qkv.part(from, count).map(Arc::new);
                let kv = kv_heads * dim;
                let (k, v) = (part(rows, kv)?, part(rows + kv, kv)?);
                Some((part(0, rows)?, Some(k), Some(v)))
            }
            (Projections::Split(q), Keys::Own { k, v, .. }) => {
                let native = |linear: &Option<Linear>| match linear {
                    Some(linear) => linear.native().cloned().map(Some),
                    None => Some(None),
                };
                let all = q.native().cloned().zip(native(k)).zip(native(v));
                all.map(|((q, k), v)| (q, k, v))
            }
            (Projections::Split(q), Keys::Of(_)) => q.native().map(|q| (q.clone(), None, None)),
            (Projections::Fused(_), Keys::Of(_)) => None,
        };
        let (Some((q, k, values)), Some(o)) = (projections, self.o.native()) else {
            return Ok(None);
        };
        let sinks = self.scores.sinks.as_ref().map(native::floats).transpose()?;
        let native = native::Attention {
            queries: Part { projection: q, norm: q_norm },
            keys: k.map(|projection| Part { projection, norm: k_norm }),
            values,
            value_norm,
            o: o.clone(),
            gate,
            norm_all_heads: self.norm_all_heads,
            heads,
            kv_heads,
            dim,
            scale: self.scores.scale,
            cap: self.scores.cap,
            window: self.scores.window,
            sinks,
        };
        native.check()?;
        Ok(Some(native))
    }

    /// Whether lathe's own kernels have all of it.
    pub fn is_native(&self) -> bool {
        self.native.is_some()
    }

    /// The step that lathe's own kernels make of it, where they have it. Whoever runs it calls
    /// [`Attention::take_back`] with what has been written.
    pub fn step(&self, held: &mut Held, pass: &mut Pass) -> Result<Option<Step>> {
        let Some(native) = &self.native else { return Ok(None) };
        let lines = self.lines(pass)?;
        native.step(lines, pass.batch.longest(), held).map(Some)
    }

    /// The batch's rows, as lathe's own kernels take them.
    fn lines(&self, pass: &mut Pass) -> Result<Vec<Line>> {
        let batch = pass.batch;
        let size = [self.kv_heads, self.head_dim];
        let lines = batch.rows.iter().enumerate().map(|(index, row)| {
            let (tokens, position) = (row.tokens.len(), row.position);
            let turn = self.rope.as_ref().map(|rope| rope.turn(row.span(), pass));
            let long = self.long_scale.and_then(|long| long.factors(position, tokens));
            let (held, at, seen, start) = match &self.keys {
                Keys::Own { slot, .. } => {
                    let keys = keys_in(pass.caches[index], *slot)?;
                    let place = keys.open(Dtype::Float32, size, Some(size), tokens)?;
                    let values = place.values.ok_or_else(no_keys)?;
                    let first = place.at - place.seen.start;
                    ([place.keys, values], place.at, place.seen, position - first)
                }
                Keys::Of(layer) => {
                    let seen = pass.seen_of(*layer, index).cloned();
                    let Seen { keys, values, start } = seen.ok_or_else(no_keys)?;
                    let all = 0..keys.dim(2) as usize;
                    ([keys, values], 0, all, start)
                }
            };
            let (factors, first) = (long.map(Into::into), position - start);
            Ok(Line { tokens, turn, factors, held, at, seen, first })
        });
        lines.collect()
    }

    /// Takes this layer's own keys and values, the next of those written, into the caches.
    pub fn take_back(
        &self,
        written: &mut impl Iterator<Item = [Array; 2]>,
        pass: &mut Pass,
    ) -> Result<()> {
        let Keys::Own { slot, layer, shared, .. } = &self.keys else { return Ok(()) };
        let mut seen_rows = Vec::new();
        for (index, row) in pass.batch.rows.iter().enumerate() {
            let [keys, values] = written.next().ok_or_else(no_keys)?;
            let held = keys_in(pass.caches[index], *slot)?;
            held.written(keys, Some(values), row.tokens.len());
            if *shared {
                seen_rows.push(held.seen_by(row.position)?);
            }
        }
        if *shared {
            pass.seen.insert(*layer, seen_rows);
        }
        Ok(())
    }
}
