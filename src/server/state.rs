//! What all requests share: how the server is set up, the models that are loaded, what has happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

use super::Config;
use super::answer::Asked;
use super::keep::{InUse, KeepAlive, Keeper};
use super::metrics::Metrics;
use super::problem::Problem;
use super::worker::{Ask, Set, What};

/// What all requests share.
pub struct Server {
    /// How it is set up.
    pub config: Config,
    /// Loaded models.
    pub keeper: Keeper,
    /// What has happened.
    pub metrics: Arc<Metrics>,
    /// SHA-256 of the keys that clients may give.
    pub keys: Vec<[u8; 32]>,
    last: AtomicU64,
    begin: u64,
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// SHA-256 of a text.
pub fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

impl Server {
    /// A server with nothing loaded.
    pub fn new(config: Config) -> Server {
        let keys = config.keys.iter().map(|key| digest(key)).collect();
        let keeper = Keeper::new(config.memory);
        let (last, begin) = (AtomicU64::new(0), now());
        Server { keeper, metrics: Arc::default(), keys, last, begin, config }
    }

    /// A name that no other thing of this server has.
    pub fn id(&self, prefix: &str) -> String {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let mixed = digest(&format!("{} {} {number}", self.begin, std::process::id()));
        mixed[..12].iter().fold(prefix.to_owned(), |id, byte| format!("{id}{byte:02x}"))
    }

    /// A model, loaded.
    ///
    /// # Errors
    /// As [`Keeper::get`].
    pub async fn model(&self, name: &str, keep: KeepAlive) -> Result<InUse, Problem> {
        self.keeper.get(&self.config, &self.metrics, name, keep).await
    }

    /// Asks a model.
    ///
    /// # Errors
    /// As [`Keeper::get`] and [`InUse::ask`].
    pub async fn ask(
        &self,
        name: &str,
        keep: KeepAlive,
        what: What,
        set: Set,
    ) -> Result<Asked, Problem> {
        let model = self.model(name, keep).await?;
        let events = model.ask(Ask { what, opening: true, set })?;
        Ok(Asked { events, model })
    }

    /// Unloads models whose time has come, for as long as the server lives.
    pub async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            self.keeper.sweep();
        }
    }
}

/// Options as they are.
pub fn unchanged() -> Set {
    Box::new(Ok)
}
