//! The one door to the engine: a thread for each loaded model takes requests from a bounded queue and
//! sends back events. Nothing else in this room knows how an answer is made.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::metrics::Metrics;
use super::problem::Problem;
use crate::chat::{Piece, ToolCall};
use crate::engine::{
    self, Answering, Engine, Loading, Options, Prompt, Reason, Request, Scheduler,
};
use crate::fault::{Code, Fault, Faults};
use crate::store::{Name, Store};
use crate::tokenizer::Kept;
use axum::http::StatusCode;

/// A pass that takes longer than this has died.
const DEAD: Duration = Duration::from_secs(300);

/// Turns a model's own options into those of a request.
pub type Set = Box<dyn FnOnce(Options) -> Result<Options, Problem> + Send>;

/// What is asked of a model.
pub struct Ask {
    /// What.
    pub what: What,
    /// Put before a conversation that has no system message: the Modelfile's system message and messages.
    pub opening: bool,
    /// How it is answered.
    pub set: Set,
}

/// What is asked.
pub enum What {
    /// An answer; whether an opening `<think>` matters not.
    Answer(Prompt),
    /// How many tokens a prompt has.
    Count(Prompt),
    /// The text that a model reads for a conversation.
    Render(Prompt),
    /// The ids of a text.
    Encode(String),
    /// The text of ids.
    Decode(Vec<u32>),
}

/// What comes back.
#[derive(Debug)]
pub enum Event {
    /// Words for the reader, and the tokens that they came with, where they were asked for.
    Text(String, Vec<Scored>),
    /// Thinking.
    Thinking(String),
    /// A call of a tool, whole.
    Call(ToolCall),
    /// The end: no event follows.
    Done(Done),
    /// The end of one that failed.
    Failed(Problem),
    /// What was asked for is no answer but this.
    Said(Said),
}

/// Replies that are not answers.
#[derive(Debug)]
pub enum Said {
    /// A number of tokens.
    Count(usize),
    /// A text.
    Text(String),
    /// Ids of tokens.
    Ids(Vec<u32>),
}

/// A token and how likely it was.
#[derive(Clone, Debug)]
pub struct Scored {
    /// Its text as the vocabulary decodes it, broken characters as U+FFFD.
    pub text: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The likeliest.
    pub top: Vec<Scored>,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Why.
    pub reason: Reason,
    /// What it took.
    pub statistics: engine::Statistics,
    /// How many of the answer's tokens were thinking.
    pub thinking_tokens: usize,
    /// How long loading the model took.
    pub load: Duration,
}

/// What is known of a loaded model.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Most tokens of prompt and answer.
    pub context: usize,
    /// Whether it can hold a conversation.
    pub can_chat: bool,
}

struct Job {
    ask: Ask,
    events: UnboundedSender<Event>,
}

/// A loaded model. Dropping it ends its thread after what is queued.
pub struct Door {
    queue: SyncSender<Job>,
    heart: Arc<Heart>,
    /// What is known of it.
    pub facts: Facts,
}

/// Signs of life of a thread.
struct Heart {
    begin: Instant,
    /// Milliseconds after `begin`.
    beat: AtomicU64,
    busy: AtomicBool,
    dead: AtomicBool,
    waiting: AtomicUsize,
}

