//! What probes ask: `/healthz` is one bounded call to the registration socket, `/healthz/driver` one to the driver,
//! `/readyz` a reading of the state machine.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;

use http::StatusCode;
use tokio::sync::watch;
use tokio::time::timeout;

use super::status::{Phase, Status};
use super::{Registrar, service};
use crate::driver::{Client, Driver};
use crate::failure_log::FailureLog;
use crate::http::Answer;
use crate::klog::verbose;
use crate::single_flight::SingleFlight;
use crate::uds::socket_file::registration_socket_path;

const WAITING: &str = "waiting for the CSI driver";
const MISSING: &str = "registration socket does not exist";

/// Answers probes about one registrar. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Health {
    status: watch::Receiver<Status>,
    directory: PathBuf,
    driver: Driver,
    registrar_check: SharedCheck,
    driver_check: SharedCheck,
}

/// One check in flight for however many ask, and the log of its failures.
#[derive(Clone, Debug)]
struct SharedCheck {
    flight: SingleFlight<Check>,
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

impl SharedCheck {
    fn new(name: &'static str) -> Self {
        Self {
            flight: SingleFlight::default(),
            log: Arc::new(FailureLog::new(name)),
        }
    }

    /// A function, since only one of many who ask at once needs the check's own future, which is large.
    async fn answer<F>(&self, check: impl FnOnce() -> F + Send + 'static) -> Answer
    where
        F: Future<Output = Check> + Send,
    {
        let log = self.log.clone();
        let check = self.flight.ask(move || async move {
            let check = check().await;
            match &check {
                Check::Ok | Check::Waiting => {
                    verbose!(5, "Health check succeeded");
                    log.succeeded();
                }
                Check::Missing => log.failed(MISSING, MISSING),
                Check::Bad(reason) => log.failed(reason, reason),
            }
            check
        });
        let check = check.await;
        let check =
            check.unwrap_or_else(|| Check::Bad("the health check failed by itself".to_owned()));
        match check {
            Check::Ok => Answer::text(StatusCode::OK, "ok"),
            Check::Waiting => Answer::text(StatusCode::OK, WAITING),
            Check::Missing => Answer::text(StatusCode::NOT_FOUND, MISSING),
            Check::Bad(reason) => Answer::text(StatusCode::INTERNAL_SERVER_ERROR, reason),
        }
    }
}

impl Health {
    /// Answers for this registrar.
    pub(super) fn new(registrar: &Registrar) -> Self {
        Self {
            status: registrar.status(),
            directory: registrar.config().registration_directory.clone(),
            driver: registrar.driver().clone(),
            registrar_check: SharedCheck::new("/healthz"),
            driver_check: SharedCheck::new("/healthz/driver"),
        }
    }

    /// 200 if the socket at our path answers with our name, be it ours or a successor's. Before the first publication 200
    /// too: charts use this for liveness, and a restart would not bring the driver sooner.
    pub(super) async fn healthz(&self) -> Answer {
        let health = self.clone();
        let check = move || async move { health.check_socket().await };
        self.registrar_check.answer(check).await
    }

    /// 200 if the driver behind the socket still calls itself what is registered. For people and alerts; a driver's
    /// livenessProbe belongs on [`Liveness`](crate::liveness::Liveness).
    pub(super) async fn driver(&self) -> Answer {
        let health = self.clone();
        let check = move || async move { health.check_driver().await };
        self.driver_check.answer(check).await
    }

    /// 200 only while the kubelet's confirmation stands for the socket that is there.
    pub(super) fn readyz(&self) -> Answer {
        match unreadiness(&self.status.borrow()) {
            None => Answer::text(StatusCode::OK, "ok"),
            Some(reason) => Answer::text(StatusCode::SERVICE_UNAVAILABLE, reason),
        }
    }

    async fn check_socket(&self) -> Check {
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
        match service::ask(&path, self.driver.timeout).await {
            Ok(info) if info.name == name.as_str() => Check::Ok,
            Ok(info) => Check::Bad(format!("invalid driver name {}", info.name)),
            Err(error) => Check::Bad(format!(
                "the registration socket {} does not respond: {error}",
                path.display()
            )),
        }
    }

    async fn check_driver(&self) -> Check {
        let Some(name) = self.status.borrow().name().cloned() else {
            return Check::Bad(WAITING.to_owned());
        };
        let limit = self.driver.timeout;
        let asking = async {
            let client = Client::connect(&self.driver.address, limit, self.driver.metrics.clone());
            let client = client.await.map_err(|error| error.to_string())?;
            client
                .plugin_name(limit)
                .await
                .map_err(|error| error.to_string())
        };
        match timeout(limit, asking).await {
            Ok(Ok(answer)) if answer == name.as_str() => Check::Ok,
            Ok(Ok(answer)) => Check::Bad(format!(
                "the CSI driver calls itself {answer:?}, {name} is registered"
            )),
            Ok(Err(reason)) => Check::Bad(reason),
            Err(_) => Check::Bad(format!("no answer from the CSI driver within {limit:?}")),
        }
    }
}

/// Why the driver is not registered now; `None` if it is.
fn unreadiness(status: &Status) -> Option<String> {
    Some(match status.phase() {
        Phase::Registered => return None,
        Phase::WaitingForDriver => match status.failure() {
            None => WAITING.to_owned(),
            Some(failure) => format!("the registration failed and is tried again: {failure}"),
        },
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
