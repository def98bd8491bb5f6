//! What can go wrong in MLX, as values.

use crate::dtype::Dtype;
use crate::fault::{Code, Fault};

/// The result of an operation on MLX.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong in MLX.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// MLX refused an operation or failed in it; the words are MLX's.
    #[error("MLX: {0}")]
    Mlx(String),
    /// The bytes given are not as many as dtype and shape say.
    #[error("{given} bytes given for a {dtype} tensor of shape {shape:?}, which has {needed}")]
    Length {
        /// Bytes given.
        given: usize,
        /// Bytes that dtype and shape say.
        needed: u64,
        /// The dtype.
        dtype: Dtype,
        /// The shape.
        shape: Vec<u64>,
    },
    /// MLX counts an axis in 31 bits.
    #[error("shape {0:?} has an axis or a size that MLX cannot count")]
    Shape(Vec<u64>),
    /// MLX has no such type.
    #[error("MLX cannot compute with {0}")]
    Dtype(Dtype),
    /// An operation gave something else than it promises.
    #[error("{operation} gave {found}, not {expected}")]
    Result {
        /// The operation.
        operation: &'static str,
        /// What it gave.
        found: String,
        /// What it had to give.
        expected: String,
    },
}

impl From<mlx_rs::error::Exception> for Error {
    fn from(exception: mlx_rs::error::Exception) -> Self {
        Error::mlx(exception.what())
    }
}

impl From<Error> for mlx_rs::error::Exception {
    fn from(error: Error) -> Self {
        mlx_rs::error::Exception::custom(error.to_string())
    }
}

impl Error {
    /// MLX's message without the place in the sources of mlx-c that ends it.
    pub(super) fn mlx(message: &str) -> Self {
        let end = message.rfind(" at /").filter(|&at| message[at..].contains(".cpp:"));
        Error::Mlx(message[..end.unwrap_or(message.len())].to_string())
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::new(Code::Compute, error.to_string())
    }
}
