//! x
mod support;
