//! Whether a model can be run is known before it is written.
