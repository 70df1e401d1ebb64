//! A kubelet in memory: a network of duplex streams in place of sockets, plugins and drivers with scripted answers, and
//! the manager's own rooms from the caches to the generator. Nothing here touches a file or a real clock, so a paused
//! runtime advances only when everybody waits.

mod driver;
mod kubelet;
mod network;
mod plugin;
mod server;
mod store;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use driver::FakeDriver;
pub(crate) use kubelet::Kubelet;
pub(crate) use network::Network;
pub(crate) use plugin::{FakePlugin, Notification};
pub(crate) use server::Answer;
pub(crate) use store::FaultyStore;

use crate::manager::csi::objects::Node;
use crate::manager::plugin_handler::RecordedCall;
use crate::manager::profile::Profile;

/// Kubernetes 1.28: before failed registrations were retried.
pub(crate) const K119: Profile = Profile::from_minor(28).expect("1.28 is known");
/// Kubernetes 1.17: the oldest.
pub(crate) const K117: Profile = Profile::OLDEST;
/// Kubernetes 1.36: failed registrations are retried.
pub(crate) const K136: Profile = Profile::from_minor(36).expect("1.36 is known");

pub(crate) const SOCKET: &str = "/registry/driver-reg.sock";
pub(crate) const ENDPOINT: &str = "/plugins/driver/csi.sock";
pub(crate) const DRIVER: &str = "driver.example.com";
pub(crate) const NODE: &str = "node1";
pub(crate) const NODE_UID: &str = "11111111-1111-4111-8111-111111111111";

/// Names of the methods, in order.
pub(crate) fn names(calls: &[RecordedCall]) -> Vec<&'static str> {
    let name = |call: &RecordedCall| match call {
        RecordedCall::Validate(_) => "validate",
        RecordedCall::Register(_) => "register",
        RecordedCall::Deregister(..) => "deregister",
    };
    calls.iter().map(name).collect()
}

/// A cluster of one node.
pub(crate) fn cluster() -> Arc<FaultyStore> {
    FaultyStore::new(Node::new(NODE, NODE_UID))
}

/// Lets the virtual clock run.
pub(crate) async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}
