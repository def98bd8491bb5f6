//! What can go wrong, said so that it can be mended.
//!
//! Every room reports [`Fault`]s: a stable code, what is wrong, where (file, tensor, span in a
//! policy text) and what to do. Rooms that can find several at once return [`Faults`]. The command
//! line shows them with miette, or as JSON; nothing else formats errors.

mod alike;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use miette::{
    Diagnostic, LabeledSpan, MietteError, MietteSpanContents, Severity, SourceCode, SourceSpan,
    SpanContents,
};
use serde::Serialize;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// The stable codes of all faults and warnings, kebab-case, listed here and nowhere else.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $($(#[doc = $doc])+ $name,)+ }

        impl Code {
            /// All codes, in the order of this list.
            pub const ALL: &'static [Code] = &[$(Code::$name,)+];

            /// The code as printed, e.g. `unknown-format`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)+ }
            }

            /// What the code means, in one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Code::$name => concat!($($doc),+),)+ }
            }
        }
    };
}

codes! {
    // read
    /// The source folder does not exist or cannot be listed.
    NoSuchFolder = "no-such-folder",
    /// The folder has no config.json.
    NoConfig = "no-config",
    /// config.json cannot be understood.
    BadConfig = "bad-config",
    /// The folder has no safetensors weights, or several sets of them.
    NoWeights = "no-weights",
    /// An image-generation (diffusers) folder, which is out of scope.
    ImageModel = "image-model",
    /// What was given is a file of a model, an adapter, a cache or another program's weights.
    NotAModel = "not-a-model",
    /// A file of the folder stands for one that was not downloaded.
    NotDownloaded = "not-downloaded",
    /// The shard index is invalid or disagrees with the shards.
    BadIndex = "bad-index",
    /// A shard named by the index or by its siblings is missing.
    MissingShard = "missing-shard",
    /// A safetensors header is invalid.
    BadHeader = "bad-header",
    /// A tensor's dtype is unknown.
    UnknownDtype = "unknown-dtype",
    /// A tensor's shape, byte range and dtype do not fit each other.
    BadTensor = "bad-tensor",
    /// A tensor is found twice.
    DuplicateTensor = "duplicate-tensor",
    /// A file cannot be read or written.
    Io = "io",
    // policies
    /// A policy text is not valid YAML or TOML, or has unknown or missing keys.
    PolicySyntax = "policy-syntax",
    /// A policy names a set, format, symbol, schedule or parent that does not exist.
    PolicyName = "policy-name",
    /// A glob or regular expression does not compile.
    PolicyPattern = "policy-pattern",
    /// A CEL expression does not compile or has the wrong type.
    PolicyExpression = "policy-expression",
    /// The policy that a model carries is of a later version than this lathe reads.
    NewerPolicy = "newer-policy",
    /// No policy matches the architecture.
    NoPolicy = "no-policy",
    /// A format name is unknown.
    UnknownFormat = "unknown-format",
    /// A `let` value read from the config has the wrong type.
    BadValue = "bad-value",
    // classify and plan
    /// A quantized tensor lacks a companion, or a companion lacks its tensor.
    Companion = "companion",
    /// A companion's dtype or shape does not fit its tensor.
    BadScale = "bad-scale",
    /// A layout that lathe refuses by name.
    Unsupported = "unsupported",
    /// The tensor is already quantized and --requantize was not given.
    AlreadyQuantized = "already-quantized",
    /// Two outputs would have one name.
    NameCollision = "name-collision",
    /// Experts have gaps, differ in shape or dtype, or are uneven.
    BadExperts = "bad-experts",
    /// No rule of a strict policy covers the tensor.
    Uncovered = "uncovered",
    /// A plan does not fit the folder that it is applied to.
    StalePlan = "stale-plan",
    /// The draft does not fit its target.
    DraftMisfit = "draft-misfit",
    // warnings
    /// The config's claims and the tensors disagree; the tensors win.
    ConfigDisagrees = "config-disagrees",
    /// A companion that nothing needs is dropped.
    StrayCompanion = "stray-companion",
    /// The config makes the embedding the head, and the model has another head.
    TiedHead = "tied-head",
    /// Biases of zeros that the model has no place for are left out.
    ZeroBias = "zero-bias",
    /// Scales or biases of a quantized weight are NaN or infinite.
    NotFinite = "not-finite",
    /// The tensor is re-quantized with loss.
    Requantized = "re-quantized",
    /// Less than half of the weights that a format was asked for are quantized.
    LittleQuantized = "little-quantized",
    /// Ollama cannot read this format.
    OllamaCannotRead = "ollama-cannot-read",
    /// The model has no chat template that lathe can use.
    NoChatTemplate = "no-chat-template",
    /// A rule matched no tensor of the model.
    DeadRule = "dead-rule",
    /// The decoder is exact up to a length only, and refuses longer prompts.
    ExactContext = "exact-context",
    /// A key of the config is known to change what the model computes, and the decoder does not read it.
    UnreadConfig = "unread-config",
    /// An edited plan gives a tensor another format than the policy.
    Edited = "edited",
    /// Only the catch-all rule reached the tensor.
    CatchAll = "catch-all",
    // command line, Modelfile, store
    /// The command line or the Modelfile asks for something that makes no sense.
    Usage = "usage",
    /// The Modelfile cannot be understood.
    Modelfile = "modelfile",
    /// The name of a model is not valid.
    BadName = "bad-name",
    /// No model of that name is in the store.
    NoSuchModel = "no-such-model",
    /// The store cannot be written, is damaged, or is in use.
    Store = "store",
    /// A blob's bytes do not have the digest that names it.
    CorruptBlob = "corrupt-blob",
    /// Not enough space on the disk.
    NoSpace = "no-space",
    /// A decoder description does not fit the model that it is to run.
    Decoder = "decoder",
    /// What config.json says of the network has more than one meaning.
    Ambiguous = "ambiguous",
    /// The policy of the architecture says nothing of its decoder: the model only imports.
    NoDecoder = "no-decoder",
    /// A vocabulary cannot be understood, or a text cannot be tokenized.
    Tokenizer = "tokenizer",
    /// The chat template cannot be understood, or refuses the conversation.
    Template = "template",
    /// A parser of answers is unknown or cannot be understood.
    AnswerParser = "answer-parser",
    /// The prompt is longer than the model was trained for.
    ContextTooLong = "context-too-long",
    /// The model that was made does not predict text as a language model does.
    SmokeCheck = "smoke-check",
    /// A file of scenarios for the controller of drafts cannot be understood.
    Scenario = "scenario",
    /// An operation on tensors failed.
    Compute = "compute",
    /// The feature was left out of this build.
    NotBuilt = "not-built",
    /// The user interrupted the work.
    Interrupted = "interrupted",
    /// A bug in lathe.
    Internal = "internal",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// A text that faults can point into: a policy file, a Modelfile, a config.
#[derive(Clone, Debug)]
pub struct Text {
    /// What the user calls it: a path, or `built-in:architectures/llama.yaml`.
    pub name: String,
    /// The whole text.
    pub body: String,
}

impl Text {
    /// Line and column, both from 1, of a byte offset.
    pub fn line_column(&self, offset: usize) -> (usize, usize) {
        let before = &self.body[..floor_char(&self.body, offset)];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        (line, column)
    }
}

impl Text {
    /// Byte offset of a line and column, both from 1, the column in characters.
    pub fn offset(&self, line: usize, column: usize) -> usize {
        let lines = self.body.split_inclusive('\n').take(line.saturating_sub(1));
        let start: usize = lines.map(str::len).sum();
        let rest = &self.body[start..];
        start + rest.char_indices().nth(column.saturating_sub(1)).map_or(rest.len(), |(at, _)| at)
    }
}

/// Longer lines are shown in part: a JSON file may be one line.
const LONGEST_LINE: usize = 200;

/// The lines around a span, under the text's own name.
impl SourceCode for Text {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        before: usize,
        after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let found = self.body.read_span(span, before, after)?;
        let widest = found.data().split(|&byte| byte == b'\n').map(<[u8]>::len).max();
        if widest.unwrap_or(0) <= LONGEST_LINE {
            let (data, lines) = (found.data(), found.line_count());
            let (line, column) = (found.line(), found.column());
            let shown = *found.span();
            let name = self.name.clone();
            return Ok(Box::new(MietteSpanContents::new_named(
                name, data, shown, line, column, lines,
            )));
        }
        let line_start =
            self.body[..floor_char(&self.body, span.offset())].rfind('\n').map_or(0, |at| at + 1);
        let start =
            floor_char(&self.body, span.offset().saturating_sub(LONGEST_LINE / 2).max(line_start));
        let rest = &self.body[start..];
        let end = start + rest.find('\n').unwrap_or(rest.len());
        let end = floor_char(&self.body, end.min(span.offset() + LONGEST_LINE / 2)).max(start);
        let line = self.line_column(start).0 - 1;
        let data = &self.body.as_bytes()[start..end];
        let shown = SourceSpan::new(start.into(), end - start);
        Ok(Box::new(MietteSpanContents::new_named(
            self.name.clone(),
            data,
            shown,
            line,
            start - line_start,
            1,
        )))
    }
}

