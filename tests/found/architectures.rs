//! What published checkpoints and configs of each architecture carry, or leave out.
