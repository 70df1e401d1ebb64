//! TERM in every phase.
