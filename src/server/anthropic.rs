//! Anthropic's API: `/v1/messages` and `/v1/messages/count_tokens`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::answer::{Shape, named, respond, stream};
use super::fields::{self, Table, given};
use super::keep::KeepAlive;
use super::problem::{Api, Problem};
use super::state::{Server, unchanged};
use super::worker::{Done, Event, Said, Set, What, unexpected};
use crate::engine::{Prompt, Reason};

const MESSAGES: Table = Table {
    honoured: &[
        "model",
        "messages",
        "system",
        "max_tokens",
        "stream",
        "temperature",
        "top_p",
        "top_k",
        "stop_sequences",
        "tools",
        "tool_choice",
        "thinking",
    ],
    ignored: &["metadata", "service_tier", "cache_control", "context_management", "inference_geo"],
    refused: &[
        ("mcp_servers", "lathe calls no servers"),
        ("container", "lathe runs no code"),
        ("output_config", "answers of a given form are not enforced yet"),
        ("output_format", "answers of a given form are not enforced yet"),
    ],
};

const NUMBERS: &[(&str, &str)] =
    &[("temperature", "temperature"), ("top_p", "top_p"), ("top_k", "top_k")];

/// A line of clients that changes with every request, and would make every prompt a new one.
const BILLING: &str = "x-anthropic-billing-header";

fn prompt(body: &Map<String, Value>) -> Result<Prompt, Problem> {
    let mut messages = Vec::new();
    if let Some(system) = given(body, "system") {
        let text = match system {
            Value::Array(blocks) => {
                let kept = blocks.iter().filter(|block| {
                    !block["text"].as_str().is_some_and(|text| text.starts_with(BILLING))
                });
                let each: Result<Vec<String>, Problem> =
                    kept.map(|block| fields::content(&json!([block]), "system")).collect();
                each?.join("\n\n")
            }
            other => fields::content(other, "system")?,
        };
        messages.push(json!({"role": "system", "content": text}));
    }
    for (at, message) in fields::list(body, "messages")?.iter().enumerate() {
        read(message, &format!("messages[{at}]"), &mut messages)?;
    }
    let mut tools = Vec::new();
    for (at, tool) in fields::list(body, "tools")?.iter().enumerate() {
        let custom = tool["type"].is_null() || tool["type"] == "custom";
        if !custom || !tool["name"].is_string() {
            let why = "a tool has a name and an input_schema; tools of the server are not offered";
            return Err(Problem::field(&format!("tools[{at}]"), why));
        }
        tools.push(json!({"type": "function", "function": {
            "name": tool["name"], "description": tool["description"],
            "parameters": tool["input_schema"],
        }}));
    }
    match given(body, "tool_choice").map(|choice| choice["type"].as_str()) {
        None | Some(Some("auto")) => {}
        Some(Some("none")) => tools.clear(),
        Some(_) => {
            return Err(Problem::refused(
                "tool_choice",
                "only auto and none; a call cannot be forced",
            ));
        }
    }
    Ok(Prompt::Chat { messages, tools })
}

