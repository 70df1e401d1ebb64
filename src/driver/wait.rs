//! The wait for a driver: until it told its name, and is ready if that is asked for.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Code;

use super::{Address, CallError, Client, ConnectError, is_removed};
use crate::klog::verbose;
use crate::metrics::Metrics;
use crate::uds::socket_file::FileId;

/// First and longest pause after a failed connect: no event announces `listen()`, so the first tries come fast.
const CONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));

/// First and longest pause after a transient answer of a driver that is there.
const CALL_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Pause between two questions whether the driver is ready.
const READY_INTERVAL: Duration = Duration::from_millis(500);

/// How long `ready = false` is waited for.
const READY_LIMIT: Duration = Duration::from_mins(1);

/// How often a wait says what it waits for.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Why a driver cannot be registered, however long one waits.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An answer that no repetition mends.
    #[error("the CSI driver at {address} answers {method} with {code:?}: {message}")]
    Refused {
        /// Where the driver listens.
        address: Address,
        /// The call.
        method: &'static str,
        /// Its gRPC code.
        code: Code,
        /// The driver's text.
        message: String,
    },
    /// Bytes that are no answer.
    #[error(
        "the CSI driver at {address} answers {method} with a message that cannot be decoded: {message}; does it speak CSI 1.x?"
    )]
    Undecodable {
        /// Where the driver listens.
        address: Address,
        /// The call.
        method: &'static str,
        /// What the decoder says.
        message: String,
    },
    /// Its directory was removed under a bind mount.
    #[error(
        "directory {0} of the CSI driver's socket was removed and cannot come back in this container: restart the pod"
    )]
    DirectoryGone(PathBuf),
    /// The limit that was set for the wait is over.
    #[error("the CSI driver at {address} did not tell its name within {limit:?}: {reason}")]
    TimedOut {
        /// Where the driver should listen.
        address: Address,
        /// `--driver-wait-timeout`.
        limit: Duration,
        /// The last failure.
        reason: String,
    },
}

/// A driver that told its name.
#[derive(Clone, Debug)]
pub(crate) struct Identified {
    /// Its name as it gives it, unchecked.
    pub name: String,
    /// The socket that answered: another one there later is another process.
    pub socket: Option<FileId>,
}

/// How a driver is asked.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    /// Where it listens.
    pub address: Address,
    /// Deadline of connecting, and of each call.
    pub timeout: Duration,
    /// Whether a `Probe` that answers `ready = false` is waited for.
    pub wait_for_ready: bool,
    /// Where its calls are counted.
    pub metrics: Metrics,
}

/// Why one attempt brought no name.
enum Failure {
    Connect(ConnectError),
    Call(CallError),
    Fatal(Error),
}

impl Driver {
    /// Waits for the driver and returns its name. Ends only with a name, with an error that waiting cannot mend, or after
    /// `limit`. Drop the future to stop waiting.
    ///
    /// `changes` carries a value whenever the driver's directory changed: a socket that appeared is tried at once, and an
    /// attempt under way on a socket that was replaced is given up for the new one.
    pub(crate) async fn identify(
        &self,
        limit: Option<Duration>,
        mut changes: watch::Receiver<()>,
    ) -> Result<Identified, Error> {
        let mut wait = Wait::new(self, limit);
        loop {
            changes.mark_unchanged();
            let socket = self.address.socket();
            let attempt = async {
                tokio::select! {
                    result = self.attempt() => Some(result),
                    () = self.replaced(socket, &mut changes) => None,
                }
            };
            let pause = match wait.during(attempt).await? {
                None => continue,
                Some(Ok((name, ready))) if ready || wait.has_waited_for_readiness() => {
                    return Ok(Identified { name, socket });
                }
                Some(Ok((name, _))) => wait.not_ready(&name),
                Some(Err(failure)) => wait.failed(failure)?,
            };
            let pausing = async {
                tokio::select! {
                    () = sleep(pause) => false,
                    // Not for any change: others in that directory, or a poll in place of events, are no reason to hurry.
                    () = self.replaced(socket, &mut changes) => true,
                }
            };
            if wait.during(pausing).await? {
                wait.be_quick();
            }
        }
    }

