//! The sidecar's flags: all of the original's with their defaults, and ours.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use super::{Config, FailurePolicy};
use crate::driver::Address;
use crate::goflag::{GoDuration, boolean, integer};
use crate::http::Endpoint;
use crate::klog;

/// Where Kubernetes looks for the reason of an exit, unless the pod says otherwise
/// (`terminationMessagePath` of `k8s.io/api/core/v1`).
const DEFAULT_TERMINATION_LOG: &str = "/dev/termination-log";

/// Value of `--mode` that makes the original exit at once.
const PROBE_MODE: &str = "kubelet-registration-probe";

/// The flags as they were given.
#[derive(Debug, Parser)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "a command line has as many switches as it has"
)]
pub struct Flags {
    #[arg(
        long,
        default_value = "/run/csi/socket",
        help = "Path of the CSI driver socket that the node-driver-registrar will connect to."
    )]
    csi_address: String,

    #[arg(
        long,
        default_value = "",
        help = "Path of the CSI driver socket on the Kubernetes host machine."
    )]
    kubelet_registration_path: String,

    #[arg(
        long,
        default_value = "/registration",
        help = "Path to Kubernetes plugin registration directory."
    )]
    plugin_registration_path: PathBuf,

    #[arg(
        long,
        default_value = "1s",
        help = "Timeout for waiting for communication with driver"
    )]
    timeout: GoDuration,

    #[arg(
        long,
        default_value = "",
        help = "The TCP network address where the HTTP server for diagnostics, including pprof and the health check \
                indicating whether the registration socket exists, will listen (example: `:8080`). The default is empty \
                string, which means the server is disabled. Only one of --health-port and --http-endpoint can be set."
    )]
    http_endpoint: String,

    #[arg(
        long,
        default_value = "0",
        value_parser = integer,
        help = "(deprecated) TCP port for healthz requests. Set to 0 to disable the healthz server. Only one of \
                --health-port and --http-endpoint can be set."
    )]
    health_port: i64,

    #[arg(long, help = "enable pprof profiling")]
    enable_pprof: bool,

    #[arg(
        long,
        default_value = "",
        help = "DEPRECATED. If this is set to kubelet-registration-probe, the driver will exit successfully without \
                registering with CSI. If set to any other value node-driver-registrar will do the kubelet plugin registration."
    )]
    mode: String,

    #[arg(
        long,
        default_value = "0s",
        help = "The --connection-timeout flag is deprecated"
    )]
    connection_timeout: GoDuration,

    #[arg(long, help = "Show version.")]
    version: bool,

    #[arg(
        long,
        default_value = "0s",
        help = "Give up when the CSI driver has not told its name within this time. 0 waits for ever."
    )]
    driver_wait_timeout: GoDuration,

    #[arg(
        long,
        default_value = "true",
        value_parser = boolean,
        action = clap::ArgAction::Set,
        help = "Wait up to a minute while the CSI driver's Probe answers that it is not ready"
    )]
    wait_for_ready: bool,

    #[arg(
        long,
        help = "Publish the registration socket anew when the CSI driver was restarted, so that the kubelet asks its \
                NodeGetInfo again"
    )]
    reregister_on_driver_restart: bool,

    #[arg(
        long,
        help = "What to do when the kubelet refuses the registration, a `policy`: exit, so that the pod restarts, or retry \
                with growing delays (default exit; with --liveness-endpoint retry)"
    )]
    registration_failure_policy: Option<String>,

    #[arg(
        long,
        default_value = "",
        help = "The TCP network address where the CSI driver's liveness is served at /healthz, as the sidecar livenessprobe \
                does it (example: `:9808`). The default is empty string, which means off."
    )]
    liveness_endpoint: String,

    #[arg(
        long,
        default_value = "3s",
        help = "Timeout of connecting to the CSI driver and its Probe, for --liveness-endpoint"
    )]
    probe_timeout: GoDuration,

    #[arg(
        long,
        help = "Where the reason of a failing exit is written. An explicitly given `path` is created, the default is \
                written only if it exists. Empty turns it off. (default /dev/termination-log)"
    )]
    termination_log_path: Option<PathBuf>,

    #[command(flatten)]
    klog: klog::Flags,
}