fn floor_char(text: &str, offset: usize) -> usize {
    let mut at = offset.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// A range of bytes in a [`Text`].
#[derive(Clone, Debug)]
pub struct Place {
    /// The text pointed into.
    pub text: Arc<Text>,
    /// Byte range in `text.body`.
    pub span: std::ops::Range<usize>,
}

/// One thing that is wrong (or, as a warning, worth knowing).
#[derive(Clone, Debug, Serialize)]
pub struct Fault {
    /// Stable code.
    pub code: Code,
    /// What is wrong, in one sentence without a final full stop.
    pub message: String,
    /// The file it is in, when it is about a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The tensor it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
    /// Other tensors of which the same is true; [`Faults::grouped`] gathers them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// Where in a text.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "serialize_place")]
    pub place: Option<Place>,
}

fn serialize_place<S: serde::Serializer>(place: &Option<Place>, s: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct At<'a> {
        file: &'a str,
        line: usize,
        column: usize,
    }
    match place {
        None => s.serialize_none(),
        Some(place) => {
            let (line, column) = place.text.line_column(place.span.start);
            At { file: &place.text.name, line, column }.serialize(s)
        }
    }
}

impl Fault {
    /// A fault that says what is wrong; add where and what to do with the other methods.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Fault {
            code,
            message: message.into(),
            file: None,
            tensor: None,
            others: Vec::new(),
            help: None,
            place: None,
        }
    }

    /// Names the file that it is about.
    pub fn in_file(mut self, file: impl AsRef<Path>) -> Self {
        self.file = Some(file.as_ref().to_path_buf());
        self
    }

    /// Names the tensor that it is about.
    pub fn on_tensor(mut self, tensor: impl Into<String>) -> Self {
        self.tensor = Some(tensor.into());
        self
    }

    /// Says what to do.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Points into a text.
    pub fn at(mut self, text: &Arc<Text>, span: std::ops::Range<usize>) -> Self {
        self.place = Some(Place { text: text.clone(), span });
        self
    }

    /// A failed operation of the file system on `path`.
    pub fn io(doing: &str, path: impl AsRef<Path>, error: &std::io::Error) -> Self {
        let path = path.as_ref();
        Fault::new(Code::Io, format!("cannot {doing} {}: {error}", path.display())).in_file(path)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lead = false;
        if let Some(file) = &self.file {
            let shown = file.display().to_string();
            if !self.message.contains(&shown) {
                write!(f, "{shown}: ")?;
                lead = true;
            }
        }
        if let Some(tensor) = &self.tensor
            && !self.message.contains(tensor.as_str())
        {
            write!(f, "{}{tensor}: ", if lead { "" } else { "tensor " })?;
        }
        f.write_str(&self.message)?;
        let count = self.others.len();
        let (named, rest) = self.others.split_at(count.min(alike::NAMED));
        match (count, rest.len()) {
            (0, _) => Ok(()),
            (1, _) => write!(f, "; the same of {}", named[0]),
            (_, 0) => write!(f, "; the same of {count} other tensors: {}", named.join(", ")),
            (_, more) => {
                let named = named.join(", ");
                write!(f, "; the same of {count} other tensors: {named} and {more} more")
            }
        }
    }
}

