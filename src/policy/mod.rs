//! policy: files of rules in, a compiled [`Policy`] out.