/// What `probe` needs of the registrar's flags.
#[derive(Debug)]
pub struct ProbeTarget {
    /// `--plugin-registration-path`.
    pub directory: PathBuf,
    /// `--kubelet-registration-path`.
    pub endpoint: String,
    /// `--timeout`.
    pub timeout: Duration,
}

/// What a checked command line asks for.
#[derive(Debug)]
pub enum Request {
    /// Print the version.
    Version,
    /// The original's old probe mode: succeed and do nothing.
    Nothing,
    /// Register.
    Run(Box<Settings>),
}

/// What a sidecar runs with.
#[derive(Debug)]
pub struct Settings {
    /// The registrar's part.
    pub config: Config,
    /// Where the diagnostics server listens, if it does.
    pub http_endpoint: Option<Endpoint>,
    /// Where the driver's liveness is served, if it is.
    pub liveness_endpoint: Option<Endpoint>,
    /// Bounds connecting to the driver and its `Probe`, for the liveness.
    pub probe_timeout: Duration,
    /// What was given and will probably not do what was meant, a line each.
    pub warnings: Vec<String>,
    /// Whether it serves `/debug/pprof/`.
    pub enable_pprof: bool,
    /// Value of `--mode`, for the log.
    pub mode: String,
}

/// Where the reason of a failing exit goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminationLog {
    /// Nowhere.
    Off,
    /// To this file, which is made if it is not there.
    Create(PathBuf),
    /// To this file if it is there.
    Existing(PathBuf),
}

impl Flags {
    /// The logging part, which is checked first, so that everything else can be logged.
    pub fn klog(&self) -> klog::Validation {
        self.klog.validate()
    }

    /// Where the reason of a failing exit goes; needs no check, so that it can take any check's result.
    pub fn termination_log(&self) -> TerminationLog {
        match &self.termination_log_path {
            None => TerminationLog::Existing(DEFAULT_TERMINATION_LOG.into()),
            Some(path) if path.as_os_str().is_empty() => TerminationLog::Off,
            Some(path) => TerminationLog::Create(path.clone()),
        }
    }

    /// Checks everything, and returns all problems together.
    pub fn validate(self) -> Result<Request, Vec<String>> {
        if self.version {
            return Ok(Request::Version);
        }
        let mut problems = Problems::default();
        self.check_registration_path(&mut problems);
        if self.mode == PROBE_MODE {
            return problems.or(Request::Nothing);
        }
        let timeout = check_timeout("--timeout", self.timeout, &mut problems);
        let wait = self.driver_wait_timeout.to_std();
        let wait = problems.take(
            "--driver-wait-timeout",
            wait.ok_or("it must not be negative"),
        );
        let driver_address = problems.take("--csi-address", self.csi_address.parse::<Address>());
        let failure_policy = self.failure_policy(&mut problems);
        let probe_timeout = check_timeout("--probe-timeout", self.probe_timeout, &mut problems);
        let http_endpoint = self.http_endpoint(&mut problems);
        let liveness_endpoint = self.liveness_endpoint(http_endpoint.as_ref(), &mut problems);
        if self.plugin_registration_path.as_os_str().is_empty() {
            problems
                .0
                .push("--plugin-registration-path: it must name a directory".to_owned());
        }
        let (
            Some(timeout),
            Some(wait),
            Some(driver_address),
            Some(failure_policy),
            Some(probe_timeout),
        ) = (timeout, wait, driver_address, failure_policy, probe_timeout)
        else {
            return Err(problems.0);
        };
        let warnings = self.warnings(failure_policy);
        let config = Config {
            driver_address,
            timeout,
            kubelet_registration_path: self.kubelet_registration_path,
            registration_directory: self.plugin_registration_path,
            wait_for_ready: self.wait_for_ready,
            driver_wait_timeout: Some(wait).filter(|wait| *wait != Duration::ZERO),
            reregister_on_driver_restart: self.reregister_on_driver_restart,
            failure_policy,
            outlives_failures: liveness_endpoint.is_some(),
        };
        problems.or(Request::Run(Box::new(Settings {
            config,
            http_endpoint,
            liveness_endpoint,
            probe_timeout,
            warnings,
            enable_pprof: self.enable_pprof,
            mode: self.mode,
        })))
    }

