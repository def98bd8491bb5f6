//! OpenAI's older API of plain texts, `/v1/completions`: prompts go on without a template.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::super::answer::{Shape, data, respond, stream, wholes};
use super::super::fields::{self, Table, given};
use super::super::keep::KeepAlive;
use super::super::problem::{Api, Problem};
use super::super::state::{Server, now};
use super::super::worker::{Event, Scored, What};
use super::{Head, Usage, common, reason, setter};
use crate::engine::Prompt;

const COMPLETIONS: Table = Table {
    honoured: &[
        "model",
        "prompt",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "max_tokens",
        "stop",
        "seed",
        "n",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "logprobs",
        "echo",
    ],
    ignored: &["user"],
    refused: &[
        ("suffix", "the model is not asked to fill in"),
        ("best_of", "answers are not compared"),
    ],
};

/// `POST /v1/completions`
pub async fn completions(State(server): State<Arc<Server>>, body: Bytes) -> Response {
    respond(Api::OpenAi, completions_of(&server, &body).await)
}

async fn completions_of(server: &Server, body: &[u8]) -> Result<Response, Problem> {
    let body = fields::object(body)?;
    COMPLETIONS.check(&body)?;
    let common = common(&body)?;
    let prompts: Vec<String> = match given(&body, "prompt") {
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(list)) if list.iter().all(Value::is_string) && list.len() <= 64 => {
            list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        }
        Some(Value::Array(_)) => {
            return Err(Problem::refused("prompt", "it takes texts, and no ids of tokens yet"));
        }
        _ => return Err(Problem::field("prompt", "`prompt` takes a text or a list of texts")),
    };
    let logprobs = fields::whole(&body, "logprobs", 0, 20)?.map(|count| count as usize);
    let echo = fields::flag(&body, "echo")?.unwrap_or(false);
    if echo && logprobs.is_some() {
        return Err(Problem::refused("echo", "log-probabilities of the prompt are not told yet"));
    }
    // OpenAI's default.
    let mut limited = body.clone();
    if given(&body, "max_tokens").is_none() {
        limited.insert("max_tokens".into(), 16.into());
    }
    let (mut asked, mut before) = (Vec::new(), Vec::new());
    for prompt in &prompts {
        for index in 0..common.count {
            let set = setter(&limited, index, logprobs)?;
            let what = What::Answer(Prompt::Plain(prompt.clone()));
            asked.push(server.ask(&common.model, KeepAlive::Default, what, set).await?);
            before.push(if echo { prompt.clone() } else { String::new() });
        }
    }
    let head = Head { id: server.id("cmpl-"), created: now(), model: common.model };
    let usage = common.usage.then(Usage::default);
    if common.streams {
        let begun = vec![false; before.len()];
        return stream(asked, TextStream { head, before, begun, usage, at: 0 }).await;
    }
    let wholes = wholes(asked).await?;
    let mut usage = Usage::default();
    for (at, done) in wholes.iter().map(|whole| &whole.done).enumerate() {
        let Some(done) = done else { continue };
        let prompt = usage.prompt;
        usage.add(done);
        // Each prompt once, whatever the number of its answers.
        let new = (at as u64).is_multiple_of(common.count);
        usage.prompt = if new { prompt + done.statistics.prompt_tokens } else { prompt };
    }
    let choices = wholes.into_iter().zip(before).enumerate().map(|(index, (whole, before))| {
        let reason = reason(whole.done.as_ref(), false);
        let (text, mut at) = (before + &whole.text, 0);
        let scores = logprobs.map(|_| older_scores(&whole.tokens, &mut at));
        json!({"index": index, "text": text, "logprobs": scores, "finish_reason": reason})
    });
    let mut reply = head.of("text_completion", choices.collect());
    reply["usage"] = usage.value();
    Ok(Json(reply).into_response())
}

/// Log-probabilities as this older route tells them; `at` is the offset of the first in the text.
fn older_scores(tokens: &[Scored], at: &mut usize) -> Value {
    let offsets: Vec<usize> = tokens
        .iter()
        .map(|token| {
            let offset = *at;
            *at += token.text.chars().count();
            offset
        })
        .collect();
    let top = tokens.iter().map(|token| {
        let pairs = token.top.iter().map(|top| (top.text.clone(), json!(top.logprob.max(-9999.0))));
        Value::Object(pairs.collect())
    });
    json!({
        "tokens": tokens.iter().map(|token| token.text.as_str()).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.logprob.max(-9999.0)).collect::<Vec<_>>(),
        "top_logprobs": top.collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

struct TextStream {
    head: Head,
    /// What is shown before each answer.
    before: Vec<String>,
    begun: Vec<bool>,
    usage: Option<Usage>,
    /// Offset of the next token.
    at: usize,
}

impl TextStream {
    fn chunk(&self, index: usize, text: &str, logprobs: Value, reason: Option<&str>) -> String {
        let choice =
            json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason});
        data(&self.head.of("text_completion", json!([choice])))
    }

    /// What is shown before this answer, once.
    fn opening(&mut self, index: usize) -> String {
        let new = !std::mem::replace(&mut self.begun[index], true);
        if new { std::mem::take(&mut self.before[index]) } else { String::new() }
    }
}

impl Shape for TextStream {
    fn media_type(&self) -> &'static str {
        "text/event-stream"
    }

    fn begin(&mut self) -> String {
        String::new()
    }

    fn event(&mut self, index: usize, event: Event) -> String {
        let opening = self.opening(index);
        match event {
            Event::Text(text, tokens) => {
                let mut at = self.at;
                let scores = match tokens.is_empty() {
                    true => Value::Null,
                    false => older_scores(&tokens, &mut at),
                };
                self.at = at;
                self.chunk(index, &(opening + &text), scores, None)
            }
            Event::Done(done) => {
                self.at = 0;
                if let Some(usage) = &mut self.usage {
                    usage.add(&done);
                }
                self.chunk(index, &opening, Value::Null, Some(reason(Some(&done), false)))
            }
            _ => String::new(),
        }
    }

    fn end(&mut self) -> String {
        let usage = self.usage.as_ref().map(|usage| {
            let mut chunk = self.head.of("text_completion", json!([]));
            chunk["usage"] = usage.value();
            data(&chunk)
        });
        usage.unwrap_or_default() + "data: [DONE]\n\n"
    }

    fn failed(&mut self, problem: &Problem) -> String {
        data(&problem.body(Api::OpenAi))
    }
}
