//! Rotary position embedding (Su et al. 2021), in all its variants, once.
//!
//! A head's first 2·n elements are rotated in pairs: pair i at position p by the angle
//! p × f(i). The variants differ in the frequencies f and in a factor on the result:
//!
//! | `rope_type` | source |
//! |---|---|
//! | `default` | f(i) = θ^(-2i/d) |
//! | `linear` | the same / factor (Chen et al. 2023) |
//! | `llama3` | low frequencies / factor, smoothly between (Llama 3.1) |
//! | `yarn` | interpolated by a ramp over frequencies, and a factor (Peng et al. 2023) |
//! | `proportional` | the first part of the pairs as in a full rotation, the rest not at all |
//!
//! With `partial` only a part of the head is rotated. Pairs are (i, i + n), or neighbours when
//! `interleaved`.

use std::cell::OnceCell;
use std::f64::consts::PI;
use std::rc::Rc;

use mlx_rs::ops::indexing::{Ellipsis, TryIndexOp};
use mlx_rs::ops::{concatenate, stack};
use mlx_rs::{Array, Dtype};
use serde_json::Value as Json;

use super::batch::Pass;
use super::build::Builder;
use super::native::{self, Floats, Turn};
use super::ops::{Result, last_axis};
use crate::decoder::description;

/// A rotation.
#[derive(Clone, Debug)]
pub struct Rope {
    /// Which of the model's different rotations it is.
    pub id: usize,
    frequencies: Vec<f32>,
    factor: f32,
    interleaved: bool,
    /// Whether lathe's own kernels do it.
    on_cpu: bool,
    /// What latent attention multiplies its scores by: the square of YaRN's factor for all
    /// dimensions (DeepSeek-V2), else 1.
    pub score_factor: f64,
}

impl Rope {
    /// Reads a rotation of heads of `head_dim` elements; `None` when its condition does not hold
    /// (or it is faulty).
    pub fn build(to: &mut Builder, rope: &description::Rope, head_dim: i64) -> Option<Rope> {
        if !to.holds(&rope.when, true) {
            return None;
        }
        let parameters = match &rope.parameters {
            None => None,
            Some(expr) => match to.scope.object(expr) {
                Ok(object) => object,
                Err(reason) => {
                    to.fault(format!("rope parameters: {reason}"));
                    return None;
                }
            },
        };
        let parameters = Parameters(parameters.unwrap_or(Json::Null));
        let theta = match (parameters.number("rope_theta"), &rope.theta) {
            (Some(theta), _) => theta,
            (None, Some(theta)) => to.float(theta, "rope theta")?,
            (None, None) => {
                to.fault("the config gives no base for rotary positions");
                return None;
            }
        };
        let partial = match parameters.number("partial_rotary_factor") {
            Some(partial) => partial,
            None => to.float_or(&rope.partial, 1.0)?,
        };
        let interleaved = to.holds(&rope.interleaved, false);
        match frequencies(&parameters, theta, partial, head_dim as f64) {
            Ok((frequencies, factor)) => {
                let frequencies = frequencies.into_iter().map(|f| f as f32).collect();
                let factor = factor as f32;
                let score_factor = parameters.score_factor();
                let on_cpu = to.compute.on_cpu;
                let rope = Rope { id: 0, frequencies, factor, interleaved, on_cpu, score_factor };
                Some(to.shared_rope(rope))
            }
            Err(message) => {
                to.fault(message);
                None
            }
        }
    }

    /// Whether both rotate alike.
    pub fn same(&self, other: &Rope) -> bool {
        self.frequencies == other.frequencies
            && self.factor == other.factor
            && self.interleaved == other.interleaved
            && self.score_factor == other.score_factor
    }

    /// Rotates `[…, tokens, head_dim]`, the first token standing at `position`.
    pub fn apply(&self, x: &Array, position: usize, pass: &mut Pass) -> Result<Array> {
        let length = x.dim(-2) as usize;
        if self.on_cpu && x.dtype() == Dtype::Float32 && x.ndim() == 4 && x.dim(0) == 1 {
            return native::rotate(x, &self.turn(position, length, pass));
        }
        let [cos, sin] = self.rotations(position, length, x.dtype(), pass)?;
        let (pairs, head_dim) = (self.frequencies.len() as i32, x.dim(-1));
        let turned = if self.interleaved {
            let mut shape = x.shape().to_vec();
            shape.pop();
            let rotated = last_axis(x, 0, 2 * pairs)?;
            let mut paired = shape.clone();
            paired.extend([pairs, 2]);
            let rotated = rotated.reshape(&paired)?;
            let first = rotated.try_index((Ellipsis, 0))?;
            let second = rotated.try_index((Ellipsis, 1))?;
            let (first, second) = turn(&first, &second, &cos, &sin)?;
            shape.push(2 * pairs);
            stack(&[first, second], -1)?.reshape(&shape)?
        } else {
            let first = last_axis(x, 0, pairs)?;
            let second = last_axis(x, pairs, 2 * pairs)?;
            let (first, second) = turn(&first, &second, &cos, &sin)?;
            if 2 * pairs == head_dim {
                return concatenate(&[first, second], -1);
            }
            concatenate(&[first, second], -1)?
        };
        if 2 * pairs == head_dim {
            return Ok(turned);
        }
        concatenate(&[turned, last_axis(x, 2 * pairs, head_dim)?], -1)
    }

