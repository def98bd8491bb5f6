//! Drives the tokenizer room from a script: `tokenize FOLDER < lines`, one JSON value a line.
//!
//! A text gives `{ids, plain, decoded, streamed, pieces}`; `{"ids": […]}` gives the last three;
//! `{"speed": text}` gives how fast it is encoded and decoded, in MB/s. `tests/reference` compares
//! these with other implementations.

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use lathe::fault::Fault;
use lathe::tokenizer::{Files, Kept, Tokenizer};
use serde_json::{Value, json};

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: tokenize FOLDER < lines of JSON");
        return ExitCode::from(2);
    };
    match run(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("{:?}", lathe::fault::report(fault));
            ExitCode::FAILURE
        }
    }
}

fn run(folder: &Path) -> Result<(), Fault> {
    let io = |error: std::io::Error| Fault::io("read", "standard input", &error);
    let begin = Instant::now();
    let tokenizer = Tokenizer::load(&Files::of_folder(folder)?)?;
    eprintln!("loaded in {:.0} ms", begin.elapsed().as_secs_f64() * 1e3);
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line: Value = serde_json::from_str(&line.map_err(io)?).map_err(|e| io(e.into()))?;
        let answer = answer(&tokenizer, &line)?;
        writeln!(out, "{answer}").map_err(io)?;
    }
    Ok(())
}

fn answer(tokenizer: &Tokenizer, line: &Value) -> Result<Value, Fault> {
    if let Some(text) = line["speed"].as_str() {
        return speed(tokenizer, text);
    }
    let mut answer = json!({});
    let ids: Vec<u32> = match line.as_str() {
        Some(text) => {
            let ids = tokenizer.encode_rendered(text)?;
            answer["ids"] = json!(ids);
            answer["plain"] = json!(tokenizer.encode(text)?);
            ids
        }
        None => serde_json::from_value(line["ids"].clone()).unwrap_or_default(),
    };
    let mut stream = tokenizer.stream(Kept::All);
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
    pieces.push(stream.finish());
    answer["decoded"] = json!(tokenizer.decode(&ids, Kept::All));
    answer["streamed"] = json!(pieces.concat());
    answer["pieces"] = json!(pieces);
    Ok(answer)
}

fn speed(tokenizer: &Tokenizer, text: &str) -> Result<Value, Fault> {
    let mut encode = Vec::new();
    let mut decode = Vec::new();
    let mut tokens = 0;
    for _ in 0..5 {
        let begin = Instant::now();
        let ids = tokenizer.encode_rendered(text)?;
        encode.push(rate(text, begin));
        let begin = Instant::now();
        let back = tokenizer.decode(&ids, Kept::All);
        decode.push(rate(text, begin));
        tokens = ids.len() + usize::from(back.is_empty());
    }
    Ok(json!({"encode": median(encode), "decode": median(decode), "tokens": tokens}))
}

/// Megabytes a second since `begin`.
fn rate(text: &str, begin: Instant) -> f64 {
    text.len() as f64 / 1e6 / begin.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
