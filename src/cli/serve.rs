//! `lathe serve`

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::args::{BackendArg, StoreArg};
use super::ui;
use crate::server::{self, Config};

/// Serve the models of the store to programs
///
/// Speaks the APIs of OpenAI, Ollama and Anthropic at one address. Models are loaded when they are
/// asked for. Only programs of this machine reach it unless --listen says otherwise, and then they
/// need a key.
#[derive(Args)]
#[command(after_help = "\
Examples:
  lathe serve
  OPENAI_BASE_URL=http://127.0.0.1:11435/v1 OPENAI_API_KEY=none …
  OLLAMA_HOST=127.0.0.1:11435 …
  ANTHROPIC_BASE_URL=http://127.0.0.1:11435 ANTHROPIC_API_KEY=none …
  lathe serve --listen 0.0.0.0:11435 --api-key-file keys")]
pub struct Serve {
    /// Address and port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:11435")]
    listen: SocketAddr,
    /// Keys that clients may give, one a line; every route needs one of them
    #[arg(long, value_name = "FILE", help_heading = "Safety")]
    api_key_file: Option<PathBuf>,
    /// Let other machines in without a key
    #[arg(long, help_heading = "Safety")]
    insecure: bool,
    /// Let pages of this origin in; may be given several times
    #[arg(long, value_name = "ORIGIN", help_heading = "Safety")]
    allow_origin: Vec<String>,
    /// Names, besides addresses and localhost, by which clients may call this server
    #[arg(long, value_name = "NAME", help_heading = "Safety")]
    allow_host: Vec<String>,
    /// Most bytes of a request
    #[arg(long, value_name = "SIZE", value_parser = ui::parse_bytes, default_value = "32MiB", help_heading = "Limits")]
    max_body: u64,
    /// Requests that may wait for a model
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Limits")]
    queue: u16,
    /// Memory that loaded models may take [default: three quarters of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = ui::parse_bytes, help_heading = "Limits")]
    memory: Option<u64>,
    /// How long a model stays loaded after its last answer
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "5m", help_heading = "Limits")]
    keep_alive: Duration,
    /// Folder of policies that add to or replace the built-in ones
    #[arg(long, value_name = "DIR", help_heading = "Where")]
    policy_dir: Option<PathBuf>,
    #[command(flatten)]
    backend: BackendArg,
    #[command(flatten)]
    store: StoreArg,
}

pub fn run(args: &Serve) -> Result<(), ui::Failure> {
    crate::system::ask_for_huge_pages_everywhere();
    let config = Config {
        listen: args.listen,
        store: args.store.open()?,
        keys: server::read_keys(args.api_key_file.as_deref())?,
        insecure: args.insecure,
        origins: args.allow_origin.clone(),
        hosts: args.allow_host.clone(),
        max_body: usize::try_from(args.max_body).unwrap_or(usize::MAX),
        queue: usize::from(args.queue),
        memory: args.memory.unwrap_or_else(|| crate::write::machine_memory() / 4 * 3),
        keep_alive: args.keep_alive,
        policy_dir: args.policy_dir.clone(),
        backend: args.backend.backend(),
    };
    server::serve(config, |address| ui::note(format!("listening on http://{address}")))?;
    Ok(())
}
