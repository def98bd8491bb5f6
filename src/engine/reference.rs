//! A model against what another program computed of the same weights.
//!
//! Enters: a loaded model and a safetensors file with `input_ids` `[1, n]`, `logits`
//! `[1, n, vocabulary]` in f32 and, if the other program went on, `greedy` `[k]`. Leaves: a
//! [`Comparison`].

use std::path::Path;

use mlx_rs::{Array, Dtype};
use serde::Serialize;

use crate::fault::{Code, Fault};
use crate::model::{Cache, Logits, Model, Pass};

/// What another program computed.
pub struct Reference {
    ids: Vec<u32>,
    /// Row-major `[n, vocabulary]`.
    logits: Vec<f32>,
    vocabulary: usize,
    greedy: Option<Vec<u32>>,
}

/// How far a model is from its reference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Largest difference of a logit; infinite where one side is no number.
    #[serde(serialize_with = "finite_or_null")]
    pub max_difference: f32,
    /// Position of the token after which it is, from 0.
    pub position: usize,
    /// The token whose logit it is.
    pub token: usize,
    /// Mean of all differences.
    #[serde(serialize_with = "finite_or_null")]
    pub mean_difference: f32,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Whether the greedy continuation is the same; `None` when the reference has none.
    pub greedy_equal: Option<bool>,
    /// The first step of the continuation that differs, from 0.
    pub greedy_differs_at: Option<usize>,
}

/// JSON has no infinity.
fn finite_or_null<S: serde::Serializer>(value: &f32, to: S) -> Result<S::Ok, S::Error> {
    value.is_finite().then_some(*value).serialize(to)
}

impl Reference {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read, lacks `input_ids` or `logits`, or their shapes do not belong together.
    pub fn open(path: &Path) -> Result<Reference, Fault> {
        let bad = |what: String| {
            Fault::new(Code::Usage, format!("{}: {what}", path.display())).help(
                "it must hold input_ids [1, n], logits [1, n, vocabulary] in F32 and, optionally, \
                 greedy [k]; scripts/reference.py writes such a file for a model folder",
            )
        };
        std::fs::metadata(path).map_err(|error| Fault::io("read", path, &error))?;
        let arrays = Array::load_safetensors(path).map_err(|error| bad(error.to_string()))?;
        let ints = |name: &str| -> Result<Option<Vec<u32>>, Fault> {
            let Some(array) = arrays.get(name) else { return Ok(None) };
            let array = array.as_dtype(Dtype::Uint32).map_err(failed)?;
            array.eval().map_err(failed)?;
            Ok(Some(array.try_as_slice().map_err(|error| bad(error.to_string()))?.to_vec()))
        };
        let ids = ints("input_ids")?.ok_or_else(|| bad("it has no input_ids".into()))?;
        let logits = arrays.get("logits").ok_or_else(|| bad("it has no logits".into()))?;
        let &[1, rows, vocabulary] = logits.shape() else {
            return Err(bad(format!("logits are {:?}", logits.shape())));
        };
        if rows as usize != ids.len() || ids.is_empty() {
            return Err(bad(format!("logits are for {rows} tokens, input_ids has {}", ids.len())));
        }
        let logits = logits.as_dtype(Dtype::Float32).map_err(failed)?;
        logits.eval().map_err(failed)?;
        let logits: &[f32] = logits.try_as_slice().map_err(|error| bad(error.to_string()))?;
        Ok(Reference {
            ids,
            logits: logits.to_vec(),
            vocabulary: vocabulary as usize,
            greedy: ints("greedy")?,
        })
    }

    /// Runs the prompt in one pass, and the continuation token by token.
    ///
    /// # Errors
    /// When the model's vocabulary is another, or a pass fails.
    pub fn compare(&self, model: &Model) -> Result<Comparison, Fault> {
        let mut cache = model.new_cache();
        let pass = |cache: &mut Cache, tokens: &[u32], wanted| -> Result<Vec<f32>, Fault> {
            let pass = Pass::one(tokens, cache.offset(), wanted);
            let output = model.forward(&pass, &mut [&mut *cache])?;
            cache.commit();
            output.logits.into_host()
        };
        let logits = pass(&mut cache, &self.ids, Logits::All)?;
        if logits.len() != self.logits.len() {
            let ours = logits.len() / self.ids.len();
            let message = format!(
                "the model has a vocabulary of {ours} and the reference one of {}",
                self.vocabulary
            );
            return Err(Fault::new(Code::Usage, message));
        }
        let (mut worst, mut at, mut sum) = (0.0, 0, 0.0);
        for (index, (ours, theirs)) in logits.iter().zip(&self.logits).enumerate() {
            let apart = (ours - theirs).abs();
            let apart = if apart.is_nan() { f32::INFINITY } else { apart };
            sum += f64::from(apart);
            if apart > worst {
                (worst, at) = (apart, index);
            }
        }
        let mut differs_at = None;
        let (mut last, mut whole, mut tokens) = (logits, self.ids.len(), self.ids.clone());
        for (step, &wanted) in self.greedy.iter().flatten().enumerate() {
            let from = last.len() - self.vocabulary;
            if likeliest(&last[from..]) != wanted {
                differs_at = Some(step);
                break;
            }
            tokens.push(wanted);
            last = if model.runs_again(whole, tokens.len()) {
                (cache, whole) = (model.new_cache(), tokens.len());
                pass(&mut cache, &tokens, Logits::Last)?
            } else {
                pass(&mut cache, &[wanted], Logits::Last)?
            };
        }
        Ok(Comparison {
            max_difference: worst,
            position: at / self.vocabulary,
            token: at % self.vocabulary,
            mean_difference: (sum / self.logits.len() as f64) as f32,
            tokens: self.ids.len(),
            greedy_equal: self.greedy.as_ref().map(|_| differs_at.is_none()),
            greedy_differs_at: differs_at,
        })
    }
}

/// The first of the largest; what is no number is never it.
fn likeliest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] || logits[best].is_nan() {
            best = index;
        }
    }
    best as u32
}

fn failed(error: mlx_rs::error::Exception) -> Fault {
    crate::mlx::Error::from(error).into()
}
