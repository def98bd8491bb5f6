//! draft: what a model has said so far in, tokens that it may say next out, and which of them are
//! committed.
//!
//! [`drafter`] is what all drafters implement and [`lookup`] one that needs no weights;
//! [`accept`] decides what of a draft is committed, exactly; [`controller`] chooses how deep to
//! draft.

#[cfg(feature = "mlx")]
pub mod accept;
pub mod controller;
#[cfg(feature = "mlx")]
pub mod drafter;
#[cfg(feature = "mlx")]
pub mod lookup;
