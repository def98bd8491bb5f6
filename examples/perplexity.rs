//! Nats per token of a text: `perplexity STORE NAME TOKENS < text`. `tests/reference` compares it with
//! mlx_lm's.

use std::path::Path;
use std::process::ExitCode;

use lathe::engine::{Engine, Loading, smoke};
use lathe::fault::{Fault, Faults};
use lathe::store::{Name, Store};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, name, tokens] = &arguments[..] else {
        eprintln!("usage: perplexity STORE NAME TOKENS < text");
        return ExitCode::from(2);
    };
    match run(Path::new(store), name, tokens.parse().unwrap_or(128)) {
        Ok(loss) => {
            println!("{loss:.6}");
            ExitCode::SUCCESS
        }
        Err(faults) => {
            eprintln!("{faults}");
            ExitCode::FAILURE
        }
    }
}

fn run(store: &Path, name: &str, tokens: usize) -> Result<f64, Faults> {
    let text = std::io::read_to_string(std::io::stdin())
        .map_err(|error| Fault::io("read", "standard input", &error))?;
    let engine = Engine::load(&Store::open(Some(store))?, &Name::parse(name)?, Loading::default())?;
    let mut ids = engine.tokenizer().encode(&text)?;
    ids.truncate(tokens);
    Ok(smoke::loss(engine.model(), &ids)?.0)
}
