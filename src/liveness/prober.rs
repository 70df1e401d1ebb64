//! One `Probe` of the driver for however many ask at once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use prometheus::IntGauge;
use tokio::time::{Instant, sleep_until};
use tonic::Code;

use crate::driver::{Address, CallError, Client, ConnectError};
use crate::failure_log::FailureLog;
use crate::http::Answer;
use crate::klog::verbose;
use crate::metrics::Metrics;
use crate::single_flight::SingleFlight;

/// How long a socket that is gone or refuses is tried again: a probe must not fall into the gap of a driver's restart, and
/// whoever asks must not wait out the whole time for nothing.
const CONNECT_LIMIT: Duration = Duration::from_millis(250);

/// Pause between two tries: short, so that a driver that is back within the limit is found there.
const CONNECT_PAUSE: Duration = Duration::from_millis(25);

/// How much sooner than asked for the answer comes: a kubelet whose own limit is the same must still hear it, and log why.
const MARGIN: Duration = Duration::from_millis(20);

/// Answers whose duration a failure is logged with.
const REMEMBERED: usize = 5;

/// Asks the driver whether it is alive. Cheap to clone; clones share the call in flight.
#[derive(Clone, Debug)]
pub(crate) struct Prober {
    shared: Arc<Shared>,
    flight: SingleFlight<Outcome>,
}

#[derive(Debug)]
struct Shared {
    address: Address,
    limit: Duration,
    metrics: Metrics,
    ready: IntGauge,
    /// Whether the driver was ever reached.
    reached: AtomicBool,
    /// How long the last answers took, the newest last.
    durations: Mutex<VecDeque<Duration>>,
    log: FailureLog,
}

/// What a probe found; the text is for whoever asked.
type Outcome = Result<(), String>;

/// Why a driver is not alive.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("driver responded but is not ready")]
    NotReady,
    #[error("the CSI driver does not implement Probe, which a liveness probe needs: {}", .0.message())]
    Unimplemented(CallError),
    #[error("DeadlineExceeded: the CSI driver did not answer Probe within {0:?}")]
    TimedOut(Duration),
    #[error("{0}")]
    Call(CallError),
}

impl Failure {
    /// For the log: what it has in common with others of the same cause.
    fn kind(&self) -> String {
        match self {
            Self::Connect(error) => error.to_string(),
            Self::NotReady => self.to_string(),
            Self::TimedOut(_) => format!("{:?}", Code::DeadlineExceeded),
            Self::Unimplemented(error) | Self::Call(error) => format!("{:?}", error.code()),
        }
    }
}

impl Prober {
    /// `limit` bounds connecting and `Probe` together.
    pub(crate) fn new(address: Address, limit: Duration, metrics: Metrics) -> Self {
        let ready = metrics.add(IntGauge::new(
            "csi_driver_probe_ready",
            "Whether the CSI driver's last Probe said that it is ready.",
        ));
        let shared = Shared {
            address,
            limit,
            metrics,
            ready,
            reached: AtomicBool::new(false),
            durations: Mutex::default(),
            log: FailureLog::new("liveness"),
        };
        Self {
            shared: Arc::new(shared),
            flight: SingleFlight::default(),
        }
    }

    /// 200 `ok` if the driver says now that it is ready, else 500 and why. Never from memory.
    pub(crate) async fn answer(&self) -> Answer {
        let shared = self.shared.clone();
        let outcome = self
            .flight
            .ask(|| async move { shared.probe().await })
            .await;
        match outcome {
            Some(Ok(())) => Answer::text(StatusCode::OK, "ok"),
            Some(Err(reason)) => Answer::text(StatusCode::INTERNAL_SERVER_ERROR, reason),
            None => Answer::text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the probe failed by itself",
            ),
        }
    }
}

impl Shared {
    async fn probe(&self) -> Outcome {
        let begin = Instant::now();
        let margin = MARGIN.min(self.limit / 10);
        let result = self.ask(begin + self.limit - margin).await;
        self.ready.set(i64::from(result.is_ok()));
        match result {
            Ok(()) => {
                self.remember(begin.elapsed());
                verbose!(5, "Health check succeeded");
                self.log.succeeded();
                Ok(())
            }
            Err(failure) => {
                if matches!(failure, Failure::NotReady) {
                    self.remember(begin.elapsed());
                }
                let mut reason = failure.to_string();
                if !self.reached.load(Ordering::Relaxed) {
                    reason = format!("waiting for the CSI driver: {reason}");
                }
                let explained = format!("{reason}{}", self.last_answers());
                self.log.failed(&failure.kind(), &explained);
                Err(reason)
            }
        }
    }

    async fn ask(&self, deadline: Instant) -> Result<(), Failure> {
        let client = self.connect(deadline).await?;
        self.reached.store(true, Ordering::Relaxed);
        let left = deadline.saturating_duration_since(Instant::now());
        match client.probe(left).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::NotReady),
            Err(error) if error.code() == Code::DeadlineExceeded && Instant::now() >= deadline => {
                Err(Failure::TimedOut(self.limit))
            }
            Err(error) if error.code() == Code::Unimplemented => Err(Failure::Unimplemented(error)),
            Err(error) => Err(Failure::Call(error)),
        }
    }

    /// A connection of its own for each probe: whoever answers now is who listens now.
    async fn connect(&self, deadline: Instant) -> Result<Client, ConnectError> {
        let mut give_up = Instant::now() + CONNECT_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let error = match Client::connect(&self.address, left, self.metrics.clone()).await {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            if error.is_busy() {
                give_up = Instant::now() + CONNECT_LIMIT;
            }
            let next = Instant::now() + CONNECT_PAUSE;
            if next >= deadline.min(give_up) {
                return Err(error);
            }
            sleep_until(next).await;
        }
    }

    fn remember(&self, duration: Duration) {
        let mut durations = self
            .durations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if durations.len() == REMEMBERED {
            durations.pop_front();
        }
        durations.push_back(duration);
    }

    /// For the log: a driver that is killed because it answers slowly under load looks dead otherwise.
    fn last_answers(&self) -> String {
        let durations = self
            .durations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Milliseconds say enough; and their text needs no floating point.
        let texts: Vec<_> = durations
            .iter()
            .map(|duration| format!("{} ms", duration.as_millis()))
            .collect();
        if texts.is_empty() {
            String::new()
        } else {
            format!("; its last answers took {}", texts.join(", "))
        }
    }
}
