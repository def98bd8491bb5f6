//! How an answer is made: what the model's makers recommend, what the Modelfile says, what the
//! user asks for. Each of these overrides the one before.

use serde_json::Value;

use crate::checkpoint;
use crate::fault::{Code, Fault};
use crate::format::nearest;
use crate::modelfile::Parameter;
use crate::sample::Settings;

/// The options of one answer.
#[derive(Clone, Debug, Default)]
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
    /// Whether the answer ends with the first tool that is called.
    pub one_call: bool,
    /// What drafts tokens that the model only checks.
    pub draft: Draft,
    /// Options of the Modelfile that cannot be set as it says, and why.
    pub refused: Vec<(String, Fault)>,
}

/// What drafts. The answer is the same whatever does, and its distribution when it is sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Draft {
    /// The best that there is for the model.
    #[default]
    Auto,
    /// Nothing.
    None,
    /// What followed when the last tokens stood in the text before.
    Lookup,
}

/// Sets one option from a number that its parameter takes.
type Setter = fn(&mut Options, f64);

/// The numeric options, by the names that Modelfiles (Ollama's) and `/set` know them by; which numbers
/// each takes is said where the Modelfile's parameters are.
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
    ("num_ctx", |o, n| o.context = Some(n as usize)),
];

impl Options {
    /// What `generation_config.json` recommends.
    pub fn recommended(generation_config: &Value) -> Self {
        let generation = checkpoint::generation(generation_config);
        let mut options = Options { stops: generation.stops, ..Options::default() };
        for (name, number) in generation.parameters {
            if let Some(set) = setter(name) {
                set(&mut options, number);
            }
        }
        let never = |id| (id, f32::NEG_INFINITY);
        options.sampling.logit_bias = generation.suppressed.into_iter().map(never).collect();
        options
    }

    /// Adds the `PARAMETER`s of a Modelfile, as the manifest holds them: an object. What cannot be
    /// set is kept as a reason to refuse the first answer, unless it is set otherwise before.
    pub fn with_parameters(mut self, parameters: &Value) -> Self {
        for (name, value) in parameters.as_object().into_iter().flatten() {
            if let Err(fault) = self.set(name, value) {
                let help =
                    format!("it is a PARAMETER of the Modelfile; --set {name}=… overrides it");
                self.refused.push((name.clone(), fault.help(help)));
            }
        }
        self
    }

    /// Sets one option by its name.
    ///
    /// # Errors
    /// When the name is unknown, or the value has the wrong type or is out of range.
    pub fn set(&mut self, name: &str, value: &Value) -> Result<(), Fault> {
        let Some(parameter) = Parameter::named(name) else {
            return if Parameter::is_ignored(name) { Ok(()) } else { Err(unknown(name)) };
        };
        let wrong = |wanted: String| {
            let given = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            Fault::new(Code::Usage, format!("{name} takes {wanted}, not {given}"))
        };
        if name == "stop" {
            let listed = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            let stops: Option<Vec<String>> =
                listed.iter().map(|stop| stop.as_str().map(str::to_owned)).collect();
            self.stops = stops.ok_or_else(|| wrong(parameter.wanted()))?;
        } else if parameter.is_number() {
            let number = parameter.number(value).map_err(wrong)?;
            if let Some(set) = setter(name) {
                set(self, number);
            }
        }
        self.settle(name);
        Ok(())
    }

    /// What was wrong with an option before no longer matters.
    pub fn settle(&mut self, name: &str) {
        self.refused.retain(|(refused, _)| refused != name);
    }

    /// Whether an answer can be made under these options.
    ///
    /// # Errors
    /// When one of them is out of range.
    pub fn check(&self) -> Result<(), Fault> {
        match self.refused.first() {
            Some((_, fault)) => Err(fault.clone()),
            None => self.sampling.check(),
        }
    }

    /// The names that [`set`](Options::set) has a use for.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NUMBERS.iter().map(|(name, _)| *name).chain(["stop"])
    }
}

fn setter(name: &str) -> Option<Setter> {
    NUMBERS.iter().find(|(known, _)| *known == name).map(|(_, set)| *set)
}

fn unknown(name: &str) -> Fault {
    let names: Vec<&str> = Options::names().collect();
    let help = match nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("parameters are {}", names.join(", ")),
    };
    Fault::new(Code::Usage, format!("there is no parameter {name}")).help(help)
}
