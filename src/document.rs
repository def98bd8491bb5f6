//! document: texts of YAML and TOML to typed values, with every value's place kept.
//!
//! YAML and TOML become one tree of [`Node`]s that know their byte spans. The tree is then read
//! into a typed form by serde; a fault found then, or later by a check of meaning, is pointed at
//! by the *path* of the value (`tensors[3].match[0]`).

use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{self, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::fault::{Code, Fault, Text};

/// A value of a policy text and where it stands.
#[derive(Clone, Debug)]
pub struct Node {
    /// The value.
    pub kind: Kind,
    /// Bytes of the text that it takes.
    pub span: Range<usize>,
}

/// What a [`Node`] holds.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Null, a boolean, a number or a string.
    Scalar(Value),
    /// A list.
    List(Vec<Node>),
    /// A mapping in the order of the text; keys keep their own spans.
    Map(Vec<(Key, Node)>),
}

/// A key of a mapping.
#[derive(Clone, Debug)]
pub struct Key {
    /// The key.
    pub name: String,
    /// Bytes of the text that it takes.
    pub span: Range<usize>,
}

impl Node {
    /// The same tree without spans.
    pub fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Scalar(value) => value.clone(),
            Kind::List(items) => Value::Array(items.iter().map(Node::to_json).collect()),
            Kind::Map(entries) => Value::Object(
                entries.iter().map(|(key, node)| (key.name.clone(), node.to_json())).collect(),
            ),
        }
    }

    /// The entry of a mapping.
    pub fn get(&self, name: &str) -> Option<(&Key, &Node)> {
        match &self.kind {
            Kind::Map(entries) => {
                entries.iter().find(|(key, _)| key.name == name).map(|(key, node)| (key, node))
            }
            _ => None,
        }
    }

    /// The span of the value at `path`; of its nearest ancestor that exists otherwise.
    pub fn span_at(&self, path: &[Step]) -> Range<usize> {
        let Some((step, rest)) = path.split_first() else { return self.span.clone() };
        let child = match (step, &self.kind) {
            (Step::Key(name), Kind::Map(_)) => self.get(name).map(|(_, node)| node),
            (Step::Index(index), Kind::List(items)) => items.get(*index),
            // One value may stand where a list of values is allowed.
            (Step::Index(0), Kind::Scalar(_) | Kind::Map(_)) => return self.span_at(rest),
            _ => None,
        };
        child.map_or(self.span.clone(), |child| child.span_at(rest))
    }
}

/// One step of a path into a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Into a mapping.
    Key(String),
    /// Into a list.
    Index(usize),
}

impl Step {
    /// The key, of one into a mapping.
    pub fn key(&self) -> Option<&str> {
        match self {
            Step::Key(name) => Some(name),
            Step::Index(_) => None,
        }
    }
}

impl From<&str> for Step {
    fn from(name: &str) -> Self {
        Step::Key(name.into())
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Self {
        Step::Index(index)
    }
}

/// A policy text that has been read into a tree.
#[derive(Clone, Debug)]
pub struct Document {
    /// The text.
    pub text: Arc<Text>,
    /// The tree.
    pub root: Node,
}

/// A path into a document, for [`Document::fault`].
#[macro_export]
macro_rules! path {
    ($($step:expr),* $(,)?) => { &[$($crate::document::Step::from($step)),*] };
}

impl Document {
    /// Reads YAML, or TOML when the name ends in `.toml`.
    pub fn parse(name: impl Into<String>, body: impl Into<String>) -> Result<Document, Fault> {
        let text = Arc::new(Text { name: name.into(), body: body.into() });
        let root =
            if text.name.ends_with(".toml") { parse_toml(&text) } else { parse_yaml(&text) }?;
        Ok(Document { text, root })
    }