impl Heart {
    fn beats(&self) {
        self.beat.store(self.begin.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
}

/// Sets a flag when the thread ends in any way.
struct Dies(Arc<Heart>);

impl Drop for Dies {
    fn drop(&mut self) {
        self.0.dead.store(true, Ordering::Relaxed);
    }
}

/// What is loaded, and how.
pub struct Source {
    /// The store.
    pub store: Store,
    /// The model.
    pub name: Name,
    /// Policies that replace those that models carry.
    pub policy_dir: Option<std::path::PathBuf>,
    /// What computes.
    pub backend: crate::model::Backend,
    /// Requests that may wait.
    pub queue: usize,
    /// Bytes that kept prefixes may take.
    pub prefixes: usize,
    /// Where answers are counted.
    pub metrics: Arc<Metrics>,
}

impl Door {
    /// Starts a thread that loads a model and then answers.
    ///
    /// # Errors
    /// When the model cannot be loaded.
    pub async fn open(source: Source) -> Result<Door, Problem> {
        let (queue, jobs) = sync_channel(source.queue);
        let heart = Arc::new(Heart {
            begin: Instant::now(),
            beat: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
        });
        let (loaded, facts) = oneshot::channel();
        let own = heart.clone();
        let begun = std::thread::Builder::new().name("model".into()).spawn(move || {
            let _dies = Dies(own.clone());
            live(&source, &own, loaded, &jobs);
        });
        begun.map_err(|error| internal(format!("a thread cannot be started: {error}")))?;
        match facts.await {
            Ok(Ok(facts)) => Ok(Door { queue, heart, facts }),
            Ok(Err(faults)) => Err(faults.into()),
            Err(_) => Err(internal("loading the model failed inside lathe")),
        }
    }

    /// Puts a request into the queue.
    ///
    /// # Errors
    /// 503 when the queue is full or the thread has died.
    pub fn ask(&self, ask: Ask) -> Result<UnboundedReceiver<Event>, Problem> {
        let (events, heard) = unbounded_channel();
        self.heart.waiting.fetch_add(1, Ordering::Relaxed);
        self.queue.try_send(Job { ask, events }).map_err(|error| {
            self.heart.waiting.fetch_sub(1, Ordering::Relaxed);
            let why = match error {
                TrySendError::Full(_) => "too many requests wait for this model; ask again later",
                TrySendError::Disconnected(_) => "the model's thread has ended",
            };
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", why)
        })?;
        Ok(heard)
    }

    /// Whether it answers, as far as can be told from here.
    pub fn is_alive(&self) -> bool {
        let heart = &self.heart;
        let quiet = heart
            .begin
            .elapsed()
            .saturating_sub(Duration::from_millis(heart.beat.load(Ordering::Relaxed)));
        let stuck = heart.busy.load(Ordering::Relaxed) && quiet > DEAD;
        !heart.dead.load(Ordering::Relaxed) && !stuck
    }

    /// Requests that wait or are answered.
    pub fn waiting(&self) -> usize {
        self.heart.waiting.load(Ordering::Relaxed)
    }
}

fn internal(what: impl Into<String>) -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", what)
}

fn live(
    source: &Source,
    heart: &Heart,
    loaded: oneshot::Sender<Result<Facts, Faults>>,
    jobs: &Receiver<Job>,
) {
    let loading = Loading { policy_dir: source.policy_dir.as_deref(), backend: source.backend };
    let engine = match Engine::load(&source.store, &source.name, loading) {
        Ok(engine) => engine,
        Err(faults) => {
            let _ = loaded.send(Err(faults));
            return;
        }
    };
    let facts = Facts { context: engine.context(&engine.defaults), can_chat: engine.can_chat() };
    if loaded.send(Ok(facts)).is_err() {
        return;
    }
    let mut worker =
        Worker { engine: &engine, scheduler: Scheduler::new(source.prefixes), open: Vec::new() };
    loop {
        heart.busy.store(!worker.open.is_empty(), Ordering::Relaxed);
        // With nothing to do it waits for a job; else it takes those that are there.
        let mut next = if worker.open.is_empty() {
            match jobs.recv() {
                Ok(job) => Some(job),
                Err(_) => return,
            }
        } else {
            jobs.try_recv().ok()
        };
        heart.beats();
        heart.busy.store(true, Ordering::Relaxed);
        while let Some(job) = next.take() {
            worker.take(job, source, heart);
            next = if worker.open.len() < TOGETHER { jobs.try_recv().ok() } else { None };
        }
        worker.step(source, heart);
    }
}

/// Answers that share passes, at most.
const TOGETHER: usize = 16;

/// A model that answers.
struct Worker<'e> {
    engine: &'e Engine,
    scheduler: Scheduler,
    open: Vec<Open<'e>>,
}

/// An answer in the making.
struct Open<'e> {
    answering: Answering<'e>,
    events: UnboundedSender<Event>,
    /// Those of text that has not been sent yet.
    tokens: Vec<Scored>,
}

