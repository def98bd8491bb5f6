//! How an answer is made: what the model's makers recommend, what the Modelfile says, what the
//! user asks for. Each of these overrides the one before.

use serde_json::Value;

use crate::fault::{Code, Fault};
use crate::format::nearest;
use crate::sample::Settings;

/// The options of one answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// How tokens are chosen.
    pub sampling: Settings,
    /// Texts that end the answer and are not part of it.
    pub stops: Vec<String>,
    /// Most tokens of the answer; `None` is up to the context's end.
    pub max_tokens: Option<usize>,
    /// Most tokens of prompt and answer together; `None` is what the model was trained for.
    pub context: Option<usize>,
    /// Whether the model is to think, where it can be told.
    pub thinking: Option<bool>,
}

/// Sets one option from a number.
type Setter = fn(&mut Options, f64);

/// The numeric options, by the names that Modelfiles (Ollama's) and `/set` know them by.
const NUMBERS: &[(&str, Setter)] = &[
    ("temperature", |o, n| o.sampling.temperature = n as f32),
    ("top_k", |o, n| o.sampling.top_k = n.max(0.0) as usize),
    ("top_p", |o, n| o.sampling.top_p = n as f32),
    ("min_p", |o, n| o.sampling.min_p = n as f32),
    ("typical_p", |o, n| o.sampling.typical_p = n as f32),
    ("repeat_penalty", |o, n| o.sampling.repetition_penalty = n as f32),
    // -1 is the whole sequence, 0 is off.
    ("repeat_last_n", |o, n| o.sampling.repetition_window = (n >= 0.0).then_some(n as usize)),
    ("presence_penalty", |o, n| o.sampling.presence_penalty = n as f32),
    ("frequency_penalty", |o, n| o.sampling.frequency_penalty = n as f32),
    ("seed", |o, n| o.sampling.seed = (n >= 0.0).then_some(n as u64)),
    ("num_predict", |o, n| o.max_tokens = (n >= 0.0).then_some(n as usize)),
    ("num_ctx", |o, n| o.context = (n > 0.0).then_some(n as usize)),
];

/// Options of Ollama's runner that lathe has no use for: they are passed over.
const ELSEWHERE: &[&str] = &[
    "num_batch",
    "num_gpu",
    "main_gpu",
    "use_mmap",
    "use_mlock",
    "num_thread",
    "numa",
    "num_keep",
    "low_vram",
    "f16_kv",
    "vocab_only",
    "logits_all",
    "penalize_newline",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "tfs_z",
];

impl Options {
    /// What `generation_config.json` recommends. As in transformers, sampling settings hold only
    /// where it says `do_sample`; otherwise the model is greedy.
    pub fn recommended(generation_config: &Value) -> Self {
        let mut options = Options::default();
        if generation_config["do_sample"] != true {
            return options;
        }
        options.sampling.temperature = 1.0;
        for (theirs, ours) in [
            ("temperature", "temperature"),
            ("top_k", "top_k"),
            ("top_p", "top_p"),
            ("min_p", "min_p"),
            ("typical_p", "typical_p"),
            ("repetition_penalty", "repeat_penalty"),
        ] {
            if let (Some(number), Some(set)) = (generation_config[theirs].as_f64(), setter(ours)) {
                set(&mut options, number);
            }
        }
        options
    }

    /// Adds the `PARAMETER`s of a Modelfile, as the manifest holds them: an object.
    ///
    /// # Errors
    /// When a name is unknown or a value has the wrong type.
    pub fn with_parameters(mut self, parameters: &Value) -> Result<Self, Fault> {
        for (name, value) in parameters.as_object().into_iter().flatten() {
            self.set(name, value)?;
        }
        Ok(self)
    }

    /// Sets one option by its name.
    ///
    /// # Errors
    /// When the name is unknown or the value has the wrong type.
    pub fn set(&mut self, name: &str, value: &Value) -> Result<(), Fault> {
        if name == "stop" {
            let listed = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            let stops: Option<Vec<String>> =
                listed.iter().map(|stop| stop.as_str().map(str::to_owned)).collect();
            self.stops = stops.ok_or_else(|| wrong_type(name, "a text", value))?;
            return Ok(());
        }
        let Some(set) = setter(name) else {
            return if ELSEWHERE.contains(&name) { Ok(()) } else { Err(unknown(name)) };
        };
        let number = match value {
            Value::String(text) => text.trim().parse().ok(),
            _ => value.as_f64(),
        };
        let number = number.filter(|number: &f64| number.is_finite());
        set(self, number.ok_or_else(|| wrong_type(name, "a number", value))?);
        self.sampling.check()
    }

    /// The names that [`set`](Options::set) knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NUMBERS.iter().map(|(name, _)| *name).chain(["stop"])
    }
}

fn setter(name: &str) -> Option<Setter> {
    NUMBERS.iter().find(|(known, _)| *known == name).map(|(_, set)| *set)
}

fn wrong_type(name: &str, wanted: &str, value: &Value) -> Fault {
    Fault::new(Code::Usage, format!("the parameter {name} takes {wanted}, not {value}"))
}

fn unknown(name: &str) -> Fault {
    let names: Vec<&str> = Options::names().collect();
    let help = match nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("parameters are {}", names.join(", ")),
    };
    Fault::new(Code::Usage, format!("there is no parameter {name}")).help(help)
}
