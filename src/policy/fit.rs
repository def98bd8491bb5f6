//! Whether a draft fits the model that it drafts for: a draft's shapes and config and the target's
//! config in, misfits out, each with both values.
//!
//! What must agree is data: the `fit` rules of a draft's policy.

use globset::GlobMatcher;
use serde_json::{Value, json};

use super::compile::{CompiledFitValue, Policy};
use super::decide::lookup;
use super::expr::{Scope, TensorView};
use super::schedule::picker;
use crate::fault::{Code, Fault, Faults};

/// What is known of a draft.
#[derive(Clone, Copy)]
pub struct Draft<'a> {
    /// Its config.
    pub config: &'a Value,
    /// Names and shapes of its tensors.
    pub tensors: &'a [(&'a str, &'a [u64])],
}

/// Holds a draft against the config of its target. A rule is passed over where the draft or the
/// target does not tell the value.
///
/// # Errors
/// Every rule that does not hold, with both values.
pub fn check(policy: &Policy, draft: Draft, target: &Value) -> Result<(), Faults> {
    let mut faults = Faults::default();
    for rule in &policy.fit {
        let borrowed = |glob: &GlobMatcher| draft.tensors.iter().any(|(name, _)| hits(glob, name));
        if rule.unless.as_ref().is_some_and(borrowed) {
            continue;
        }
        let (Some(ours), Some(theirs)) =
            (rule.draft.find(draft.config, draft.tensors), rule.target.find(target, &[]))
        else {
            continue;
        };
        let values = [("draft", &ours), ("target", &theirs)];
        let scope = Scope::new(
            values.map(|(name, found)| (name.to_string(), found.value.clone())),
            picker(&policy.schedules),
        );
        let fault = match rule.holds.holds(&scope, &TensorView::NONE) {
            Ok(true) => continue,
            Ok(false) => Fault::new(
                Code::DraftMisfit,
                format!(
                    "the draft does not fit the model ({}): the draft has {} ({}), the model {} ({})",
                    rule.id, ours.value, ours.place, theirs.value, theirs.place
                ),
            ),
            Err(why) => Fault::new(
                Code::DraftMisfit,
                format!(
                    "whether the draft fits cannot be told ({}): `{}` with draft = {} and target = {} {why}",
                    rule.id,
                    rule.holds.source(),
                    ours.value,
                    theirs.value
                ),
            ),
        };
        let because =
            if rule.because.is_empty() { String::new() } else { format!("{}; ", rule.because) };
        let fault = fault.help(format!("{because}take a draft that was made for this model"));
        faults.push(match ours.tensor {
            Some(tensor) => fault.on_tensor(tensor),
            None => fault,
        });
    }
    faults.or(())
}

/// A value, and where it was found.
struct Found {
    value: Value,
    place: String,
    tensor: Option<String>,
}

impl CompiledFitValue {
    fn find(&self, config: &Value, tensors: &[(&str, &[u64])]) -> Option<Found> {
        match self {
            CompiledFitValue::Paths(paths) => paths.iter().find_map(|path| {
                let value = lookup(config, path).filter(|value| !value.is_null())?;
                Some(Found { value: value.clone(), place: path.clone(), tensor: None })
            }),
            CompiledFitValue::Axis(glob, axis) => {
                let (name, shape) = tensors.iter().find(|(name, _)| hits(glob, name))?;
                let place = format!("axis {axis} of {name}");
                Some(Found {
                    value: json!(shape.get(*axis)?),
                    place,
                    tensor: Some(name.to_string()),
                })
            }
        }
    }
}

fn hits(glob: &GlobMatcher, name: &str) -> bool {
    glob.is_match(name.replace('.', "/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Library, Role};

    /// Codes of the rules that do not hold for a draft of the built-in policies.
    fn misfits(draft: &Value, tensors: &[(&str, &[u64])], target: &Value) -> Vec<String> {
        let library = Library::load(None).unwrap();
        let architecture = crate::checkpoint::architecture(draft).unwrap();
        let entry = library.find(&architecture, Role::Draft).unwrap();
        let policy = library.compile(entry).unwrap();
        match check(&policy, Draft { config: draft, tensors }, target) {
            Ok(()) => Vec::new(),
            Err(faults) => faults.0.into_iter().map(|fault| fault.message).collect(),
        }
    }

    fn dflash() -> Value {
        json!({
            "architectures": ["DFlashDraftModel"], "hidden_size": 4096, "vocab_size": 151936,
            "num_hidden_layers": 5,
            "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33],
                "num_target_layers": 36}
        })
    }

    fn qwen() -> Value {
        json!({"hidden_size": 4096, "vocab_size": 151936, "num_hidden_layers": 36})
    }

    #[test]
    fn a_block_diffusion_draft_is_held_against_every_number_of_its_target() {
        let fc: &[(&str, &[u64])] = &[("fc.weight", &[4096, 20480])];
        assert_eq!(misfits(&dflash(), fc, &qwen()), [""; 0]);
        // A composite model has the numbers in its text_config.
        assert_eq!(misfits(&dflash(), fc, &json!({"text_config": qwen()})), [""; 0]);
        let changes: [(&str, Value, &[&str]); 5] = [
            ("hidden_size", json!(2560), &["4096", "2560"]),
            ("num_hidden_layers", json!(28), &["36", "28"]),
            ("vocab_size", json!(151000), &["151936", "151000", "151669"]),
            ("num_hidden_layers", json!(33), &["[1,9,17,25,33]", "33"]),
            ("vocab_size", json!(151669), &["151669"]),
        ];
        for (key, value, numbers) in changes {
            let mut target = qwen();
            target[key] = value;
            let found = misfits(&dflash(), fc, &target).join("\n");
            for number in numbers {
                assert!(found.contains(number), "{key}: {number} is not in {found:?}");
            }
        }
        let narrow: &[(&str, &[u64])] = &[("fc.weight", &[4096, 20000])];
        assert!(misfits(&dflash(), narrow, &qwen())[0].contains("axis 1 of fc.weight"));
    }

    #[test]
    fn an_eagle_head_borrows_the_embedding_or_brings_its_own() {
        let eagle = json!({
            "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 2048,
            "target_hidden_size": 4096, "vocab_size": 128256, "draft_vocab_size": 32000
        });
        let target = json!({"hidden_size": 4096, "vocab_size": 128256, "num_hidden_layers": 32});
        let own: &[(&str, &[u64])] =
            &[("embed_tokens.weight", &[128256, 2048]), ("fc.weight", &[2048, 12288])];
        assert_eq!(misfits(&eagle, own, &target), [""; 0]);
        let borrowed: &[(&str, &[u64])] = &[("fc.weight", &[2048, 12288])];
        let found = misfits(&eagle, borrowed, &target);
        assert!(
            found.len() == 1 && found[0].contains("2048") && found[0].contains("4096"),
            "{found:?}"
        );
    }

    #[test]
    fn an_assistant_reads_its_targets_keys() {
        let assistant = json!({
            "architectures": ["Gemma4AssistantForCausalLM"], "backbone_hidden_size": 2048,
            "text_config": {"vocab_size": 262144, "num_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512}
        });
        let target = json!({"text_config": {"hidden_size": 2048, "vocab_size": 262144,
            "num_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512}});
        assert_eq!(misfits(&assistant, &[], &target), [""; 0]);
        let mut other = target.clone();
        other["text_config"]["hidden_size"] = json!(2560);
        other["text_config"]["num_key_value_heads"] = json!(4);
        assert_eq!(misfits(&assistant, &[], &other).len(), 2);
    }
}
