//! decoder: how a network is put together, as data: a policy's `decoder:` section.
//!
//! [`Decoder`] is what the file says; [`values`] evaluates its expressions over a model's
//! `config.json`, [`rope`] makes frequencies of what a config says of rotary positions. [`unread`] and
//! [`exact_context`] say what it lacks. Needs no MLX: `policy` reads it, `model` builds from it.

pub mod converted;
mod defaults;
pub mod description;
mod exact;
mod known;
mod names;
pub mod parts;
pub mod rope;
pub mod values;

pub use defaults::{Defaults, Filled};
pub use description::Decoder;
pub use exact::exact_context;
pub use known::{Unread, unread};