    /// Returns when another socket than `socket` is at the address.
    async fn replaced(&self, socket: Option<FileId>, changes: &mut watch::Receiver<()>) {
        while changes.changed().await.is_ok() {
            if self.address.socket() != socket {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    async fn attempt(&self) -> Result<(String, bool), Failure> {
        verbose!(1, csiAddress = %self.address, "Connecting to the CSI driver");
        let client = Client::connect(&self.address, self.timeout, self.metrics.clone())
            .await
            .map_err(Failure::Connect)?;
        // Together on one connection, so that readiness costs no second round trip.
        let (name, ready) = tokio::join!(client.plugin_name(self.timeout), self.ready(&client));
        let name = name.map_err(|error| self.judge(error))?;
        Ok((name, ready))
    }

    /// Which failed calls are worth a repetition.
    fn judge(&self, error: CallError) -> Failure {
        if error.is_transient() {
            return Failure::Call(error);
        }
        let address = self.address.clone();
        let method = error.method;
        let message = error.message().to_owned();
        Failure::Fatal(if error.is_undecodable() {
            Error::Undecodable {
                address,
                method,
                message,
            }
        } else {
            Error::Refused {
                address,
                method,
                code: error.code(),
                message,
            }
        })
    }

    /// `false` only if the driver says so: one that does not answer `Probe` was always registered.
    async fn ready(&self, client: &Client) -> bool {
        if !self.wait_for_ready {
            return true;
        }
        client.probe(self.timeout).await.unwrap_or_else(|error| {
            verbose!(4, err = %error, "Probe failed: the CSI driver counts as ready");
            true
        })
    }
}

/// What one wait remembers: how long it lasts, why, and how patient it has become.
struct Wait<'a> {
    driver: &'a Driver,
    limit: Option<Duration>,
    since: Instant,
    next_report: Instant,
    not_ready_since: Option<Instant>,
    reason: String,
    connect_pause: Duration,
    call_pause: Duration,
}

impl<'a> Wait<'a> {
    fn new(driver: &'a Driver, limit: Option<Duration>) -> Self {
        let now = Instant::now();
        Self {
            driver,
            limit,
            since: now,
            next_report: now + REPORT_INTERVAL,
            not_ready_since: None,
            reason: "no answer yet".to_owned(),
            connect_pause: CONNECT_PAUSE.0,
            call_pause: CALL_PAUSE.0,
        }
    }

    /// Runs a part of the wait, reports every [`REPORT_INTERVAL`] meanwhile, and ends it at the limit.
    async fn during<T>(&mut self, part: impl Future<Output = T>) -> Result<T, Error> {
        let mut part = std::pin::pin!(part);
        let end = self.limit.map(|limit| self.since + limit);
        loop {
            let next = end.map_or(self.next_report, |end| end.min(self.next_report));
            match timeout_at(next, part.as_mut()).await {
                Ok(result) => return Ok(result),
                Err(_) if end.is_some_and(|end| end <= Instant::now()) => {
                    return Err(Error::TimedOut {
                        address: self.driver.address.clone(),
                        limit: self.limit.unwrap_or_default(),
                        reason: self.reason.clone(),
                    });
                }
                Err(_) => self.report(),
            }
        }
    }

    fn report(&mut self) {
        self.next_report += REPORT_INTERVAL;
        tracing::warn!(
            csiAddress = %self.driver.address,
            waited = self.since.elapsed().as_secs(),
            err = self.reason,
            "Still waiting for the CSI driver"
        );
    }

    /// Takes note of a failure, and says how long to pause.
    fn failed(&mut self, failure: Failure) -> Result<Duration, Error> {
        let address = &self.driver.address;
        match failure {
            Failure::Fatal(error) => Err(error),
            Failure::Connect(error) => {
                if error.is_missing() && is_removed(address.directory()) {
                    return Err(Error::DirectoryGone(address.directory().to_owned()));
                }
                self.reason = error.to_string();
                verbose!(1, err = self.reason, "Connection attempt failed");
                Ok(grow(&mut self.connect_pause, CONNECT_PAUSE))
            }
            Failure::Call(error) => {
                self.reason = format!("{address}: {error}");
                verbose!(1, err = self.reason, "Call failed");
                Ok(grow(&mut self.call_pause, CALL_PAUSE))
            }
        }
    }

    /// Something changed: the driver may be about to listen.
    fn be_quick(&mut self) {
        self.connect_pause = CONNECT_PAUSE.0;
        self.call_pause = CALL_PAUSE.0;
    }

    fn not_ready(&mut self, name: &str) -> Duration {
        self.reason = format!(
            "CSI driver {name} at {} answers Probe with ready = false",
            self.driver.address
        );
        if self.not_ready_since.is_none() {
            self.not_ready_since = Some(Instant::now());
            tracing::info!(
                csiDriverName = name,
                limit = READY_LIMIT.as_secs(),
                "The CSI driver is not ready yet, waiting for it"
            );
        }
        READY_INTERVAL
    }

    fn has_waited_for_readiness(&self) -> bool {
        let over = self
            .not_ready_since
            .is_some_and(|since| since.elapsed() >= READY_LIMIT);
        if over {
            tracing::warn!(csiAddress = %self.driver.address, limit = READY_LIMIT.as_secs(), "The CSI driver is still not ready, registering it anyway");
        }
        over
    }
}

/// The pause to make now; the next one is twice as long, up to the longest.
fn grow(pause: &mut Duration, (_, longest): (Duration, Duration)) -> Duration {
    let now = *pause;
    *pause = (now * 2).min(longest);
    now
}

#[cfg(test)]
mod tests;
