//! modelfile: the text of a Modelfile in, a typed [`Modelfile`] out, and back.
//!
//! The language is Ollama's: one command a line, in any case; `#` begins a comment line; a value
//! may be quoted with `"` or `"""`, and then spans lines. [`scan`] cuts the text into commands,
//! this file gives them types. All faults of a text are reported at once, each with its place.

mod params;
mod scan;
mod write;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use params::{Parameter, Value};

use crate::fault::{Code, Fault, Faults, Text, Warning};
use crate::format::nearest;
use scan::Raw;

/// What a Modelfile says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Modelfile {
    /// `FROM`: a folder, or a model in the store.
    pub from: Spanned,
    /// `DRAFT`: the folder of a draft.
    pub draft: Option<Spanned>,
    /// `TEMPLATE`, as given.
    pub template: Option<Spanned>,
    /// `SYSTEM`.
    pub system: Option<String>,
    /// Each `LICENSE`.
    pub licenses: Vec<String>,
    /// `PARSER`.
    pub parser: Option<Spanned>,
    /// `RENDERER`.
    pub renderer: Option<Spanned>,
    /// `REQUIRES`: a semantic version, without a `v`.
    pub requires: Option<String>,
    /// Each `PARAMETER`, by name.
    pub parameters: Parameters,
    /// Each `MESSAGE`, in order.
    pub messages: Vec<Message>,
    /// What was passed over.
    pub warnings: Vec<Warning>,
}

/// Parameters by name, as the store keeps them.
pub type Parameters = BTreeMap<String, Value>;

/// A value and its place in the text; the place plays no part in comparisons.
#[derive(Clone, Debug, Default)]
pub struct Spanned {
    /// The value.
    pub value: String,
    /// Its bytes in the text.
    pub span: Range<usize>,
}

impl Spanned {
    /// The value alone.
    pub fn text(&self) -> String {
        self.value.clone()
    }
}

impl PartialEq for Spanned {
    fn eq(&self, other: &Spanned) -> bool {
        self.value == other.value
    }
}

impl<T: Into<String>> From<T> for Spanned {
    fn from(value: T) -> Spanned {
        Spanned { value: value.into(), span: 0..0 }
    }
}

/// A turn of a conversation that every conversation begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The instructions.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl Role {
    const ALL: [(&'static str, Role); 3] =
        [("system", Role::System), ("user", Role::User), ("assistant", Role::Assistant)];

    fn as_str(self) -> &'static str {
        Role::ALL.iter().find(|(_, role)| *role == self).map_or("", |(text, _)| text)
    }
}

/// The commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    From,
    Draft,
    Template,
    System,
    License,
    Parser,
    Renderer,
    Requires,
    Parameter,
    Message,
    Adapter,
}

const COMMANDS: [(&str, Command); 11] = [
    ("FROM", Command::From),
    ("DRAFT", Command::Draft),
    ("TEMPLATE", Command::Template),
    ("SYSTEM", Command::System),
    ("LICENSE", Command::License),
    ("PARSER", Command::Parser),
    ("RENDERER", Command::Renderer),
    ("REQUIRES", Command::Requires),
    ("PARAMETER", Command::Parameter),
    ("MESSAGE", Command::Message),
    ("ADAPTER", Command::Adapter),
];

impl Modelfile {
    /// Reads a Modelfile.
    pub fn parse(text: &Arc<Text>) -> Result<Modelfile, Faults> {
        let mut reader =
            Reader { text, out: Modelfile::default(), faults: Faults::default(), from: false };
        let (raws, unfinished) = scan::scan(&text.body);
        for raw in &raws {
            if let Err(fault) = reader.command(raw) {
                reader.faults.push(fault);
            }
        }
        let unfinished_quote = unfinished.is_some();
        if let Some(span) = unfinished {
            reader.faults.push(
                Fault::new(Code::Modelfile, "this quotation is never closed")
                    .help("end it with the same quotes, \" or \"\"\", as the last of a line")
                    .at(text, span),
            );
        }
        // The rest of an unclosed quotation may well hold the FROM.
        if !reader.from && !unfinished_quote {
            reader.faults.push(
                Fault::new(Code::Modelfile, "the Modelfile has no FROM")
                    .in_file(&text.name)
                    .help("add a line FROM with a model folder, or a model of `lathe list`"),
            );
        }
        let Reader { out, faults, .. } = reader;
        faults.or(out)
    }
}

struct Reader<'a> {
    text: &'a Arc<Text>,
    out: Modelfile,
    faults: Faults,
    from: bool,
}

