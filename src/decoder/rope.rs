//! Rotary positions (Su et al. 2021): what a config says of them in, frequencies out.
//!
//! A head's first 2·n elements are rotated in pairs: pair i at position p by the angle p × f(i).
//! The kinds of [`KINDS`] differ in the frequencies f, and in a factor on the result. Of two of
//! them f depends on the length of the whole sequence: `dynamic` and `longrope`.
//!
//! What a config says has to have one meaning. Where a reader could take it in two ways, or takes
//! what `transformers` fails on, reading fails with both ([`Unclear`]).

pub mod description;
mod given;

use std::borrow::Cow;
use std::f64::consts::PI;

use indexmap::IndexMap;
use serde_json::Value as Json;

pub(super) use given::USUAL;
pub use given::{Given, Unclear};

/// A kind of rotation.
pub struct Kind {
    /// What `rope_type` calls it; the first name is the usual one.
    pub names: &'static [&'static str],
    /// What it is, for people.
    pub about: &'static str,
    /// The keys that it reads beside those of [`ALL_READ`].
    pub keys: &'static [&'static str],
    make: fn(&Given) -> Result<Rotation, Unclear>,
}

/// The kinds, and all that is said of them: errors, the schema and `docs/decoder.md` quote it.
pub const KINDS: &[Kind] = &[
    Kind {
        names: &["default", "mrope"],
        about: "f(i) = θ^(-2i/d) (Su et al. 2021); `mrope` is the same for text",
        keys: &["mrope_section", "mrope_interleaved"],
        make: |given| Ok(Rotation::of(given.plain()?)),
    },
    Kind {
        names: &["linear"],
        about: "all frequencies / `factor` (Chen et al. 2023)",
        keys: &["factor"],
        make: linear,
    },
    Kind {
        names: &["dynamic"],
        about: "beyond the trained length θ grows with the length of the sequence (NTK, 2023)",
        keys: &["factor"],
        make: dynamic,
    },
    Kind {
        names: &["llama3"],
        about: "low frequencies / `factor`, smoothly between (Llama 3.1, 2024)",
        keys: &["factor", "low_freq_factor", "high_freq_factor", ORIGINAL],
        make: llama3,
    },
    Kind {
        names: &["yarn"],
        about: "interpolated by a ramp over frequencies, and a factor on the result (Peng et al. 2023)",
        keys: &[
            "factor",
            ORIGINAL,
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ],
        make: yarn,
    },
    Kind {
        names: &["longrope", "su"],
        about: "each frequency / a number of its own, one list up to the trained length and one \
                beyond it (Ding et al. 2024; Phi-3)",
        keys: &["factor", ORIGINAL, "short_factor", "long_factor", "attention_factor"],
        make: longrope,
    },
    Kind {
        names: &["proportional"],
        about: "only the first part of the pairs turns, as in a rotation of all (Gemma 4)",
        keys: &["factor"],
        make: proportional,
    },
];

/// Keys that every kind reads.
pub const ALL_READ: &[&str] = &["rope_type", "type", "rope_theta", "partial_rotary_factor"];

const ORIGINAL: &str = "original_max_position_embeddings";

/// Keys that say nothing of a scale, beside which no type is needed.
const WITHOUT_TYPE: &[&str] = &["mrope_section", "mrope_interleaved", ORIGINAL];

impl Kind {
    fn named(name: &str) -> Option<&'static Kind> {
        KINDS.iter().find(|kind| kind.names.contains(&name))
    }

    /// The keys of a flat object that are not null and that its kind does not read, but for those
    /// that change nothing in any kind.
    /// `kinds` is what names of kinds are taken for.
    pub(super) fn unread<'p>(
        parameters: &'p Json,
        kinds: &IndexMap<String, String>,
    ) -> impl Iterator<Item = &'p String> + use<'p> {
        let name = parameters.get("rope_type").or_else(|| parameters.get("type"));
        // Without a type reading it is an error.
        let name = name.and_then(Json::as_str);
        let kind = name.map(|name| kinds.get(name).map_or(name, String::as_str));
        let kind = kind.and_then(Kind::named);
        let entries = parameters.as_object().into_iter().flatten();
        let entries = entries.filter(|(_, value)| !value.is_null()).map(|(key, _)| key);
        entries.filter(move |key| {
            let passed_over =
                [ALL_READ, WITHOUT_TYPE].iter().any(|keys| keys.contains(&key.as_str()));
            !passed_over && kind.is_some_and(|kind| !kind.keys.contains(&key.as_str()))
        })
    }

    /// All names, for people.
    pub fn all_names() -> String {
        let names: Vec<&str> = KINDS.iter().flat_map(|kind| kind.names).copied().collect();
        names.join(", ")
    }

    /// The table of `docs/decoder.md`.
    pub fn table() -> String {
        let rows = KINDS.iter().map(|kind| {
            let names: Vec<String> = kind.names.iter().map(|name| format!("`{name}`")).collect();
            let keys: Vec<String> = kind.keys.iter().map(|key| format!("`{key}`")).collect();
            format!("| {} | {} | {} |", names.join(", "), kind.about, keys.join(", "))
        });
        let head = ["| `rope_type` | | its keys |".to_owned(), "|---|---|---|".to_owned()];
        head.into_iter().chain(rows).collect::<Vec<_>>().join("\n")
    }
}

