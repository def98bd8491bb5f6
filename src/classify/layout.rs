//! Layout files, read and checked: what the interpreter works from.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use regex::Regex;

use super::dims::Pattern;
use super::file::{
    ClaimsFile, Companion, Decode, Global, Integers, Keep, QuantizersFile, Size, SourceFile,
};
use super::paths::ConfigPath;
use crate::built_in::{self, policy_files};
use crate::document::{Document, Step};
use crate::dtype::Dtype;
use crate::fault::{Code, Fault, Faults};
use crate::format::Formats;
use crate::op::Packed;
use crate::path;
use crate::rule::RuleRef;

/// Index into [`Layouts::suffixes`].
pub type Suffix = u16;

const CLAIMS: &str = "sources/claims.yaml";
const QUANTIZERS: &str = "sources/quantizers.yaml";

/// All layouts that are known.
#[derive(Debug)]
pub struct Layouts {
    /// The layouts, in the order in which they are tried.
    pub layouts: Vec<Layout>,
    /// Every suffix that some layout knows.
    pub suffixes: Vec<String>,
    /// By suffix: how it is found again.
    by_text: HashMap<String, Suffix>,
    /// Suffixes that do not begin with a dot.
    undotted: Vec<Suffix>,
    /// Where configs claim what is quantized.
    pub claims: ClaimsFile,
    /// What configs call the programs that quantize.
    pub quantizers: QuantizersFile,
}

/// One layout.
#[derive(Debug)]
pub struct Layout {
    /// The file's contents.
    pub file: SourceFile,
    /// Its name.
    pub name: Arc<str>,
    /// The rule that plans show.
    pub rule: Arc<RuleRef>,
    /// Suffixes of the weight.
    pub weight: Vec<Suffix>,
    /// Shape of the weight.
    pub shape: Pattern,
    /// What stands beside it.
    pub parts: Vec<Beside>,
    /// What is consumed.
    pub consumed: Vec<Suffix>,
    /// The `let` entries' paths.
    pub lets: Vec<Vec<ConfigPath>>,
    /// The `when` conditions.
    pub when: Vec<(ConfigPath, String)>,
    /// Where the producer's name may stand.
    pub producer_from: Vec<ConfigPath>,
}

/// A companion.
#[derive(Debug)]
pub struct Beside {
    /// What the author calls it.
    pub name: String,
    /// The file's contents.
    pub spec: Companion,
    /// Its suffixes, the first that is there counts.
    pub suffixes: Vec<Suffix>,
    /// Shapes that it may have.
    pub shapes: Vec<Pattern>,
    /// Where it is when it serves several weights: pattern, name, part.
    pub shared: Vec<(Regex, String, Option<[u64; 2]>)>,
}

impl Layout {
    /// Index of the companion that the author calls `name`; checked when the file was read.
    pub fn part(&self, name: &str) -> usize {
        self.parts.iter().position(|part| part.name == name).unwrap_or(0)
    }
}

