//! OpenAI's newer API: `/v1/responses`. Stateless: every request brings its whole conversation.
//!
//! A conversation is a list of items (messages, calls, what calls gave, thoughts), and so is an
//! answer; a stream tells each item from its beginning to its end, and ends with exactly one of
//! `response.completed`, `response.incomplete` and `response.failed`.

mod input;

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::answer::{Shape, named, respond, stream};
use super::fields::{self, Table, given};
use super::keep::KeepAlive;
use super::openai;
use super::problem::{Api, Problem};
use super::state::{Server, now};
use super::worker::{Done, Event, What};
use crate::chat::ToolCall;
use crate::engine::{Prompt, Reason};

const STATELESS: &str = "nothing is kept between requests: send the whole conversation as `input`";

const FIELDS: Table = Table {
    honoured: &[
        "model",
        "input",
        "instructions",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "temperature",
        "top_p",
        "max_output_tokens",
        "reasoning",
        "text",
        "include",
        "truncation",
    ],
    ignored: &[
        "client_metadata",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    ],
    refused: &[
        ("previous_response_id", STATELESS),
        ("conversation", STATELESS),
        ("background", "an answer is made while its client waits"),
        ("prompt", "there are no stored prompts"),
        ("max_tool_calls", "lathe calls no tools itself"),
        ("top_logprobs", "ask for them with /v1/chat/completions"),
    ],
};

/// `POST /v1/responses`
pub async fn responses(State(server): State<Arc<Server>>, body: Bytes) -> Response {
    respond(Api::OpenAi, answered(&server, &body).await)
}

async fn answered(server: &Server, body: &[u8]) -> Result<Response, Problem> {
    let body = fields::object(body)?;
    FIELDS.check(&body)?;
    let model = fields::model(&body)?;
    let streams = fields::flag(&body, "stream")?.unwrap_or(false);
    let options = options(&body)?;
    let mut tools = input::tools(&body)?;
    let messages = input::messages(&body)?;
    if messages.is_empty() {
        return Err(Problem::field("input", "`input` is empty"));
    }
    if openai::forbids_calls(&body)? {
        tools.offered.clear();
    }
    // What holds for all is checked before a model is loaded.
    openai::setter(&options, 0, None)?(crate::engine::Options::default())?;
    let prompt = Prompt::Chat { messages, tools: tools.offered };
    let set = openai::setter(&options, 0, None)?;
    let asked = server.ask(&model, KeepAlive::Default, What::Answer(prompt), set).await?;
    let mut answer = Items {
        reply: reply(&server.id("resp_"), &model, &body),
        prefix: server.id(""),
        custom: tools.custom,
        done: Vec::new(),
        open: None,
        number: 0,
        ended: false,
    };
    if streams {
        return stream(vec![asked], answer).await;
    }
    let whole = asked.whole().await?;
    let thought = (!whole.thinking.is_empty()).then_some(Event::Thinking(whole.thinking));
    let said = (!whole.text.is_empty()).then(|| Event::Text(whole.text, Vec::new()));
    let calls = whole.calls.into_iter().map(Event::Call);
    let done = whole.done.map(Event::Done);
    for event in thought.into_iter().chain(said).chain(calls).chain(done) {
        answer.event(0, event);
    }
    Ok(Json(answer.reply).into_response())
}

/// The fields that chat completions have too, by their names there.
fn options(body: &Map<String, Value>) -> Result<Map<String, Value>, Problem> {
    let mut options = Map::new();
    for name in ["temperature", "top_p", "parallel_tool_calls"] {
        options.extend(given(body, name).map(|value| (name.to_owned(), value.clone())));
    }
    if let Some(most) = fields::whole(body, "max_output_tokens", 1, u64::from(u32::MAX))? {
        options.insert("max_completion_tokens".into(), most.into());
    }
    if let Some(reasoning) = given(body, "reasoning") {
        let known = ["effort", "summary", "generate_summary"];
        let wrong = || Problem::field("reasoning", "`reasoning` takes an object");
        let reasoning = reasoning.as_object().ok_or_else(wrong)?;
        if let Some(name) = reasoning.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(Problem::refused(&format!("reasoning.{name}"), "lathe does not know it"));
        }
        options.extend(given(reasoning, "effort").map(|v| ("reasoning_effort".into(), v.clone())));
    }
    if let Some(text) = given(body, "text") {
        let wrong = || Problem::field("text", "`text` takes an object");
        for (name, value) in text.as_object().ok_or_else(wrong)? {
            let plain = name == "format" && (value.is_null() || value["type"] == "text");
            if !plain && name != "verbosity" {
                return Err(Problem::refused(&format!("text.{name}"), openai::GRAMMAR));
            }
        }
    }
    for (at, wanted) in fields::list(body, "include")?.iter().enumerate() {
        // Thoughts are not encrypted: they come as they are.
        if wanted != "reasoning.encrypted_content" {
            let field = format!("include[{at}]");
            return Err(Problem::refused(&field, "nothing of the kind is added to answers"));
        }
    }
    if let Some(truncation) = given(body, "truncation")
        && truncation != "disabled"
    {
        let why = "a conversation that is too long is refused, and nothing of it left out";
        return Err(Problem::refused("truncation", why));
    }
    Ok(options)
}

