//! Argument lists and what Go's `flag` package makes of them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use clap::Parser;
use proptest::prelude::*;

use super::{Error, parse};
use crate::goflag::{GoDuration, boolean, integer};

#[derive(Debug, Parser)]
struct Flags {
    #[arg(
        long,
        default_value = "/run/csi/socket",
        help = "Path of the `socket`, as seen\nfrom here."
    )]
    csi_address: PathBuf,
    #[arg(long, default_value = "1s", help = "Deadline")]
    timeout: GoDuration,
    #[arg(long, default_value = "0s", help = "Off by default")]
    wait: GoDuration,
    #[arg(long, default_value = "0", value_parser = integer, help = "Only one of `--a` and `--b` can be set.")]
    health_port: i64,
    #[arg(long, help = "Show version.")]
    version: bool,
    #[arg(long, default_value_t = true, help = "Wait.")]
    wait_for_ready: bool,
    #[arg(long = "x", help = "One letter")]
    x: bool,
    #[arg(long = "y", default_value = "", help = "")]
    y: String,
    #[arg(long = "skip_headers", value_parser = boolean, hide = true)]
    skip_headers: Option<bool>,
    #[arg(long, default_value = "2", action = clap::ArgAction::Append, value_parser = integer, help = "All count")]
    level: Vec<i64>,
}

fn given(args: &[&str]) -> Result<Flags, Error> {
    parse(OsStr::new("prog"), args.iter().map(OsString::from))
}

fn good(args: &[&str]) -> Flags {
    given(args).unwrap_or_else(|error| panic!("{args:?}: {error}"))
}

/// The reason of a usage error.
fn reason(args: &[&str]) -> String {
    match given(args) {
        Err(error @ Error::Usage { .. }) => {
            assert_eq!(error.exit_code(), 2);
            let Error::Usage { reason, usage } = error else {
                unreachable!()
            };
            assert!(usage.starts_with("Usage of prog:\n"));
            reason
        }
        other => panic!("{args:?}: {other:?}"),
    }
}

#[test]
fn defaults() {
    let flags = good(&[]);
    assert_eq!(flags.csi_address, PathBuf::from("/run/csi/socket"));
    assert_eq!(flags.timeout.nanos(), 1_000_000_000);
    assert_eq!(
        (flags.version, flags.wait_for_ready, flags.x),
        (false, true, false)
    );
    assert_eq!((flags.health_port, flags.skip_headers), (0, None));
    assert_eq!(flags.level, [2]);
}

#[test]
fn every_spelling_of_a_flag() {
    for args in [
        &["-csi-address", "/a"][..],
        &["--csi-address", "/a"],
        &["-csi-address=/a"],
        &["--csi-address=/a"],
        &["--csi-address=/b", "-csi-address", "/a"],
    ] {
        assert_eq!(good(args).csi_address, PathBuf::from("/a"), "{args:?}");
    }
    for args in [
        &["-x"][..],
        &["--x"],
        &["-x=true"],
        &["--x=T"],
        &["-x=0", "-x"],
    ] {
        assert!(good(args).x, "{args:?}");
    }
    assert!(!good(&["-x", "--x=False"]).x);
    assert!(!good(&["--wait-for-ready=f"]).wait_for_ready);
    assert_eq!(good(&["-skip_headers"]).skip_headers, Some(true));
}

#[test]
fn the_last_of_a_repeated_flag_wins() {
    assert_eq!(
        good(&["-timeout=1s", "--timeout", "2m", "-timeout=3s"])
            .timeout
            .to_string(),
        "3s"
    );
    assert_eq!(
        good(&["-health-port=0x10", "-health-port", "-7"]).health_port,
        -7
    );
    assert_eq!(good(&["-level=1", "-level=3"]).level, [1, 3]);
}

#[test]
fn a_value_may_look_like_anything() {
    assert_eq!(good(&["-y", "--"]).y, "--");
    assert_eq!(good(&["-y", "-x"]).y, "-x");
    assert_eq!(good(&["-y", ""]).y, "");
    assert_eq!(good(&["-y="]).y, "");
    assert_eq!(good(&["-y=a=b,c d"]).y, "a=b,c d");
    assert_eq!(good(&["--csi-address="]).csi_address, PathBuf::new());
    let bytes = OsString::from_vec(b"--csi-address=/\xff".to_vec());
    let flags: Flags = parse(OsStr::new("prog"), [bytes]).expect("a path is bytes");
    assert_eq!(flags.csi_address.into_os_string().into_vec(), b"/\xff");
}

#[test]
fn flags_end_at_the_first_argument_that_is_none() {
    for stop in ["--", "-", "word", "", "=", "x=y"] {
        let flags = good(&["-x", stop, "--version", "--nonsense"]);
        assert!(flags.x && !flags.version, "{stop}");
    }
    // A boolean takes no second argument.
    let flags = good(&["-x", "false", "--version"]);
    assert!(flags.x && !flags.version);
}

