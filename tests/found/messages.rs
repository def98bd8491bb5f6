//! What is said of inputs that cannot be what they seem, and what is warned of.
