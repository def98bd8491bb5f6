//! Whether lathe can run a model: its policy, config, tensors and files in, what is in the way out.
//!
//! Headers and config tell; no weight is read, and no MLX is needed.

use serde_json::Value;

use super::compile::Policy;
use crate::checkpoint::{architecture, vocabulary};
use crate::decoder::parts::{self, Content, Table, TensorSpec};
use crate::fault::{Code, Fault};

/// The capabilities that lathe has itself; others are for programs that see and hear.
const OURS: [&str; 3] = ["completion", "tools", "thinking"];

/// What a capability of a model is to whoever runs it with lathe.
pub fn usable(capabilities: &[String], runs: bool) -> Vec<&str> {
    let named = capabilities.iter().map(String::as_str);
    named.filter(|name| runs && OURS.contains(name)).collect()
}

impl Policy {
    /// What keeps lathe from running a model of these stored tensors and files; nothing when it
    /// runs. Where it takes weights to tell and there is no `content`, they are taken to be right.
    pub fn in_the_way<'a>(
        &self,
        config: &Value,
        tensors: impl IntoIterator<Item = (String, TensorSpec)>,
        files: impl IntoIterator<Item = &'a str> + Clone,
        content: Option<&dyn Content>,
    ) -> Vec<Fault> {
        let mut faults = Vec::new();
        match self.described() {
            None => {
                let name = architecture(config).unwrap_or_else(|_| "this model".into());
                let message = format!("lathe does not know how {name} is run");
                let help = "a policy with a decoder section can say it";
                faults.push(Fault::new(Code::NoDecoder, message).help(help));
            }
            Some(described) => {
                let tensors = self.table(tensors);
                let table = match content {
                    Some(content) => Table::with_content(tensors, content),
                    None => Table::of_headers(tensors),
                };
                if let Err(found) = parts::resolve(described, config, &table) {
                    faults.extend(found.0);
                }
            }
        }
        if vocabulary::of(files.clone()).is_none() {
            faults.push(vocabulary::none_in(files));
        }
        faults
    }
}
