//! Which tensor is which: a model may store one under another name than its policy knows, or
//! expert by expert. What is stored keeps its names; this says what they are to the policy.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use regex::Captures;

use super::compile::{CompiledStack, Policy};
use crate::decoder::parts::TensorSpec;

/// A tensor of a single expert, as a stack rule sees it.
pub struct Expert<'n> {
    /// The rule.
    pub rule: &'n CompiledStack,
    captures: Captures<'n>,
}

impl Expert<'_> {
    /// Name of the stacked tensor.
    pub fn stacked(&self) -> String {
        self.fill(&self.rule.into)
    }

    /// Name of the blob that its group shares.
    pub fn blob(&self) -> String {
        self.fill(&self.rule.blob)
    }

    /// What the experts hang on.
    pub fn group(&self) -> &str {
        &self.captures["group"]
    }

    /// What follows the expert's number.
    pub fn rest(&self) -> &str {
        &self.captures["name"]
    }

    /// The expert's number as it is written.
    pub fn written(&self) -> &str {
        &self.captures["index"]
    }

    /// The expert's number; none for what is no plain number (`+1`, `01`).
    pub fn number(&self) -> Option<u32> {
        self.written().parse::<u32>().ok().filter(|number| number.to_string() == self.written())
    }

    fn fill(&self, template: &str) -> String {
        template.replace("{group}", self.group()).replace("{name}", self.rest())
    }
}

impl Policy {
    /// The name under which the policy's rules and decoder know a tensor: every alias that matches
    /// is applied, the file's own before its parents'.
    pub fn known_as<'n>(&self, name: &'n str) -> Cow<'n, str> {
        let mut known = Cow::Borrowed(name);
        for alias in &self.aliases {
            let next = alias.pattern.captures(&known).map(|captures| {
                let mut next = String::new();
                captures.expand(&alias.into, &mut next);
                next
            });
            known = next.map_or(known, Cow::Owned);
        }
        known
    }

    /// The name that a stored tensor has in [`Policy::table`].
    pub fn entry_of(&self, name: &str) -> String {
        let known = self.known_as(name);
        let expert = self.expert(&known).filter(|expert| expert.number().is_some());
        expert.map(|expert| expert.stacked()).unwrap_or_else(|| known.to_string())
    }

    /// The expert that a tensor belongs to, when it is one of a single expert.
    pub fn expert<'n>(&'n self, name: &'n str) -> Option<Expert<'n>> {
        self.stack.iter().find_map(|rule| {
            let captures = rule.pattern.captures(name)?;
            Some(Expert { rule, captures })
        })
    }
}

impl Policy {
    /// Stored tensors by the names that the policy knows, those of single experts as one.
    pub fn table(
        &self,
        stored: impl IntoIterator<Item = (String, TensorSpec)>,
    ) -> BTreeMap<String, TensorSpec> {
        let mut table = BTreeMap::<String, TensorSpec>::new();
        let mut experts = BTreeMap::<String, (BTreeSet<u32>, TensorSpec)>::new();
        for (name, held) in stored {
            let known = self.known_as(&name).into_owned();
            let single = self.expert(&known);
            match single.and_then(|expert| Some((expert.stacked(), expert.number()?))) {
                Some((stacked, number)) => {
                    let members = experts.entry(stacked);
                    members.or_insert_with(|| (BTreeSet::new(), held)).0.insert(number);
                }
                None => {
                    table.insert(known, held);
                }
            }
        }
        for (stacked, (members, mut held)) in experts {
            held.shape.insert(0, members.len() as u64);
            table.insert(stacked, held);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::{Library, Role};

    /// Names of mlx-lm's (and mlx-vlm's) copies, and what the policies call these tensors.
    #[test]
    fn names_of_converted_copies_are_known() {
        let library = Library::load(None).unwrap();
        for (architecture, name, known) in [
            (
                "Qwen3MoeForCausalLM",
                "model.layers.0.mlp.switch_mlp.up_proj.weight",
                "model.layers.0.mlp.experts.up_proj.weight",
            ),
            (
                "Qwen3_5MoeForConditionalGeneration",
                "language_model.model.layers.0.mlp.switch_mlp.down_proj.weight",
                "language_model.model.layers.0.mlp.experts.down_proj.weight",
            ),
            (
                "NemotronHForCausalLM",
                "backbone.layers.1.mixer.switch_mlp.fc2.weight",
                "backbone.layers.1.mixer.experts.down_proj.weight",
            ),
            (
                "MiniMaxM2ForCausalLM",
                "model.layers.0.block_sparse_moe.switch_mlp.up_proj.weight",
                "model.layers.0.block_sparse_moe.experts.w3.weight",
            ),
            (
                "Lfm2MoeForCausalLM",
                "model.layers.2.feed_forward.switch_mlp.down_proj.weight",
                "model.layers.2.feed_forward.experts.w2.weight",
            ),
            (
                "Lfm2MoeForCausalLM",
                "model.layers.0.feed_forward.up_proj.weight",
                "model.layers.0.feed_forward.w3.weight",
            ),
            (
                "Gemma4ForCausalLM",
                "model.layers.0.experts.switch_glu.gate_proj.weight",
                "model.layers.0.experts.gate_proj.weight",
            ),
            (
                "LagunaForCausalLM",
                "model.layers.1.mlp.gate.proj.weight",
                "model.layers.1.mlp.gate.weight",
            ),
            (
                "LlamaForCausalLM",
                "model.layers.0.mlp.up_proj.weight",
                "model.layers.0.mlp.up_proj.weight",
            ),
        ] {
            let entry = library.find(architecture, Role::Target).unwrap();
            let policy = library.compile(entry).unwrap();
            assert_eq!(policy.known_as(name), known, "{architecture}");
        }
    }
}