impl std::error::Error for Fault {}

impl Diagnostic for Fault {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.code))
    }

    fn severity(&self) -> Option<Severity> {
        Some(Severity::Error)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref().map(|place| &*place.text as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let place = self.place.as_ref()?;
        let length = place.span.end.saturating_sub(place.span.start);
        let span = SourceSpan::new(place.span.start.into(), length);
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(Some("here".into()), span))))
    }
}

/// A fault as miette displays it.
pub fn report(fault: Fault) -> miette::Report {
    miette::Report::new(fault)
}

/// One fault or more, found at once.
#[derive(Clone, Debug, Default)]
pub struct Faults(pub Vec<Fault>);

impl Faults {
    /// Adds one.
    pub fn push(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    /// `value` when nothing was found, else the faults.
    pub fn or<T>(self, value: T) -> Result<T, Faults> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }

    /// Takes the faults out of a result, keeping its value.
    pub fn absorb<T>(&mut self, result: Result<T, Faults>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(faults) => {
                self.0.extend(faults.0);
                None
            }
        }
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Faults(vec![fault])
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// Something the user should know that does not stop the work.
#[derive(Clone, Debug, Serialize, serde::Deserialize, PartialEq, Eq, schemars::JsonSchema)]
pub struct Warning {
    /// Stable code, one of [`Code`].
    pub code: String,
    /// What to know, in one sentence.
    pub message: String,
    /// The tensor it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
}

impl Warning {
    /// A warning with one of the stable codes.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Warning { code: code.as_str().into(), message: message.into(), tensor: None }
    }

    /// Names the tensor that it is about.
    pub fn on_tensor(mut self, tensor: impl Into<String>) -> Self {
        self.tensor = Some(tensor.into());
        self
    }
}
