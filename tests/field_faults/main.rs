//! What breaks registrars in the field, one row each, on a real binary and from the outside.
//!
//! Rows F01 to F31 are faults that people reported in public about the original sidecar; the rows that follow them are
//! attacks and promises of our own. `REGISTRAR_BIN` names another binary to score. Arguments filter rows by a part of
//! their name. At the end a table says how each fared, and the exit code is 0 only if all passed.
//!
//! The rows run in a mount namespace of their own, so that what they mount vanishes with them.

#![allow(
    clippy::disallowed_methods,
    reason = "the rules are for processes of one thread; attackers have threads of their own"
)]
#![allow(
    clippy::unwrap_used,
    reason = "all of it is test code, but without libtest's harness nothing says so"
)]
#![allow(
    unreachable_pub,
    reason = "the modules of a test binary have no users outside it"
)]

mod abuse;
mod beyond;
mod descriptors;
mod driver;
mod field;
mod frames;
mod kubelet;
mod phases;
mod process;
mod rows;
mod runner;
mod seccomp;
mod socket;
#[path = "../support/mod.rs"]
mod support;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Set in the process that has the namespace.
const INSIDE: &str = "FIELD_FAULTS_INSIDE";

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if std::env::var_os(INSIDE).is_none() {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private"]);
        if !nix::unistd::geteuid().is_root() {
            unshare.args(["--user", "--map-root-user"]);
        }
        let error = unshare.args(&arguments).env(INSIDE, "1").exec();
        eprintln!("cannot run unshare (util-linux), needed for a mount namespace: {error}");
        return ExitCode::FAILURE;
    }
    // What libtest takes and has no meaning here (`--nocapture`, `--test-threads=N`) is ignored.
    let filters: Vec<_> = arguments
        .iter()
        .skip(1)
        .filter_map(|argument| argument.to_str())
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    runner::run(rows::all(), &filters)
}
