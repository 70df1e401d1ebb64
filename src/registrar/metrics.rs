//! What a registrar counts, and what its state machine says when somebody scrapes.

use std::time::Duration;

use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGaugeVec, Opts};
use tokio::sync::watch;
use tokio::time::Instant;

use super::status::Status;
use crate::command::VERSION;
use crate::http::Answer;
use crate::metrics::Metrics;

/// Upper bounds of a registration's duration in seconds: a kubelet needs one second for a driver that answers at once, and
/// its `NodeGetInfo` may take two minutes.
const REGISTRATION_BUCKETS: [f64; 10] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 120.0];

/// One registrar's metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RegistrarMetrics {
    process: Metrics,
    status: watch::Receiver<Status>,
    started: Instant,
    registered: IntGaugeVec,
    notifications: IntCounterVec,
    publications: IntCounter,
    durations: Histogram,
    driver_wait: Gauge,
}

impl RegistrarMetrics {
    /// Adds a registrar's metrics to those of its process.
    pub(super) fn new(process: Metrics, status: watch::Receiver<Status>) -> Self {
        let build = IntGaugeVec::new(
            Opts::new(
                "csi_registrar_build_info",
                "Always 1; the label says which build this is.",
            ),
            &["version"],
        );
        process.add(build).with_label_values(&[VERSION]).set(1);
        let registered = IntGaugeVec::new(
            Opts::new(
                "csi_registrar_registered",
                "Whether the kubelet has confirmed the registration of the socket that is published now.",
            ),
            &["driver_name"],
        );
        let notifications = IntCounterVec::new(
            Opts::new(
                "csi_registrar_notifications_total",
                "Outcomes that a kubelet has told, by result: registered or refused.",
            ),
            &["driver_name", "result"],
        );
        let publications = IntCounter::new(
            "csi_registrar_publications_total",
            "Registration sockets published.",
        );
        let durations = Histogram::with_opts(
            HistogramOpts::new(
                "csi_registrar_registration_duration_seconds",
                "Time from the publication of a registration socket to the kubelet's confirmation.",
            )
            .buckets(REGISTRATION_BUCKETS.to_vec()),
        );
        let driver_wait = Gauge::new(
            "csi_registrar_driver_wait_seconds",
            "How long the driver's name was waited for, or has been so far.",
        );
        Self {
            registered: process.add(registered),
            notifications: process.add(notifications),
            publications: process.add(publications),
            durations: process.add(durations),
            driver_wait: process.add(driver_wait),
            process,
            status,
            started: Instant::now(),
        }
    }

    /// The metrics of the whole process.
    pub(super) fn process(&self) -> &Metrics {
        &self.process
    }

    /// A kubelet told an outcome.
    pub(super) fn notified(&self, driver: &str, is_registered: bool) {
        let result = if is_registered {
            "registered"
        } else {
            "refused"
        };
        self.notifications
            .with_label_values(&[driver, result])
            .inc();
    }

    /// A socket was published.
    pub(super) fn published(&self) {
        self.publications.inc();
    }

    /// The kubelet confirmed a socket that long after its publication.
    pub(super) fn confirmed(&self, after: Duration) {
        self.durations.observe(after.as_secs_f64());
    }

    /// Everything, in the Prometheus text format.
    pub fn answer(&self) -> Answer {
        {
            let status = self.status.borrow();
            self.registered.reset();
            if let Some(name) = status.name() {
                let is_registered = status.is_registered();
                self.registered
                    .with_label_values(&[name.as_str()])
                    .set(i64::from(is_registered));
            }
            let until = status.named_at().unwrap_or_else(Instant::now);
            let waited = until.saturating_duration_since(self.started);
            self.driver_wait.set(waited.as_secs_f64());
        }
        self.process.answer()
    }
}
