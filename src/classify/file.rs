//! The typed form of `policies/sources/*.yaml`: one producer's layout a file.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::dtype::Dtype;
use crate::op::Packed;

/// A producer's layout of a quantized weight: what identifies it, what belongs to it, and what
/// becomes of it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceFile {
    /// Name of the layout, as plans show it.
    pub name: String,
    /// The program that writes it, as `show --quant` names it.
    pub producer: Option<String>,
    /// Paths of the config where the program's own name may stand; it wins over `producer`.
    #[serde(default)]
    pub producer_from: Vec<String>,
    /// What the layout is, in a line or two.
    pub because: String,
    /// Config paths and the values that they must have for the layout to be thought of.
    #[serde(default)]
    pub when: IndexMap<String, String>,
    /// Names in shape patterns whose values the config tells.
    #[serde(default, rename = "let")]
    pub lets: Vec<Let>,
    /// The tensor that holds the weight.
    pub weight: Main,
    /// What must or may stand beside it, under names of the author's choice.
    #[serde(default)]
    pub companions: IndexMap<String, Companion>,
    /// Suffixes of what may stand beside it and is not written.
    #[serde(default)]
    pub consumed: Vec<String>,
    /// The bytes are kept.
    pub keep: Option<Keep>,
    /// The floats are decoded from 8-bit floats.
    pub decode: Option<Decode>,
    /// The integers are re-expressed as MLX affine, or decoded where that cannot be exact.
    pub integers: Option<Integers>,
    /// Inputs and outputs of stacked weights may have changed places, and which it is must be
    /// proven by the sizes that the config tells (`sides` of claims.yaml).
    #[serde(default)]
    pub turnable: bool,
    /// The layout is refused, with these words.
    pub refuse: Option<String>,
}

/// Names whose values the config tells.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Let {
    /// The names, e.g. `[rows, cols]`.
    pub names: Vec<String>,
    /// Config paths to a number, or to a list with one number for each name. In a path, `*` is any
    /// key or index, `{a,b}` picks several keys into a list, `<b>` is the weight's name without
    /// its suffix; a path that begins with `scheme.` starts at the config group that targets the
    /// weight, one with `quant_config.` at the producer's file beside config.json.
    #[serde(default)]
    pub config: Vec<String>,
    /// Tried after what the config tells.
    #[serde(default)]
    pub default: Vec<Vec<u64>>,
}

/// One value or several.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    /// One.
    One(T),
    /// Several, each of which will do.
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// All of them.
    pub fn as_slice(&self) -> &[T] {
        match self {
            OneOrMany::One(one) => std::slice::from_ref(one),
            OneOrMany::Many(many) => many,
        }
    }
}

/// The tensor that holds a weight.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Main {
    /// What its name ends in; empty for a bare name.
    pub suffix: OneOrMany<String>,
    /// Its dtype.
    pub dtype: OneOrMany<Dtype>,
    /// Its shape, e.g. `[*, out, in/2]`: numbers, names, `*` for leading axes.
    pub shape: String,
}

/// A tensor beside a weight.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Companion {
    /// What its name ends in; the first that is there counts.
    pub suffix: Option<OneOrMany<String>>,
    /// Where it is when it serves several weights.
    #[serde(default)]
    pub shared: Vec<Shared>,
    /// Its dtype.
    pub dtype: OneOrMany<Dtype>,
    /// Shapes that it may have.
    pub shape: OneOrMany<String>,
    /// Whether the layout stands without it.
    #[serde(default)]
    pub optional: bool,
    /// What its numbers must satisfy (read from the weights, where there are any).
    pub check: Option<Check>,
    /// Whether it may be dropped when its weight turns out to be plain floats.
    #[serde(default = "yes")]
    pub droppable: bool,
}

fn yes() -> bool {
    true
}

/// A companion that serves several weights (experts), each taking its own run of it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shared {
    /// Regular expression over the weight's name without its suffix; the group `index` is the
    /// weight's place on the companion's first axis.
    pub of: String,
    /// The companion's name, with `$group` for captures.
    pub name: String,
    /// Which equal part of the second axis is taken, from 0, and how many there are.
    pub part: Option<[u64; 2]>,
}

/// What the numbers of a companion must satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// Finite and greater than zero.
    Positive,
    /// Number i is i / group: no permutation.
    Sequential,
    /// The numbers are the weight's shape.
    Shape,
}

