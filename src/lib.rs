//! lathe: a declarative rule engine that turns a Hugging Face model folder into one that runs
//! well on MLX, and the runtime that runs it.
//!
//! Data flows through the rooms in one direction: [`read`] → [`classify`] → [`plan`] → write →
//! store. See each room's own words.

#[cfg(feature = "mlx")]
pub mod cache;
pub mod classify;
pub mod cli;
pub mod create;
pub mod doctor;
pub mod dtype;
pub mod export;
pub mod fault;
pub mod format;
#[cfg(feature = "mlx")]
pub mod mlx;
pub mod model;
pub mod modelfile;
pub mod plan;
pub mod policy;
pub mod policy_test;
pub mod prepare;
pub mod propose;
pub mod read;
pub mod schema;
pub mod store;
pub mod write;
