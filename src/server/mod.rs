//! server: requests of many programs in, answers of stored models out.
//!
//! One internal request and one stream of [`worker::Event`]s; each API is a translation of these in a
//! file of its own (`openai`, `ollama`, `anthropic`) with a table of the fields that it honours and
//! refuses. `worker` is the only file that touches the engine; `keep` loads and unloads models;
//! `http` is the frame: who may come in, how large and how slow; `state` is what all requests share.

mod answer;
mod anthropic;
mod fields;
mod http;
mod keep;
mod metrics;
mod ollama;
mod openai;
mod problem;
mod responses;
mod state;
mod worker;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

use crate::fault::{Code, Fault};
use crate::model::Backend;
use crate::store::Store;

/// Most time that a client has for the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(15);

/// Most time that answers have after the server was told to end.
const DRAIN_TIME: Duration = Duration::from_secs(30);

/// How the server is set up.
pub struct Config {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Its models.
    pub store: Store,
    /// Keys that clients may give; where there are any, every route needs one.
    pub keys: Vec<String>,
    /// Whether other machines may come in without a key.
    pub insecure: bool,
    /// Origins of pages that may ask.
    pub origins: Vec<String>,
    /// Names by which it may be called, besides addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Most bytes of a request's body.
    pub max_body: usize,
    /// Requests that may wait for one model.
    pub queue: usize,
    /// Bytes that loaded models may take together.
    pub memory: u64,
    /// How long a model stays loaded after its last answer.
    pub keep_alive: Duration,
    /// Policies that replace those that models carry.
    pub policy_dir: Option<PathBuf>,
    /// What computes.
    pub backend: Backend,
}

/// The keys in a file, one a line.
///
/// # Errors
/// When it cannot be read or has none.
pub fn read_keys(file: Option<&Path>) -> Result<Vec<String>, Fault> {
    let Some(file) = file else { return Ok(Vec::new()) };
    let text = std::fs::read_to_string(file).map_err(|error| Fault::io("read", file, &error))?;
    let keys: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if keys.is_empty() {
        return Err(Fault::new(Code::Usage, "the file of keys has none").in_file(file));
    }
    Ok(keys)
}

/// Serves until it is told to end (SIGTERM, SIGINT), and lets answers end then.
///
/// # Errors
/// When the address cannot be listened on, or other machines could come in without a key.
pub fn serve(config: Config, ready: impl FnOnce(SocketAddr)) -> Result<(), Fault> {
    if !config.listen.ip().is_loopback() && config.keys.is_empty() && !config.insecure {
        let what = format!("{} lets other machines in, and no key is asked for", config.listen);
        return Err(Fault::new(Code::Usage, what)
            .help("give --api-key-file, or say --insecure where the network is safe"));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Fault::new(Code::Io, format!("threads cannot be started: {error}")))?;
    let ended = runtime.block_on(listen(config, ready));
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

async fn listen(config: Config, ready: impl FnOnce(SocketAddr)) -> Result<(), Fault> {
    let unable = |error: std::io::Error| {
        Fault::new(Code::Usage, format!("cannot listen on {}: {error}", config.listen))
            .help("another program may have the port; name another with --listen")
    };
    let listener = TcpListener::bind(config.listen).await.map_err(unable)?;
    let address = listener.local_addr().map_err(unable)?;
    let mut end = std::pin::pin!(told_to_end());
    let server = Arc::new(state::Server::new(config));
    tokio::spawn(server.clone().watch());
    let routes = http::routes(server);
    let graceful = GracefulShutdown::new();
    ready(address);
    loop {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                // Out of file handles, say: others will be closed.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = &mut end => break,
        };
        let _ = stream.set_nodelay(true);
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(64 << 10);
        let service = TowerToHyperService::new(routes.clone());
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(connection);
    }
    drop(listener);
    let _ = tokio::time::timeout(DRAIN_TIME, graceful.shutdown()).await;
    Ok(())
}

async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! { _ = term.recv() => {} _ = int.recv() => {} }
}
