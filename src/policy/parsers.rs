//! Parsers of models' answers: `policies/parsers/NAME.yaml`, one for each family's way to mark its
//! thinking and its tool calls.
//!
//! What a parser can take apart decides about a model's capabilities, so its form and its place
//! are the policies'; [`crate::chat`] takes answers apart with it.

use std::path::Path;
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::built_in;
use crate::fault::{Code, Fault};

/// The parser of models whose policy names none.
pub const DEFAULT: &str = "plain";

/// How a family of models marks the parts of its answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Answers {
    /// The name that policies call it by.
    pub name: String,
    /// Other names that mean the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// What stands around thinking.
    #[serde(default)]
    pub thinking: Option<Marks>,
    /// What stands around tool calls, and how a call is written between.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolMarks>,
    /// Marks without meaning for a reader: they are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drop: Vec<String>,
}

/// An opening and a closing mark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Marks {
    /// What opens it. A prompt that ends with this mark has opened it already.
    pub open: String,
    /// What closes it; the end of the answer does too.
    pub close: String,
    /// Whether models of the family need not think: the template must show that one does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// Tool calls: their marks and their form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolMarks {
    /// What opens a call, or a list of calls.
    pub open: String,
    /// What closes it; the end of the answer does too.
    pub close: String,
    /// How the calls between the marks are written.
    pub form: Form,
}

/// How calls are written between their marks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Form {
    /// JSON: one object, several one after another, or a list of them.
    Json {
        /// Key of the tool's name.
        #[serde(default = "name_key")]
        name: String,
        /// Key of the arguments; the first that is there.
        #[serde(default = "argument_keys")]
        arguments: Vec<String>,
    },
    /// The name, a mark, and the arguments as JSON, perhaps fenced; several one after another.
    NamedJson {
        /// What stands before the name.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        before: String,
        /// What stands between name and arguments.
        between: String,
        /// What ends one call.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        after: String,
    },
    /// `<function=NAME><parameter=KEY>VALUE</parameter></function>` (Qwen3-Coder).
    FunctionTags,
    /// `<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>`, each tag perhaps with
    /// a prefix (`<atem:invoke …>`).
    InvokeTags {
        /// What stands before `invoke` and `parameter`.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        prefix: String,
    },
    /// `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` (GLM).
    KeyValueTags,
    /// `call:NAME{key:value,…}` with texts between quote marks of its own (Gemma 4).
    Call {
        /// The mark before and after a text.
        quote: String,
    },
    /// `to=functions.NAME … <|message|>JSON` (OpenAI's Harmony).
    Harmony,
}

pub(crate) fn name_key() -> String {
    "name".into()
}

pub(crate) fn argument_keys() -> Vec<String> {
    vec!["arguments".into(), "parameters".into()]
}

impl Answers {
    /// The parser of that name: from `parsers/NAME.yaml` of the policy folders, the last one
    /// first, else one that lathe carries.
    ///
    /// # Errors
    /// When there is none of that name, or its file cannot be understood.
    pub fn named(name: &str, policy_dirs: &[&Path]) -> Result<Self, Fault> {
        for dir in policy_dirs.iter().rev() {
            let path = dir.join("parsers").join(format!("{name}.yaml"));
            if path.is_file() {
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| Fault::io("read", &path, &error))?;
                return Self::parse(&text).map_err(|fault| fault.in_file(&path));
            }
        }
        match Self::built_in()?.into_iter().find(|parser| parser.is_called(name)) {
            Some(parser) => Ok(parser),
            None => {
                let known: Vec<&str> = built_in::parsers().map(|(known, _)| known).collect();
                Err(Fault::new(Code::AnswerParser, format!("there is no parser {name:?}")).help(
                    format!(
                        "parsers are {}; a policy folder may add parsers/{name}.yaml",
                        known.join(", ")
                    ),
                ))
            }
        }
    }

    /// What takes a stored model's answers apart: its parser, or, where only Ollama has one of that
    /// name, the one that shows answers as they are.
    ///
    /// # Errors
    /// As [`Answers::named`].
    pub fn or_ollamas(found: Result<Self, Fault>, name: &str) -> Result<Self, Fault> {
        match found {
            Err(_) if ollama().parsers.contains(&name.to_ascii_lowercase()) => {
                Self::named(DEFAULT, &[])
            }
            found => found,
        }
    }

    /// Its name and its aliases.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.aliases).map(String::as_str)
    }

    /// Whether it goes by the name, in any case.
    pub fn is_called(&self, name: &str) -> bool {
        self.names().any(|known| known.eq_ignore_ascii_case(name))
    }

    fn parse(text: &str) -> Result<Self, Fault> {
        serde_yaml::from_str(text)
            .map_err(|error| Fault::new(Code::AnswerParser, format!("not a parser: {error}")))
    }

    /// The parsers that lathe carries.
    ///
    /// # Errors
    /// None, unless a file in `policies/parsers` is wrong: a test reads them all.
    pub fn built_in() -> Result<Vec<Self>, Fault> {
        let parse = |(known, text): (&str, &str)| {
            Self::parse(text).map_err(|fault| fault.in_file(format!("parsers/{known}.yaml")))
        };
        built_in::parsers().map(parse).collect()
    }
}

