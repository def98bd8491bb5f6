//! model: a decoder's description and weights in, logits out.
//!
//! [`load`] builds a tree of modules from a policy's [`Decoder`](description::Decoder), the
//! model's config and its weights, and tells all that does not fit at once.
//! [`Model::forward`] walks the tree over a [`Batch`]. Nothing here knows an architecture:
//! names of tensors and what is done with them stand in the description. There is one file for
//! each kind of module.
//!
//! The description itself and its expressions ([`description`], [`values`]) need no MLX.

pub mod description;
pub mod values;

#[cfg(feature = "mlx")]
mod attention;
#[cfg(feature = "mlx")]
mod batch;
#[cfg(feature = "mlx")]
mod build;
#[cfg(feature = "mlx")]
mod conv;
#[cfg(feature = "mlx")]
mod delta;
#[cfg(feature = "mlx")]
mod embed;
#[cfg(feature = "mlx")]
mod latent;
#[cfg(feature = "mlx")]
mod linear;
#[cfg(feature = "mlx")]
mod mamba;
#[cfg(feature = "mlx")]
mod mlp;
#[cfg(feature = "mlx")]
mod module;
#[cfg(feature = "mlx")]
mod moe;
#[cfg(feature = "mlx")]
mod native;
#[cfg(feature = "mlx")]
mod norm;
#[cfg(feature = "mlx")]
mod ops;
#[cfg(feature = "mlx")]
mod rope;
#[cfg(feature = "mlx")]
mod scores;
#[cfg(feature = "mlx")]
mod short_conv;
#[cfg(feature = "mlx")]
pub mod source;
#[cfg(feature = "mlx")]
mod tree;

#[cfg(feature = "mlx")]
pub use batch::{Batch, Logits, Output, Row};
#[cfg(feature = "mlx")]
pub use source::{Blobs, Folder, QuantizedTensor, Tensor, TensorSource, Weight};
#[cfg(feature = "mlx")]
pub use tree::{Compute, Model, load};
