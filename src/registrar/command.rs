//! The sidecar as a command: arguments in, exit code out.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use tokio::sync::oneshot;

use super::cleanup::CleanupFlags;
use super::diagnostics::Diagnostics;
use super::flags::{Flags, Request, Settings, TerminationLog};
use super::health::Health;
use super::probe::ProbeFlags;
use super::{Error, Registrar};
use crate::goflag;
use crate::http::{EndpointError, Listeners};
use crate::klog;
use crate::signals::Signals;

/// The version that `--version` prints.
pub const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));

/// Runs the sidecar to its end. `arguments` begin with the program's name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let program = arguments.next().unwrap_or_default();
    let arguments: Vec<_> = arguments.collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
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
            let end = runtime.block_on(command(&program, arguments, signals));
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
async fn command(program: &OsStr, arguments: Vec<OsString>, signals: Signals) -> ExitCode {
    let word = arguments.first().and_then(|word| word.to_str());
    match word {
        Some("probe") => match subcommand::<ProbeFlags>(program, &arguments) {
            Ok(flags) => conclude(flags.run().await),
            Err(error) => usage(&error),
        },
        Some("cleanup") => match subcommand::<CleanupFlags>(program, &arguments) {
            Ok(flags) => conclude(flags.run()),
            Err(error) => usage(&error),
        },
        _ => sidecar(program, arguments, signals).await,
    }
}

fn subcommand<T: Parser>(program: &OsStr, arguments: &[OsString]) -> Result<T, goflag::Error> {
    let mut words = arguments.iter();
    let name: Vec<_> = std::iter::once(program)
        .chain(words.next().map(OsString::as_os_str))
        .collect();
    goflag::parse(&name.join(OsStr::new(" ")), words.cloned())
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

fn usage(error: &goflag::Error) -> ExitCode {
    complain(&error.to_string());
    ExitCode::from(error.exit_code())
}

async fn sidecar(program: &OsStr, arguments: Vec<OsString>, signals: Signals) -> ExitCode {
    let flags = match goflag::parse::<Flags>(program, arguments.iter().cloned()) {
        Ok(flags) => flags,
        Err(error) => return usage(&error),
    };
    let logging = flags.klog();
    // Only a second subscriber of one process could be refused.
    let _ = klog::init(logging.settings.clone());
    let termination = flags.termination_log();
    if !logging.problems.is_empty() {
        return fail(&termination, &logging.problems);
    }
    let has_connection_timeout = flags.has_connection_timeout();
    let settings = match flags.validate() {
        Ok(Request::Version) => {
            let line = [program.as_encoded_bytes(), b" ", VERSION.as_bytes(), b"\n"].concat();
            let printed = io::stdout().write_all(&line);
            return printed.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
        }
        Ok(Request::Nothing) => return ExitCode::SUCCESS,
        Ok(Request::Run(settings)) => settings,
        Err(problems) => return fail(&termination, &problems),
    };
    tracing::info!(version = VERSION, "Version");
    tracing::info!(mode = settings.mode, "Running node-driver-registrar");
    logging.log_warnings();
    if has_connection_timeout {
        tracing::warn!("--connection-timeout is deprecated and will have no effect");
    }
    let ended = until_second_signal(signals, |shutdown| {
        run(*settings, program, arguments, shutdown)
    });
    match ended.await {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => fail(&termination, &[error]),
        None => ExitCode::FAILURE,
    }
}

/// Runs until the end; the first signal asks for it, a second one does not wait. `None` if there was a second one.
async fn until_second_signal<F: Future>(
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
        // First, since whatever is polled after a future that is always busy has no part in the runtime's budget left.
        biased;
        () = second_signal => None,
        result = run(stopped) => Some(result),
    }
}

/// Why a sidecar ended.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Registrar(#[from] Error),
    #[error("--http-endpoint: {0}")]
    Endpoint(#[from] EndpointError),
}

async fn run(
    settings: Settings,
    program: &OsStr,
    arguments: Vec<OsString>,
    shutdown: oneshot::Receiver<()>,
) -> Result<(), Failure> {
    // Before anything is published: a busy port must not leave a socket behind.
    let listeners = settings.http_endpoint.map(|endpoint| endpoint.bind());
    let listeners = listeners.transpose()?;
    let pprof = settings.enable_pprof.then(|| {
        let all = std::iter::once(program).chain(arguments.iter().map(OsString::as_os_str));
        all.map(|argument| argument.to_string_lossy().into_owned())
            .collect()
    });
    let directory = settings.config.registration_directory.clone();
    let timeout = settings.config.timeout;
    let registrar = Registrar::new(settings.config);
    let health = Health::new(registrar.status(), directory, timeout);
    let diagnostics = Diagnostics::new(health, registrar.metrics(), pprof);
    let (stop, server) = serve(listeners, diagnostics);
    let result = registrar
        .run(async {
            let _ = shutdown.await;
        })
        .await;
    drop(stop);
    if let Some(server) = server {
        let _ = server.await;
    }
    Ok(result?)
}

type Server = tokio::task::JoinHandle<()>;

fn serve(
    listeners: Option<Listeners>,
    diagnostics: Diagnostics,
) -> (oneshot::Sender<()>, Option<Server>) {
    let (stop, stopped) = oneshot::channel();
    let Some(listeners) = listeners else {
        tracing::info!("Skipping HTTP server");
        return (stop, None);
    };
    for address in listeners.addresses() {
        tracing::info!(endpoint = %address, "HTTP server listening");
    }
    let server = tokio::spawn(async move {
        let stopped = async {
            let _ = stopped.await;
        };
        if let Err(error) = listeners.serve(diagnostics, stopped).await {
            tracing::error!(err = %error, "Cannot serve HTTP");
        }
    });
    (stop, Some(server))
}

/// The last lines of a failing process must explain it alone, and its pod's status too.
fn fail(termination: &TerminationLog, reasons: &[impl ToString]) -> ExitCode {
    let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
    for reason in &reasons {
        tracing::error!(err = reason, "Exiting");
    }
    termination.write(&reasons.join("\n"));
    ExitCode::FAILURE
}

/// For the time before there is a log.
fn complain(text: &str) {
    // A closed standard error is no reason to do anything else.
    let _ = writeln!(io::stderr(), "{text}");
}
