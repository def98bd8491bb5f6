//! Arguments that several commands take.

use std::path::PathBuf;

use clap::Args;

use super::ui::Output;
use crate::fault::{Fault, Faults};
use crate::store::{Name, Store};

/// Which store.
#[derive(Args)]
pub struct StoreArg {
    /// The store [default: $LATHE_STORE, else ~/.lathe/models]
    ///
    /// It is laid out as Ollama's, so this may also be Ollama's own: ~/.ollama/models.
    #[arg(long, value_name = "DIR", help_heading = "Where")]
    pub store: Option<PathBuf>,
}

impl StoreArg {
    /// The store.
    pub fn open(&self) -> Result<Store, Fault> {
        Store::open(self.store.as_deref())
    }
}

/// For people or for scripts.
#[derive(Args)]
pub struct OutputArg {
    /// How to print the result
    #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORM")]
    pub output: Output,
}

impl OutputArg {
    /// Whether scripts read it.
    pub fn json(&self) -> bool {
        self.output == Output::Json
    }
}

/// What computes a model: nothing in a build without MLX.
#[derive(Args, Default)]
pub struct BackendArg {
    /// What computes: lathe's kernels on the CPU, or MLX's operations alone; auto takes the
    /// kernels where MLX has no GPU
    #[cfg(feature = "mlx")]
    #[arg(long, value_enum, default_value_t = BackendName::Auto, value_name = "BACKEND")]
    backend: BackendName,
}

#[cfg(feature = "mlx")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum BackendName {
    #[default]
    Auto,
    Cpu,
    Graph,
}

#[cfg(feature = "mlx")]
impl BackendArg {
    /// As the model's room names it.
    pub fn backend(&self) -> crate::model::Backend {
        match self.backend {
            BackendName::Auto => crate::model::Backend::Auto,
            BackendName::Cpu => crate::model::Backend::Cpu,
            BackendName::Graph => crate::model::Backend::Graph,
        }
    }
}

/// All names, each checked, with all faults at once.
pub fn names(given: &[String]) -> Result<Vec<Name>, Faults> {
    let mut faults = Faults::default();
    let names = given
        .iter()
        .filter_map(|name| faults.absorb(Name::parse(name).map_err(Faults::from)))
        .collect();
    faults.or(names)
}
