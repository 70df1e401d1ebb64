//! From an argument list to a program's struct of flags.

use std::any::TypeId;
use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{ArgAction, Command, Parser};

use super::args::{self, End, Given};
use super::{Quoted, boolean, usage};

/// Why there are no flags to run with. It displays as the text for standard error, but for the last line break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The user asked for the usage.
    #[error("{usage}")]
    Help {
        /// What to print.
        usage: String,
    },
    /// The arguments cannot be used.
    #[error("{reason}\n{usage}")]
    Usage {
        /// One line in the words of Go's `flag` package.
        reason: String,
        /// What to print after it.
        usage: String,
    },
}

impl Error {
    /// What Go's `flag.Parse` exits with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Help { .. } => 0,
            Self::Usage { .. } => 2,
        }
    }
}

/// Parses `args` (without the program's name) as Go's `flag.Parse` does, into the flags that `T` defines.
///
/// `program` is what the usage calls the program: `argv[0]`, with the sub-command if there is one.
pub fn parse<T: Parser>(
    program: &OsStr,
    args: impl IntoIterator<Item = OsString>,
) -> Result<T, Error> {
    // Made anew where it is needed again: of what is kept for an error that does not come, the heap keeps its size.
    let command = || prepare(T::command());
    let usage = || {
        let mut text = String::new();
        usage::write(&mut text, program, &command()).expect("a String takes everything");
        text
    };
    let bad = |reason| Error::Usage {
        reason,
        usage: usage(),
    };

    let parser = command();
    let (given, end) = args::walk(&parser, args);
    let matches = parser
        .try_get_matches_from(given.iter().map(Given::token))
        .map_err(|error| bad(reason(&command(), &given, &error)))?;
    match end {
        End::Arguments => T::from_arg_matches(&matches).map_err(|error| bad(words(&error))),
        End::Help => Err(Error::Help { usage: usage() }),
        End::Bad(reason) => Err(bad(reason)),
    }
}

/// Makes clap as strict and as lenient as Go.
fn prepare(command: Command) -> Command {
    command
        .no_binary_name(true)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args_override_self(true)
        .mut_args(|arg| {
            if matches!(arg.get_action(), ArgAction::SetTrue) {
                // clap's own takes no value.
                let default = arg.get_default_values().is_empty().then_some("false");
                let arg = arg.action(ArgAction::Set).value_parser(boolean);
                if default.is_some() {
                    arg.default_value(default)
                } else {
                    arg
                }
            } else if arg.get_value_parser().type_id() == TypeId::of::<PathBuf>() {
                // clap's own refuses the empty string.
                arg.value_parser(OsStringValueParser::new().map(PathBuf::from))
            } else {
                arg
            }
        })
}

/// clap says that a value is wrong, but (without its feature `error-context`) not which: the first that is wrong alone.
fn reason(command: &Command, given: &[Given], error: &clap::Error) -> String {
    let culprit = given.iter().find_map(|flag| {
        let alone = command.clone().try_get_matches_from([flag.token()]);
        alone.err().map(|error| (flag, error))
    });
    match culprit {
        Some((
            Given {
                name,
                boolean: true,
                value,
            },
            error,
        )) => {
            format!(
                "invalid boolean value {} for -{name}: {}",
                Quoted::new(value.as_bytes()),
                words(&error)
            )
        }
        Some((Given { name, value, .. }, error)) => {
            format!(
                "invalid value {} for flag -{name}: {}",
                Quoted::new(value.as_bytes()),
                words(&error)
            )
        }
        None => words(error),
    }
}

fn words(error: &clap::Error) -> String {
    match (error.source(), error.kind()) {
        (Some(source), _) => source.to_string(),
        (None, ErrorKind::InvalidUtf8) => "not UTF-8".to_owned(),
        (None, kind) => kind.to_string(),
    }
}

#[cfg(test)]
mod tests;
