//! checkpoint: what a model folder, or the model in the store that was made of it, says of itself.
//!
//! Each question has one answer here, whoever asks: reading and planning ask of a folder, the engine
//! asks of what the store kept of it. [`architecture`]: what the config calls the model.
//! [`generation()`]: how its makers recommend that it answers.
//! [`chat_template`]: which of its templates conversations are rendered with. [`vocabulary`]: whether
//! its files make a vocabulary.

mod architecture;
mod chat_template;
mod generation;
pub mod vocabulary;

pub use architecture::architecture;
pub use chat_template::{ChatTemplate, DEFAULT, SmallFiles, TOOL_USE, chat_template};
pub use generation::{GENERATION_CONFIG, Generation, generation};