/// The bytes are kept under MLX's labels.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Keep {
    /// A name of formats.toml, or `affine`: then `bits` and `group` of the patterns decide.
    pub format: String,
    /// The companion that holds the scales.
    pub scale: String,
    /// The companion that holds the biases.
    pub bias: Option<String>,
    /// The companion that holds the scale of the whole tensor.
    pub global_scale: Option<Global>,
    /// The blob metadata, where it differs from the format's own.
    pub metadata: Option<IndexMap<String, String>>,
}

/// A scale of the whole tensor.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Global {
    /// Values are multiplied by this companion: written as it is.
    Multiplies(String),
    /// Values are divided by it: its reciprocal is written.
    Divides(String),
}

/// 8-bit floats with scales.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decode {
    /// The companion that holds the scales (factors).
    pub scale: String,
    /// Rows and columns that share a scale: a name, a number, 0 for all.
    pub block: [Size; 2],
    /// The format that it gets when none is asked for.
    pub default: String,
}

/// A number, or a name of the shape patterns.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Size {
    /// A number.
    Number(u64),
    /// A name.
    Name(String),
}

/// Small integers with scales.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Integers {
    /// How they are packed.
    pub packed: Packed,
    /// Bits of one.
    pub bits: Size,
    /// Inputs that share a scale; 0 for all.
    pub group: Size,
    /// The companion that holds the scales.
    pub scale: String,
    /// The companion that holds zero points.
    pub zero: Option<String>,
    /// How zero points are packed, where it differs from the weight.
    pub zero_packed: Option<Packed>,
    /// Whether zero points are stored less one.
    #[serde(default)]
    pub zero_less_one: bool,
    /// The companion that holds factors of the inputs.
    pub input_scale: Option<String>,
}

/// The typed form of `policies/sources/claims.yaml`: where configs claim what is quantized.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimsFile {
    /// What this is.
    pub because: String,
    /// Paths to lists of modules (names, `re:` regular expressions, globs) left unquantized.
    pub ignored: Vec<String>,
    /// Paths to lists (or the keys of objects) of modules that are quantized.
    pub targeted: Vec<String>,
    /// Paths to config groups: objects with `targets`, which `let` calls `scheme`.
    pub schemes: Vec<String>,
    /// Words that name a class of modules rather than a module.
    pub classes: Vec<String>,
    /// Names of tensors that are no module of these classes, as globs.
    pub classless: Vec<String>,
    /// Leading words on which producers disagree, such as `model.language_model.`.
    pub prefixes: Vec<String>,
    /// Paths to objects some of whose keys are modules with settings of their own.
    pub overrides: Vec<String>,
    /// What configs name out of habit, as globs: nothing is said where the folder lacks it.
    pub habitual: Vec<String>,
    /// Sizes by name of the author's choice: config paths, any of which may hold it.
    pub sizes: IndexMap<String, Vec<String>>,
    /// What the sides of stacked weights are; the first that matches counts.
    pub sides: Vec<Side>,
}

/// The typed form of `policies/sources/quantizers.yaml`: what configs call the program that
/// quantized the weights.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuantizersFile {
    /// What this is.
    pub because: String,
    /// Config paths where the program's name may stand; the first that is there counts.
    pub claims: Vec<String>,
    /// What to take in place of weights that cannot be read.
    pub instead: String,
    /// Names whose weights the layouts recognise.
    pub read: Vec<String>,
    /// Programs whose weights cannot be read.
    pub refused: Vec<Quantizer>,
}

/// A program whose weights cannot be read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quantizer {
    /// The name that its users know.
    pub name: String,
    /// What configs call it.
    pub methods: Vec<String>,
    /// Globs over names of tensors that only it writes.
    pub marks: Vec<String>,
    /// What its tensors hold, in a few words.
    pub holds: String,
}

/// The sides of stacked weights of one kind.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Side {
    /// Regular expression over the whole name without its suffix.
    pub of: String,
    /// The size of the inputs.
    #[serde(rename = "in")]
    pub inputs: String,
    /// The size of the outputs.
    #[serde(rename = "out")]
    pub outputs: String,
    /// How many times that size there are outputs.
    #[serde(default = "once")]
    pub times: u64,
}

fn once() -> u64 {
    1
}
