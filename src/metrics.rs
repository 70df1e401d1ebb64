//! The metrics that every sidecar process has: its calls to the driver, and itself. The rooms above add their own.

use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use http::StatusCode;
use nix::unistd::{SysconfVar, sysconf};
use prometheus::core::Collector;
use prometheus::{
    Counter, Encoder, Gauge, HistogramOpts, HistogramVec, IntGauge, Registry, TextEncoder,
};
use tonic::Code;

use crate::http::Answer;
use crate::proto::code_name;

/// Upper bounds of the call durations in seconds, as every CSI sidecar has them (`csi-lib-utils/metrics`).
const CALL_BUCKETS: [f64; 13] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];

/// The driver's name in a metric before it is known, as every CSI sidecar writes it (`csi-lib-utils/metrics`).
const UNKNOWN_DRIVER: &str = "unknown-driver";

/// One process's metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    calls: HistogramVec,
    driver: Arc<Mutex<String>>,
    process: Process,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// The metrics of a process that starts now.
    pub(crate) fn new() -> Self {
        let options = HistogramOpts::new(
            "csi_sidecar_operations_seconds",
            "Container Storage Interface operation duration with gRPC error code status total",
        )
        .buckets(CALL_BUCKETS.to_vec());
        let labels = ["driver_name", "method_name", "grpc_status_code"];
        let calls = HistogramVec::new(options, &labels);
        let registry = Registry::new();
        Self {
            calls: add(&registry, calls),
            driver: Arc::new(Mutex::new(UNKNOWN_DRIVER.to_owned())),
            process: Process::new(&registry),
            registry,
        }
    }

    /// Adds a room's own metric.
    ///
    /// # Panics
    /// If its name is malformed or taken: names are constants, and each room adds its own once.
    pub(crate) fn add<M: Collector + Clone + 'static>(&self, metric: prometheus::Result<M>) -> M {
        add(&self.registry, metric)
    }

    /// The driver's name, for calls from now on. The calls of a driver by another name are forgotten, as those of another
    /// process: one that has a new name each time must not grow this one. An empty name is no name.
    pub(crate) fn set_driver_name(&self, name: &str) {
        let mut driver = lock(&self.driver);
        if name.is_empty() || *driver == name {
            return;
        }
        if *driver != UNKNOWN_DRIVER {
            self.calls.reset();
        }
        name.clone_into(&mut driver);
    }

    /// Takes note of a call to the driver. `method` is the full method, `/csi.v1.Identity/Probe`.
    pub(crate) fn called(&self, method: &str, code: Code, duration: Duration) {
        self.calls
            .with_label_values(&[lock(&self.driver).as_str(), method, code_name(code)])
            .observe(duration.as_secs_f64());
    }

    /// Everything, in the Prometheus text format.
    pub(crate) fn answer(&self) -> Answer {
        self.process.read();
        let mut body = Vec::new();
        match TextEncoder::new().encode(&self.registry.gather(), &mut body) {
            Ok(()) => Answer {
                status: StatusCode::OK,
                content_type: "text/plain; version=0.0.4; charset=utf-8",
                body: body.into(),
            },
            Err(error) => Answer::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add<M: Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<M>) -> M {
    let metric = metric.expect("names and labels are constants, and well formed");
    let added = registry.register(Box::new(metric.clone()));
    added.expect("each room adds its own names once");
    metric
}

/// The process itself, read when somebody asks.
#[derive(Clone, Debug)]
struct Process {
    resident: IntGauge,
    descriptors: IntGauge,
    cpu: Counter,
}

impl Process {
    fn new(registry: &Registry) -> Self {
        let start = Gauge::new(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
        );
        #[allow(clippy::disallowed_methods, reason = "this metric is the wall time")]
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        add(registry, start).set(now.unwrap_or_default().as_secs_f64());
        let resident = IntGauge::new(
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
        );
        let descriptors = IntGauge::new("process_open_fds", "Number of open file descriptors.");
        let cpu = Counter::new(
            "process_cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
        );
        Self {
            resident: add(registry, resident),
            descriptors: add(registry, descriptors),
            cpu: add(registry, cpu),
        }
    }

    /// What cannot be read stays as it was.
    fn read(&self) {
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            // The directory's own descriptor is among them.
            let count = entries.count().saturating_sub(1);
            self.descriptors
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        if let Some(kib) = resident_kib(&status) {
            self.resident.set(kib.saturating_mul(1024));
        }
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten();
        if let (Some(ticks), Some(per_second)) = (cpu_ticks(&stat), per_second) {
            #[allow(
                clippy::cast_precision_loss,
                reason = "exact for a hundred million years"
            )]
            let seconds = ticks as f64 / per_second as f64;
            self.cpu.inc_by((seconds - self.cpu.get()).max(0.0));
        }
    }
}

/// `VmRSS` of `/proc/PID/status`, in KiB.
fn resident_kib(status: &str) -> Option<i64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// User and system time of `/proc/PID/stat` (fields 14 and 15), in clock ticks. The name before them, in parentheses, may
/// contain anything.
fn cpu_ticks(stat: &str) -> Option<i64> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let user: i64 = fields.next()?.parse().ok()?;
    let system: i64 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_may_look_like_its_end() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks(""), None);
    }

    #[test]
    fn a_process_shows_itself_and_its_calls() {
        let metrics = Metrics::new();
        metrics.set_driver_name("driver.example.com");
        metrics.called(
            "/csi.v1.Identity/Probe",
            Code::Cancelled,
            Duration::from_millis(200),
        );
        let text = String::from_utf8(metrics.answer().body.to_vec()).unwrap();
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(name));
            let (_, value) = line
                .unwrap_or_else(|| panic!("no {name} in {text}"))
                .rsplit_once(' ')
                .unwrap();
            value.parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes ") > 100_000.0);
        assert!(value("process_open_fds ") >= 3.0);
        assert!(value("process_start_time_seconds ") > 1.7e9);
        let labels = r#"{driver_name="driver.example.com",grpc_status_code="Canceled",method_name="/csi.v1.Identity/Probe""#;
        let bucket = |bound: &str| {
            value(&format!(
                "csi_sidecar_operations_seconds_bucket{labels},le=\"{bound}\"}}"
            ))
        };
        assert_eq!((bucket("0.1"), bucket("0.25")), (0.0, 1.0));
    }
}
