//! Folders that MLX's tools and lathe's own export wrote, and what Ollama's importer stored.
