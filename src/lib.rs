//! Kubernetes' plugin registration protocol, from both ends: the node-driver-registrar sidecar as a library, and what it
//! is made of.
//!
//! | Module | What it is for |
//! |---|---|
//! | [`registrar`] | the sidecar: publishes the registration socket, serves the kubelet, keeps the driver registered |
//! | [`liveness`] | the liveness probe's job, beside the registrar or alone |
//! | [`command`] | the programs in the sidecar's binary, and what they have in common |
//! | [`manager`] | the kubelet's side: watches the plugin registry, registers what appears in it |
//! | [`driver`] | the CSI driver as its client sees it |
//! | [`uds`] | Unix sockets: published by rename, watched, dialled, and the kubelet's `:authority` made legal |
//! | [`connections`] | bounds on the connections of any server here |
//! | [`http`] | a small bounded HTTP server for probes and diagnostics |
//! | [`in_flight`] | a bound on work that is begun by others |
//! | [`limits`] | every bound of the two servers |
//! | [`single_flight`] | one call in flight, its answer shared |
//! | [`failure_log`] | failing checks, logged calmly |
//! | [`goflag`] | command lines in Go's syntax |
//! | [`metrics`] | what every sidecar process counts |
//! | [`klog`] | logs as klog writes them |
//! | [`signals`] | the signals that end a sidecar |
//! | [`testing`] | a CSI driver with faults on demand |
//! | [`proto`] | the wire |

#[cfg(feature = "registrar")]
pub mod command;
pub mod connections;
pub mod driver;
pub mod failure_log;
pub mod goflag;
pub mod http;
pub mod in_flight;
pub mod klog;
pub mod limits;
#[cfg(feature = "registrar")]
pub mod liveness;
#[cfg(feature = "manager")]
pub mod manager;
pub mod metrics;
pub mod proto;
#[cfg(feature = "registrar")]
pub mod registrar;
pub mod signals;
pub mod single_flight;
#[cfg(feature = "testing")]
pub mod testing;
pub mod uds;
