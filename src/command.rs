//! The programs in this one binary, and what they have in common: which one is meant, its signals, its end.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::goflag;
use crate::http::{Endpoint, EndpointError, Handler, Listeners};
use crate::liveness;
use crate::registrar;
use crate::registrar::cleanup::CleanupFlags;
use crate::registrar::probe::ProbeFlags;
use crate::signals::Signals;

/// The version that `--version` prints: the package's, unless the build's environment names another in `REGISTRAR_VERSION`, as
/// an image's does.
pub const VERSION: &str = match option_env!("REGISTRAR_VERSION") {
    Some(version) if !version.is_empty() => version,
    _ => concat!("v", env!("CARGO_PKG_VERSION")),
};

/// The name under which the binary takes the liveness probe's place, and the sub-command that does the same.
const LIVENESSPROBE: &str = "livenessprobe";

/// Events that are fetched from the system at once. The runtime's own choice is 1024, and 12 KiB for them.
const IO_EVENTS: usize = 64;

/// How a program was called.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// `argv[0]`, with the sub-command if there is one.
    pub program: OsString,
    /// What follows it.
    pub arguments: Vec<OsString>,
}

impl Invocation {
    /// Reads the flags in Go's syntax.
    pub fn flags<T: Parser>(&self) -> Result<T, goflag::Error> {
        goflag::parse(&self.program, self.arguments.iter().cloned())
    }

    /// `<argv0> <version>`, on standard output.
    pub fn print_version(&self) -> ExitCode {
        let line = [
            self.program.as_encoded_bytes(),
            b" ",
            VERSION.as_bytes(),
            b"\n",
        ]
        .concat();
        let printed = io::stdout().write_all(&line);
        printed.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
    }
}

/// Runs the program that the arguments, which begin with the binary's name, ask for, to its end.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let program = arguments.next().unwrap_or_default();
    let invocation = Invocation {
        program,
        arguments: arguments.collect(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_io_events_per_tick(IO_EVENTS)
        .build();
    let started = runtime.and_then(|runtime| {
        let entered = runtime.enter();
        // Before anything else: a TERM during a slow start must not be lost.
        let signals = Signals::catch()?;
        drop(entered);
        Ok((runtime, signals))
    });
    match started {
        Ok((runtime, signals)) => {
            let end = runtime.block_on(dispatch(invocation, signals));
            // Nothing that still runs has anything to finish.
            runtime.shutdown_background();
            end
        }
        Err(error) => {
            complain(&format!("cannot start: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Sub-commands are exactly these words as the first argument; any other is a positional, which Go's flags ignore.
async fn dispatch(invocation: Invocation, signals: Signals) -> ExitCode {
    if Path::new(&invocation.program).file_name() == Some(OsStr::new(LIVENESSPROBE)) {
        return liveness::command::run(invocation, signals).await;
    }
    let word = invocation.arguments.first().and_then(|word| word.to_str());
    match word {
        Some("probe") => match invocation.subcommand().flags::<ProbeFlags>() {
            Ok(flags) => conclude(flags.run().await),
            Err(error) => usage(&error),
        },
        Some("cleanup") => match invocation.subcommand().flags::<CleanupFlags>() {
            Ok(flags) => conclude(flags.run()),
            Err(error) => usage(&error),
        },
        Some(LIVENESSPROBE) => liveness::command::run(invocation.subcommand(), signals).await,
        _ => registrar::command::run(invocation, signals).await,
    }
}

impl Invocation {
    fn subcommand(&self) -> Self {
        let mut arguments = self.arguments.iter();
        let mut program = self.program.clone();
        if let Some(word) = arguments.next() {
            program.push(" ");
            program.push(word);
        }
        Self {
            program,
            arguments: arguments.cloned().collect(),
        }
    }
}

/// A sub-command's end: its error is one line for whoever reads the pod's events.
fn conclude(result: Result<(), impl std::error::Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Prints what is wrong with a command line, or the usage that was asked for.
pub(crate) fn usage(error: &goflag::Error) -> ExitCode {
    complain(&error.to_string());
    ExitCode::from(error.exit_code())
}

/// For what comes before there is a log.
fn complain(text: &str) {
    // A closed standard error is no reason to do anything else.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Logs why a program fails. The last lines of a process must explain its end alone.
pub(crate) fn log_failure(reasons: &[impl ToString]) -> ExitCode {
    for reason in reasons {
        tracing::error!(err = reason.to_string(), "Exiting");
    }
    ExitCode::FAILURE
}

/// Runs until the end; the first signal asks for it, a second one does not wait. `None` if there was a second one.
pub(crate) async fn until_second_signal<F: Future>(
    mut signals: Signals,
    run: impl FnOnce(oneshot::Receiver<()>) -> F,
) -> Option<F::Output> {
    let (stop, stopped) = oneshot::channel();
    let second_signal = async {
        let signal = signals.next().await;
        tracing::info!(signal, "Stopping");
        drop(stop);
        let signal = signals.next().await;
        tracing::error!(signal, "A second signal, exiting at once");
    };
    tokio::select! {
        biased;
        result = run(stopped) => Some(result),
        () = second_signal => None,
    }
}

/// A flag that names an address which cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("{flag}: {source}")]
pub(crate) struct BindError {
    flag: &'static str,
    source: EndpointError,
}

/// An address and the flag that it came from, bound before anything else happens.
pub(crate) fn bind(
    flag: &'static str,
    endpoint: Option<&Endpoint>,
) -> Result<Option<Listeners>, BindError> {
    let bound = endpoint.map(Endpoint::bind).transpose();
    bound.map_err(|source| BindError { flag, source })
}

/// An HTTP server at work.
pub(crate) struct Server {
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl Server {
    /// Serves what was bound; `what` says in the log what for.
    pub(crate) fn start(
        what: &'static str,
        listeners: Listeners,
        handler: Arc<dyn Handler>,
    ) -> Self {
        for address in listeners.addresses() {
            tracing::info!(endpoint = %address, serves = what, "HTTP server listening");
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            if let Err(error) = listeners.serve(handler, stopped).await {
                tracing::error!(err = %error, serves = what, "Cannot serve HTTP");
            }
        });
        Self { stop, ended }
    }

    /// Closes all of them at once and lets answers in flight end, which is bounded ([`crate::limits::http::DRAIN`]).
    pub(crate) async fn stop_all(servers: Vec<Self>) {
        let ended = servers.into_iter().map(|Self { stop, ended }| {
            drop(stop);
            ended
        });
        for ended in ended.collect::<Vec<_>>() {
            let _ = ended.await;
        }
    }
}
