//! Names of models: `[host/][namespace/]model[:tag]`.

use std::fmt;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use crate::fault::{Code, Fault};

/// The host of a name that gives none.
pub const DEFAULT_HOST: &str = "registry.ollama.ai";
/// The namespace of a name that gives none.
pub const DEFAULT_NAMESPACE: &str = "library";
/// The tag of a name that gives none.
pub const DEFAULT_TAG: &str = "latest";

/// A valid, fully qualified name. Its parts keep the case they were given in; two names that
/// differ only in case are one model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    host: String,
    namespace: String,
    model: String,
    tag: String,
}

/// The parts of a name, with what each may be made of (Ollama's rules).
struct Field {
    what: &'static str,
    longest: usize,
    punctuation: &'static str,
}

const HOST: Field = Field { what: "host", longest: 350, punctuation: "-_.:" };
const NAMESPACE: Field = Field { what: "namespace", longest: 80, punctuation: "-_" };
const MODEL: Field = Field { what: "model", longest: 80, punctuation: "-_." };
const TAG: Field = Field { what: "tag", longest: 80, punctuation: "-_." };

impl Field {
    fn check(&self, text: &str) -> Result<(), String> {
        let what = self.what;
        let Some(first) = text.chars().next() else {
            return Err(format!("its {what} is empty"));
        };
        if text.len() > self.longest {
            return Err(format!("its {what} has more than {} characters", self.longest));
        }
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !word(first) {
            return Err(format!("its {what} begins with {first:?}"));
        }
        match text.chars().find(|&c| !word(c) && !self.punctuation.contains(c)) {
            Some(odd) => Err(format!("its {what} contains {odd:?}")),
            None => Ok(()),
        }
    }
}

impl Name {
    /// Reads a name as a person gives it; parts that are left out get their defaults.
    pub fn parse(given: &str) -> Result<Name, Fault> {
        let bare = given.split_once("://").map_or(given, |(_, rest)| rest);
        let (path, last) = match bare.rsplit_once('/') {
            Some((path, last)) => (Some(path), last),
            None => (None, bare),
        };
        let (model, tag) = last.split_once(':').unwrap_or((last, DEFAULT_TAG));
        let (host, namespace) = match path {
            None => (DEFAULT_HOST, DEFAULT_NAMESPACE),
            Some(path) => path.rsplit_once('/').unwrap_or((DEFAULT_HOST, path)),
        };
        Name::from_parts(host, namespace, model, tag).map_err(|why| {
            Fault::new(Code::BadName, format!("\"{given}\" is not a name for a model: {why}")).help(
                "a name is [host/][namespace/]model[:tag], each of letters, digits, '-', '_' and \
                 (not in the namespace) '.', e.g. smollm2:int4",
            )
        })
    }

    /// A name from its parts, each checked; the error says what is wrong with which.
    pub fn from_parts(host: &str, namespace: &str, model: &str, tag: &str) -> Result<Name, String> {
        HOST.check(host)?;
        NAMESPACE.check(namespace)?;
        MODEL.check(model)?;
        TAG.check(tag)?;
        let [host, namespace, model, tag] = [host, namespace, model, tag].map(str::to_owned);
        Ok(Name { host, namespace, model, tag })
    }

    /// The manifest's path below `manifests/`.
    pub fn path(&self) -> PathBuf {
        [&self.host, &self.namespace, &self.model, &self.tag].iter().collect()
    }

    /// Whether both name one model: equal but for case.
    pub fn same(&self, other: &Name) -> bool {
        self.to_string().eq_ignore_ascii_case(&other.to_string())
    }

    /// The tag.
    pub fn tag(&self) -> &str {
        &self.tag
    }
}

/// The shortest form: default hosts and namespaces are left out, the tag is always there.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own_host = !self.host.eq_ignore_ascii_case(DEFAULT_HOST);
        if own_host {
            write!(f, "{}/", self.host)?;
        }
        if own_host || !self.namespace.eq_ignore_ascii_case(DEFAULT_NAMESPACE) {
            write!(f, "{}/", self.namespace)?;
        }
        write!(f, "{}:{}", self.model, self.tag)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_fill_what_is_left_out() {
        let path = |given: &str| Name::parse(given).unwrap().path().display().to_string();
        assert_eq!(path("m"), "registry.ollama.ai/library/m/latest");
        assert_eq!(path("m:x"), "registry.ollama.ai/library/m/x");
        assert_eq!(path("me/m"), "registry.ollama.ai/me/m/latest");
        assert_eq!(path("localhost:5000/me/m.1:q4"), "localhost:5000/me/m.1/q4");
        assert_eq!(path("https://example.com/a/b"), "example.com/a/b/latest");
    }

    #[test]
    fn names_are_shown_as_short_as_they_go_and_read_back() {
        for (given, shown) in [
            ("m", "m:latest"),
            ("library/m:x", "m:x"),
            ("me/m", "me/m:latest"),
            ("example.com/library/m", "example.com/library/m:latest"),
        ] {
            let name = Name::parse(given).unwrap();
            assert_eq!(name.to_string(), shown);
            assert_eq!(Name::parse(shown).unwrap(), name);
        }
        assert!(Name::parse("Mistral").unwrap().same(&Name::parse("mistral:LATEST").unwrap()));
    }

    #[test]
    fn what_could_leave_the_store_or_confuse_is_refused() {
        let long = "x".repeat(81);
        for bad in [
            "", ".", "..", "../m", "a/../m", "m:", ":x", "a//m", "/m", "m/", "-m", ".m", "a b",
            "m:x y", "a.b/m", "h/a/b/m", "m:x:y", "m\\x", "é", "m\n", &long,
        ] {
            let fault = Name::parse(bad).expect_err(bad);
            assert_eq!(fault.code, Code::BadName, "{bad}");
        }
    }
}
