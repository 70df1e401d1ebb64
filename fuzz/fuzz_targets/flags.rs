//! Command lines in Go's syntax, with the registrar's own flags: any arguments end in flags or in a reason of one line.

#![no_main]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use csi_node_driver_registrar::goflag::{self, Error};
use csi_node_driver_registrar::registrar::flags::Flags;
use libfuzzer_sys::fuzz_target;

fn parse(arguments: &[&[u8]]) -> Result<String, Error> {
    let arguments = arguments
        .iter()
        .map(|argument| OsString::from(OsStr::from_bytes(argument)));
    goflag::parse::<Flags>(OsStr::new("registrar"), arguments).map(|flags| format!("{flags:?}"))
}

// Arguments are separated by NUL, as in /proc/PID/cmdline: none can hold one.
fuzz_target!(|input: &[u8]| {
    let mut arguments: Vec<_> = input.split(|octet| *octet == 0).collect();
    let parsed = parse(&arguments);
    match &parsed {
        Ok(_) => {
            // What follows the flags is ignored.
            let more = [&arguments[..], &[b"--", b"--no-such-flag"]].concat();
            assert_eq!(parse(&more), parsed);
        }
        Err(Error::Help { usage }) => assert!(!usage.is_empty()),
        Err(Error::Usage { reason, .. }) => {
            // In Go's words, which repeat what was given as it stands.
            let lines = input.iter().filter(|octet| **octet == b'\n').count() + 1;
            assert!((1..=lines).contains(&reason.lines().count()), "{reason:?}");
        }
    }
    // One dash is as good as two. Only of the first argument is it known that it is no value.
    if let [b'-', rest @ ..] = arguments[0]
        && !rest.is_empty()
        && !rest.starts_with(b"-")
    {
        let two_dashes = [b"--", rest].concat();
        arguments[0] = &two_dashes;
        let again = parse(&arguments);
        assert_eq!(parsed.is_ok(), again.is_ok(), "{parsed:?} {again:?}");
        if parsed.is_ok() {
            assert_eq!(parsed, again);
        }
    }
});
