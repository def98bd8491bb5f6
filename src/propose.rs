//! Proposing a policy: an inventory in, the text of a first policy out, with what a person must
//! decide.
//!
//! Names are gathered into kinds (numbers become `*`); kinds that the base policy knows need no
//! rule, and the others are listed with their shapes and a rule to decide about.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::checkpoint::architecture;
use crate::fault::Faults;
use crate::format::Formats;
use crate::plan::{self, Explanation, render};
use crate::policy::{Library, Role};
use crate::prepare::{self, Prepared};
use crate::read::Inventory;

/// A proposed policy.
#[derive(Debug)]
pub struct Proposal {
    /// The YAML text.
    pub text: String,
    /// What a person must decide, one sentence each.
    pub questions: Vec<String>,
}

/// Tensors that differ only in numbers.
struct Kind {
    glob: String,
    count: usize,
    shapes: Vec<Vec<u64>>,
    rule: String,
    format: String,
    weights: u64,
}

/// Proposes a policy named `name` for a model, extending `base`.
///
/// # Errors
/// What planning the model with `base` finds.
pub fn propose(name: &str, inventory: Inventory, library: &Library) -> Result<Proposal, Faults> {
    let config = inventory.config.clone();
    let architecture = architecture(&config)?;
    let prepared = prepare::with_policy(inventory, Role::Target, library, Some("base"))?;
    let kinds = kinds(&prepared)?;
    let mut questions = Vec::new();
    let mut text = String::new();
    let model_type = config.get("model_type").and_then(|value| value.as_str());

    // Writing to a string cannot fail.
    let _ = writeln!(text, "# yaml-language-server: $schema=policy.schema.json");
    let _ = writeln!(
        text,
        "# (write the schema with `lathe policy schema policy > policy.schema.json`)"
    );
    let _ =
        writeln!(text, "name: {name}\nextends: base\nmatch:\n  architectures: [{architecture}]");
    if let Some(model_type) = model_type.filter(|model_type| *model_type != architecture) {
        let _ = writeln!(text, "  model_types: [{model_type}]");
    }

    let unusual: Vec<&Kind> = kinds.iter().filter(|kind| kind.rule == "other").collect();
    if !unusual.is_empty() {
        let _ = writeln!(
            text,
            "\n# No rule of base names these; its catch-all quantizes them.\ntensors:"
        );
        for kind in &unusual {
            let id = kind.glob.trim_end_matches(".weight").rsplit('.').next().unwrap_or("kind");
            let _ = writeln!(text, "  # {}", describe(kind));
            let _ = writeln!(text, "  - id: {}", id.replace(['*', '_'], "-").trim_matches('-'));
            let _ = writeln!(text, "    match: \"{}\"", kind.glob);
            let _ = writeln!(text, "    format: [requested]");
            let _ = writeln!(text, "    because: DECIDE what it is, and whether it bears 4 bits");
            questions.push(format!(
                "{}: a linear layer like others ([requested]), sensitive ([eight_bit, requested]), \
                 or never to be quantized ([source])?",
                kind.glob
            ));
        }
    }
    let stacks = unstacked(&kinds);
    if !stacks.is_empty() {
        let _ =
            writeln!(text, "\n# Tensors of single experts, which no rule of base stacks.\nstack:");
        for group in &stacks {
            let id = group.rsplit('.').next().unwrap_or(group);
            let pattern = group.replace('.', r"\.");
            let _ = writeln!(text, "  - id: stack-{}", id.replace('_', "-"));
            let _ = writeln!(
                text,
                r"    match: '(?<group>.*\.{pattern})\.(?<index>\d+)\.(?<name>[^.]+\.(?:weight|bias))'"
            );
            let _ = writeln!(text, "    into: \"{{group}}.{{name}}\"\n    blob: \"{{group}}\"");
            let _ =
                writeln!(text, "    because: one stacked tensor is what gathered products take");
            questions.push(format!("{group}: are these experts, to be stacked by number?"));
        }
    }
    let _ = writeln!(text, "\n# What base does with the other kinds of tensors, for int4:");
    for kind in kinds.iter().filter(|kind| kind.rule != "other") {
        let _ = writeln!(text, "#   {:<9} {:<18} {}", kind.format, kind.rule, describe(kind));
    }
    let _ = writeln!(
        text,
        "\n# parser: NAME      # of answers: `lathe policy list --parsers` shows the names\n# renderer: NAME\n# decoder: …        # the network; without it the model is imported but cannot be run"
    );

    questions.extend(general_questions(&prepared, &kinds));
    Ok(Proposal { text, questions })
}

