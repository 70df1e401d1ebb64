//! The drop-in for the Go sidecar `livenessprobe`: flags in, exit code out.

use std::process::ExitCode;
use std::sync::Arc;

use tokio::sync::{oneshot, watch};
use tonic::async_trait;

use super::Liveness;
use super::flags::{Flags, MetricsPlace, Request, Settings};
use crate::command::{
    BindError, Invocation, Server, VERSION, bind, log_failure, until_second_signal, usage,
};
use crate::driver::{self, Driver};
use crate::http::{Answer, Handler, Question};
use crate::klog;
use crate::metrics::Metrics;
use crate::signals::Signals;
use crate::uds::watch::Watcher;

/// Why the program ended.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Driver(#[from] driver::Error),
}

/// Runs the drop-in to its end.
pub(crate) async fn run(invocation: Invocation, signals: Signals) -> ExitCode {
    let flags = match invocation.flags::<Flags>() {
        Ok(flags) => flags,
        Err(error) => return usage(&error),
    };
    let logging = flags.klog();
    // Only a second subscriber of one process could be refused.
    let _ = klog::init(logging.settings.clone());
    if !logging.problems.is_empty() {
        return log_failure(&logging.problems);
    }
    let settings = match flags.validate() {
        Ok(Request::Version) => return invocation.print_version(),
        Ok(Request::Run(settings)) => settings,
        Err(problems) => return log_failure(&problems),
    };
    tracing::info!(version = VERSION, "Version");
    logging.log_warnings();
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    match until_second_signal(signals, |stop| serve(settings, stop)).await {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => log_failure(&[error]),
        None => ExitCode::FAILURE,
    }
}

async fn serve(settings: Settings, stop: oneshot::Receiver<()>) -> Result<(), Failure> {
    let metrics = Metrics::new();
    let (flag, endpoint) = settings.health;
    let health = bind(flag, Some(&endpoint))?;
    let (beside, own) = match settings.metrics {
        MetricsPlace::Nowhere => (false, None),
        MetricsPlace::Beside => (true, None),
        MetricsPlace::At(endpoint) => (false, Some(endpoint)),
    };
    let own = bind("--metrics-address", own.as_ref())?;
    let path = MetricsPath {
        path: settings.metrics_path.into(),
        metrics: metrics.clone(),
    };
    let liveness = Liveness::new(
        settings.address.clone(),
        settings.probe_timeout,
        metrics.clone(),
    );
    let mut servers = Vec::new();
    if let Some(listeners) = health {
        let handler = DropIn {
            liveness,
            metrics: beside.then(|| path.clone()),
        };
        servers.push(Server::start("liveness", listeners, Arc::new(handler)));
    }
    if let Some(listeners) = own {
        servers.push(Server::start("metrics", listeners, Arc::new(path)));
    }
    let driver = Driver {
        address: settings.address,
        timeout: settings.probe_timeout,
        wait_for_ready: false,
        metrics,
    };
    let result = tokio::select! {
        error = follow_name(&driver) => Err(error.into()),
        _ = stop => Ok(()),
    };
    Server::stop_all(servers).await;
    result
}

/// Keeps the metrics' `driver_name` right. Returns only if the first contact brings an answer that waiting cannot mend, or the
/// driver's directory is gone for good.
async fn follow_name(driver: &Driver) -> driver::Error {
    let mut watcher = Watcher::new([driver.address.directory().to_owned()]);
    let changes = watch::channel(()).0;
    let mut known = None;
    loop {
        let identified = tokio::select! {
            identified = Box::pin(driver.identify(None, changes.subscribe())) => identified,
            never = async {
                loop {
                    watcher.changed().await;
                    changes.send_replace(());
                }
            } => never,
        };
        let socket = match (identified, &known) {
            (Ok(identified), _) => {
                let before = known.replace(identified.name.clone());
                note_name(before.as_deref(), &identified.name);
                identified.socket
            }
            // However often the driver is restarted: its new directory is not the one that is mounted here.
            (Err(error), None) | (Err(error @ driver::Error::DirectoryGone(_)), _) => return error,
            (Err(error), Some(_)) => {
                tracing::error!(err = %error, "The restarted CSI driver does not tell its name");
                driver.address.socket()
            }
        };
        while driver.address.socket() == socket {
            watcher.changed().await;
        }
    }
}

fn note_name(before: Option<&str>, name: &str) {
    match before {
        Some(before) if before != name => {
            tracing::warn!(
                csiDriverName = name,
                before,
                "The CSI driver came back under another name"
            );
        }
        Some(_) => tracing::info!(csiDriverName = name, "The CSI driver was restarted"),
        None => tracing::info!(csiDriverName = name, "CSI driver name"),
    }
}

/// Serves metrics at one path.
#[derive(Clone, Debug)]
struct MetricsPath {
    path: Arc<str>,
    metrics: Metrics,
}

#[async_trait]
impl Handler for MetricsPath {
    async fn handle(&self, question: Question) -> Answer {
        if *question.path == *self.path {
            self.metrics.answer()
        } else {
            Answer::not_found()
        }
    }
}

/// `/healthz`, and the metrics where they share its address.
#[derive(Debug)]
struct DropIn {
    liveness: Liveness,
    metrics: Option<MetricsPath>,
}

#[async_trait]
impl Handler for DropIn {
    async fn handle(&self, question: Question) -> Answer {
        match &self.metrics {
            Some(metrics) if *question.path == *metrics.path => metrics.metrics.answer(),
            _ => self.liveness.handle(question).await,
        }
    }
}