/// One message of theirs is one or several of ours: each result of a tool is one of its own.
fn read(message: &Value, place: &str, out: &mut Vec<Value>) -> Result<(), Problem> {
    let role = match message["role"].as_str() {
        Some(role @ ("user" | "assistant" | "system")) => role,
        _ => return Err(Problem::field(&format!("{place}.role"), "a role is user or assistant")),
    };
    let Value::Array(blocks) = &message["content"] else {
        let content = fields::content(&message["content"], &format!("{place}.content"))?;
        out.push(json!({"role": role, "content": content}));
        return Ok(());
    };
    let (mut text, mut thinking, mut calls) = (String::new(), String::new(), Vec::new());
    for (at, block) in blocks.iter().enumerate() {
        let place = format!("{place}.content[{at}]");
        match block["type"].as_str().unwrap_or_default() {
            "text" => text.push_str(&fields::content(&json!([block]), &place)?),
            "thinking" => thinking.push_str(block["thinking"].as_str().unwrap_or_default()),
            "redacted_thinking" => {}
            "tool_use" => calls.push(json!({
                "id": block["id"], "type": "function",
                "function": {"name": block["name"], "arguments": block["input"]},
            })),
            "tool_result" => out.push(json!({
                "role": "tool", "tool_call_id": block["tool_use_id"],
                "content": fields::content(&block["content"], &place)?,
            })),
            other => {
                let why = format!("{other:?} blocks are not supported");
                return Err(Problem::field(&format!("{place}.type"), why));
            }
        }
    }
    if text.is_empty() && thinking.is_empty() && calls.is_empty() && !blocks.is_empty() {
        return Ok(());
    }
    let mut read = json!({"role": role, "content": text});
    if !thinking.is_empty() {
        read["reasoning_content"] = thinking.into();
    }
    if !calls.is_empty() {
        read["tool_calls"] = calls.into();
    }
    out.push(read);
    Ok(())
}

fn setter(body: &Map<String, Value>) -> Result<Set, Problem> {
    let most = fields::whole(body, "max_tokens", 1, u64::from(u32::MAX))?;
    let most = most.ok_or_else(|| Problem::field("max_tokens", "`max_tokens` is missing"))?;
    let stops = fields::stops(body, "stop_sequences")?;
    let thinking = match given(body, "thinking").map(|thinking| thinking["type"].as_str()) {
        None => None,
        Some(Some("disabled")) => Some(false),
        Some(Some("enabled" | "adaptive")) => Some(true),
        Some(_) => {
            let why = "`thinking.type` is enabled, adaptive or disabled";
            return Err(Problem::field("thinking", why));
        }
    };
    let choice = given(body, "tool_choice");
    let one_call = choice.is_some_and(|choice| choice["disable_parallel_tool_use"] == true);
    let body = body.clone();
    Ok(Box::new(move |mut options| {
        fields::set(&mut options, &body, NUMBERS)?;
        if let Some(stops) = stops {
            options.stops = stops;
            options.settle("stop");
        }
        options.max_tokens = usize::try_from(most).ok();
        options.settle("num_predict");
        options.thinking = thinking.or(options.thinking);
        options.one_call = one_call;
        options.check()?;
        Ok(options)
    }))
}

/// `POST /v1/messages`
pub async fn messages(State(server): State<Arc<Server>>, body: Bytes) -> Response {
    respond(Api::Anthropic, messages_of(&server, &body).await)
}

async fn messages_of(server: &Server, body: &[u8]) -> Result<Response, Problem> {
    let body = fields::object(body)?;
    MESSAGES.check(&body)?;
    let model = fields::model(&body)?;
    let streams = fields::flag(&body, "stream")?.unwrap_or(false);
    let (prompt, set) = (prompt(&body)?, setter(&body)?);
    let asked = server.ask(&model, KeepAlive::Default, What::Answer(prompt), set).await?;
    let (id, calls) = (server.id("msg_"), server.id("toolu_"));
    if streams {
        let events = Events { id, model, prefix: calls, block: None, blocks: 0, calls: 0 };
        return stream(vec![asked], events).await;
    }
    let whole = asked.whole().await?;
    let mut content = Vec::new();
    if !whole.thinking.is_empty() {
        content.push(json!({"type": "thinking", "thinking": whole.thinking, "signature": ""}));
    }
    if !whole.text.is_empty() {
        content.push(json!({"type": "text", "text": whole.text}));
    }
    for (at, call) in whole.calls.iter().enumerate() {
        let id = format!("{calls}_{at}");
        content.push(
            json!({"type": "tool_use", "id": id, "name": call.name, "input": call.arguments}),
        );
    }
    let reason = reason(whole.done.as_ref(), !whole.calls.is_empty());
    Ok(Json(json!({
        "id": id, "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": reason, "stop_sequence": null, "usage": usage(whole.done.as_ref()),
    }))
    .into_response())
}