impl Layouts {
    /// The layouts that are compiled in.
    pub fn built_in() -> &'static Layouts {
        static LAYOUTS: OnceLock<Layouts> = OnceLock::new();
        LAYOUTS.get_or_init(|| {
            let named =
                |&(file, text): &(&str, &str)| (format!("built-in:{file}"), text.to_string());
            let files: Vec<_> = built_in::SOURCES.iter().map(named).collect();
            Layouts::parse(&files).expect("tested: the built-in layouts")
        })
    }

    /// The built-in layouts and those of policy folders' `sources`. A file replaces the one of the
    /// same name; a later folder wins. Nothing when no folder has any.
    ///
    /// # Errors
    /// Files that cannot be read; as [`Layouts::parse`].
    pub fn with_folders(folders: &[&Path]) -> Result<Option<Layouts>, Faults> {
        let mut own = BTreeMap::new();
        for folder in folders.iter().map(|folder| folder.join("sources")) {
            if !folder.is_dir() {
                continue;
            }
            for path in policy_files(&folder)? {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| Fault::io("read the layout", &path, &error))?;
                own.insert(format!("sources/{name}"), (path.display().to_string(), text));
            }
        }
        if own.is_empty() {
            return Ok(None);
        }
        for &(file, text) in built_in::SOURCES {
            let built_in = || (format!("built-in:{file}"), text.to_string());
            own.entry(file.to_string()).or_insert_with(built_in);
        }
        let files: Vec<_> = own.into_values().collect();
        Layouts::parse(&files).map(Some)
    }

    /// Reads layout files: their names for faults (with the folder), and their texts.
    ///
    /// # Errors
    /// Every fault of every file, each pointing at its line.
    pub fn parse(files: &[(String, String)]) -> Result<Layouts, Faults> {
        let mut faults = Faults::default();
        let (mut claims, mut quantizers) = (None, None);
        let mut layouts = Layouts {
            layouts: Vec::new(),
            suffixes: Vec::new(),
            by_text: HashMap::new(),
            undotted: Vec::new(),
            claims: ClaimsFile::default(),
            quantizers: QuantizersFile::default(),
        };
        for (name, body) in files {
            let document = Document::parse(name.clone(), body.clone());
            let Some(document) = faults.absorb(document.map_err(Faults::from)) else { continue };
            if name.ends_with(CLAIMS) {
                claims = faults.absorb(document.decode().map_err(Faults::from));
            } else if name.ends_with(QUANTIZERS) {
                quantizers = faults.absorb(document.decode().map_err(Faults::from));
            } else {
                faults.absorb(layouts.add(&document));
            }
        }
        layouts.claims = claims.unwrap_or_default();
        layouts.quantizers = quantizers.unwrap_or_default();
        // Longest first, so that `_weight_scale_2` is not taken for something that ends in `_2`.
        layouts.undotted = (0..layouts.suffixes.len() as Suffix)
            .filter(|&n| !layouts.suffixes[n as usize].is_empty())
            .filter(|&n| !layouts.suffixes[n as usize].starts_with('.'))
            .collect();
        layouts.undotted.sort_by_key(|&n| std::cmp::Reverse(layouts.suffixes[n as usize].len()));
        faults.or(layouts)
    }

    /// Splits a tensor's name into what it belongs to and the suffix that some layout knows.
    pub fn split<'n>(&self, name: &'n str) -> (&'n str, Option<Suffix>) {
        if let Some(dot) = name.rfind('.')
            && let Some(&suffix) = self.by_text.get(&name[dot..])
        {
            return (&name[..dot], Some(suffix));
        }
        for &suffix in &self.undotted {
            if let Some(base) = name.strip_suffix(&self.suffixes[suffix as usize])
                && !base.is_empty()
            {
                return (base, Some(suffix));
            }
        }
        (name, None)
    }

    /// A suffix by its text.
    pub fn suffix(&self, text: &str) -> Option<Suffix> {
        self.by_text.get(text).copied()
    }

    /// Whether some layout consumes tensors of this suffix: what only a producer's runtime needs.
    pub fn is_consumed(&self, suffix: Suffix) -> bool {
        self.layouts.iter().any(|layout| layout.consumed.contains(&suffix))
    }

    /// Whether a tensor of this suffix may be dropped when its weight is plain floats.
    pub fn is_droppable(&self, suffix: Suffix) -> bool {
        let mut parts = self.layouts.iter().flat_map(|layout| &layout.parts);
        parts.all(|part| part.spec.droppable || !part.suffixes.contains(&suffix))
    }

    /// Whether weights of some layout have this suffix.
    pub fn is_weight(&self, suffix: Suffix) -> bool {
        self.layouts.iter().any(|layout| layout.weight.contains(&suffix))
    }

    fn intern(&mut self, suffix: &str) -> Suffix {
        if let Some(&known) = self.by_text.get(suffix) {
            return known;
        }
        let new = self.suffixes.len() as Suffix;
        self.suffixes.push(suffix.into());
        self.by_text.insert(suffix.into(), new);
        new
    }

    fn add(&mut self, document: &Document) -> Result<(), Faults> {
        let file: SourceFile = document.decode()?;
        let mut faults = Faults::default();
        let shape = pattern(document, path!["weight", "shape"], &file.weight.shape, &mut faults);
        let weight = file.weight.suffix.as_slice().iter().map(|s| self.intern(s)).collect();
        let mut parts = Vec::new();
        let mut file = file;
        for (name, spec) in std::mem::take(&mut file.companions) {
            parts.push(self.beside(document, name, spec, &mut faults));
        }
        let consumed = file.consumed.iter().map(|suffix| self.intern(suffix)).collect();
        let rule = RuleRef {
            id: file.name.clone(),
            file: document.text.name.clone(),
            line: document.line(path!["name"]),
            because: file.because.clone(),
        };
        let paths = |paths: &[String]| paths.iter().map(|path| ConfigPath::parse(path)).collect();
        let layout = Layout {
            name: file.name.as_str().into(),
            rule: Arc::new(rule),
            weight,
            shape,
            lets: file.lets.iter().map(|entry| paths(&entry.config)).collect(),
            when: file.when.iter().map(|(p, v)| (ConfigPath::parse(p), v.clone())).collect(),
            producer_from: paths(&file.producer_from),
            parts,
            consumed,
            file,
        };
        check(document, &layout, &mut faults);
        self.layouts.push(layout);
        faults.or(())
    }

    fn beside(
        &mut self,
        document: &Document,
        name: String,
        spec: Companion,
        faults: &mut Faults,
    ) -> Beside {
        let at = |key: &str| [Step::from("companions"), Step::from(name.as_str()), Step::from(key)];
        let shapes = spec.shape.as_slice().iter();
        let shapes = shapes.map(|shape| pattern(document, &at("shape"), shape, faults)).collect();
        let suffixes = spec.suffix.iter().flat_map(|suffix| suffix.as_slice());
        let suffixes: Vec<Suffix> = suffixes.map(|suffix| self.intern(suffix)).collect();
        let mut shared = Vec::new();
        for entry in &spec.shared {
            match Regex::new(&format!("^(?:{})$", entry.of)) {
                Ok(regex) => shared.push((regex, entry.name.clone(), entry.part)),
                Err(error) => {
                    let fault =
                        document.fault(Code::PolicyPattern, &at("shared"), error.to_string());
                    faults.push(fault);
                }
            }
        }
        if suffixes.is_empty() && shared.is_empty() {
            let message = "a companion has a `suffix`, or is `shared`";
            faults.push(document.fault(Code::PolicySyntax, &at("suffix"), message));
        }
        Beside { name, spec, suffixes, shapes, shared }
    }
}

