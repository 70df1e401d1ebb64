//! `kubelet-plugin-manager`: the manager as a command, for a laptop and for CI. One file for each sub-command; what they
//! share is a node (`node`) and a way to speak to people (`terminal`, `event_text`).

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use super::StartError;
use super::csi::InitialiseError;
#[cfg(feature = "kube")]
use super::csi::node_store::ConnectError;
use crate::http::EndpointError;
use crate::signals::Signals;

mod check;
mod demo;
mod event_text;
mod node;
mod run;
mod temporary_directory;
mod terminal;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: `run` was stopped, `check` passed, `demo` was shown.
    Success,
    /// 1: it failed, or was interrupted; the reason was printed.
    Failure,
    /// 2: the command line cannot be used.
    Usage,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Success => Self::SUCCESS,
            Exit::Failure => Self::FAILURE,
            Exit::Usage => Self::from(2),
        }
    }
}

/// What a kubelet does with the plugins that register with it, without a cluster.
#[derive(Debug, Parser)]
#[command(
    name = "kubelet-plugin-manager",
    version,
    after_help = "Exit codes: 0 success, 1 failure, 2 a command line that cannot be used."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the whole story in one process: registration, kubelet restart, driver restart, stop
    Demo(demo::Arguments),
    /// Start a registrar, follow one registration and one graceful stop, and judge both
    Check(check::Arguments),
    /// Watch a registration directory as a kubelet does, until stopped
    Run(run::Arguments),
}

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot start: {0}")]
    Runtime(io::Error),
    #[error(transparent)]
    Registry(#[from] run::RegistryError),
    #[error("--http-endpoint: {0}")]
    Endpoint(#[from] EndpointError),
    #[error("--objects-file: {} cannot be written: {source}", path.display())]
    ObjectsFile { path: PathBuf, source: io::Error },
    #[error("cannot make a temporary directory in {}: {source}; set TMPDIR to another one", path.display())]
    TemporaryDirectory { path: PathBuf, source: io::Error },
    #[error("the path of the directory for temporary files is too long for sockets in it: {}; set TMPDIR to a shorter one", path.display())]
    LongTemporaryDirectory { path: PathBuf },
    #[error("the embedded driver cannot listen at {}: {source}", path.display())]
    Driver { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Initialise(#[from] InitialiseError),
    #[cfg(feature = "kube")]
    #[error("no API server: {0}")]
    ApiServer(#[from] ConnectError),
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
    #[error(transparent)]
    Check(#[from] check::UsageError),
    #[error(transparent)]
    Demo(#[from] demo::StoryError),
    #[error("interrupted by {0}")]
    Interrupted(&'static str),
}

/// Runs a command to its end. `arguments` begin with the program's name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> Exit {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing is left to do where nobody reads.
            let _ = error.print();
            return if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Success
            };
        }
    };
    match execute(cli.command) {
        Ok(exit) => exit,
        Err(Error::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Failure,
        Err(error) => {
            let _ = writeln!(io::stderr(), "kubelet-plugin-manager: {error}");
            match error {
                Error::Check(_) => Exit::Usage,
                _ => Exit::Failure,
            }
        }
    }
}

fn execute(command: Command) -> Result<Exit, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Runtime)?;
    let result = runtime.block_on(async {
        let signals = Signals::catch().map_err(Error::Runtime)?;
        match command {
            Command::Demo(arguments) => demo::run(arguments, signals).await,
            Command::Check(arguments) => check::run(arguments, signals).await,
            Command::Run(arguments) => run::run(arguments, signals).await,
        }
    });
    // A write that nobody reads would be waited for.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