/// `POST /v1/messages/count_tokens`
pub async fn count_tokens(State(server): State<Arc<Server>>, body: Bytes) -> Response {
    let counted = async {
        let body = fields::object(&body)?;
        MESSAGES.check(&body)?;
        let (model, what) = (fields::model(&body)?, What::Count(prompt(&body)?));
        let asked = server.ask(&model, KeepAlive::Default, what, unchanged()).await?;
        match asked.said().await? {
            Said::Count(count) => Ok(Json(json!({"input_tokens": count})).into_response()),
            _ => Err(unexpected()),
        }
    };
    respond(Api::Anthropic, counted.await)
}

fn reason(done: Option<&Done>, calls: bool) -> &'static str {
    match done.map(|done| done.reason) {
        Some(Reason::Length) => "max_tokens",
        _ if calls => "tool_use",
        _ => "end_turn",
    }
}

fn usage(done: Option<&Done>) -> Value {
    let statistics = done.map(|done| done.statistics).unwrap_or_default();
    json!({
        "input_tokens": statistics.prompt_tokens - statistics.reused_tokens,
        "cache_read_input_tokens": statistics.reused_tokens, "cache_creation_input_tokens": 0,
        "output_tokens": statistics.answer_tokens,
    })
}

struct Events {
    id: String,
    model: String,
    prefix: String,
    /// The type of the block that is open.
    block: Option<&'static str>,
    blocks: usize,
    calls: usize,
}

impl Events {
    /// Ends the open block.
    fn close(&mut self) -> String {
        if self.block.take().is_none() {
            return String::new();
        }
        self.blocks += 1;
        named(&json!({"type": "content_block_stop", "index": self.blocks - 1}))
    }

    /// Begins a block, unless one of the type is open.
    fn open(&mut self, kind: &'static str, block: Value) -> String {
        if self.block == Some(kind) {
            return String::new();
        }
        let closed = self.close();
        self.block = Some(kind);
        let start =
            json!({"type": "content_block_start", "index": self.blocks, "content_block": block});
        closed + &named(&start)
    }

    fn delta(&self, delta: Value) -> String {
        named(&json!({"type": "content_block_delta", "index": self.blocks, "delta": delta}))
    }
}

impl Shape for Events {
    fn media_type(&self) -> &'static str {
        "text/event-stream"
    }

    fn begin(&mut self) -> String {
        named(&json!({"type": "message_start", "message": {
            "id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }}))
    }

    fn event(&mut self, _index: usize, event: Event) -> String {
        match event {
            Event::Text(text, _) => {
                self.open("text", json!({"type": "text", "text": ""}))
                    + &self.delta(json!({"type": "text_delta", "text": text}))
            }
            Event::Thinking(text) => {
                let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                self.open("thinking", block)
                    + &self.delta(json!({"type": "thinking_delta", "thinking": text}))
            }
            Event::Call(call) => {
                let id = format!("{}_{}", self.prefix, self.calls);
                self.calls += 1;
                let block = json!({"type": "tool_use", "id": id, "name": call.name, "input": {}});
                let json = call.arguments.to_string();
                let mut out = self.close() + &self.open("tool_use", block);
                out += &self.delta(json!({"type": "input_json_delta", "partial_json": json}));
                out + &self.close()
            }
            Event::Done(done) => {
                let delta = json!({
                    "stop_reason": reason(Some(&done), self.calls > 0), "stop_sequence": null,
                });
                let ended =
                    json!({"type": "message_delta", "delta": delta, "usage": usage(Some(&done))});
                self.close() + &named(&ended)
            }
            Event::Said(_) | Event::Failed(_) => String::new(),
        }
    }

    fn end(&mut self) -> String {
        named(&json!({"type": "message_stop"}))
    }

    fn failed(&mut self, problem: &Problem) -> String {
        named(&problem.body(Api::Anthropic))
    }
}
