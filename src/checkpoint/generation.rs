//! What the makers of a model recommend: `generation_config.json`, as `transformers` takes it.
//!
//! Sampling settings hold only where it says `do_sample`; otherwise the model is greedy. Penalties,
//! stop strings, forbidden tokens and the length of an answer hold for both.

use serde_json::Value;

use crate::modelfile::Parameter;

/// The file.
pub const GENERATION_CONFIG: &str = "generation_config.json";

/// What the file says, by the names that Modelfiles have for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    /// Numbers by parameter.
    pub parameters: Vec<(&'static str, f64)>,
    /// Texts that end an answer.
    pub stops: Vec<String>,
    /// Tokens that never follow.
    pub suppressed: Vec<u32>,
    /// What is not taken from the file, or may not be meant, each in a sentence.
    pub remarks: Vec<String>,
}

/// Keys that hold where tokens are sampled, the parameter of each, and what it is where the file
/// says nothing of it.
const SAMPLED: [(&str, &str, Option<f64>); 5] = [
    ("temperature", "temperature", Some(1.0)),
    ("top_k", "top_k", Some(50.0)),
    ("top_p", "top_p", None),
    ("min_p", "min_p", None),
    ("typical_p", "typical_p", None),
];

/// Keys that hold always.
const ALWAYS: [(&str, &str, Option<f64>); 2] =
    [("repetition_penalty", "repeat_penalty", None), ("max_new_tokens", "num_predict", None)];

/// Keys that change `transformers`' answers and that lathe does not obey, and the number that turns
/// each off.
const ELSEWHERE: [(&str, f64); 20] = [
    ("begin_suppress_tokens", 0.0),
    ("bad_words_ids", 0.0),
    ("constraints", 0.0),
    ("dola_layers", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("exponential_decay_length_penalty", 0.0),
    ("force_words_ids", 0.0),
    ("forced_bos_token_id", f64::NAN),
    ("forced_eos_token_id", f64::NAN),
    ("guidance_scale", 1.0),
    ("max_time", 0.0),
    ("min_length", 0.0),
    ("min_new_tokens", 0.0),
    ("no_repeat_ngram_size", 0.0),
    ("num_beam_groups", 1.0),
    ("num_beams", 1.0),
    ("penalty_alpha", 0.0),
    ("sequence_bias", 0.0),
    ("watermarking_config", 0.0),
];

/// Those of them that hold only where tokens are sampled.
const ELSEWHERE_SAMPLED: [(&str, f64); 3] =
    [("epsilon_cutoff", 0.0), ("eta_cutoff", 0.0), ("top_h", 0.0)];

/// Reads the file's object; anything else recommends nothing.
pub fn generation(config: &Value) -> Generation {
    let mut found = Generation::default();
    let sampled = config["do_sample"] == true;
    let numbers = SAMPLED.iter().filter(|_| sampled).chain(&ALWAYS);
    for &(key, name, default) in numbers {
        found.number(config, key, name, default);
    }
    let elsewhere = ELSEWHERE_SAMPLED.iter().filter(|_| sampled).chain(&ELSEWHERE);
    for (key, off) in elsewhere {
        let value = &config[*key];
        let is_off = value.is_null()
            || *value == false
            || value.as_f64() == Some(*off)
            || value.as_array().is_some_and(Vec::is_empty);
        if !is_off {
            found.remark(key, value, "is not obeyed: transformers' answers may differ");
        }
    }
    match &config["stop_strings"] {
        Value::Null => {}
        Value::String(stop) => found.stops.push(stop.clone()),
        value => match texts(value) {
            Some(stops) => found.stops = stops,
            None => found.remark("stop_strings", value, "is no list of texts and is passed over"),
        },
    }
    match &config["suppress_tokens"] {
        Value::Null => {}
        value => match serde_json::from_value(value.clone()) {
            Ok(ids) => found.suppressed = ids,
            Err(_) => {
                found.remark("suppress_tokens", value, "is no list of ids and is passed over")
            }
        },
    }
    found
}

fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}

impl Generation {
    fn number(&mut self, config: &Value, key: &str, name: &'static str, default: Option<f64>) {
        let value = &config[key];
        if value.is_null() {
            self.parameters.extend(default.map(|number| (name, number)));
            return;
        }
        let read = Parameter::named(name).map(|parameter| parameter.number(value));
        match read {
            Some(Ok(number)) => {
                if key == "top_p" && number == 0.0 {
                    self.remark(key, value, "leaves only the likeliest token to be drawn");
                }
                self.parameters.push((name, number));
            }
            Some(Err(wanted)) => {
                self.remark(key, value, &format!("is passed over: it takes {wanted}"));
                self.parameters.extend(default.map(|number| (name, number)));
            }
            None => {}
        }
    }

    fn remark(&mut self, key: &str, value: &Value, what: &str) {
        self.remarks.push(format!("{GENERATION_CONFIG}: {key} {value} {what}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sampling_settings_hold_where_tokens_are_sampled() {
        let said = json!({"temperature": 0.6, "top_p": 0.9, "typical_p": 0.5, "min_p": 0.1,
                          "repetition_penalty": 1.2, "stop_strings": "END", "epsilon_cutoff": 0.1});
        let greedy = generation(&said);
        assert_eq!(greedy.parameters, [("repeat_penalty", 1.2)]);
        assert_eq!(greedy.stops, ["END"]);
        assert_eq!(greedy.remarks, [""; 0]);
        let mut sampled = said;
        sampled["do_sample"] = true.into();
        let found = generation(&sampled);
        // As in transformers, 50 tokens are left where nothing is said of them.
        let expected = [
            ("temperature", 0.6),
            ("top_k", 50.0),
            ("top_p", 0.9),
            ("min_p", 0.1),
            ("typical_p", 0.5),
            ("repeat_penalty", 1.2),
        ];
        assert_eq!(found.parameters, expected);
        assert_eq!(found.remarks.len(), 1, "{:?}", found.remarks);
        sampled["top_k"] = 0.into();
        assert!(generation(&sampled).parameters.contains(&("top_k", 0.0)));
    }

    #[test]
    fn what_is_out_of_range_is_named_and_passed_over() {
        let said = json!({"do_sample": true, "top_p": 7, "temperature": "hot", "top_k": 1.5,
                          "repetition_penalty": 0, "num_beams": 4, "no_repeat_ngram_size": 0,
                          "stop_strings": [1], "suppress_tokens": [3, 5]});
        let found = generation(&said);
        assert_eq!(found.parameters, [("temperature", 1.0), ("top_k", 50.0)]);
        assert_eq!(found.suppressed, [3, 5]);
        for key in [
            "top_p 7",
            "temperature \"hot\"",
            "top_k 1.5",
            "repetition_penalty 0",
            "num_beams 4",
            "stop_strings [1]",
        ] {
            let named =
                |remark: &&String| remark.contains(&format!("generation_config.json: {key} "));
            assert_eq!(found.remarks.iter().filter(named).count(), 1, "{key}: {:?}", found.remarks);
        }
        assert_eq!(found.remarks.len(), 6, "{:?}", found.remarks);
        let nothing = generation(&json!({"do_sample": true, "top_p": 0}));
        assert!(nothing.parameters.contains(&("top_p", 0.0)));
        assert!(nothing.remarks[0].contains("only the likeliest"));
        assert_eq!(generation(&json!([])), Generation::default());
    }
}
