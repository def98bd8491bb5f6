//! lathe: a declarative rule engine that turns a Hugging Face model folder into one that runs
//! well on MLX, and the runtime that runs it.
//!
//! Data flows through the rooms in one direction: [`read`] → [`classify`] → [`plan`] → [`write`] →
//! [`store`] makes a model; chat → tokenizer → engine → sample answers from one, where the engine
//! runs `model`, built from a policy's [`decoder`], over `cache`. See each room's own words.

pub mod built_in;
#[cfg(feature = "mlx")]
pub mod cache;
pub mod chat;
pub mod checkpoint;
pub mod classify;
pub mod cli;
pub mod companion;
pub mod create;
pub mod decoder;
pub mod doctor;
pub mod document;
pub mod draft;
pub mod dtype;
#[cfg(feature = "mlx")]
pub mod engine;
pub mod export;
pub mod expr;
pub mod fault;
pub mod format;
pub mod header;
#[cfg(feature = "mlx")]
pub mod mlx;
#[cfg(feature = "mlx")]
pub mod model;
pub mod modelfile;
pub mod op;
pub mod plan;
pub mod policy;
pub mod policy_test;
pub mod prepare;
pub mod propose;
pub mod read;
pub mod rule;
#[cfg(feature = "mlx")]
pub mod sample;
pub mod schema;
#[cfg(feature = "mlx")]
pub mod server;
pub mod store;
pub mod system;
pub mod table;
#[cfg(feature = "mlx")]
pub mod tokenizer;
pub mod update;
pub mod write;
