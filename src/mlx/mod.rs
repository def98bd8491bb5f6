//! What lathe needs of MLX, over mlx-rs: arrays from and to bytes, quantization in every mode,
//! the device and its memory, and errors that are values.
//!
//! Enters: bytes with a safetensors dtype and shape. Leaves: bytes again, or arrays on which the
//! modules of a model compute.
//!
//! What to know before using it:
//!
//! - mlx-rs's methods (`a.add(&b)`) return results; its operators (`a + b`) panic and are not used
//!   in lathe. Its error converts into [`Error`], and that into a [`crate::fault::Fault`].
//! - Arrays are lazy. [`array::Host`] evaluates one and gives its bytes; [`evaluate`] evaluates
//!   several at once. An evaluated array may be sent to another thread, a lazy one must be
//!   evaluated on the thread that made it. A thread that uses MLX costs a second one for good, so
//!   work on a few long-lived threads: those of a rayon pool, for example.
//! - Allocation failures end the process: check sizes before.

pub mod array;
pub mod device;
mod error;
pub mod quant;
mod raw;
pub mod slice;

pub use array::{Host, from_bytes};
pub use device::{Blas, Device, Info, Memory, info, memory};
pub use error::{Error, Result};
pub use mlx_rs::Array;
pub use quant::{Packing, Quantized};

/// Evaluates arrays, together, on the calling thread.
///
/// # Errors
/// What MLX finds while it computes.
pub fn evaluate<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    Ok(mlx_rs::transforms::eval(arrays)?)
}

/// Waits until everything that was given to the calling thread's stream is done.
///
/// # Errors
/// What MLX found while it computed.
pub fn synchronize() -> Result<()> {
    let stream = raw::stream();
    // SAFETY: the stream is alive until the end of this function.
    raw::check(unsafe { mlx_sys::mlx_synchronize(stream.as_ptr()) })
}