/// A rotation: the angles of each pair by position, for sequences of any length.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    /// Of sequences up to the trained length, or of all.
    frequencies: Vec<f32>,
    /// On cosines and sines.
    factor: f32,
    beyond: Beyond,
    /// What latent attention multiplies its scores by: the square of YaRN's factor for all
    /// dimensions (DeepSeek-V2), else 1.
    pub score_factor: f64,
    /// The length in tokens that the kind stretches the trained one to, where it says so itself.
    pub reach: Option<usize>,
}

/// What changes with the length of a sequence.
#[derive(Clone, Debug, PartialEq)]
enum Beyond {
    /// Nothing.
    Same,
    /// Other frequencies beyond the trained length.
    Long { trained: usize, frequencies: Vec<f32> },
    /// Frequencies of a base that grows with each token beyond the trained length.
    Dynamic { trained: usize, factor: f64, theta: f64, dims: f64 },
}

impl Rotation {
    /// Reads what a config says.
    ///
    /// # Errors
    /// When it has no single meaning, or lacks what its kind needs.
    pub fn read(given: &Given) -> Result<Rotation, Unclear> {
        (given.kind()?.make)(given)
    }

    /// Pairs that are turned.
    pub fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// The frequencies of all pairs, and the factor on cosines and sines, in a sequence of
    /// `length` tokens.
    pub fn of_length(&self, length: usize) -> (Cow<'_, [f32]>, f32) {
        let frequencies = match &self.beyond {
            Beyond::Long { trained, frequencies } if length > *trained => frequencies.into(),
            Beyond::Dynamic { trained, factor, theta, dims } if length > *trained => {
                let grown = factor * length as f64 / *trained as f64 - (factor - 1.0);
                let theta = theta * grown.powf(dims / (dims - 2.0));
                narrowed(powers(theta, *dims, self.pairs())).into()
            }
            _ => self.frequencies.as_slice().into(),
        };
        (frequencies, self.factor)
    }

    /// Whether sequences of both lengths are turned alike.
    pub fn is_same_of(&self, one: usize, other: usize) -> bool {
        match &self.beyond {
            Beyond::Same => true,
            Beyond::Long { trained, .. } => (one > *trained) == (other > *trained),
            Beyond::Dynamic { trained, .. } => one.max(*trained) == other.max(*trained),
        }
    }
}

/// θ^(-2i/d).
fn powers(theta: f64, dims: f64, pairs: usize) -> Vec<f64> {
    (0..pairs).map(|i| theta.powf(-2.0 * i as f64 / dims)).collect()
}

fn narrowed(frequencies: Vec<f64>) -> Vec<f32> {
    frequencies.into_iter().map(|frequency| frequency as f32).collect()
}

fn linear(given: &Given) -> Result<Rotation, Unclear> {
    let factor = given.positive("factor")?;
    Ok(Rotation::of(given.plain()?.into_iter().map(|f| f / factor).collect()))
}

fn proportional(given: &Given) -> Result<Rotation, Unclear> {
    let factor = given.number("factor")?.unwrap_or(1.0);
    let (pairs, turning) = (given.head_dim / 2, (given.dims()? / 2.0) as usize);
    let powers = powers(given.theta()?, given.head_dim as f64, turning);
    let turning = powers.into_iter().map(|f| f / factor);
    Ok(Rotation::of(turning.chain(std::iter::repeat(0.0)).take(pairs).collect()))
}

