//! Modules that mix tokens with earlier ones.

use std::collections::BTreeSet;

use super::resolver::Resolver;
use super::{
    Attention, AttentionGate, Conv, DeltaEntry, Function, GatedDelta, Keys, LatentAttention,
    LatentQueries, LatentUp, Mamba2, Matrix, ShortConv, Step,
};
use crate::decoder::description;

impl Step {
    /// Tells the attention of the given layers that later layers read their keys.
    pub(super) fn share(&mut self, layers: &BTreeSet<usize>) {
        match self {
            Step::Residual(steps) => steps.iter_mut().for_each(|step| step.share(layers)),
            Step::Parallel(branches) => {
                branches.iter_mut().flatten().for_each(|step| step.share(layers));
            }
            Step::Attention(attention) => {
                if let Keys::Own { layer, shared, .. } = &mut attention.keys {
                    *shared = layers.contains(layer);
                }
            }
            _ => {}
        }
    }
}

impl Resolver<'_> {
    pub(super) fn attention(
        &mut self,
        attention: &description::Attention,
        layer: usize,
        hidden: i64,
    ) -> Option<Attention> {
        let heads = self.size("heads", &attention.heads)?;
        let kv_heads = match &attention.kv_heads {
            Some(_) => {
                let kv_heads = self.int_or("kv_heads", &attention.kv_heads, heads)?;
                description::Expr::Int(kv_heads)
            }
            None => description::Expr::Int(heads),
        };
        let kv_heads = self.size("kv_heads", &kv_heads)?;
        let head_dim = self.size("head_dim", &attention.head_dim)?;
        if heads % kv_heads != 0 {
            let message = format!("{heads} heads of {head_dim} do not share {kv_heads} key heads");
            self.fault("kv_heads", message);
            return None;
        }
        let bias = self.holds("bias", &attention.bias, false);
        let out_bias = self.holds("out_bias", &attention.out_bias, false);
        let keys_of = self.int_or("keys_of", &attention.keys_of, -1)?;
        let window = self.int_or("window", &attention.window, 0)?;
        let window = usize::try_from(window).ok().filter(|&window| window > 0);
        let all = heads * head_dim;
        let gate = match &attention.gate {
            Some(gate) => self.within("gate", |to| {
                if !to.holds("when", &gate.when, true) {
                    return Some(None);
                }
                to.attention_gate(gate, (heads, all), hidden).map(Some)
            })?,
            None => None,
        };
        let gate_in_q = gate.as_ref().is_some_and(|gate| gate.projection.is_none());
        let q_rows = all * if gate_in_q { 2 } else { 1 };
        let kv_rows = kv_heads * head_dim;
        let fused = attention.qkv.as_ref().filter(|name| self.find(name).is_some());
        let q = match (fused, &attention.q) {
            (Some(name), _) => self.sized("qkv", name, bias, (q_rows + 2 * kv_rows, hidden)),
            (None, Some(name)) => self.sized("q", name, bias, (q_rows, hidden)),
            (None, None) => {
                self.fault("path", "attention names neither q, k and v nor qkv");
                None
            }
        };
        let norm_all_heads = self.holds("norm_all_heads", &attention.norm_all_heads, false);
        let widths = match norm_all_heads {
            true => (all, kv_rows),
            false => (head_dim, head_dim),
        };
        let keys = match usize::try_from(keys_of) {
            Ok(other) if other >= layer => {
                let message = format!("layer {other}, whose keys are read, is not an earlier one");
                self.fault("keys_of", message);
                None
            }
            Ok(other) => {
                self.read_by_others.insert(other);
                // Published files carry what such a layer would make its own keys of (Gemma 4 E2B).
                let norms = [&attention.k_norm, &attention.v_norm];
                let norms = norms.map(|norm| norm.as_ref()?.tensor.as_ref());
                let left = [attention.k.as_ref(), attention.v.as_ref()];
                for name in left.into_iter().chain(norms).flatten() {
                    self.pass_over(name);
                }
                Some(Keys::Of(other))
            }
            Err(_) => {
                let sizes = (kv_rows, hidden);
                self.own_keys(attention, layer, bias, fused.is_some(), sizes, (widths.1, head_dim))
            }
        };
        let o = self.sized("o", &attention.o, out_bias, (hidden, all));
        let q_norm = self.maybe_norm("q_norm", &attention.q_norm, widths.0);
        let rope = match &attention.rope {
            Some(rope) => self.rope(rope, head_dim),
            None => None,
        };
        let long_scale = match &attention.long_scale {
            Some(long) => self.within("long_scale", |to| {
                let beta = to.maybe_number("beta", &Some(long.beta.clone()))?.unwrap_or(0.0);
                let trained = to.maybe_number("trained", &Some(long.trained.clone()))?;
                let trained = trained.unwrap_or(0.0);
                Some((beta != 0.0 && trained > 0.0).then_some((beta, trained)))
            })?,
            None => None,
        };
        let scale = self.number_or("scale", &attention.scale, (head_dim as f64).powf(-0.5))?;
        let soft_cap =
            self.maybe_number("soft_cap", &attention.soft_cap)?.filter(|&cap| cap != 0.0);
        let sinks = match &attention.sinks {
            Some(name) => Some(self.vector_at("sinks", name, Some(heads))?),
            None => None,
        };
        Some(Attention {
            q: q?,
            fused: fused.is_some(),
            keys: keys?,
            o: o?,
            q_norm,
            norm_all_heads,
            rope,
            long_scale,
            gate,
            window,
            scale,
            soft_cap,
            sinks,
            heads: heads as i32,
            kv_heads: kv_heads as i32,
            head_dim: head_dim as i32,
        })
    }

    fn own_keys(
        &mut self,
        attention: &description::Attention,
        layer: usize,
        bias: bool,
        fused: bool,
        sizes: (i64, i64),
        (k_width, v_width): (i64, i64),
    ) -> Option<Keys> {
        let (mut k, mut v) = (None, None);
        if !fused {
            let Some(name) = &attention.k else {
                self.fault("path", "attention names no keys");
                return None;
            };
            let keys = self.sized("k", name, bias, sizes);
            if !self.holds("values_are_keys", &attention.values_are_keys, false) {
                let Some(name) = &attention.v else {
                    self.fault("path", "attention names no values");
                    return None;
                };
                v = Some(self.sized("v", name, bias, sizes)?);
            }
            k = Some(keys?);
        }
        let k_norm = self.maybe_norm("k_norm", &attention.k_norm, k_width);
        let v_norm = self.maybe_norm("v_norm", &attention.v_norm, v_width);
        Some(Keys::Own { k, v, k_norm, v_norm, layer, shared: false })
    }

    fn attention_gate(
        &mut self,
        gate: &description::AttentionGate,
        (heads, all): (i64, i64),
        hidden: i64,
    ) -> Option<AttentionGate> {
        let function = self.function("activation", &gate.activation)?;
        let projection = match &gate.tensor {
            Some(name) => Some(self.linear("tensor", name, false, hidden)?),
            None => None,
        };
        let rows = projection.as_ref().map(|projection| projection.weight.outputs());
        if let (Some(rows), Some(projection)) = (rows, &projection)
            && rows != heads
        {
            self.expect("tensor", &projection.weight.name, "rows", rows, all)?;
        }
        Some(AttentionGate { projection, function, per_head: rows == Some(heads) })
    }

    pub(super) fn latent_attention(
        &mut self,
        attention: &description::LatentAttention,
        hidden: i64,
    ) -> Option<LatentAttention> {
        let heads = self.size("heads", &attention.heads)?;
        let rank = self.size("rank", &attention.rank)?;
        let nope_dim = self.size("nope_dim", &attention.nope_dim)?;
        let rope_dim = self.size("rope_dim", &attention.rope_dim)?;
        let value_dim = self.size("value_dim", &attention.value_dim)?;
        let bias = self.holds("bias", &attention.bias, false);
        let rows = heads.saturating_mul(nope_dim + rope_dim);
        let in_two = self.holds("q_in_two", &attention.q_in_two, attention.q_down.is_some());
        let q = match (&attention.q, &attention.q_down, &attention.q_norm, &attention.q_up) {
            (_, Some(down), Some(norm), Some(up)) if in_two => {
                let down = self.linear("q_down", down, bias, hidden);
                let q_rank = down.as_ref().map(|down| down.weight.outputs());
                let norm = q_rank.and_then(|q_rank| self.norm("q_norm", norm, false, q_rank));
                let up = self.sized("q_up", up, false, (rows, q_rank.unwrap_or(0)));
                match (down, norm, up) {
                    (Some(down), Some(norm), Some(up)) => Some(LatentQueries::Two(down, norm, up)),
                    _ => None,
                }
            }
            (Some(q), ..) if !in_two => {
                self.sized("q", q, false, (rows, hidden)).map(LatentQueries::One)
            }
            _ => {
                self.fault("path", "latent attention names neither q nor q_down, q_norm and q_up");
                None
            }
        };
        let kv_down = self.sized("kv_down", &attention.kv_down, bias, (rank + rope_dim, hidden));
        let kv_norm = self.norm("kv_norm", &attention.kv_norm, false, rank);
        let up = self.latent_up(attention, [heads, rank, nope_dim, value_dim]);
        let o = self.sized("o", &attention.o, bias, (hidden, heads.saturating_mul(value_dim)));
        let rope = self.rope(&attention.rope, rope_dim);
        let scale = rope.as_ref().map_or(1.0, |rope| rope.rotation.score_factor)
            * ((nope_dim + rope_dim) as f64).powf(-0.5);
        let scale = self.number_or("scale", &attention.scale, scale)?;
        Some(LatentAttention {
            q: q?,
            kv_down: kv_down?,
            kv_norm: kv_norm?,
            up: up?,
            o: o?,
            rope: rope?,
            scale,
            heads: heads as i32,
            rank: rank as i32,
            nope_dim: nope_dim as i32,
            rope_dim: rope_dim as i32,
            value_dim: value_dim as i32,
        })
    }

    fn latent_up(
        &mut self,
        attention: &description::LatentAttention,
        [heads, rank, nope_dim, value_dim]: [i64; 4],
    ) -> Option<LatentUp> {
        let halves = [&attention.q_to_latent, &attention.latent_to_v];
        if let [Some(keys), Some(values)] = halves
            && self.find(keys).is_some()
        {
            let keys = self.latent_half("q_to_latent", keys, [heads, rank, nope_dim]);
            let values = self.latent_half("latent_to_v", values, [heads, value_dim, rank]);
            return Some(LatentUp::Halves(keys?, values?));
        }
        let rows = heads.saturating_mul(nope_dim + value_dim);
        let up = self.sized("kv_up", &attention.kv_up, false, (rows, rank))?;
        Some(LatentUp::Whole(up.weight))
    }

    fn latent_half(&mut self, key: &str, name: &str, wanted: [i64; 3]) -> Option<Matrix> {
        let full = self.weight_name(key, name)?;
        let matrix = self.matrix(key, &full, false, 3)?;
        let axes = ["heads", "rows", "columns"];
        for ((what, &found), wanted) in axes.into_iter().zip(&matrix.shape).zip(wanted) {
            self.expect(key, &full, what, found as i64, wanted)?;
        }
        Some(matrix)
    }

    pub(super) fn gated_delta(
        &mut self,
        delta: &description::GatedDelta,
        hidden: i64,
    ) -> Option<GatedDelta> {
        let key_heads = self.size("key_heads", &delta.key_heads)?;
        let value_heads = self.size("value_heads", &delta.value_heads)?;
        let key_dim = self.size("key_dim", &delta.key_dim)?;
        let value_dim = self.size("value_dim", &delta.value_dim)?;
        let kernel = self.size("kernel", &delta.kernel)?;
        if value_heads % key_heads != 0 {
            let message = format!("{value_heads} value heads do not share {key_heads} key heads");
            self.fault("value_heads", message);
            return None;
        }
        let gate = self.function("activation", &delta.activation)?;
        let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
        let channels = 2_i64.saturating_mul(keys).saturating_add(values);
        let grouped = delta.qkvz.as_ref().filter(|name| self.find(name).is_some());
        let entry = match (grouped, &delta.ba, &delta.qkv, &delta.z, &delta.b, &delta.a) {
            (Some(qkvz), Some(ba), ..) => {
                let rows = channels.saturating_add(values);
                let qkvz = self.sized("qkvz", qkvz, false, (rows, hidden));
                let ba = self.sized("ba", ba, false, (2 * value_heads, hidden));
                match (qkvz, ba) {
                    (Some(qkvz), Some(ba)) => Some(DeltaEntry::Grouped { qkvz, ba }),
                    _ => None,
                }
            }
            (_, _, Some(qkv), Some(z), Some(b), Some(a)) => {
                let qkv = self.sized("qkv", qkv, false, (channels, hidden));
                let z = self.sized("z", z, false, (values, hidden));
                let b = self.sized("b", b, false, (value_heads, hidden));
                let a = self.sized("a", a, false, (value_heads, hidden));
                match (qkv, z, b, a) {
                    (Some(qkv), Some(z), Some(b), Some(a)) => {
                        Some(DeltaEntry::Split { qkv, z, b, a })
                    }
                    _ => None,
                }
            }
            _ => {
                let message = "a gated delta net names neither qkv, z, b and a nor qkvz and ba";
                self.fault("path", message);
                None
            }
        };
        let conv = self.conv(&delta.conv, false, Some(gate), (channels, kernel));
        let dt_bias = self.vector_at("dt_bias", &delta.dt_bias, Some(value_heads));
        let a_log = self.vector_at("a_log", &delta.a_log, Some(value_heads));
        let norm = self.norm("norm", &delta.norm, false, value_dim);
        let out = self.sized("out", &delta.out, false, (hidden, values));
        Some(GatedDelta {
            entry: entry?,
            conv: conv?,
            dt_bias: dt_bias?,
            a_log: a_log?,
            norm: norm?,
            out: out?,
            gate,
            key_heads: key_heads as i32,
            value_heads: value_heads as i32,
            key_dim: key_dim as i32,
            value_dim: value_dim as i32,
        })
    }

    pub(super) fn mamba2(&mut self, mamba: &description::Mamba2, hidden: i64) -> Option<Mamba2> {
        let heads = self.size("heads", &mamba.heads)?;
        let head_dim = self.size("head_dim", &mamba.head_dim)?;
        let groups = self.size("groups", &mamba.groups)?;
        let state = self.size("state", &mamba.state)?;
        let kernel = self.size("kernel", &mamba.kernel)?;
        if heads % groups != 0 {
            self.fault("groups", format!("{heads} heads do not share {groups} groups"));
            return None;
        }
        let bias = self.holds("bias", &mamba.bias, false);
        let conv_bias = self.holds("conv_bias", &mamba.conv_bias, false);
        let function = self.function("activation", &mamba.activation)?;
        let inner = heads * head_dim;
        let channels = (2 * groups).saturating_mul(state).saturating_add(inner);
        let rows = channels.saturating_add(inner).saturating_add(heads);
        let in_proj = self.sized("in_proj", &mamba.in_proj, bias, (rows, hidden));
        let conv = self.conv(&mamba.conv, conv_bias, Some(function), (channels, kernel));
        let dt_bias = self.vector_at("dt_bias", &mamba.dt_bias, Some(heads));
        let a_log = self.vector_at("a_log", &mamba.a_log, Some(heads));
        let d = self.vector_at("d", &mamba.d, Some(heads));
        let norm = self.norm("norm", &mamba.norm, false, inner)?;
        if norm.weight.is_none() {
            self.fault("norm", "the gated norm of a Mamba-2 mixer needs a weight");
            return None;
        }
        let out = self.sized("out", &mamba.out, bias, (hidden, inner));
        let dt_min = self.number_or("dt_min", &mamba.dt_min, 0.0)?;
        Some(Mamba2 {
            in_proj: in_proj?,
            conv: conv?,
            dt_bias: dt_bias?,
            a_log: a_log?,
            d: d?,
            norm,
            out: out?,
            dt_min,
            heads: heads as i32,
            head_dim: head_dim as i32,
            groups: groups as i32,
            state: state as i32,
        })
    }

    pub(super) fn short_conv(
        &mut self,
        short: &description::ShortConv,
        hidden: i64,
    ) -> Option<ShortConv> {
        let bias = self.holds("bias", &short.bias, false);
        let kernel = self.size("kernel", &short.kernel)?;
        let in_proj = self.sized("in_proj", &short.in_proj, bias, (3 * hidden, hidden));
        let out = self.sized("out", &short.out, bias, (hidden, hidden));
        let conv = self.conv(&short.conv, bias, None, (hidden, kernel));
        Some(ShortConv { in_proj: in_proj?, conv: conv?, out: out? })
    }

    /// A convolution stored as `[channels, 1, kernel]`, or as MLX has it, `[channels, kernel, 1]`:
    /// the same numbers in the same order.
    fn conv(
        &mut self,
        name: &str,
        bias: bool,
        function: Option<Function>,
        (channels, kernel): (i64, i64),
    ) -> Option<Conv> {
        let full = self.weight_name("conv", name)?;
        let first = self.table.get(&full).and_then(|held| held.shape.first().copied());
        self.expect("conv", &full, "channels", first.unwrap_or(0) as i64, channels)?;
        let all = channels.saturating_mul(kernel);
        let full = self.vector("conv", &full, Some(all))?;
        let bias = match bias {
            true => Some(self.vector_at("conv", &format!("{name}.bias"), Some(channels))?),
            false => None,
        };
        let (channels, kernel) = (channels as i32, kernel as i32);
        Some(Conv { name: full, bias, channels, kernel, function })
    }
}
