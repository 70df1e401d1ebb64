//! Conformance with the kubelet, row by row, on a virtual clock and in-memory streams; `tests/conformance/README.md`
//! maps the rows to their tests.

mod csi;
mod csi_node_updater;
mod executor;
mod generator;
mod manager;
mod metrics;
mod reconciler;
pub(super) mod support;
mod wire;
