//! What was found wrong with real models and hard inputs, kind by kind, through the command line.
//!
//! Each module holds one area; its inputs are made here, small, or lie in `tests/found/NAME/`.

#[path = "../common/mod.rs"]
mod common;

#[cfg(feature = "mlx")]
mod answers;
#[cfg(feature = "mlx")]
mod architectures;
#[cfg(feature = "mlx")]
mod converted;
mod messages;
mod numbers;
#[cfg(feature = "mlx")]
mod policies;
#[cfg(feature = "mlx")]
mod positions;
#[cfg(feature = "mlx")]
mod runnable;