    /// Reads the tree into a typed form; unknown and missing keys are pointed at.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        serde_path_to_error::deserialize(self.root.to_json()).map_err(|error| {
            let mut path: Vec<Step> = error
                .path()
                .iter()
                .filter_map(|segment| match segment {
                    serde_path_to_error::Segment::Map { key } => Some(Step::Key(key.clone())),
                    serde_path_to_error::Segment::Seq { index } => Some(Step::Index(*index)),
                    _ => None,
                })
                .collect();
            let message = plain_words(error.inner().to_string());
            let unknown = message.strip_prefix("unknown field `").and_then(|m| m.split('`').next());
            let span = match unknown {
                Some(name) => {
                    // The path may or may not include the unknown key itself.
                    if path.last() == Some(&Step::Key(name.into())) {
                        path.pop();
                    }
                    self.key_span(&path, name)
                }
                None => self.root.span_at(&path),
            };
            let fault = Fault::new(Code::PolicySyntax, message.clone()).at(&self.text, span);
            match unknown.and_then(|name| suggestion(name, &message)) {
                Some(near) => fault.help(format!("did you mean `{near}`?")),
                None => fault,
            }
        })
    }

    /// A fault that points at the value at `path`.
    pub fn fault(&self, code: Code, path: &[Step], message: impl Into<String>) -> Fault {
        Fault::new(code, message).at(&self.text, self.root.span_at(path))
    }

    /// The line, from 1, of the value at `path`.
    pub fn line(&self, path: &[Step]) -> usize {
        self.text.line_column(self.root.span_at(path).start).0
    }

    fn key_span(&self, path: &[Step], name: &str) -> Range<usize> {
        let mut node = &self.root;
        for step in path {
            node = match (step, &node.kind) {
                (Step::Key(name), Kind::Map(_)) => match node.get(name) {
                    Some((_, child)) => child,
                    None => break,
                },
                (Step::Index(index), Kind::List(items)) => match items.get(*index) {
                    Some(child) => child,
                    None => break,
                },
                _ => break,
            };
        }
        node.get(name).map_or(node.span.clone(), |(key, _)| key.span.clone())
    }
}

/// What may stand where one of several forms may.
const FORMS: [(&str, &str); 6] = [
    ("LetValue", "a path, a list of paths, or {from: [paths], default: value}"),
    ("Scalar", "true, false, a whole number, or a CEL expression"),
    ("Several", "a text or a list of texts"),
    ("Choice", "a name, or a list of {when, use}"),
    ("FitValue", "a path, a list of paths, or {tensor: glob, axis: number}"),
    ("Value", "a number or a CEL expression"),
];

/// serde's words for a value of the wrong form, with the forms in place of a type's name.
fn plain_words(message: String) -> String {
    let name = message.strip_prefix("data did not match any variant of untagged enum ");
    match name.and_then(|name| FORMS.iter().find(|(known, _)| *known == name)) {
        Some((_, form)) => format!("this is not {form}"),
        None => message,
    }
}

/// The known key that `name` was perhaps meant to be, from serde's list of them.
fn suggestion<'a>(name: &str, message: &'a str) -> Option<&'a str> {
    let known = message.split("expected").nth(1)?.split('`').skip(1).step_by(2);
    crate::format::nearest(name, known)
}

fn parse_yaml(text: &Arc<Text>) -> Result<Node, Fault> {
    serde_yaml::from_str::<Located<Yaml>>(&text.body).map(|located| located.0).map_err(|error| {
        let span = error.location().map_or(0..0, |location| {
            let start = location.span().byte_offset().map_or_else(
                || text.offset(location.line() as usize, location.column() as usize),
                |at| at as usize,
            );
            start..start + location.span().byte_len().unwrap_or(0) as usize
        });
        // The first line says what; the rest is a snippet, which we draw ourselves.
        let message = error.to_string();
        let first = message.lines().next().unwrap_or("not valid YAML").to_string();
        let message = first.strip_prefix("error: ").unwrap_or(&first).to_string();
        Fault::new(Code::PolicySyntax, message).at(text, span)
    })
}

fn parse_toml(text: &Arc<Text>) -> Result<Node, Fault> {
    toml::from_str::<Located<Toml>>(&text.body).map(|located| located.0).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        Fault::new(Code::PolicySyntax, error.message()).at(text, span)
    })
}

/// The wrapper with which a format's deserializer tells spans.
trait Spanning: 'static {
    type Of<T: for<'de> Deserialize<'de>>: for<'de> Deserialize<'de>;
    fn split<T: for<'de> Deserialize<'de>>(spanned: Self::Of<T>) -> (T, Range<usize>);
}

struct Yaml;

impl Spanning for Yaml {
    type Of<T: for<'de> Deserialize<'de>> = serde_yaml::Spanned<T>;

