//! Kubernetes' plugin registration protocol, from both ends: the node-driver-registrar sidecar as a library, and the
//! kubelet's side.
//!
//! A CSI driver written in Rust needs no sidecar: it runs a [`Registrar`](registrar::Registrar) beside its own server, as
//! `examples/embedded.rs` does.
//!
//! | Module | What it is for |
//! |---|---|
//! | [`registrar`] | publishes the registration socket, serves the kubelet, keeps the driver registered |
//! | [`driver`] | the CSI driver: its address, its name, and what can be wrong with them |
//! | [`manager`] | the kubelet's side: watches the plugin registry, registers what appears in it |
//! | [`testing`] | a CSI driver with faults on demand |
//! | [`proto`] | the wire |
//!
//! The rooms below are those of the binaries. Some of them can be reached, for our own binaries, tests and fuzz targets;
//! they promise nothing to anybody else.
//!
//! | Module | What it is for |
//! |---|---|
//! | `liveness` | the liveness probe's job, beside the registrar or alone |
//! | `command` | the programs in the sidecar's binary, and what they have in common |
//! | `uds` | Unix sockets: published by rename, watched, dialled, and the kubelet's `:authority` made legal |
//! | `connections` | bounds on the connections of any server here |
//! | `http` | a small bounded HTTP server for probes and diagnostics |
//! | `in_flight` | a bound on work that is begun by others |
//! | `limits` | every bound of the two servers |
//! | `single_flight` | one call in flight, its answer shared |
//! | `failure_log` | failing checks, logged calmly |
//! | `goflag` | command lines in Go's syntax |
//! | `metrics` | what every sidecar process counts |
//! | `klog` | logs as klog writes them |
//! | `signals` | the signals that end a sidecar |

#[cfg(feature = "registrar")]
#[doc(hidden)]
pub mod command;
#[doc(hidden)]
pub mod connections;
#[cfg(feature = "registrar")]
pub mod driver;
#[cfg(feature = "registrar")]
mod failure_log;
#[doc(hidden)]
pub mod goflag;
#[doc(hidden)]
pub mod http;
#[cfg(feature = "registrar")]
mod in_flight;
#[doc(hidden)]
pub mod klog;
#[doc(hidden)]
pub mod limits;
#[cfg(feature = "registrar")]
mod liveness;
#[cfg(feature = "manager")]
pub mod manager;
#[cfg(feature = "registrar")]
mod metrics;
pub mod proto;
#[cfg(feature = "registrar")]
pub mod registrar;
#[cfg(feature = "registrar")]
mod signals;
#[cfg(feature = "registrar")]
mod single_flight;
#[cfg(feature = "testing")]
pub mod testing;
#[doc(hidden)]
pub mod uds;
