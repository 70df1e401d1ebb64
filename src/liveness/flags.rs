//! The flags of the drop-in for the Go sidecar `livenessprobe`.

use std::time::Duration;

use clap::Parser;

use super::HEALTHZ;
use crate::driver::Address;
use crate::goflag::GoDuration;
use crate::http::Endpoint;
use crate::klog;

/// Where a kubelet's probe goes unless a flag says otherwise.
const DEFAULT_PORT: &str = "9808";

/// The flags as they were given.
#[derive(Debug, Parser)]
pub(super) struct Flags {
    #[arg(
        long,
        default_value = "/run/csi/socket",
        help = "Address of the CSI driver socket."
    )]
    csi_address: String,

    #[arg(long, default_value = "3s", help = "Probe timeout in seconds.")]
    probe_timeout: GoDuration,

    #[arg(
        long,
        default_value = DEFAULT_PORT,
        help = "(deprecated) TCP ports for listening healthz requests. The default is `9808`. If set, --http-endpoint cannot \
                be set."
    )]
    health_port: String,

    #[arg(
        long,
        default_value = "",
        help = "The TCP network address where the HTTP server for diagnostics, including CSI driver health check and \
                metrics. The default is empty string, which means the server is disabled. If set, --health-port and \
                --metrics-address cannot be explicitly set."
    )]
    http_endpoint: String,

    #[arg(
        long,
        default_value = "",
        help = "(deprecated) The TCP network address where the prometheus metrics endpoint will listen (example: `:8080`). \
                The default is empty string, which means metrics endpoint is disabled. If set, --http-endpoint cannot be set."
    )]
    metrics_address: String,

    #[arg(
        long,
        default_value = "/metrics",
        help = "The HTTP path where prometheus metrics will be exposed."
    )]
    metrics_path: String,

    #[arg(
        long,
        default_value = "0s",
        help = "The --connection-timeout flag is deprecated and has no effect"
    )]
    connection_timeout: GoDuration,

    #[arg(long, help = "Show version.")]
    version: bool,

    #[command(flatten)]
    klog: klog::Flags,
}

/// What a checked command line asks for.
#[derive(Debug)]
pub(super) enum Request {
    /// Print the version.
    Version,
    /// Serve.
    Run(Settings),
}

/// What the drop-in runs with.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) address: Address,
    pub(super) probe_timeout: Duration,
    /// Where `/healthz` is served, and the flag that says so.
    pub(super) health: (&'static str, Endpoint),
    /// Where metrics are served.
    pub(super) metrics: MetricsPlace,
    pub(super) metrics_path: String,
    pub(super) warnings: Vec<&'static str>,
}

/// Where metrics are served.
#[derive(Debug)]
pub(super) enum MetricsPlace {
    /// Nowhere: `--health-port` alone.
    Nowhere,
    /// Beside `/healthz`.
    Beside,
    /// On an address of their own.
    At(Endpoint),
}

impl Flags {
    /// The logging part, which is checked first.
    pub(super) fn klog(&self) -> klog::Validation {
        self.klog.validate()
    }

    /// Checks everything, and returns all problems together.
    pub(super) fn validate(self) -> Result<Request, Vec<String>> {
        if self.version {
            return Ok(Request::Version);
        }
        let mut problems = Vec::new();
        let mut problem = |flag: &str, text: String| problems.push(format!("{flag}: {text}"));
        let address = self.csi_address.parse::<Address>();
        let address = address.map_err(|error| problem("--csi-address", error.to_string()));
        let timeout = self
            .probe_timeout
            .to_std()
            .filter(|timeout| !timeout.is_zero());
        if timeout.is_none() {
            problem("--probe-timeout", "it must be greater than zero".to_owned());
        }
        let health = if self.http_endpoint.is_empty() {
            let port = self.health_port.parse().ok().filter(|port| *port > 0);
            if port.is_none() {
                problem(
                    "--health-port",
                    format!("{:?} is no port: ports are 1 to 65535", self.health_port),
                );
            }
            port.map(|port| ("--health-port", Endpoint::any(port)))
        } else {
            let endpoint = self.http_endpoint.parse::<Endpoint>();
            let endpoint = endpoint.map_err(|error| problem("--http-endpoint", error.to_string()));
            endpoint.ok().map(|endpoint| ("--http-endpoint", endpoint))
        };
        let metrics = if self.metrics_address.is_empty() {
            let beside = !self.http_endpoint.is_empty();
            Some(if beside {
                MetricsPlace::Beside
            } else {
                MetricsPlace::Nowhere
            })
        } else {
            let endpoint = self.metrics_address.parse();
            let endpoint = endpoint.map_err(|error: crate::http::EndpointError| {
                problem("--metrics-address", error.to_string());
            });
            endpoint.ok().map(MetricsPlace::At)
        };
        if matches!(metrics, Some(MetricsPlace::Beside | MetricsPlace::At(_))) {
            problems.extend(self.metrics_path_problem());
        }
        problems.extend(self.contradictions());
        let (Ok(address), Some(probe_timeout), Some(health), Some(metrics), true) =
            (address, timeout, health, metrics, problems.is_empty())
        else {
            return Err(problems);
        };
        let mut warnings = Vec::new();
        if self.connection_timeout != GoDuration::default() {
            warnings.push("--connection-timeout is deprecated and will have no effect");
        }
        Ok(Request::Run(Settings {
            address,
            probe_timeout,
            health,
            metrics,
            metrics_path: self.metrics_path,
            warnings,
        }))
    }

    /// Go's mux panics at what is no path, and at a second `/healthz`: a probe that is answered with metrics never fails.
    fn metrics_path_problem(&self) -> Option<String> {
        let path = &self.metrics_path;
        if !path.starts_with('/') {
            Some(format!(
                "--metrics-path: {path:?} is no path: it must begin with a slash"
            ))
        } else if path == HEALTHZ && !self.http_endpoint.is_empty() {
            Some(format!(
                "--metrics-path: {HEALTHZ} is where --http-endpoint serves the CSI driver's liveness: choose another path"
            ))
        } else {
            None
        }
    }

    fn contradictions(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.http_endpoint.is_empty() && self.health_port != DEFAULT_PORT {
            problems.push(
                "Only one of `--health-port` and `--http-endpoint` can be explicitly set."
                    .to_owned(),
            );
        }
        if !self.http_endpoint.is_empty() && !self.metrics_address.is_empty() {
            problems.push(
                "Only one of `--metrics-address` and `--http-endpoint` can be explicitly set."
                    .to_owned(),
            );
        }
        problems
    }
}