/// The answer's object before anything was said.
fn reply(id: &str, model: &str, body: &Map<String, Value>) -> Value {
    let or = |name: &str, default: Value| given(body, name).cloned().unwrap_or(default);
    json!({
        "id": id, "object": "response", "created_at": now(), "status": "in_progress",
        "background": false, "error": null, "incomplete_details": null, "model": model,
        "instructions": or("instructions", Value::Null), "output": [],
        "max_output_tokens": or("max_output_tokens", Value::Null),
        "parallel_tool_calls": or("parallel_tool_calls", true.into()),
        "previous_response_id": null, "store": false, "truncation": "disabled",
        "reasoning": or("reasoning", json!({"effort": null, "summary": null})),
        "temperature": or("temperature", Value::Null), "top_p": or("top_p", Value::Null),
        "text": or("text", json!({"format": {"type": "text"}})),
        "tool_choice": or("tool_choice", "auto".into()), "tools": or("tools", json!([])),
        "metadata": or("metadata", json!({})), "usage": null,
    })
}

fn usage(done: &Done) -> Value {
    let statistics = done.statistics;
    json!({
        "input_tokens": statistics.prompt_tokens,
        "input_tokens_details": {"cached_tokens": statistics.reused_tokens},
        "output_tokens": statistics.answer_tokens,
        "output_tokens_details": {"reasoning_tokens": done.thinking_tokens},
        "total_tokens": statistics.prompt_tokens + statistics.answer_tokens,
    })
}

/// An item that is being written.
#[derive(Clone, Copy, PartialEq)]
enum Open {
    Reasoning,
    Message,
}

/// An answer on its way to a list of items.
struct Items {
    /// The answer's object; `output` holds the items that have ended.
    reply: Value,
    prefix: String,
    /// Names of tools that take a text.
    custom: Vec<String>,
    /// Items that have ended.
    done: Vec<Value>,
    /// The item that has not, and its text.
    open: Option<(Open, String)>,
    /// Of the next event.
    number: u64,
    /// Whether the last event was told.
    ended: bool,
}

impl Items {
    fn tell(&mut self, kind: &str, mut fields: Value) -> String {
        fields["type"] = kind.into();
        fields["sequence_number"] = self.number.into();
        self.number += 1;
        named(&fields)
    }

    fn tell_reply(&mut self, kind: &str) -> String {
        let response = self.reply.clone();
        self.tell(kind, json!({"response": response}))
    }

    fn id(&self, kind: &str) -> String {
        format!("{kind}_{}_{}", self.prefix, self.done.len())
    }

    /// An item of a text, as it is when it holds this much.
    fn item(&self, open: Open, text: Option<&str>, status: &str) -> Value {
        match open {
            Open::Reasoning => {
                let content = text.map(|text| json!({"type": "reasoning_text", "text": text}));
                json!({
                    "type": "reasoning", "id": self.id("rs"), "summary": [], "status": status,
                    "content": content.into_iter().collect::<Vec<_>>(),
                })
            }
            Open::Message => {
                let content = text.map(part);
                json!({
                    "type": "message", "id": self.id("msg"), "role": "assistant",
                    "status": status, "content": content.into_iter().collect::<Vec<_>>(),
                })
            }
        }
    }

