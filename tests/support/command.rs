//! A process that is expected to end by itself: what it wrote and how it ended.

use std::ffi::OsStr;
use std::io::Read;
use std::process::{Command, Stdio};

use super::{Registrar, registrar_command};

/// All there is to see of a process that ended.
#[derive(Debug)]
pub struct Ended {
    /// `None` if a signal killed it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// The first line on standard error, empty if there is none.
    pub fn first_line(&self) -> &str {
        self.stderr.lines().next().unwrap_or_default()
    }

    /// The error lines of a text log, from the message on: what a reader of the pod's last lines sees.
    pub fn errors(&self) -> Vec<&str> {
        let lines = self.stderr.lines().filter(|line| line.starts_with('E'));
        lines
            .map(|line| line.split_once("] ").map_or(line, |(_, message)| message))
            .collect()
    }
}

/// Runs the binary with these arguments alone.
pub async fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Ended {
    let mut command = registrar_command();
    command.args(arguments);
    run_command(command).await
}

/// Runs a command to its end, which must come in time.
pub async fn run_command(mut command: Command) -> Ended {
    command.stdout(Stdio::piped());
    let mut registrar = Registrar::spawn(command);
    let status = registrar.exit().await;
    let mut stdout = String::new();
    let pipe = registrar.child.stdout.as_mut().unwrap();
    pipe.read_to_string(&mut stdout).unwrap();
    Ended {
        code: status.code(),
        stdout,
        stderr: registrar.log().complete().await,
    }
}
