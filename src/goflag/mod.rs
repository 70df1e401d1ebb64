//! Command lines in the syntax of Go's `flag` package, so that every argument list that works with the Go sidecars works
//! here, and fails with the same words and exit code.
//!
//! A program's flags are one struct that derives `clap::Parser`: it is the only list of names, types, defaults and help
//! texts. clap knows no single-dash long options, so `args` rewrites what was given to `--name=value` first, and
//! `usage` prints what Go's `PrintDefaults` would.
//!
//! | Go | field and attribute |
//! |---|---|
//! | `Bool` | `bool`, or `Option<bool>` with `value_parser = goflag::boolean` |
//! | `Int` | `i64` with `value_parser = goflag::integer` |
//! | `Duration` | [`GoDuration`] |
//! | `String` | `PathBuf` or `OsString` (any bytes, also none), `String` (UTF-8 only) |
//! | `Var` | any type with `FromStr`, its error is the reason that the user reads |
//!
//! Go's flags always have a value: give a default or use an `Option`. Names of one letter are `long` too:
//! `#[arg(long = "v")]`. Help texts are given as `help = "..."`; a back-quoted word in one names the value, as in Go.

mod duration;
mod integer;
mod quote;

#[cfg(feature = "registrar")]
mod args;
#[cfg(feature = "registrar")]
mod parse;
#[cfg(feature = "registrar")]
mod usage;

pub use duration::GoDuration;
pub use integer::{ValueError, boolean, integer};
#[cfg(feature = "registrar")]
pub use parse::{Error, parse};
pub use quote::Quoted;
