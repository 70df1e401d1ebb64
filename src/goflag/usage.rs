//! The usage text that Go's `flag` package prints, from the flags of a clap command.

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::{Arg, Command};

use super::{GoDuration, Quoted, args};

/// Writes the usage, without a line break at its end. Hidden flags are left out, as are the defaults that are the zero value
/// of their type.
pub(super) fn write(out: &mut impl Write, program: &OsStr, command: &Command) -> fmt::Result {
    write!(out, "Usage of {}:", program.to_string_lossy())?;
    let mut flags: Vec<(&str, &Arg)> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .filter_map(|arg| Some((arg.get_long()?, arg)))
        .collect();
    flags.sort_unstable_by_key(|(name, _)| *name);
    for (name, arg) in flags {
        write_flag(out, name, arg)?;
    }
    Ok(())
}

fn write_flag(out: &mut impl Write, name: &str, arg: &Arg) -> fmt::Result {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let kind = Kind::of(arg);
    let (value_name, help) = match quoted_word(&help) {
        Some((before, word, after)) => (word, format!("{before}{word}{after}")),
        None => (kind.name(), help.clone()),
    };
    write!(out, "\n  -{name}")?;
    if !value_name.is_empty() {
        write!(out, " {value_name}")?;
    }
    // A boolean of one letter keeps its help on the line.
    let same_line = name.len() == 1 && value_name.is_empty();
    out.write_str(if same_line { "\t" } else { "\n    \t" })?;
    out.write_str(&help.replace('\n', "\n    \t"))?;
    let default = arg.get_default_values().join(OsStr::new(","));
    if kind.is_zero(&default) {
        return Ok(());
    }
    match kind {
        Kind::String => write!(out, " (default {})", Quoted::new(default.as_bytes())),
        _ => write!(out, " (default {})", default.to_string_lossy()),
    }
}

/// The first back-quoted word, with what is around it.
fn quoted_word(help: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = help.split_once('`')?;
    let (word, after) = rest.split_once('`')?;
    Some((before, word, after))
}

/// Go's types of flags, as far as the usage tells them apart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bool,
    Duration,
    Int,
    String,
    Value,
}

impl Kind {
    fn of(arg: &Arg) -> Self {
        let id = arg.get_value_parser().type_id();
        if args::is_boolean(arg) {
            Self::Bool
        } else if id == TypeId::of::<GoDuration>() {
            Self::Duration
        } else if id == TypeId::of::<i64>() {
            Self::Int
        } else if [
            TypeId::of::<String>(),
            TypeId::of::<OsString>(),
            TypeId::of::<PathBuf>(),
        ]
        .iter()
        .any(|string| id == *string)
        {
            Self::String
        } else {
            Self::Value
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Bool => "",
            Self::Duration => "duration",
            Self::Int => "int",
            Self::String => "string",
            Self::Value => "value",
        }
    }

    fn is_zero(self, default: &OsStr) -> bool {
        default.is_empty()
            || match self {
                Self::Bool => default == "false",
                Self::Duration => default == "0" || default == "0s",
                Self::Int | Self::Value => default == "0",
                Self::String => false,
            }
    }
}
