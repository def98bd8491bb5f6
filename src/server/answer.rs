//! Events into responses: whole, or as a stream. What differs between APIs is a [`Shape`].

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, channel};

use super::keep::InUse;
use super::problem::{Api, Problem};
use super::worker::{Done, Event, Said, Scored, unexpected};
use crate::chat::ToolCall;

/// An answer in the making, with its model, which stays meanwhile.
pub struct Asked {
    /// What comes.
    pub events: UnboundedReceiver<Event>,
    /// Kept from being unloaded.
    #[expect(dead_code, reason = "held, not used")]
    pub model: InUse,
}

/// A whole answer.
#[derive(Default)]
pub struct Whole {
    /// What the reader sees.
    pub text: String,
    /// What was thought.
    pub thinking: String,
    /// Tools that were called.
    pub calls: Vec<ToolCall>,
    /// The tokens of the text, where they were asked for.
    pub tokens: Vec<Scored>,
    /// How it ended.
    pub done: Option<Done>,
}

/// How an API writes an answer as a stream.
pub trait Shape: Send + 'static {
    /// `text/event-stream` or `application/x-ndjson`.
    fn media_type(&self) -> &'static str;
    /// What comes before the first event.
    fn begin(&mut self) -> String;
    /// What an event of the answer `index` becomes; empty for nothing.
    fn event(&mut self, index: usize, event: Event) -> String;
    /// What comes after the last.
    fn end(&mut self) -> String;
    /// What ends a stream in which something went wrong.
    fn failed(&mut self, problem: &Problem) -> String;
}

impl Asked {
    /// Waits for all of it.
    ///
    /// # Errors
    /// What made it fail.
    pub async fn whole(mut self) -> Result<Whole, Problem> {
        let mut whole = Whole::default();
        while let Some(event) = self.events.recv().await {
            match event {
                Event::Text(text, tokens) => {
                    whole.text.push_str(&text);
                    whole.tokens.extend(tokens);
                }
                Event::Thinking(text) => whole.thinking.push_str(&text),
                Event::Call(call) => whole.calls.push(call),
                Event::Done(done) => {
                    whole.done = Some(done);
                    return Ok(whole);
                }
                Event::Failed(problem) => return Err(problem),
                Event::Said(_) => return Err(unexpected()),
            }
        }
        Err(lost())
    }

    /// Waits for a reply that is no answer.
    ///
    /// # Errors
    /// What made it fail.
    pub async fn said(mut self) -> Result<Said, Problem> {
        match self.events.recv().await {
            Some(Event::Said(said)) => Ok(said),
            Some(Event::Failed(problem)) => Err(problem),
            Some(_) => Err(unexpected()),
            None => Err(lost()),
        }
    }
}

fn lost() -> Problem {
    let what = "the model's thread ended before the answer did";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", what)
}

/// All of several answers.
///
/// # Errors
/// What made one of them fail.
pub async fn wholes(asked: Vec<Asked>) -> Result<Vec<Whole>, Problem> {
    let mut wholes = Vec::new();
    for one in asked {
        wholes.push(one.whole().await?);
    }
    Ok(wholes)
}

/// Streams answers, one after the other. What fails before the first word has the status of its
/// problem; when the client goes away the answers are dropped, which ends them.
///
/// # Errors
/// What made the first fail before it began.
pub async fn stream(mut asked: Vec<Asked>, mut shape: impl Shape) -> Result<Response, Problem> {
    let first = match asked.first_mut() {
        Some(asked) => match asked.events.recv().await.ok_or_else(lost)? {
            Event::Failed(problem) => return Err(problem),
            event => Some(event),
        },
        None => None,
    };
    let media_type = shape.media_type();
    let (chunks, body) = channel::<String>(64);
    tokio::spawn(async move {
        let _ = chunks.send(shape.begin()).await;
        let mut first = first;
        for (index, mut one) in asked.into_iter().enumerate() {
            loop {
                let event = match first.take() {
                    Some(event) => Some(event),
                    None => tokio::select! {
                        event = one.events.recv() => event,
                        () = chunks.closed() => return,
                    },
                };
                let (chunk, over) = match event {
                    Some(Event::Failed(problem)) => {
                        let _ = chunks.send(shape.failed(&problem)).await;
                        return;
                    }
                    None => {
                        let _ = chunks.send(shape.failed(&lost())).await;
                        return;
                    }
                    Some(event) => {
                        let over = matches!(event, Event::Done(_));
                        (shape.event(index, event), over)
                    }
                };
                if !chunk.is_empty() && chunks.send(chunk).await.is_err() {
                    return;
                }
                if over {
                    break;
                }
            }
        }
        let _ = chunks.send(shape.end()).await;
    });
    let headers = [(header::CONTENT_TYPE, media_type), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(Chunks(body))).into_response())
}

struct Chunks(Receiver<String>);

impl Stream for Chunks {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(Bytes::from(chunk))))
    }
}

/// A server-sent event without a name.
pub fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// One with a name, which is its `type` too.
pub fn named(value: &Value) -> String {
    format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap_or("message"))
}

/// The response of a handler, in the form of its API.
pub fn respond(api: Api, result: Result<Response, Problem>) -> Response {
    result.unwrap_or_else(|problem| problem.response(api))
}
