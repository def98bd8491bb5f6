//! The check after `create`: does what was written still predict text?
//!
//! One forward pass over a fixed sentence. A model that gives no numbers, or finds the sentence
//! much less likely than a vocabulary drawn at random would be, was written or described wrongly.

use std::collections::HashSet;

use super::load::{Loading, files_of, is_of_target, model_of, policy_of};
use crate::fault::{Code, Fault, Faults};
use crate::model::{Backend, Blobs, Logits, Model, Pass};
use crate::store::{Layer, Manifest, Writer, media};
use crate::tokenizer::Tokenizer;
use crate::write::machine_memory;

/// What the model is asked to predict.
const SENTENCE: &str = "The quick brown fox jumps over the lazy dog. The capital of France is \
                        Paris, and water boils at one hundred degrees.";

/// Tokens of the sentence that differ, at least, for a vocabulary that can spell it: fewer are
/// those of unknown words.
const DISTINCT: usize = 8;

/// A loss this many times that of a uniform guess over the vocabulary is wildly wrong. A trained
/// model is far below one time, random weights are near it (a large random head may be a little
/// above), and wrongly decoded ones several times above.
const WILD: f64 = 1.5;

/// Stands in for the machine's memory, in bytes, so that small machines can be tried.
const MEMORY_VARIABLE: &str = "LATHE_MACHINE_MEMORY";

/// What the check found.
#[derive(Clone, Debug)]
pub enum Checked {
    /// Mean loss in nats per token of the sentence, and that of a uniform guess over the vocabulary.
    Predicts {
        /// The model's.
        loss: f64,
        /// ln of the vocabulary's size.
        uniform: f64,
    },
    /// The architecture's policy has no decoder: it can be imported and not run.
    OnlyImports,
    /// Its vocabulary or its policy's decoder is not what lathe can run: a model to keep, and to
    /// run elsewhere.
    CannotRun(Faults),
    /// The machine's memory has no room for it beside what else runs: so many bytes of so many.
    TooLarge(u64, u64),
    /// The vocabulary cannot spell the sentence.
    CannotSpell,
}

/// Checks a model that has been written and not committed yet.
///
/// # Errors
/// Code `smoke-check` when the model gives no numbers or a wildly wrong loss; other codes when
/// its files cannot be read.
pub fn check(writer: &Writer, manifest: &Manifest, backend: Backend) -> Result<Checked, Faults> {
    let loading = Loading { backend, ..Loading::default() };
    let read = |layer: &Layer| {
        let path = writer.path(&layer.digest);
        std::fs::read(&path).map_err(|error| Fault::io("read", &path, &error))
    };
    let files = files_of(manifest, read)?;
    let policy = policy_of(manifest, &files, "the model", loading, read)?;
    if policy.decoder.is_none() {
        return Ok(Checked::OnlyImports);
    }
    let tokenizer = match Tokenizer::load(&files) {
        Ok(tokenizer) => tokenizer,
        Err(fault) => return Ok(Checked::CannotRun(fault.into())),
    };
    let tensors: Vec<&Layer> =
        manifest.of_type(media::TENSOR).filter(|layer| is_of_target(layer)).collect();
    let given = std::env::var(MEMORY_VARIABLE).ok().and_then(|given| given.parse().ok());
    let memory = given.unwrap_or_else(machine_memory);
    let bytes = tensors.iter().map(|layer| layer.size).sum();
    if bytes > memory / 2 {
        return Ok(Checked::TooLarge(bytes, memory));
    }
    let mut ids = tokenizer.encode(SENTENCE)?;
    if ids.iter().collect::<HashSet<_>>().len() < DISTINCT {
        return Ok(Checked::CannotSpell);
    }
    let source = Blobs::open(tensors.iter().map(|layer| writer.path(&layer.digest)))?;
    let model = match model_of(source, &files, &policy, loading) {
        Ok(model) => model,
        Err(faults)
            if faults.0.iter().all(|f| matches!(f.code, Code::Decoder | Code::Ambiguous)) =>
        {
            return Ok(Checked::CannotRun(faults));
        }
        Err(faults) => return Err(faults),
    };
    let bounds = [model.context(), model.exact_context()];
    ids.truncate(bounds.into_iter().flatten().min().unwrap_or(usize::MAX));
    let (loss, vocabulary) = loss(&model, &ids)?;
    let uniform = (vocabulary as f64).ln();
    if !loss.is_finite() {
        return Err(wrong("gives no numbers on a plain sentence".into()).into());
    }
    if loss > WILD * uniform {
        return Err(wrong(format!(
            "finds a plain sentence less likely than chance: a loss of {loss:.2} nats a token, \
             where a uniform guess over the vocabulary has {uniform:.2}"
        ))
        .into());
    }
    Ok(Checked::Predicts { loss, uniform })
}

fn wrong(what: String) -> Fault {
    Fault::new(Code::SmokeCheck, format!("the model that was made {what}")).help(
        "nothing was changed under its name; try a format with more bits, or report the \
         architecture; --no-smoke leaves this check out",
    )
}

/// Mean loss of each token after those before it, in nats, and the vocabulary's size.
pub fn loss(model: &Model, ids: &[u32]) -> Result<(f64, usize), Fault> {
    let mut cache = model.new_cache();
    let output = model.forward(&Pass::one(ids, 0, Logits::All), &mut [&mut cache])?;
    let vocabulary = output.logits.width();
    let flat = output.logits.into_host()?;
    let losses = flat.chunks_exact(vocabulary).zip(&ids[1..]).map(|(row, &next)| {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&logit| f64::from(logit - most).exp()).sum();
        f64::from(most) + sum.ln() - f64::from(row.get(next as usize).copied().unwrap_or(f32::NAN))
    });
    let count = ids.len().saturating_sub(1).max(1) as f64;
    Ok((losses.sum::<f64>() / count, vocabulary))
}
