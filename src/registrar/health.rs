//! What probes ask: `/healthz` is one bounded call to the registration socket, `/readyz` a reading of the state machine.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::watch;

use super::service;
use super::status::{Phase, Status};
use crate::failure_log::FailureLog;
use crate::http::Answer;
use crate::klog::verbose;
use crate::single_flight::SingleFlight;
use crate::uds::socket_file::registration_socket_path;

/// Answers probes about one registrar.
#[derive(Clone, Debug)]
pub struct Health {
    status: watch::Receiver<Status>,
    directory: PathBuf,
    timeout: Duration,
    check: SingleFlight<Check>,
    log: Arc<FailureLog>,
}

/// What a health check found.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Check {
    Waiting,
    Ok,
    Missing,
    Bad(String),
}

impl Health {
    /// `directory` is where the socket goes, `timeout` bounds the call to it.
    pub fn new(status: watch::Receiver<Status>, directory: PathBuf, timeout: Duration) -> Self {
        Self {
            status,
            directory,
            timeout,
            check: SingleFlight::default(),
            log: Arc::new(FailureLog::new("/healthz")),
        }
    }

    /// 200 if the socket at our path answers with our name, be it ours or a successor's. Before the first publication 200
    /// too: charts use this for liveness, and a restart would not bring the driver sooner.
    pub async fn healthz(&self) -> Answer {
        let health = self.clone();
        let check = self.check.ask(move || async move {
            let check = health.look().await;
            health.note(&check);
            check
        });
        let (status, text) = match check.await {
            Some(Check::Ok) => (StatusCode::OK, "ok".to_owned()),
            Some(Check::Waiting) => (StatusCode::OK, "waiting for the CSI driver".to_owned()),
            Some(Check::Missing) => (
                StatusCode::NOT_FOUND,
                "registration socket does not exist".to_owned(),
            ),
            Some(Check::Bad(reason)) => (StatusCode::INTERNAL_SERVER_ERROR, reason),
            None => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "the health check failed by itself".to_owned(),
            ),
        };
        Answer::text(status, text)
    }

    /// 200 only while the kubelet's confirmation stands for the socket that is there.
    pub fn readyz(&self) -> Answer {
        match unreadiness(&self.status.borrow()) {
            None => Answer::text(StatusCode::OK, "ok"),
            Some(reason) => Answer::text(StatusCode::SERVICE_UNAVAILABLE, reason),
        }
    }

    async fn look(&self) -> Check {
        let name = match &*self.status.borrow() {
            status if *status.phase() == Phase::WaitingForDriver => return Check::Waiting,
            status => status.name().cloned(),
        };
        let Some(name) = name else {
            return Check::Waiting;
        };
        let path = match registration_socket_path(&self.directory, name.as_str()) {
            Ok(path) => path,
            Err(error) => return Check::Bad(error.to_string()),
        };
        match fs::symlink_metadata(&path) {
            Err(_) => return Check::Missing,
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Check::Bad(format!("{} is not a socket", path.display()));
            }
            Ok(_) => {}
        }
        verbose!(4, socketPath = %path.display(), "Calling the registration socket to check if it still responds");
        match service::ask(&path, self.timeout).await {
            Ok(info) if info.name == name.as_str() => Check::Ok,
            Ok(info) => Check::Bad(format!("invalid driver name {}", info.name)),
            Err(error) => Check::Bad(format!(
                "the registration socket {} does not respond: {error}",
                path.display()
            )),
        }
    }

    fn note(&self, check: &Check) {
        match check {
            Check::Ok | Check::Waiting => {
                verbose!(5, "Health check succeeded");
                self.log.succeeded();
            }
            Check::Missing => self.log.failed("registration socket does not exist"),
            Check::Bad(reason) => self.log.failed(reason),
        }
    }
}

/// Why the driver is not registered now; `None` if it is.
fn unreadiness(status: &Status) -> Option<String> {
    Some(match status.phase() {
        Phase::Registered => return None,
        Phase::WaitingForDriver => "waiting for the CSI driver".to_owned(),
        Phase::Published { asked: None, .. } => {
            "the registration socket is published, the kubelet has not called yet".to_owned()
        }
        Phase::Published { .. } => {
            "the kubelet has asked for the driver and has not told the outcome yet".to_owned()
        }
        Phase::Refused { reason, .. } => format!("the kubelet refused the registration: {reason}"),
        Phase::Lost { .. } => {
            "the registration socket is gone, it is being published again".to_owned()
        }
        Phase::StandBy { .. } => {
            "superseded: another registrar's socket is in place, standing by".to_owned()
        }
        Phase::Blocked { what } => {
            format!("{what} is in the place of the registration socket: remove it")
        }
        Phase::Stopped => "stopping".to_owned(),
    })
}