fn pattern(document: &Document, path: &[Step], text: &str, faults: &mut Faults) -> Pattern {
    Pattern::parse(text).unwrap_or_else(|message| {
        faults.push(document.fault(Code::PolicyPattern, path, message));
        Pattern::parse("[]").expect("an empty pattern is a pattern")
    })
}

/// Names that a file uses exist.
fn check(document: &Document, layout: &Layout, faults: &mut Faults) {
    let mut wrong = |path: &[Step], message: String| {
        faults.push(document.fault(Code::PolicyName, path, message));
    };
    let outcomes = [
        layout.file.keep.is_some(),
        layout.file.decode.is_some(),
        layout.file.integers.is_some(),
        layout.file.refuse.is_some(),
    ];
    if outcomes.iter().filter(|there| **there).count() != 1 {
        let message = "a layout has one of `keep`, `decode`, `integers` and `refuse`".to_string();
        wrong(path!["name"], message);
    }
    let mut companion = |section: &str, key: &str, name: &str| {
        if !layout.parts.iter().any(|part| part.name == name) {
            let message = format!("`{name}` is none of this layout's companions");
            wrong(&[Step::from(section), Step::from(key)], message);
        }
    };
    if let Some(Keep { scale, bias, global_scale, .. }) = &layout.file.keep {
        companion("keep", "scale", scale);
        if let Some(bias) = bias {
            companion("keep", "bias", bias);
        }
        if let Some(Global::Multiplies(name) | Global::Divides(name)) = global_scale {
            companion("keep", "global_scale", name);
        }
    }
    if let Some(Integers { scale, zero, input_scale, .. }) = &layout.file.integers {
        companion("integers", "scale", scale);
        if let Some(zero) = zero {
            companion("integers", "zero", zero);
        }
        if let Some(factors) = input_scale {
            companion("integers", "input_scale", factors);
        }
    }
    if let Some(Decode { scale, .. }) = &layout.file.decode {
        companion("decode", "scale", scale);
    }

    if let Some(Integers { packed, zero_packed, .. }) = &layout.file.integers {
        for (key, packed) in [("packed", Some(packed)), ("zero_packed", zero_packed.as_ref())] {
            if let Some(Err(message)) = packed.map(Packed::check) {
                wrong(path!["integers", key], message);
            }
        }
    }
    let format = |name: &str| name == "affine" || Formats::built_in().get(name).is_some();
    if let Some(keep) = &layout.file.keep
        && !format(&keep.format)
    {
        wrong(path!["keep", "format"], format!("no format is called `{}`", keep.format));
    }
    if let Some(decode) = &layout.file.decode
        && !format(&decode.default)
    {
        wrong(path!["decode", "default"], format!("no format is called `{}`", decode.default));
    }
    let bound = |name: &str| {
        let patterns =
            std::iter::once(&layout.shape).chain(layout.parts.iter().flat_map(|part| &part.shapes));
        let lets = layout.file.lets.iter().flat_map(|entry| &entry.names);
        patterns.flat_map(Pattern::names).any(|known| known == name)
            || lets.into_iter().any(|l| l == name)
    };
    let decode =
        layout.file.decode.iter().flat_map(|d| d.block.iter().map(|size| ("decode", size)));
    let integers = layout.file.integers.iter();
    let integers = integers.flat_map(|i| [("integers", &i.bits), ("integers", &i.group)]);
    for (section, size) in decode.chain(integers) {
        if let Size::Name(name) = size
            && !bound(name)
        {
            wrong(&[Step::from(section)], format!("no shape or `let` gives a value to `{name}`"));
        }
    }
    for (n, entry) in layout.file.lets.iter().enumerate() {
        if let Some(values) = entry.default.iter().find(|values| values.len() != entry.names.len())
        {
            let message = format!("{} values for {} names", values.len(), entry.names.len());
            wrong(path!["let", n, "default"], message);
        }
    }
}

impl Layout {
    /// Whether a weight may have this dtype.
    pub fn takes(&self, dtype: Dtype) -> bool {
        self.file.weight.dtype.as_slice().contains(&dtype)
    }
}
