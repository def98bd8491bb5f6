//! model: a decoder's description and weights in, logits out.
//!
//! [`load`] has the parts of a network resolved ([`crate::decoder::parts`]) and loads the tensors that
//! these name into a tree of modules.
//! [`Model::forward`] walks the tree over a [`Batch`]. Nothing here knows an architecture:
//! names of tensors and what is done with them stand in the description. There is one file for
//! each kind of module.

mod attention;
mod batch;
mod conv;
mod delta;
mod embed;
mod latent;
mod linear;
mod loader;
mod mamba;
mod mlp;
mod module;
mod moe;
mod native;
mod norm;
mod ops;
mod rope;
mod scores;
mod short_conv;
pub mod source;
mod tree;

pub use batch::{Batch, Logits, Output, Row};
pub use source::{Blobs, Folder, Known, QuantizedTensor, Tensor, TensorSource, Weight};
pub use tree::{Backend, Compute, Model, load};
