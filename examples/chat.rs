//! Drives chat templates from a script: one JSON object `{template, messages, tools, thinking,
//! add_generation_prompt, variables}` a line in, one `{text}` or `{error}` a line out.

use std::io::{BufRead, Write};

use lathe::chat::{Conversation, Template};
use serde_json::{Value, json};

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        let list = |key: &str| case[key].as_array().cloned().unwrap_or_default();
        let conversation = Conversation {
            messages: list("messages"),
            tools: list("tools"),
            thinking: case["thinking"].as_bool(),
            add_generation_prompt: case["add_generation_prompt"] == true,
            variables: case["variables"].as_object().cloned().unwrap_or_default(),
        };
        let rendered = Template::compile("template", case["template"].as_str().unwrap_or(""))
            .and_then(|template| template.render(&conversation));
        let answer = match rendered {
            Ok(text) => json!({"text": text}),
            Err(fault) => json!({"error": fault.to_string()}),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(())
}