fn general_questions(prepared: &Prepared, kinds: &[Kind]) -> Vec<String> {
    let mut out = Vec::new();
    // What a kind is, is told by the rule of base that decided about it.
    let decided = |id: &str| kinds.iter().any(|kind| kind.rule == id);
    if decided("embedding") && !decided("head") {
        out.push(
            "the embedding doubles as the head (no tensor is a head): keep it at source precision \
             as base does, or take [eight_bit, requested]?"
                .into(),
        );
    }
    if kinds.iter().any(|kind| kind.rule.contains("expert")) {
        out.push(
            "experts: is every per-expert tensor stacked? `lathe policy explain` shows which are; \
             a `stack:` rule names others"
                .into(),
        );
    }
    if prepared.inventory.chat_template.is_some() {
        out.push(
            "parser and renderer: which of the known ones takes this template's answers apart?"
                .into(),
        );
    } else {
        out.push("the folder has no chat template: is it a base model?".into());
    }
    out.push("decoder: which module kinds is the network made of? (docs/decoder.md)".into());
    out
}

fn kinds(prepared: &Prepared) -> Result<Vec<Kind>, Faults> {
    let int4 = Formats::built_in().resolve("int4").ok();
    let explained = plan::explain(prepared.stock(), Role::Target, int4, None)?;
    let mut kinds: BTreeMap<String, Kind> = BTreeMap::new();
    for Explanation { tensor, shape, format, rule, .. } in explained {
        let glob = glob(&tensor);
        let kind = kinds.entry(glob.clone()).or_insert_with(|| Kind {
            glob,
            count: 0,
            shapes: Vec::new(),
            rule: rule.id.clone(),
            format,
            weights: 0,
        });
        kind.count += 1;
        kind.weights += shape.iter().product::<u64>();
        if !kind.shapes.contains(&shape) {
            kind.shapes.push(shape);
        }
    }
    let mut kinds: Vec<Kind> = kinds.into_values().collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.weights));
    Ok(kinds)
}

/// The name with its numbers as `*`, and what comes before a layer as `**`.
fn glob(name: &str) -> String {
    let segments: Vec<&str> = name
        .split('.')
        .map(|segment| if segment.chars().all(|c| c.is_ascii_digit()) { "*" } else { segment })
        .collect();
    match segments.iter().position(|segment| *segment == "layers") {
        Some(at) if segments.get(at + 1) == Some(&"*") && segments.len() > at + 2 => {
            format!("**.{}", segments[at + 2..].join("."))
        }
        _ => segments.join("."),
    }
}

/// What numbered modules inside of layers hang on: `**.moe.experts.*.w1.weight` gives `moe.experts`.
fn unstacked(kinds: &[Kind]) -> Vec<String> {
    let mut groups: Vec<String> = Vec::new();
    for kind in kinds {
        let inside = kind.glob.strip_prefix("**.").and_then(|name| name.split_once(".*."));
        if let Some((group, rest)) = inside
            && rest.split('.').count() == 2
            && !groups.iter().any(|known| known == group)
        {
            groups.push(group.to_string());
        }
    }
    groups
}

fn describe(kind: &Kind) -> String {
    let mut shapes: Vec<String> = kind.shapes.iter().take(3).map(|s| render::shape(s)).collect();
    if kind.shapes.len() > 3 {
        shapes.push("…".into());
    }
    let count = render::count(kind.weights);
    format!("{} × {} {}, {count} weights", kind.count, kind.glob, shapes.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_stars_and_prefixes_go() {
        assert_eq!(glob("model.layers.3.mlp.up_proj.weight"), "**.mlp.up_proj.weight");
        assert_eq!(glob("model.norm.weight"), "model.norm.weight");
        assert_eq!(glob("h.3.attn.c_attn.weight"), "h.*.attn.c_attn.weight");
    }

    #[test]
    fn numbered_modules_inside_of_layers_are_offered_to_be_stacked() {
        let kind = |name: &str| Kind {
            glob: glob(name),
            count: 1,
            shapes: Vec::new(),
            rule: "other".into(),
            format: "int4".into(),
            weights: 1,
        };
        let kinds = [
            kind("model.layers.0.moe.experts.3.w1.weight"),
            kind("model.layers.0.moe.experts.3.w2.weight"),
            kind("model.layers.0.mlp.up.weight"),
        ];
        assert_eq!(unstacked(&kinds), ["moe.experts"]);
    }
}
