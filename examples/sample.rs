//! Drives the sampler from a script: one JSON object `{logits, prompt, answer, settings}` a line
//! in, one distribution `{ids, probabilities}` a line out.

use std::io::{BufRead, Write};

use lathe::sample::{Sampler, Settings};
use serde_json::{Value, json};

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        let mut sampler = Sampler::new(settings(&case["settings"]));
        sampler.prompt(&serde_json::from_value::<Vec<u32>>(case["prompt"].clone())?);
        for id in serde_json::from_value::<Vec<u32>>(case["answer"].clone())? {
            sampler.commit(id);
        }
        let mut logits: Vec<f32> = serde_json::from_value(case["logits"].clone())?;
        let distribution = sampler.distribution(&mut logits).map_err(std::io::Error::other)?;
        let answer = json!({"ids": distribution.ids, "probabilities": distribution.probabilities});
        writeln!(out, "{answer}")?;
    }
    Ok(())
}

fn settings(given: &Value) -> Settings {
    let number = |key: &str, default: f32| given[key].as_f64().map_or(default, |n| n as f32);
    let bias = given["logit_bias"].as_array().into_iter().flatten();
    let off = Settings::default();
    Settings {
        temperature: number("temperature", off.temperature),
        top_k: given["top_k"].as_u64().map_or(0, |k| k as usize),
        top_p: number("top_p", off.top_p),
        min_p: number("min_p", off.min_p),
        typical_p: number("typical_p", off.typical_p),
        repetition_penalty: number("repetition_penalty", off.repetition_penalty),
        presence_penalty: number("presence_penalty", 0.0),
        frequency_penalty: number("frequency_penalty", 0.0),
        logit_bias: bias
            .filter_map(|pair| Some((pair[0].as_u64()? as u32, pair[1].as_f64()? as f32)))
            .collect(),
        ..off
    }
}
