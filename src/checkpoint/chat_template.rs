//! Which chat template a model has.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::fault::Fault;

/// The template for conversations, where there are several.
pub const DEFAULT: &str = "default";
/// The template for conversations with tools, where there are several.
pub const TOOL_USE: &str = "tool_use";

/// The small files of a model, by name, wherever they are.
pub trait SmallFiles {
    /// A file as text; `None` when there is none.
    ///
    /// # Errors
    /// When it cannot be read as text.
    fn text(&mut self, name: &str) -> Result<Option<String>, Fault>;

    /// What is wanted of a JSON file; `None` when there is none.
    ///
    /// # Errors
    /// When it is no JSON even leniently.
    fn json<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Fault>;
}

/// A chat template, and what messages call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    /// Its file, and its key in it.
    pub name: String,
    /// The template.
    pub text: String,
}

/// The chat template of that name: the file `chat_template.jinja`, else what
/// `tokenizer_config.json` says, else what `chat_template.json` (of processors) does. Where there are
/// several by name, the one of that name, else [`DEFAULT`]: this is how `transformers` finds them.
///
/// # Errors
/// When a file is there and cannot be read.
pub fn chat_template(
    files: &mut impl SmallFiles,
    named: &str,
) -> Result<Option<ChatTemplate>, Fault> {
    let own = "chat_template.jinja";
    if let Some(text) = files.text(own)? {
        return Ok(Some(ChatTemplate { name: own.into(), text }));
    }
    for file in ["tokenizer_config.json", "chat_template.json"] {
        let Some(Holder { chat_template }) = files.json(file)? else { continue };
        let found = chat_template
            .and_then(|templates| [named, DEFAULT].iter().find_map(|name| templates.called(name)));
        if let Some(text) = found {
            return Ok(Some(ChatTemplate { name: format!("{file}: chat_template"), text }));
        }
    }
    Ok(None)
}

/// Only what is wanted of a file that may be large.
#[derive(Deserialize)]
struct Holder {
    chat_template: Option<Templates>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Listed(Vec<Named>),
    ByName(indexmap::IndexMap<String, String>),
    Other(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

impl Templates {
    fn called(&self, name: &str) -> Option<String> {
        match self {
            Templates::One(text) => Some(text.clone()),
            Templates::Listed(all) => {
                all.iter().find(|one| one.name == name).map(|one| one.template.clone())
            }
            Templates::ByName(all) => all.get(name).cloned(),
            Templates::Other(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    struct Texts(HashMap<&'static str, &'static str>);

    impl SmallFiles for Texts {
        fn text(&mut self, name: &str) -> Result<Option<String>, Fault> {
            Ok(self.0.get(name).map(ToString::to_string))
        }

        fn json<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Fault> {
            Ok(self.0.get(name).map(|text| serde_json::from_str(text).unwrap()))
        }
    }

    #[test]
    fn the_template_is_found_where_folders_have_it() {
        let found = |files: &[(&'static str, &'static str)], named| {
            chat_template(&mut Texts(files.iter().copied().collect()), named)
                .unwrap()
                .map(|found| found.text)
        };
        let config = |text| ("tokenizer_config.json", text);
        let listed = config(
            r#"{"chat_template": [{"name": "tool_use", "template": "t"},
                                  {"name": "default", "template": "d"}]}"#,
        );
        let mapped = config(r#"{"chat_template": {"tool_use": "t", "default": "d"}}"#);
        for several in [listed, mapped] {
            for (named, text) in [(DEFAULT, "d"), (TOOL_USE, "t"), ("rag", "d")] {
                assert_eq!(found(&[several], named).as_deref(), Some(text));
            }
        }
        let processor = ("chat_template.json", r#"{"chat_template": "p"}"#);
        let own = ("chat_template.jinja", "own");
        assert_eq!(found(&[], DEFAULT), None);
        assert_eq!(found(&[listed, processor], DEFAULT).as_deref(), Some("d"));
        assert_eq!(found(&[config("{}"), processor], DEFAULT).as_deref(), Some("p"));
        assert_eq!(found(&[listed, processor, own], TOOL_USE).as_deref(), Some("own"));
        // Several, and none of them is for conversations.
        let rag = config(r#"{"chat_template": [{"name": "rag", "template": "r"}]}"#);
        assert_eq!(found(&[rag], DEFAULT), None);
        assert_eq!(found(&[config(r#"{"chat_template": 3}"#)], DEFAULT), None);
    }
}