fn llama3(given: &Given) -> Result<Rotation, Unclear> {
    let factor = given.positive("factor")?;
    let (low, high) = (given.needed("low_freq_factor")?, given.needed("high_freq_factor")?);
    let trained = given.trained()?;
    let scaled = given.plain()?.into_iter().map(|f| {
        let turns = trained * f / (2.0 * PI);
        let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 - smooth) * f / factor + smooth * f
    });
    Ok(Rotation::of(scaled.collect()))
}

fn dynamic(given: &Given) -> Result<Rotation, Unclear> {
    let (factor, trained) = (given.positive("factor")?, given.context()?);
    let plain = Rotation::of(given.plain()?);
    let (theta, dims) = (given.theta()?, given.dims()?);
    let reach = Some((trained * factor) as usize);
    let beyond = Beyond::Dynamic { trained: trained as usize, factor, theta, dims };
    Ok(Rotation { beyond, reach, ..plain })
}

fn longrope(given: &Given) -> Result<Rotation, Unclear> {
    let (trained, factor) = (given.trained()?, given.factor_or_ratio()?);
    let plain = given.plain()?;
    let divided = |key: &str| -> Result<Vec<f64>, Unclear> {
        let factors = given.value(key).and_then(Json::as_array);
        let factors = factors.map(|list| list.iter().map(Json::as_f64).collect::<Option<Vec<_>>>());
        match factors {
            Some(Some(factors)) if factors.len() == plain.len() => {
                Ok(plain.iter().zip(factors).map(|(f, factor)| f / factor).collect())
            }
            _ => Err(given.unclear(
                format!("should give a list of {} numbers as `{key}`", plain.len()),
                "take the list from the model's publisher: there is one number for each pair that is rotated",
            )),
        }
    };
    let [short, long] = [divided("short_factor")?, divided("long_factor")?];
    let grown = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / trained.ln()).sqrt() };
    let on_result = given.number("attention_factor")?.unwrap_or(grown);
    let beyond = Beyond::Long { trained: trained as usize, frequencies: narrowed(long) };
    Ok(Rotation { factor: on_result as f32, beyond, ..Rotation::of(short) })
}

fn yarn(given: &Given) -> Result<Rotation, Unclear> {
    // Null stands for what the lengths make it; absent is a mistake, as in transformers.
    if given.parameters.get("factor").is_none() {
        given.needed("factor")?;
    }
    let (trained, factor) = (given.trained()?, given.factor_or_ratio()?);
    let (dims, theta) = (given.dims()?, given.theta()?);
    // As in Python, 0 is as good as absent.
    let set = |key: &str| Ok(given.number(key)?.filter(|&number| number != 0.0));
    let [fast, slow] = [set("beta_fast")?.unwrap_or(32.0), set("beta_slow")?.unwrap_or(1.0)];
    // The pair that turns so many times over the trained length.
    let pair_of = |turns: f64| dims * (trained / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
    let (mut low, mut high) = (pair_of(fast), pair_of(slow));
    let truncate = given.parameters.get("truncate").unwrap_or(&Json::Bool(true));
    let truncated = truncate == &Json::Bool(true);
    if !truncated && given.is_one_of_several() {
        return Err(given.ambiguous(
            format!(
                "gives `truncate: {truncate}` for a kind of layer: as it says, the range of YaRN is not \
                 rounded, and transformers rounds it (it looks for `truncate` beside the kinds)"
            ),
            "leave `truncate` out of config.json for what transformers computes",
        ));
    }
    if truncated {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0), high.min(dims - 1.0));
    if low == high {
        high += 0.001;
    }
    let frequencies = given.plain()?.into_iter().enumerate().map(|(i, f)| {
        let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        ramp * f / factor + (1.0 - ramp) * f
    });
    let grown = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
    let (some, all) = (set("mscale")?, set("mscale_all_dim")?);
    let on_result = match (given.number("attention_factor")?, some, all) {
        (Some(given), ..) => given,
        (None, Some(some), Some(all)) => grown(some) / grown(all),
        _ => grown(1.0),
    };
    Ok(Rotation {
        factor: on_result as f32,
        score_factor: all.map_or(1.0, |all| grown(all).powi(2)),
        reach: Some((trained * factor) as usize),
        ..Rotation::of(frequencies.collect())
    })
}

impl Rotation {
    /// By these frequencies in sequences of every length.
    fn of(frequencies: Vec<f64>) -> Rotation {
        let frequencies = narrowed(frequencies);
        Rotation { frequencies, factor: 1.0, beyond: Beyond::Same, score_factor: 1.0, reach: None }
    }
}

#[cfg(test)]
mod tests;
