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
    /// Words of lathe's own that passed through code which knows MLX's exceptions only.
    #[error("{0}")]
    Own(String),
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
        match exception.what() {
            words if place(words).is_some() => Error::mlx(words),
            words => Error::Own(words.to_string()),
        }
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
        Error::Mlx(message[..place(message).unwrap_or(message.len())].to_string())
    }
}

/// Where the place in the sources of mlx-c begins, which ends all that MLX says.
fn place(message: &str) -> Option<usize> {
    message.rfind(" at /").filter(|&at| message[at..].contains(".cpp:"))
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::new(Code::Compute, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlx_rs::error::Exception;

    /// Through an exception and back, as the words of a module of a model go.
    fn passed_on(error: Error) -> String {
        Error::from(Exception::from(error)).to_string()
    }

    #[test]
    fn only_the_words_of_mlx_are_said_to_be_its() {
        let theirs = "[matmul] (2,3) and (4,5) do not fit at /src/mlx-c/mlx/c/ops.cpp:2046";
        let said = "MLX: [matmul] (2,3) and (4,5) do not fit";
        assert_eq!(Error::from(Exception::custom(theirs)).to_string(), said);
        assert_eq!(passed_on(Error::mlx(theirs)), said);
        assert_eq!(passed_on(Error::Dtype(Dtype::F8E5M2)), "MLX cannot compute with F8_E5M2");
        let ours = Exception::custom("attention without keys: this cache is another model's");
        assert!(!Error::from(ours).to_string().contains("MLX"));
    }
}