impl<'e> Worker<'e> {
    /// Takes a request up: what is no answer is replied to at once.
    fn take(&mut self, Job { ask, events }: Job, source: &Source, heart: &Heart) {
        // Who went away while waiting costs nothing.
        if events.is_closed() {
            heart.waiting.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let begun = catch_unwind(AssertUnwindSafe(|| begin(self.engine, &mut self.scheduler, ask)));
        let end = match begun {
            Ok(Ok(Begun::Answer(answering))) => {
                let answering = *answering;
                self.open.push(Open { answering, events, tokens: Vec::new() });
                return;
            }
            Ok(Ok(Begun::Said(said))) => Event::Said(said),
            Ok(Err(problem)) => Event::Failed(problem),
            Err(_) => Event::Failed(internal(FAILED)),
        };
        close(end, &events, source, heart);
    }

    /// One pass for all answers, and what came of it.
    fn step(&mut self, source: &Source, heart: &Heart) {
        for at in (0..self.open.len()).rev() {
            if self.open[at].events.is_closed() {
                self.end(at, Reason::Cancelled, source, heart);
            }
        }
        let (scheduler, model) = (&mut self.scheduler, self.engine.model());
        let Ok(happened) = catch_unwind(AssertUnwindSafe(|| scheduler.step(model))) else {
            // What it kept may be half done.
            self.scheduler = Scheduler::new(source.prefixes);
            for open in self.open.drain(..) {
                close(Event::Failed(internal(FAILED)), &open.events, source, heart);
            }
            return;
        };
        for (id, happened) in happened {
            let Some(at) = self.open.iter().position(|open| open.answering.id() == id) else {
                continue;
            };
            let Open { answering, events, tokens } = &mut self.open[at];
            match answering.hear(happened, &mut |event| send(self.engine, event, events, tokens)) {
                Ok(None) => {}
                Ok(Some(reason)) => self.end(at, reason, source, heart),
                Err(fault) => {
                    let open = self.open.swap_remove(at);
                    self.scheduler.remove(id);
                    close(Event::Failed(fault.into()), &open.events, source, heart);
                }
            }
        }
    }

    fn end(&mut self, at: usize, reason: Reason, source: &Source, heart: &Heart) {
        let Open { answering, events, mut tokens } = self.open.swap_remove(at);
        let mut on_event = |event| send(self.engine, event, &events, &mut tokens);
        let answer = answering.end(&mut self.scheduler, reason, &mut on_event);
        let done = Done {
            reason: answer.reason,
            statistics: answer.statistics,
            thinking_tokens: answer.thinking_tokens,
            load: self.engine.load_time(),
        };
        close(Event::Done(done), &events, source, heart);
    }
}

/// What a client hears of a fault of lathe.
const FAILED: &str = "answering failed inside lathe: this is a fault of it";

/// Sends the last event of a request and counts it.
fn close(end: Event, events: &UnboundedSender<Event>, source: &Source, heart: &Heart) {
    match &end {
        Event::Done(done) if done.reason == Reason::Cancelled => source.metrics.cancelled(),
        Event::Done(done) => source.metrics.answered(&done.statistics),
        _ => {}
    }
    let _ = events.send(end);
    heart.waiting.fetch_sub(1, Ordering::Relaxed);
}

/// What became of a request at first.
enum Begun<'e> {
    Answer(Box<Answering<'e>>),
    Said(Said),
}

fn begin<'e>(
    engine: &'e Engine,
    scheduler: &mut Scheduler,
    ask: Ask,
) -> Result<Begun<'e>, Problem> {
    let options = (ask.set)(engine.defaults.clone())?;
    let opened = |prompt: Prompt| if ask.opening { with_opening(engine, prompt) } else { prompt };
    let tokenizer = engine.tokenizer();
    Ok(Begun::Said(match ask.what {
        What::Answer(prompt) => {
            let request = Request { prompt: opened(prompt), options };
            return Ok(Begun::Answer(Box::new(engine.begin(scheduler, &request)?)));
        }
        What::Count(prompt) => {
            let prompt = opened(prompt);
            let rendered = engine.render(&prompt, &options)?;
            Said::Count(engine.encode(&prompt, &rendered)?.len())
        }
        What::Render(prompt) => Said::Text(engine.render(&opened(prompt), &options)?.text),
        What::Encode(text) => Said::Ids(tokenizer.encode(&text)?),
        What::Decode(ids) => Said::Text(tokenizer.decode(&ids, Kept::All)),
    }))
}

fn with_opening(engine: &Engine, prompt: Prompt) -> Prompt {
    let Prompt::Chat { messages, tools } = prompt else { return prompt };
    let has_system = messages.iter().any(|message| message["role"] == "system");
    let system = engine.system.as_deref().filter(|_| !has_system);
    let system = system.map(|text| serde_json::json!({"role": "system", "content": text}));
    let messages =
        system.into_iter().chain(engine.messages.iter().cloned()).chain(messages).collect();
    Prompt::Chat { messages, tools }
}

/// Sends an event of the engine on, text with the tokens that it came with.
fn send(
    engine: &Engine,
    event: engine::Event,
    events: &UnboundedSender<Event>,
    tokens: &mut Vec<Scored>,
) -> ControlFlow<()> {
    let scored = |id: u32, logprob: f32, top: Vec<Scored>| Scored {
        text: engine.tokenizer().decode(&[id], Kept::All),
        bytes: engine.tokenizer().bytes(id),
        logprob,
        top,
    };
    let event = match event {
        engine::Event::Token(choice) => {
            let top = choice.top.iter().map(|&(id, logprob)| scored(id, logprob, Vec::new()));
            let top = top.collect();
            tokens.push(scored(choice.id, choice.logprob.unwrap_or(f32::NAN), top));
            return ControlFlow::Continue(());
        }
        engine::Event::Piece(Piece::Text(text)) => Event::Text(text, std::mem::take(tokens)),
        engine::Event::Piece(Piece::Thinking(text)) => {
            tokens.clear();
            Event::Thinking(text)
        }
        engine::Event::Piece(Piece::Call(call)) => {
            tokens.clear();
            Event::Call(call)
        }
    };
    match events.send(event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}

/// What a model cannot have been asked.
pub fn unexpected() -> Problem {
    Fault::new(Code::Internal, "a model replied with something else than was asked for").into()
}
