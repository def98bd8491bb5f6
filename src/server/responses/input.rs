//! Items of a conversation into messages, and tools into functions.

use serde_json::{Map, Value, json};

use crate::server::fields::{self, given};
use crate::server::openai;
use crate::server::problem::Problem;

/// The argument of a tool that takes a text.
const TEXT: &str = "input";

/// Tools that servers run themselves. A model is not told of them, as lathe runs none; clients send
/// them with every request.
const OF_SERVERS: &[&str] = &[
    "web_search",
    "web_search_preview",
    "file_search",
    "image_generation",
    "code_interpreter",
    "tool_search",
    "local_shell",
];

/// What a model may call.
#[derive(Default)]
pub struct Tools {
    /// As templates read them.
    pub offered: Vec<Value>,
    /// Names of those that take a text and no object.
    pub custom: Vec<String>,
}

/// The tools of a request.
///
/// # Errors
/// At the first that is none.
pub fn tools(body: &Map<String, Value>) -> Result<Tools, Problem> {
    let mut tools = Tools::default();
    for (at, tool) in fields::list(body, "tools")?.iter().enumerate() {
        add(tool, &format!("tools[{at}]"), &mut tools)?;
    }
    Ok(tools)
}

fn add(tool: &Value, place: &str, tools: &mut Tools) -> Result<(), Problem> {
    let kind = tool["type"].as_str().unwrap_or_default();
    if OF_SERVERS.contains(&kind) {
        return Ok(());
    }
    let unnamed = || Problem::field(&format!("{place}.name"), "a tool has a name");
    let name = tool["name"].as_str().ok_or_else(unnamed)?;
    let parameters = match kind {
        "function" => tool["parameters"].clone(),
        "custom" => {
            tools.custom.push(name.to_owned());
            json!({"type": "object", "properties": {TEXT: {"type": "string"}}, "required": [TEXT]})
        }
        // A name over several functions, which have names of their own.
        "namespace" => {
            let inner = tool["tools"].as_array().map_or(&[][..], Vec::as_slice);
            return inner
                .iter()
                .enumerate()
                .try_for_each(|(at, tool)| add(tool, &format!("{place}.tools[{at}]"), tools));
        }
        other => {
            let why = format!("{other:?} tools are not supported");
            return Err(Problem::field(&format!("{place}.type"), why));
        }
    };
    tools.offered.push(json!({"type": "function", "function": {
        "name": name, "description": tool["description"], "parameters": parameters,
    }}));
    Ok(())
}

/// The text that a model gave a tool that takes one.
pub fn text_of_custom(arguments: &Value) -> String {
    arguments[TEXT].as_str().map_or_else(|| arguments.to_string(), str::to_owned)
}

/// The conversation, as templates read it.
///
/// # Errors
/// At the first item that cannot be read.
pub fn messages(body: &Map<String, Value>) -> Result<Vec<Value>, Problem> {
    let mut chat = Vec::new();
    if let Some(text) = fields::text(body, "instructions")? {
        chat.push(json!({"role": "system", "content": text}));
    }
    match given(body, "input") {
        Some(Value::String(text)) => chat.push(json!({"role": "user", "content": text})),
        _ => {
            for (at, item) in fields::list(body, "input")?.iter().enumerate() {
                read(item, &format!("input[{at}]"), &mut chat)?;
            }
        }
    }
    openai::messages(&chat)
}

/// Thoughts, words and calls that follow each other are one message of the model's.
fn read(item: &Value, place: &str, chat: &mut Vec<Value>) -> Result<(), Problem> {
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            let content = fields::content(&item["content"], &format!("{place}.content"))?;
            let open = chat.last_mut().filter(|last| {
                item["role"] == "assistant"
                    && last["role"] == "assistant"
                    && last["content"] == ""
                    && last["tool_calls"].is_null()
            });
            match open {
                Some(thought) => thought["content"] = content.into(),
                None => chat.push(json!({"role": item["role"], "content": content})),
            }
        }
        "reasoning" => {
            let parts = item["content"].as_array().filter(|parts| !parts.is_empty());
            let parts = parts.or(item["summary"].as_array()).into_iter().flatten();
            let text: String = parts.filter_map(|part| part["text"].as_str()).collect();
            if !text.is_empty() {
                let thought = json!({
                    "role": "assistant", "content": "", "reasoning_content": text,
                });
                chat.push(thought);
            }
        }
        kind @ ("function_call" | "custom_tool_call") => {
            let arguments = match kind {
                "function_call" => item["arguments"].clone(),
                _ => json!({TEXT: item[TEXT]}),
            };
            let call = json!({"id": item["call_id"], "type": "function", "function": {
                "name": item["name"], "arguments": arguments,
            }});
            if chat.last().is_none_or(|last| last["role"] != "assistant") {
                chat.push(json!({"role": "assistant", "content": ""}));
            }
            if let Some(last) = chat.last_mut() {
                match last["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => last["tool_calls"] = json!([call]),
                }
            }
        }
        "function_call_output" | "custom_tool_call_output" => {
            let content = fields::content(&item["output"], &format!("{place}.output"))?;
            let call = &item["call_id"];
            chat.push(json!({"role": "tool", "tool_call_id": call, "content": content}));
        }
        other => {
            let why = format!("{other:?} items are not supported");
            return Err(Problem::field(&format!("{place}.type"), why));
        }
    }
    Ok(())
}
