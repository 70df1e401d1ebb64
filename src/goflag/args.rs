//! Walks an argument list by the rules of Go's `flag` package. Values are not looked at: that is clap's part.

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, Command};

/// A flag of the command with its value, in the order given.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) name: String,
    pub(super) boolean: bool,
    pub(super) value: OsString,
}

impl Given {
    /// As clap wants it.
    pub(super) fn token(&self) -> OsString {
        let mut token = OsString::from(format!("--{}=", self.name));
        token.push(&self.value);
        token
    }
}

/// What ended the flags. Everything before it counts, and is judged first.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The end of the list, `--`, or the first argument that is no flag. What follows is ignored.
    Arguments,
    /// `-h` or `-help`, where the command does not define it.
    Help,
    /// A flag that cannot be read, in Go's words.
    Bad(String),
}

/// Whether `arg` is one of Go's booleans, which take a value only after `=`.
pub(super) fn is_boolean(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<bool>()
}

pub(super) fn walk(
    command: &Command,
    args: impl IntoIterator<Item = OsString>,
) -> (Vec<Given>, End) {
    let mut args = args.into_iter();
    let mut given = Vec::new();
    while let Some(arg) = args.next() {
        match one(command, arg.as_bytes(), &mut args) {
            Ok(flag) => given.push(flag),
            Err(end) => return (given, end),
        }
    }
    (given, End::Arguments)
}

/// The flag in `arg`, with its value from `rest` if it is there.
fn one(
    command: &Command,
    arg: &[u8],
    rest: &mut impl Iterator<Item = OsString>,
) -> Result<Given, End> {
    let flag = match arg {
        b"-" | b"--" => return Err(End::Arguments),
        [b'-', b'-', flag @ ..] | [b'-', flag @ ..] => flag,
        _ => return Err(End::Arguments),
    };
    if let [b'-' | b'=', ..] = flag {
        return Err(End::Bad(format!(
            "bad flag syntax: {}",
            String::from_utf8_lossy(arg)
        )));
    }
    let (name, value) = match flag.iter().position(|&byte| byte == b'=') {
        Some(equals) => (
            &flag[..equals],
            Some(OsString::from_vec(flag[equals + 1..].to_vec())),
        ),
        None => (flag, None),
    };
    let name = OsStr::from_bytes(name).to_string_lossy();
    let Some(defined) = command
        .get_arguments()
        .find(|arg| arg.get_long() == Some(&name))
    else {
        return Err(match &*name {
            "help" | "h" => End::Help,
            _ => End::Bad(format!("flag provided but not defined: -{name}")),
        });
    };
    let boolean = is_boolean(defined);
    let value = match value {
        Some(value) => value,
        None if boolean => "true".into(),
        None => rest
            .next()
            .ok_or_else(|| End::Bad(format!("flag needs an argument: -{name}")))?,
    };
    Ok(Given {
        name: name.into_owned(),
        boolean,
        value,
    })
}
