//! The registrar as a program: flags in, exit code out.

use std::process::ExitCode;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::diagnostics::Diagnostics;
use super::flags::{Flags, Request, Settings, TerminationLog};
use super::health::Health;
use super::{Error, Registrar};
use crate::command::{
    BindError, Invocation, Server, VERSION, bind, log_failure, until_second_signal, usage,
};
use crate::klog;
use crate::liveness::Liveness;
use crate::signals::Signals;

/// Why a registrar's program ended.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Registrar(#[from] Error),
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// Runs the registrar to its end.
pub(crate) async fn run(invocation: Invocation, signals: Signals) -> ExitCode {
    let flags = match invocation.flags::<Flags>() {
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
    let settings = match flags.validate() {
        Ok(Request::Version) => return invocation.print_version(),
        Ok(Request::Nothing) => return ExitCode::SUCCESS,
        Ok(Request::Run(settings)) => settings,
        Err(problems) => return fail(&termination, &problems),
    };
    tracing::info!(version = VERSION, "Version");
    tracing::info!(mode = settings.mode, "Running node-driver-registrar");
    logging.log_warnings();
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let running = until_second_signal(signals, |stop| register(*settings, invocation, stop));
    match running.await {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => fail(&termination, &[error]),
        None => ExitCode::FAILURE,
    }
}

async fn register(
    settings: Settings,
    invocation: Invocation,
    stop: oneshot::Receiver<()>,
) -> Result<(), Failure> {
    // Before anything is published: a busy port must not leave a socket behind.
    let diagnostics = bind("--http-endpoint", settings.http_endpoint.as_ref())?;
    let liveness = bind("--liveness-endpoint", settings.liveness_endpoint.as_ref())?;
    let registrar = Registrar::new(settings.config);
    let mut servers = Vec::new();
    if let Some(listeners) = diagnostics {
        let arguments = settings.enable_pprof.then_some(invocation);
        let handler = Diagnostics::new(Health::new(&registrar), registrar.metrics(), arguments);
        servers.push(Server::start("diagnostics", listeners, Arc::new(handler)));
    } else {
        tracing::info!("Skipping HTTP server");
    }
    if let Some(listeners) = liveness {
        let handler = Liveness::new(
            registrar.driver().address.clone(),
            settings.probe_timeout,
            registrar.metrics().process().clone(),
        );
        servers.push(Server::start("liveness", listeners, Arc::new(handler)));
    }
    let result = registrar
        .run(async {
            let _ = stop.await;
        })
        .await;
    Server::stop_all(servers).await;
    Ok(result?)
}

/// The reason of a failing exit goes to the log and to the pod's status.
fn fail(termination: &TerminationLog, reasons: &[impl ToString]) -> ExitCode {
    let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
    termination.write(&reasons.join("\n"));
    log_failure(&reasons)
}