    /// Goes on with an item of this kind, beginning it where another one is open.
    fn write(&mut self, open: Open, text: &str) -> String {
        let mut out = String::new();
        if self.open.as_ref().is_none_or(|(other, _)| *other != open) {
            out += &self.close("completed");
            let item = self.item(open, None, "in_progress");
            let at = self.done.len();
            out +=
                &self.tell("response.output_item.added", json!({"output_index": at, "item": item}));
            if open == Open::Message {
                let mut begun = self.place();
                begun["part"] = part("");
                out += &self.tell("response.content_part.added", begun);
            }
            self.open = Some((open, String::new()));
        }
        if let Some((_, all)) = &mut self.open {
            all.push_str(text);
        }
        let mut delta = self.place_of(open);
        delta["delta"] = text.into();
        out + &match open {
            Open::Reasoning => self.tell("response.reasoning_text.delta", delta),
            Open::Message => {
                delta["logprobs"] = json!([]);
                self.tell("response.output_text.delta", delta)
            }
        }
    }

    fn place(&self) -> Value {
        self.place_of(Open::Message)
    }

    fn place_of(&self, open: Open) -> Value {
        let id = self.id(if open == Open::Message { "msg" } else { "rs" });
        json!({"item_id": id, "output_index": self.done.len(), "content_index": 0})
    }

    /// Ends the open item.
    fn close(&mut self, status: &str) -> String {
        let Some((open, text)) = self.open.take() else { return String::new() };
        let mut done = self.place_of(open);
        done["text"] = text.as_str().into();
        let mut out = match open {
            Open::Reasoning => self.tell("response.reasoning_text.done", done),
            Open::Message => {
                done["logprobs"] = json!([]);
                let mut ended = self.place();
                ended["part"] = part(&text);
                self.tell("response.output_text.done", done)
                    + &self.tell("response.content_part.done", ended)
            }
        };
        out += &self.end_item(self.item(open, Some(&text), status));
        out
    }

    fn end_item(&mut self, item: Value) -> String {
        let at = self.done.len();
        self.done.push(item.clone());
        self.tell("response.output_item.done", json!({"output_index": at, "item": item}))
    }

    fn call(&mut self, made: &ToolCall) -> String {
        let mut out = self.close("completed");
        let custom = self.custom.contains(&made.name);
        let (kind, field, events) = match custom {
            true => ("custom_tool_call", "input", "response.custom_tool_call_input"),
            false => ("function_call", "arguments", "response.function_call_arguments"),
        };
        let text = match custom {
            true => input::text_of_custom(&made.arguments),
            false => made.arguments.to_string(),
        };
        let id = self.id(if custom { "ctc" } else { "fc" });
        let item = |text: &str, status: &str, call_id: String| {
            json!({
                "type": kind, "id": id, "call_id": call_id, "name": made.name, field: text,
                "status": status,
            })
        };
        let at = self.done.len();
        let begun = item("", "in_progress", self.id("call"));
        let added = json!({"output_index": at, "item": begun});
        out += &self.tell("response.output_item.added", added);
        let delta = json!({"item_id": id, "output_index": at, "delta": text});
        out += &self.tell(&format!("{events}.delta"), delta);
        let done = json!({"item_id": id, "output_index": at, "name": made.name, field: text});
        out += &self.tell(&format!("{events}.done"), done);
        out + &self.end_item(item(&text, "completed", self.id("call")))
    }

    fn end_with(&mut self, status: &str) -> String {
        self.ended = true;
        self.reply["status"] = status.into();
        self.reply["output"] = self.done.clone().into();
        self.tell_reply(&format!("response.{status}"))
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

impl Shape for Items {
    fn media_type(&self) -> &'static str {
        "text/event-stream"
    }

    fn begin(&mut self) -> String {
        self.tell_reply("response.created") + &self.tell_reply("response.in_progress")
    }

    fn event(&mut self, _index: usize, event: Event) -> String {
        match event {
            Event::Text(text, _) => self.write(Open::Message, &text),
            Event::Thinking(text) => self.write(Open::Reasoning, &text),
            Event::Call(made) => self.call(&made),
            Event::Done(done) => {
                self.reply["usage"] = usage(&done);
                let cut = done.reason == Reason::Length;
                if cut {
                    self.reply["incomplete_details"] = json!({"reason": "max_output_tokens"});
                }
                let status = if cut { "incomplete" } else { "completed" };
                self.close(status) + &self.end_with(status)
            }
            Event::Said(_) | Event::Failed(_) => String::new(),
        }
    }

    fn end(&mut self) -> String {
        String::new()
    }

    fn failed(&mut self, problem: &Problem) -> String {
        if self.ended {
            return String::new();
        }
        self.reply["error"] = json!({"code": "server_error", "message": problem.message});
        self.close("incomplete") + &self.end_with("failed")
    }
}

#[cfg(test)]
mod tests;