    fn split<T: for<'de> Deserialize<'de>>(spanned: Self::Of<T>) -> (T, Range<usize>) {
        let span = spanned.referenced.span();
        let start = span.byte_offset().unwrap_or(0) as usize;
        (spanned.value, start..start + span.byte_len().unwrap_or(0) as usize)
    }
}

struct Toml;

impl Spanning for Toml {
    type Of<T: for<'de> Deserialize<'de>> = toml::Spanned<T>;

    fn split<T: for<'de> Deserialize<'de>>(spanned: Self::Of<T>) -> (T, Range<usize>) {
        let span = spanned.span();
        (spanned.into_inner(), span)
    }
}

/// A node as one format's deserializer makes it.
struct Located<S: Spanning>(Node, std::marker::PhantomData<S>);

impl<'de, S: Spanning> Deserialize<'de> for Located<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (kind, span) = S::split(S::Of::<LocatedKind<S>>::deserialize(deserializer)?);
        Ok(Located(Node { kind: kind.0, span }, std::marker::PhantomData))
    }
}

struct LocatedKind<S: Spanning>(Kind, std::marker::PhantomData<S>);

impl<'de, S: Spanning> Deserialize<'de> for LocatedKind<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kind = deserializer.deserialize_any(KindVisitor::<S>(std::marker::PhantomData))?;
        Ok(LocatedKind(kind, std::marker::PhantomData))
    }
}

struct KindVisitor<S>(std::marker::PhantomData<S>);

impl<'de, S: Spanning> Visitor<'de> for KindVisitor<S> {
    type Value = Kind;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Kind, E> {
        Ok(Kind::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Kind, E> {
        Ok(Kind::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Kind, E> {
        Ok(Kind::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Kind, E> {
        Ok(Kind::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Kind, E> {
        Ok(Kind::Scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Kind, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Located<S>>()? {
            items.push(item.0);
        }
        Ok(Kind::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kind, A::Error> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        while let Some(key) = map.next_key::<S::Of<String>>()? {
            let (name, span) = S::split(key);
            if entries.iter().any(|(key, _)| key.name == name) {
                return Err(de::Error::custom(format!("duplicate key `{name}`")));
            }
            entries.push((Key { name, span }, map.next_value::<Located<S>>()?.0));
        }
        Ok(Kind::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        #[allow(dead_code, reason = "only the names of keys matter here")]
        name: String,
        #[allow(dead_code, reason = "only the names of keys matter here")]
        rules: Vec<Rule>,
    }

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Rule {
        #[allow(dead_code, reason = "only the names of keys matter here")]
        id: String,
        #[allow(dead_code, reason = "only the names of keys matter here")]
        bits: u32,
    }

    fn at(name: &str, body: &str) -> (usize, usize, String, Option<String>) {
        let document = Document::parse(name, body).unwrap();
        let fault = document.decode::<Sample>().unwrap_err();
        let place = fault.place.unwrap();
        let (line, column) = place.text.line_column(place.span.start);
        (line, column, fault.message, fault.help)
    }

    #[test]
    fn yaml_faults_point_at_line_and_column() {
        let body = "name: x\nrules:\n  - id: a\n    bits: 4\n  - id: b\n    bit: 8\n";
        let (line, column, message, help) = at("p.yaml", body);
        assert_eq!((line, column), (6, 5), "{message}");
        assert_eq!(help.as_deref(), Some("did you mean `bits`?"));
        let (line, column, ..) = at("p.yaml", "name: x\nrules:\n  - {id: a, bits: four}\n");
        assert_eq!((line, column), (3, 19));
    }

    #[test]
    fn toml_faults_point_at_line_and_column() {
        let body = "name = \"x\"\n[[rules]]\nid = \"a\"\nbit = 4\n";
        let (line, column, message, _) = at("p.toml", body);
        assert_eq!((line, column), (4, 1), "{message}");
    }

    #[test]
    fn broken_text_and_duplicate_keys_are_told() {
        let fault = Document::parse("p.yaml", "a: [1, 2\nb: 3\n").unwrap_err();
        assert!(fault.place.is_some());
        let fault = Document::parse("p.yaml", "a: 1\na: 2\n").unwrap_err();
        assert!(fault.message.contains("duplicate"), "{}", fault.message);
        let fault = Document::parse("p.toml", "a = 1\na = 2\n").unwrap_err();
        assert!(fault.place.is_some());
    }
}
