//! write: a [`crate::plan::Plan`] in, blobs out. It executes and decides nothing; it is the only
//! room that reads weights.

pub mod kernels;