    fn http_endpoint(&self, problems: &mut Problems) -> Option<Endpoint> {
        match (self.health_port, &*self.http_endpoint) {
            (..=0, "") => None,
            (..=0, endpoint) => problems.take("--http-endpoint", endpoint.parse()),
            (port, "") => {
                let port = u16::try_from(port).map(Endpoint::any);
                problems.take("--health-port", port.map_err(|_| "ports end at 65535"))
            }
            _ => {
                problems.0.push(
                    "Only one of `--health-port` and `--http-endpoint` can be set".to_owned(),
                );
                None
            }
        }
    }

    /// The part that a probe of this registrar needs, or all problems with it.
    pub fn probe_target(&self) -> Result<ProbeTarget, Vec<String>> {
        let mut problems = Problems::default();
        self.check_registration_path(&mut problems);
        match check_timeout("--timeout", self.timeout, &mut problems) {
            Some(timeout) if problems.0.is_empty() => Ok(ProbeTarget {
                directory: self.plugin_registration_path.clone(),
                endpoint: self.kubelet_registration_path.clone(),
                timeout,
            }),
            _ => Err(problems.0),
        }
    }

    fn check_registration_path(&self, problems: &mut Problems) {
        if self.kubelet_registration_path.is_empty() {
            problems.0.push(
                "kubelet-registration-path is a required parameter: give the path of the CSI driver's socket on the host"
                    .to_owned(),
            );
        }
    }

    fn failure_policy(&self, problems: &mut Problems) -> Option<FailurePolicy> {
        let policy = match self.registration_failure_policy.as_deref() {
            Some("exit") => Ok(FailurePolicy::Exit),
            Some("retry") => Ok(FailurePolicy::Retry),
            Some(other) => Err(format!("{other:?} is neither exit nor retry")),
            None if self.liveness_endpoint.is_empty() => Ok(FailurePolicy::Exit),
            None => Ok(FailurePolicy::Retry),
        };
        problems.take("--registration-failure-policy", policy)
    }

    fn liveness_endpoint(
        &self,
        http_endpoint: Option<&Endpoint>,
        problems: &mut Problems,
    ) -> Option<Endpoint> {
        if self.liveness_endpoint.is_empty() {
            return None;
        }
        let endpoint = problems.take("--liveness-endpoint", self.liveness_endpoint.parse());
        if endpoint.is_some() && endpoint.as_ref() == http_endpoint {
            problems.0.push(
                "--liveness-endpoint: it must be another address than --http-endpoint, whose /healthz is the registrar's own"
                    .to_owned(),
            );
        }
        endpoint
    }

    fn warnings(&self, policy: FailurePolicy) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.connection_timeout != GoDuration::default() {
            warnings.push("--connection-timeout is deprecated and will have no effect".to_owned());
        }
        if !self.liveness_endpoint.is_empty() && policy == FailurePolicy::Exit {
            warnings.push(
                "--registration-failure-policy=exit with --liveness-endpoint: a refused registration takes the liveness \
                 endpoint down, and the kubelet then restarts a healthy CSI driver; use retry"
                    .to_owned(),
            );
        }
        warnings
    }
}

fn check_timeout(flag: &str, value: GoDuration, problems: &mut Problems) -> Option<Duration> {
    let timeout = value.to_std().filter(|timeout| !timeout.is_zero());
    problems.take(flag, timeout.ok_or("it must be greater than zero"))
}

/// What is wrong with a command line, a line each.
#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn take<T, E: std::fmt::Display>(&mut self, flag: &str, value: Result<T, E>) -> Option<T> {
        value
            .map_err(|problem| self.0.push(format!("{flag}: {problem}")))
            .ok()
    }

    fn or<T>(self, value: T) -> Result<T, Vec<String>> {
        if self.0.is_empty() {
            Ok(value)
        } else {
            Err(self.0)
        }
    }
}
