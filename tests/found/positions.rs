//! Rotary positions of every kind, and how far a decoder is exact.
