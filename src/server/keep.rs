//! Which models are loaded: on request, within a budget of memory, least recently used out first, and
//! none while it answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use axum::http::StatusCode;
use tokio::sync::mpsc::UnboundedReceiver;

use super::Config;
use super::metrics::Metrics;
use super::problem::Problem;
use super::worker::{Ask, Door, Event, Facts, Source};
use crate::plan::render::bytes;
use crate::store::{Digest, Name, media};

/// How long a model stays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeepAlive {
    /// As the server was told.
    Default,
    /// Until it is asked for its place.
    Forever,
    /// So long after the last answer.
    For(Duration),
}

/// The loaded models.
pub struct Keeper {
    loaded: Mutex<HashMap<Name, Arc<Loaded>>>,
    /// Held while one is loaded: two at once could pass the budget together.
    loading: tokio::sync::Mutex<()>,
    budget: u64,
}

/// A model that is loaded.
pub struct Loaded {
    /// Its name as the store spells it.
    pub name: Name,
    /// Its identity.
    pub digest: Digest,
    /// Bytes of its weights.
    pub size: u64,
    door: Door,
    active: AtomicUsize,
    times: Mutex<Times>,
}

struct Times {
    used: Instant,
    /// When it goes; `None` is never.
    until: Option<Instant>,
}

/// A model that is being used: it stays until this is dropped.
pub struct InUse {
    /// The model.
    pub model: Arc<Loaded>,
    keep: Option<Duration>,
}

impl Drop for InUse {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut times = locked(&self.model.times);
        *times = Times { used: now, until: self.keep.and_then(|keep| now.checked_add(keep)) };
        self.model.active.fetch_sub(1, Ordering::AcqRel);
    }
}

impl InUse {
    /// What is known of the model.
    pub fn facts(&self) -> &Facts {
        &self.model.door.facts
    }

    /// Asks it.
    ///
    /// # Errors
    /// As [`Door::ask`].
    pub fn ask(&self, ask: Ask) -> Result<UnboundedReceiver<Event>, Problem> {
        self.model.door.ask(ask)
    }
}

impl Loaded {
    /// When it goes, unless it is used again.
    pub fn expires(&self) -> Option<SystemTime> {
        let until = locked(&self.times).until?;
        SystemTime::now().checked_add(until.saturating_duration_since(Instant::now()))
    }

    /// What is known of it.
    pub fn facts(&self) -> &Facts {
        &self.door.facts
    }

    /// Requests that wait or are answered.
    pub fn waiting(&self) -> usize {
        self.door.waiting()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Keeper {
    /// None is loaded yet.
    pub fn new(budget: u64) -> Keeper {
        Keeper { loaded: Mutex::default(), loading: tokio::sync::Mutex::default(), budget }
    }

    /// All that are loaded, the least recently used first.
    pub fn all(&self) -> Vec<Arc<Loaded>> {
        let mut all: Vec<_> = locked(&self.loaded).values().cloned().collect();
        all.sort_by_key(|model| locked(&model.times).used);
        all
    }

    /// Those whose threads have died or do not go on.
    pub fn ill(&self) -> Vec<Name> {
        let ill = |model: &Arc<Loaded>| (!model.door.is_alive()).then(|| model.name.clone());
        locked(&self.loaded).values().filter_map(ill).collect()
    }

    /// A model of the store, loaded.
    ///
    /// # Errors
    /// When the store has none of that name, or it cannot be loaded or has no room.
    pub async fn get(
        &self,
        config: &Config,
        metrics: &Arc<Metrics>,
        name: &str,
        keep: KeepAlive,
    ) -> Result<InUse, Problem> {
        let entry = config.store.entry(&Name::parse(name)?)?;
        let keep = match keep {
            KeepAlive::Default => Some(config.keep_alive),
            KeepAlive::Forever => None,
            KeepAlive::For(time) => Some(time),
        };
        if let Some(model) = self.ready(&entry.name, entry.digest) {
            return Ok(InUse { model, keep });
        }
        let _one = self.loading.lock().await;
        if let Some(model) = self.ready(&entry.name, entry.digest) {
            return Ok(InUse { model, keep });
        }
        let manifest = entry.manifest?;
        let size = manifest.of_type(media::TENSOR).map(|layer| layer.size).sum();
        self.make_room(&entry.name, size)?;
        let source = Source {
            store: config.store.clone(),
            name: entry.name.clone(),
            policy_dir: config.policy_dir.clone(),
            backend: config.backend,
            queue: config.queue,
            prefixes: usize::try_from(self.budget / 8).unwrap_or(usize::MAX),
            metrics: metrics.clone(),
        };
        let door = Door::open(source).await?;
        let times = Mutex::new(Times { used: Instant::now(), until: None });
        let (name, digest) = (entry.name, entry.digest);
        let active = AtomicUsize::new(1);
        let model = Arc::new(Loaded { name: name.clone(), digest, size, door, active, times });
        locked(&self.loaded).insert(name, model.clone());
        Ok(InUse { model, keep })
    }

    /// A loaded model that is the same as the store's and lives; it is in use from here on.
    fn ready(&self, name: &Name, digest: Digest) -> Option<Arc<Loaded>> {
        let loaded = locked(&self.loaded);
        let model = loaded.get(name)?;
        if model.digest != digest || !model.door.is_alive() {
            return None;
        }
        model.active.fetch_add(1, Ordering::AcqRel);
        Some(model.clone())
    }

    fn make_room(&self, name: &Name, size: u64) -> Result<(), Problem> {
        let full = |status, code, why: String| Err(Problem::new(status, code, why));
        if size > self.budget {
            return full(
                StatusCode::BAD_REQUEST,
                "model_too_large",
                format!(
                    "{name} takes {} of memory, and this server may take {} (--memory)",
                    bytes(size),
                    bytes(self.budget)
                ),
            );
        }
        let mut loaded = locked(&self.loaded);
        // What the store has otherwise by now, or what died, is not gone on with.
        loaded.remove(name);
        loop {
            let taken: u64 = loaded.values().map(|model| model.size).sum();
            if taken + size <= self.budget {
                return Ok(());
            }
            let idle = loaded.values().filter(|model| model.active.load(Ordering::Acquire) == 0);
            let oldest = idle.min_by_key(|model| locked(&model.times).used);
            let Some(oldest) = oldest.map(|model| model.name.clone()) else {
                return full(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "overloaded",
                    format!(
                        "{name} takes {} of memory; models that are answering take {} of {}",
                        bytes(size),
                        bytes(taken),
                        bytes(self.budget)
                    ),
                );
            };
            loaded.remove(&oldest);
        }
    }

    /// Unloads a model after what it is answering.
    pub fn unload(&self, name: &Name) {
        locked(&self.loaded).retain(|known, _| !known.same(name));
    }

    /// Unloads what has not been used for as long as it was to stay.
    pub fn sweep(&self) {
        let now = Instant::now();
        locked(&self.loaded).retain(|_, model| {
            let due = locked(&model.times).until.is_some_and(|until| until <= now);
            model.active.load(Ordering::Acquire) > 0 || !due
        });
    }
}
