//! The sidecar: registers one CSI driver with the kubelet of its node, and keeps it registered.
//!
//! [`Registrar`] is the way in; `running` is where things happen, and `status` decides what.

pub(crate) mod cleanup;
pub(crate) mod command;
mod config;
mod diagnostics;
#[doc(hidden)]
pub mod flags;
mod health;
mod metrics;
mod pprof;
pub(crate) mod probe;
mod publication;
mod running;
#[doc(hidden)]
pub mod service;
mod status;
mod termination;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;

use tokio::sync::watch;
use tokio::time::sleep;

pub use config::{Config, FailurePolicy};
pub use metrics::RegistrarMetrics;
pub use status::{Phase, Status};

use crate::driver::{self, Driver, NameError};
use crate::metrics::Metrics;
use crate::uds::socket_file::PublishError;
use running::Running;
use status::Settings;

/// Why a registrar ended, or could not begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The driver cannot be registered.
    #[error(transparent)]
    Driver(#[from] driver::Error),
    /// The driver's name cannot be registered.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The registration socket cannot be published.
    #[error("cannot publish the registration socket: {0}")]
    Publish(#[from] PublishError),
    /// The kubelet does not want the driver.
    #[error("the kubelet refused the registration: {reason}{}", refusal_hint(.reason))]
    Refused {
        /// The kubelet's text.
        reason: String,
    },
    /// The socket stands, and the kubelet keeps dialling it.
    #[error(
        "cannot remove the registration socket {path}: {source}; remove it by hand, or the kubelet keeps dialling it"
    )]
    Withdraw {
        /// Where it is.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The registration directory was removed under a bind mount.
    #[error(
        "registration directory {0} was removed and cannot come back in this container: restart the pod"
    )]
    DirectoryGone(PathBuf),
}

impl Error {
    /// Whether only a new container can mend it.
    fn is_final(&self) -> bool {
        matches!(
            self,
            Self::DirectoryGone(_)
                | Self::Driver(driver::Error::DirectoryGone(_))
                | Self::Refused { .. }
        )
    }
}

/// What usually lies behind a kubelet's error text (`RegisterPlugin error -- ...` in
/// `pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go`).
fn refusal_hint(reason: &str) -> &'static str {
    if reason.contains("already registered") {
        "; another registrar on this node has this driver's name: find its pod, or wait until it is gone"
    } else if reason.contains("no such file or directory") {
        "; --kubelet-registration-path must be the path of the driver's socket on the host, as the kubelet sees it"
    } else if reason.contains("connection refused") {
        "; nobody listens at --kubelet-registration-path on the host: has the driver restarted, or is another path meant?"
    } else if reason.contains("topology value collision") {
        "; remove the label from the Node if the driver's new value is right"
    } else {
        ""
    }
}

/// A registrar that has not begun yet.
#[derive(Debug)]
pub struct Registrar {
    config: Config,
    settings: Settings,
    driver: Driver,
    status: watch::Sender<Status>,
    metrics: RegistrarMetrics,
}

impl Registrar {
    /// Nothing is touched before [`run`](Self::run).
    pub fn new(config: Config) -> Self {
        let settings = Settings {
            policy: config.failure_policy,
            reregister_on_driver_restart: config.reregister_on_driver_restart,
            random: || RandomState::new().hash_one(()),
        };
        let (status, reader) = watch::channel(Status::new(settings.clone()));
        let process = Metrics::new();
        let driver = Driver {
            address: config.driver_address.clone(),
            timeout: config.timeout,
            wait_for_ready: config.wait_for_ready,
            metrics: process.clone(),
        };
        Self {
            metrics: RegistrarMetrics::new(process, reader),
            config,
            settings,
            driver,
            status,
        }
    }

    /// Its settings.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// How its driver is asked.
    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Where the registration stands, for whoever answers questions about it.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// What it counts, for whoever serves metrics.
    pub fn metrics(&self) -> RegistrarMetrics {
        self.metrics.clone()
    }

    /// Registers the driver and keeps it registered until `shutdown`, or until a failure that only a restart can mend.
    /// In every case our socket is gone afterwards, or the error says that it stands; nobody else's is touched.
    ///
    /// With [`Config::outlives_failures`] all but the loss of a directory are mended by beginning anew, with growing delays.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        for warning in self.config.warnings() {
            tracing::warn!("{warning}");
        }
        let mut shutdown = std::pin::pin!(shutdown);
        let mut failures = 0;
        loop {
            let mut running = Running::new(&self);
            let error = match running.run(shutdown.as_mut()).await {
                Err(error) if self.config.outlives_failures && !error.is_final() => error,
                result => return result,
            };
            if running.has_published() {
                failures = 0;
            }
            let delay = status::retry_delay(failures, (self.settings.random)());
            failures = failures.saturating_add(1);
            tracing::error!(
                err = %error,
                retryIn = delay.as_secs_f64(),
                "The registration failed, beginning anew; the liveness endpoint goes on"
            );
            let failed = Status::after_failure(self.settings.clone(), error.to_string());
            self.status.send_replace(failed);
            tokio::select! {
                () = sleep(delay) => {}
                () = shutdown.as_mut() => return Ok(()),
            }
        }
    }
}