impl Reader<'_> {
    fn command(&mut self, raw: &Raw) -> Result<(), Fault> {
        let known = COMMANDS.iter().find(|(name, _)| name.eq_ignore_ascii_case(&raw.command));
        let Some(&(name, command)) = known else {
            return Err(self.unknown_command(raw));
        };
        if raw.value.is_empty() && !raw.quoted {
            return Err(Fault::new(Code::Modelfile, format!("{name} has no value"))
                .help(format!("write it after the command: {name} …"))
                .at(self.text, raw.command_span.clone()));
        }
        match command {
            Command::From => {
                let twice = std::mem::replace(&mut self.from, true);
                self.once(name, raw, twice)?;
                self.out.from = raw.spanned();
            }
            Command::Draft => {
                self.once(name, raw, self.out.draft.is_some())?;
                self.out.draft = Some(raw.spanned());
            }
            Command::Template => self.out.template = Some(raw.spanned()),
            Command::System => self.out.system = Some(raw.value.clone()),
            Command::License => self.out.licenses.push(raw.value.clone()),
            Command::Parser => self.out.parser = Some(raw.spanned()),
            Command::Renderer => self.out.renderer = Some(raw.spanned()),
            Command::Requires => self.out.requires = Some(self.version(raw)?),
            Command::Parameter => self.parameter(raw)?,
            Command::Message => {
                let message = self.message(raw)?;
                self.out.messages.push(message);
            }
            Command::Adapter => {
                return Err(Fault::new(
                    Code::Unsupported,
                    "lathe cannot apply adapters (LoRA) yet",
                )
                .help("merge the adapter into the model first, and give the merged folder to FROM")
                .at(self.text, raw.command_span.clone()));
            }
        }
        Ok(())
    }

    fn unknown_command(&self, raw: &Raw) -> Fault {
        let given = raw.command.to_uppercase();
        let names = COMMANDS.map(|(name, _)| name);
        let near = nearest(&given, names.into_iter());
        let help = match near {
            Some(near) => format!("did you mean {near}?"),
            None => format!("the commands are {}; a comment begins with #", names.join(", ")),
        };
        Fault::new(Code::Modelfile, format!("unknown command \"{}\"", raw.command))
            .help(help)
            .at(self.text, raw.command_span.clone())
    }

    fn once(&self, name: &str, raw: &Raw, twice: bool) -> Result<(), Fault> {
        if !twice {
            return Ok(());
        }
        Err(Fault::new(Code::Modelfile, format!("a second {name}"))
            .help(format!("a Modelfile has one {name}; remove the other"))
            .at(self.text, raw.command_span.clone()))
    }

    /// A semantic version. `v0.14` and the like are filled up, as Ollama does.
    fn version(&self, raw: &Raw) -> Result<String, Fault> {
        let bare = raw.value.trim().trim_start_matches('v');
        let core = bare.split(['-', '+']).next().unwrap_or(bare);
        let missing = 2_usize.saturating_sub(core.matches('.').count());
        let full = format!("{core}{}{}", ".0".repeat(missing), &bare[core.len()..]);
        match semver::Version::parse(&full) {
            Ok(version) => Ok(version.to_string()),
            Err(error) => Err(Fault::new(
                Code::Modelfile,
                format!("\"{}\" is not a version: {error}", raw.value),
            )
            .help("REQUIRES takes a semantic version, e.g. 0.14.0")
            .at(self.text, raw.value_span.clone())),
        }
    }

    fn parameter(&mut self, raw: &Raw) -> Result<(), Fault> {
        let (name, value) =
            self.two(raw, "PARAMETER takes a name and a value, e.g. temperature 0.7")?;
        let key = name.value.to_lowercase();
        if Parameter::is_ignored(&key) {
            let message = format!("PARAMETER {key} has no effect any more and was passed over");
            self.out.warnings.push(Warning::new(Code::Modelfile, message));
            return Ok(());
        }
        let Some(parameter) = Parameter::named(&key) else {
            let near = nearest(&key, params::names());
            let help = match near {
                Some(near) => format!("did you mean {near}?"),
                None => {
                    format!("the parameters are {}", params::names().collect::<Vec<_>>().join(", "))
                }
            };
            let what = format!("unknown parameter \"{}\"", name.value);
            return Err(Fault::new(Code::Modelfile, what).help(help).at(self.text, name.span));
        };
        let typed = parameter.read(&value.value).map_err(|why| {
            Fault::new(Code::Modelfile, format!("{key} takes {why}, not \"{}\"", value.value))
                .help(parameter.help)
                .at(self.text, value.span)
        })?;
        match (self.out.parameters.get_mut(&key), typed) {
            (Some(Value::Texts(all)), Value::Texts(more)) => all.extend(more),
            (_, typed) => drop(self.out.parameters.insert(key, typed)),
        }
        Ok(())
    }

    fn message(&self, raw: &Raw) -> Result<Message, Fault> {
        let (role, content) = self.two(raw, "MESSAGE takes a role and a text, e.g. user Hello")?;
        let found = Role::ALL.iter().find(|(name, _)| role.value.eq_ignore_ascii_case(name));
        match found {
            Some(&(_, role)) => Ok(Message { role, content: content.value }),
            None => Err(Fault::new(Code::Modelfile, format!("unknown role \"{}\"", role.value))
                .help("a message is by system, user or assistant")
                .at(self.text, role.span)),
        }
    }

    /// The two values of a command that takes two.
    fn two(&self, raw: &Raw, help: &str) -> Result<(Spanned, Spanned), Fault> {
        raw.split().ok_or_else(|| {
            let what = format!("{} lacks its second value", raw.command.to_uppercase());
            Fault::new(Code::Modelfile, what).help(help).at(self.text, raw.value_span.clone())
        })
    }
}

#[cfg(test)]
mod tests;
