//! policy: files of rules in, a compiled [`Policy`] out, and from it a [`Decider`] for one model.
//!
//! What leaves this room is a decision for each tensor: a format, the rule that chose it, and on
//! demand how every other rule fared. It knows names, shapes and configs; never weights.

pub mod compile;
pub mod decide;
pub mod entry;
pub mod expr;
pub mod file;
pub mod fit;
pub mod library;
pub mod lint;
pub mod names;
pub mod parsers;
pub mod pattern;
pub mod runnable;
pub mod schedule;
pub mod stored;

pub use compile::Policy;
pub use decide::{Decider, Decision, Model, lookup};
pub use file::Role;
pub use library::Library;
