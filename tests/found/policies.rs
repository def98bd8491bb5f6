//! What a stored model carries of its policy, and what Ollama reads of the store.
