//! Attacks of our own.
