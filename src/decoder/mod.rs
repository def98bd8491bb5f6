//! decoder: how a network is put together, as data: a policy's `decoder:` section.
//!
//! [`Decoder`] is what the file says; [`values`] evaluates its expressions over a model's
//! `config.json`. Needs no MLX: `policy` reads it, `model` builds from it.

pub mod description;
pub mod values;

pub use description::Decoder;
