//! Chat templates as Hugging Face writes them: Jinja, run as Python would run it.
//!
//! transformers renders with blocks trimmed, loop controls, Python's methods on strings and
//! lists, `tojson` as `json.dumps` without ASCII escapes, `raise_exception` and `strftime_now`
//! (transformers, `utils/chat_template_utils.py`). The same text must come out here.

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};
use regex::Regex;
use serde_json::{Map, Value, json};

use super::python;
use super::source::Source;
use crate::fault::{Code, Fault, Text};

/// The name under which minijinja knows the template.
const NAME: &str = "chat_template";

/// A compiled chat template.
pub struct Template {
    environment: Environment<'static>,
    text: Arc<Text>,
    source: Source,
}

/// What a template renders.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// The messages: objects with `role`, `content`, and as the case may be `tool_calls`,
    /// `reasoning_content`, ….
    pub messages: Vec<Value>,
    /// Tools that the model may call, as JSON schemas of functions.
    pub tools: Vec<Value>,
    /// Whether the model is to think, where the template can be told (`enable_thinking`).
    pub thinking: Option<bool>,
    /// Whether the rendered text ends where the model's answer begins.
    pub add_generation_prompt: bool,
    /// Further variables for the template, special tokens among them.
    pub variables: Map<String, Value>,
}

impl Template {
    /// Compiles a template; `name` is what messages call it.
    ///
    /// # Errors
    /// When it is not valid Jinja, pointing at the place.
    pub fn compile(name: &str, source: &str) -> Result<Self, Fault> {
        let source = Source::new(source);
        let text = Arc::new(Text { name: name.into(), body: source.own.clone() });
        let mut environment = environment();
        let added = environment.add_template_owned(NAME, source.given.clone());
        let template = Template { environment, text, source };
        match added {
            Ok(()) => Ok(template),
            Err(error) => Err(template.fault("the chat template cannot be understood", &error)),
        }
    }

    /// Renders a conversation into the text that the model reads.
    ///
    /// # Errors
    /// When the template refuses the conversation (`raise_exception`) or fails on it.
    pub fn render(&self, conversation: &Conversation) -> Result<String, Fault> {
        let mut variables = conversation.variables.clone();
        variables.insert("messages".into(), conversation.messages.clone().into());
        let tools = &conversation.tools;
        let tools = if tools.is_empty() { Value::Null } else { tools.clone().into() };
        variables.insert("tools".into(), tools);
        variables.insert("documents".into(), Value::Null);
        variables.insert("add_generation_prompt".into(), conversation.add_generation_prompt.into());
        if let Some(thinking) = conversation.thinking {
            // Templates know the switch by either name.
            variables.insert("enable_thinking".into(), json!(thinking));
            variables.insert("thinking".into(), json!(thinking));
        }
        let rendered = self
            .environment
            .get_template(NAME)
            .and_then(|template| template.render(Serde(&variables)));
        rendered.map_err(|error| {
            let refusal = std::error::Error::source(&error)
                .and_then(|source| source.downcast_ref::<Refusal>());
            match refusal {
                Some(Refusal(why)) => Fault::new(
                    Code::Template,
                    format!("the model's chat template refuses the conversation: {why}"),
                ),
                None => self.fault("the chat template fails on this conversation", &error),
            }
        })
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.text.body
    }

    fn fault(&self, what: &str, error: &Error) -> Fault {
        let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
        let fault = Fault::new(Code::Template, format!("{what}: {detail}"));
        match error.range() {
            Some(range) => fault.at(&self.text, self.source.place(range)),
            None => fault,
        }
    }
}

/// Whether a `TEMPLATE` is written in Go's language (Ollama's) rather than in Jinja.
pub fn is_go(source: &str) -> bool {
    let go = r"\{\{-?\s*(\.|\$|/\*|end\b|else\b|(if|range|with|define|block|template)\s)";
    !source.contains("{%") && Regex::new(go).is_ok_and(|go| go.is_match(source))
}

/// What `raise_exception` was given.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    // Cannot fail: no delimiter is changed.
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_unknown_method_callback(python::method);
    environment.set_formatter(|out, _state, value| {
        out.write_str(&python::str(value)).map_err(Error::from)
    });
    python::add_to(&mut environment);
    environment.add_filter("tojson", python::to_json);
    environment.add_function("raise_exception", |why: String| -> Result<String, Error> {
        let error = Error::new(ErrorKind::InvalidOperation, "raise_exception");
        Err(error.with_source(Refusal(why)))
    });
    environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
        let now = jiff::Zoned::now();
        jiff::fmt::strtime::format(without_locale(&format), &now)
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
    });
    environment
}

/// A date's format with what Python's C locale writes for `%x`, `%X` and `%c`.
fn without_locale(format: &str) -> String {
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        out.push(c);
        if c != '%' {
            continue;
        }
        match chars.next() {
            Some('x') => out.push_str("m/%d/%y"),
            Some('X') => out.push_str("H:%M:%S"),
            Some('c') => out.push_str("a %b %e %H:%M:%S %Y"),
            other => out.extend(other),
        }
    }
    out
}