/// Names that Ollama has for what takes part in a conversation.
#[derive(Debug, Deserialize)]
pub struct Ollama {
    /// Its renderers.
    pub renderers: Vec<String>,
    /// Its parsers.
    pub parsers: Vec<String>,
}

/// What Ollama has: `policies/known/ollama.yaml`.
pub fn ollama() -> &'static Ollama {
    static KNOWN: LazyLock<Ollama> = LazyLock::new(|| {
        let text = include_str!("../../policies/known/ollama.yaml");
        serde_yaml::from_str(text).expect("tested: it reads")
    });
    &KNOWN
}

/// Refuses the parser of a Modelfile that neither lathe nor Ollama has.
///
/// # Errors
/// That, with the nearest name.
pub fn check_parser(name: &str, policy_dirs: &[&Path]) -> Result<(), Fault> {
    if Answers::named(name, policy_dirs).is_ok() {
        return Ok(());
    }
    let own = Answers::built_in()?;
    let own = own.iter().flat_map(Answers::names).map(str::to_owned);
    let mut known: Vec<String> = own.chain(ollama().parsers.iter().cloned()).collect();
    known.sort();
    known.dedup();
    check_name("PARSER", name, &known)
}

/// The same of a renderer.
///
/// # Errors
/// As [`check_parser`].
pub fn check_renderer(name: &str) -> Result<(), Fault> {
    check_name("RENDERER", name, &ollama().renderers)
}

fn check_name(command: &str, given: &str, known: &[String]) -> Result<(), Fault> {
    if known.iter().any(|known| known.eq_ignore_ascii_case(given)) {
        return Ok(());
    }
    let near = crate::format::nearest(given, known.iter().map(String::as_str));
    let help = near.map_or_else(
        || format!("there are {}", known.join(", ")),
        |near| format!("did you mean {near}?"),
    );
    let what = format!("{command} {given}: neither lathe nor Ollama has one of that name");
    Err(Fault::new(Code::Modelfile, what).help(help))
}

/// What an expression sees as `parser`: its name, whether it finds tool calls, and whether all of
/// its models think. Of one that neither the policy (`own`) nor lathe carries nothing is known.
pub fn describe(name: Option<&str>, own: &[Answers]) -> serde_json::Value {
    let own = own.iter().find(|parser| name.is_some_and(|name| parser.is_called(name)));
    let carried = || name.and_then(|name| Answers::named(name, &[]).ok());
    let found = own.cloned().or_else(carried);
    let thinks = found.as_ref().and_then(|parser| parser.thinking.as_ref());
    serde_json::json!({
        "name": name.unwrap_or_default(),
        "thinking": thinks.is_some_and(|marks| !marks.optional),
        "tools": found.as_ref().is_some_and(|parser| !parser.tools.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_parsers_read() {
        let parsers = Answers::built_in().unwrap();
        let mut names = Vec::new();
        for parser in &parsers {
            let facts = describe(Some(&parser.name), &[]);
            let optional = parser.thinking.as_ref().unwrap().optional;
            assert_eq!((&facts["thinking"], &facts["tools"]), (&(!optional).into(), &true.into()));
            names.extend(parser.names());
            for alias in &parser.aliases {
                assert_eq!(Answers::named(alias, &[]).unwrap(), *parser);
            }
        }
        names.sort();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        assert_eq!(describe(Some("of nobody"), &[])["tools"], false);
        assert_eq!(describe(None, &[])["thinking"], false);
    }
}