#[test]
fn reasons_are_in_gos_words() {
    for (args, expected) in [
        (&["---x"][..], "bad flag syntax: ---x"),
        (&["-=x"], "bad flag syntax: -=x"),
        (&["--=x"], "bad flag syntax: --=x"),
        (&["--nope=5"], "flag provided but not defined: -nope"),
        (&["-timeout"], "flag needs an argument: -timeout"),
        (
            &["-timeout="],
            r#"invalid value "" for flag -timeout: parse error"#,
        ),
        (
            &["-timeout", "5"],
            r#"invalid value "5" for flag -timeout: parse error"#,
        ),
        (
            &["-timeout=a\"b\n"],
            r#"invalid value "a\"b\n" for flag -timeout: parse error"#,
        ),
        (
            &["-version=x"],
            r#"invalid boolean value "x" for -version: parse error"#,
        ),
        (
            &["-version="],
            r#"invalid boolean value "" for -version: parse error"#,
        ),
        (
            &["-health-port=1.0"],
            r#"invalid value "1.0" for flag -health-port: parse error"#,
        ),
        (
            &["-health-port=9223372036854775808"],
            r#"invalid value "9223372036854775808" for flag -health-port: value out of range"#,
        ),
        // The first that is wrong, whatever it is.
        (
            &["-timeout=bad", "-timeout=1s"],
            r#"invalid value "bad" for flag -timeout: parse error"#,
        ),
        (
            &["-timeout=bad", "--nope", "-h"],
            r#"invalid value "bad" for flag -timeout: parse error"#,
        ),
        (
            &["--nope", "-timeout=bad", "-h"],
            "flag provided but not defined: -nope",
        ),
        // clap's own flags and abbreviations are not there.
        (&["-V"], "flag provided but not defined: -V"),
        (&["--time=1s"], "flag provided but not defined: -time"),
    ] {
        assert_eq!(reason(args), expected, "{args:?}");
    }
}

#[test]
fn what_is_not_utf_8_is_an_error_with_a_reason() {
    for (arg, expected) in [
        (
            b"--timeout=\xff".to_vec(),
            r#"invalid value "\xff" for flag -timeout: not UTF-8"#,
        ),
        (
            b"-y=\xff".to_vec(),
            r#"invalid value "\xff" for flag -y: not UTF-8"#,
        ),
        (
            b"--n\xffpe".to_vec(),
            "flag provided but not defined: -n\u{fffd}pe",
        ),
    ] {
        let error = parse::<Flags>(OsStr::new("prog"), [OsString::from_vec(arg)])
            .expect_err("no such value");
        assert!(
            matches!(&error, Error::Usage { reason, .. } if reason == expected),
            "{error:?}"
        );
    }
}

#[test]
fn help_wins_over_what_follows_it() {
    for help in ["-h", "-help", "--help", "--h", "-help=5"] {
        let error = given(&["-x", help, "--nope"]).expect_err("the usage");
        assert!(matches!(error, Error::Help { .. }), "{error:?}");
        assert_eq!(error.exit_code(), 0);
    }
}

#[test]
fn the_usage_is_gos() {
    let Err(help @ Error::Help { .. }) = given(&["-h"]) else {
        panic!("no usage")
    };
    let expected = "Usage of prog:
  -csi-address socket
    \tPath of the socket, as seen
    \tfrom here. (default \"/run/csi/socket\")
  -health-port --a
    \tOnly one of --a and `--b` can be set.
  -level int
    \tAll count (default 2)
  -timeout duration
    \tDeadline (default 1s)
  -version
    \tShow version.
  -wait duration
    \tOff by default
  -wait-for-ready
    \tWait. (default true)
  -x\tOne letter
  -y string
    \t";
    assert_eq!(help.to_string(), expected);
}

proptest! {
    #[test]
    fn any_argument_list_is_answered(args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 0..6)) {
        let _ = parse::<Flags>(OsStr::new("prog"), args.into_iter().map(OsString::from_vec));
    }

    #[test]
    fn flag_like_lists_are_answered(args in prop::collection::vec("-{0,3}(x|y|timeout|level|h|version)?=?[0-9a-z]{0,3}", 0..6)) {
        let _ = parse::<Flags>(OsStr::new("prog"), args.into_iter().map(OsString::from));
    }

    #[test]
    fn any_value_reaches_its_flag_in_any_spelling(value in "\\PC*", dashes in 1..3_usize, separate: bool) {
        let flag = format!("{}y", "-".repeat(dashes));
        let args = if separate { vec![flag, value.clone()] } else { vec![format!("{flag}={value}")] };
        let flags: Flags = parse(OsStr::new("prog"), args.into_iter().map(OsString::from)).expect("a string");
        prop_assert_eq!(flags.y, value);
    }
}