    /// Cosines and sines, `[tokens, pairs]` each, once for each pass and place.
    fn angles(&self, position: usize, length: usize, pass: &mut Pass) -> Rc<Angles> {
        let make = || {
            // Angles in f32, as the reference computes them.
            let angles = (position..position + length)
                .flat_map(|at| self.frequencies.iter().map(move |frequency| at as f32 * frequency));
            let (cos, sin): (Vec<f32>, Vec<f32>) =
                angles.map(|angle| (angle.cos() * self.factor, angle.sin() * self.factor)).unzip();
            Rc::new(Angles { parts: [cos.into(), sin.into()], arrays: OnceCell::new() })
        };
        pass.rotations.entry((self.id, position, length)).or_insert_with(make).clone()
    }

    /// The same for lathe's own kernels.
    pub fn turn(&self, position: usize, length: usize, pass: &mut Pass) -> Turn {
        let [cos, sin] = self.angles(position, length, pass).parts.clone();
        Turn { cos, sin, interleaved: self.interleaved }
    }

    fn rotations(
        &self,
        position: usize,
        length: usize,
        dtype: Dtype,
        pass: &mut Pass,
    ) -> Result<[Array; 2]> {
        let angles = self.angles(position, length, pass);
        let shape = [length as i32, self.frequencies.len() as i32];
        let arrays = angles
            .arrays
            .get_or_init(|| angles.parts.each_ref().map(|part| Array::from_slice(part, &shape)));
        let [cos, sin] = arrays.each_ref().map(|array| array.as_dtype(dtype));
        Ok([cos?, sin?])
    }
}

/// Cosines and sines of the tokens of a pass.
#[derive(Debug)]
pub struct Angles {
    parts: [Floats; 2],
    arrays: OnceCell<[Array; 2]>,
}

fn turn(x: &Array, y: &Array, cos: &Array, sin: &Array) -> Result<(Array, Array)> {
    let first = x.multiply(cos)?.subtract(y.multiply(sin)?)?;
    let second = y.multiply(cos)?.add(x.multiply(sin)?)?;
    Ok((first, second))
}

/// The config's object.
struct Parameters(Json);

impl Parameters {
    fn number(&self, key: &str) -> Option<f64> {
        self.0.get(key).and_then(Json::as_f64)
    }

    fn needed(&self, key: &str) -> std::result::Result<f64, String> {
        self.number(key).ok_or_else(|| format!("rope parameters of the config lack `{key}`"))
    }

    fn kind(&self) -> &str {
        let kind = self.0.get("rope_type").or_else(|| self.0.get("type"));
        kind.and_then(Json::as_str).unwrap_or("default")
    }

    fn score_factor(&self) -> f64 {
        match (self.number("factor"), self.number("mscale_all_dim")) {
            (Some(factor), Some(all)) if self.kind() != "default" && factor > 1.0 => {
                (0.1 * all * factor.ln() + 1.0).powi(2)
            }
            _ => 1.0,
        }
    }
}

/// The frequencies of all pairs, and the factor on cosines and sines.
fn frequencies(
    parameters: &Parameters,
    theta: f64,
    partial: f64,
    head_dim: f64,
) -> std::result::Result<(Vec<f64>, f64), String> {
    let dims = (head_dim * partial).floor();
    let pairs = (dims / 2.0) as usize;
    let plain = |dims: f64| (0..pairs).map(move |i| theta.powf(-2.0 * i as f64 / dims));
    match parameters.kind() {
        "default" | "mrope" => Ok((plain(dims).collect(), 1.0)),
        "linear" => {
            let factor = parameters.needed("factor")?;
            Ok((plain(dims).map(|f| f / factor).collect(), 1.0))
        }
        "proportional" => {
            let factor = parameters.number("factor").unwrap_or(1.0);
            let still = (head_dim / 2.0) as usize - pairs;
            let turning = plain(head_dim).map(|f| f / factor);
            Ok((turning.chain(std::iter::repeat_n(0.0, still)).collect(), 1.0))
        }
        "llama3" => {
            let factor = parameters.needed("factor")?;
            let low = parameters.needed("low_freq_factor")?;
            let high = parameters.needed("high_freq_factor")?;
            let trained = parameters.needed("original_max_position_embeddings")?;
            let scaled = plain(dims).map(|f| {
                let turns = trained * f / (2.0 * PI);
                let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - smooth) * f / factor + smooth * f
            });
            Ok((scaled.collect(), 1.0))
        }
        "yarn" => yarn(parameters, theta, dims, plain(dims)),
        other => Err(format!(
            "rope type `{other}` is not known; known are default, linear, llama3, yarn, \
             proportional"
        )),
    }
}

fn yarn(
    parameters: &Parameters,
    theta: f64,
    dims: f64,
    plain: impl Iterator<Item = f64>,
) -> std::result::Result<(Vec<f64>, f64), String> {
    let factor = parameters.needed("factor")?;
    let trained = parameters.needed("original_max_position_embeddings")?;
    let or = |key: &str, default: f64| match parameters.number(key) {
        Some(value) if value != 0.0 => value,
        _ => default,
    };
    // The pair that turns so many times over the trained length.
    let pair_of = |turns: f64| dims * (trained / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
    let (mut low, mut high) = (pair_of(or("beta_fast", 32.0)), pair_of(or("beta_slow", 1.0)));
    if parameters.0.get("truncate").and_then(Json::as_bool).unwrap_or(true) {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0), high.min(dims - 1.0));
    if low == high {
        high += 0.001;
    }
    let frequencies = plain.enumerate().map(|(i, f)| {
        let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        ramp * f / factor + (1.0 - ramp) * f
    });
    let grown = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
    let on_result = match parameters.number("attention_factor") {
        Some(given) => given,
        None => match (or("mscale", 0.0), or("mscale_all_dim", 0.0)) {
            (some, all) if some != 0.0 && all != 0.0 => grown(some) / grown(all),
            _ => grown(1.0),
        },
    };
    Ok((frequencies.collect(), on_result))
}
