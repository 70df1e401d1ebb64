//! Where Node and CSINode live: what the node info manager asks of an API server.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

use super::objects::{CsiNode, Node};
use crate::manager::BoxFuture;

#[cfg(feature = "kube")]
mod kube_store;
mod memory;
mod yaml_file;

#[cfg(feature = "kube")]
pub use kube_store::{ConnectError, KubeStore};
pub use memory::MemoryStore;
pub use yaml_file::YamlFile;

/// An API server's refusal, in its words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// 404.
    #[error("{resource} {name:?} not found")]
    NotFound {
        /// Plural and group: `csinodes.storage.k8s.io`.
        resource: &'static str,
        /// The object's name.
        name: String,
    },
    /// 409, on creation.
    #[error("{resource} {name:?} already exists")]
    AlreadyExists {
        /// Plural and group.
        resource: &'static str,
        /// The object's name.
        name: String,
    },
    /// 409, on an update.
    #[error(
        "Operation cannot be fulfilled on {resource} {name:?}: the object has been modified; please apply your changes to the latest version and try again"
    )]
    Conflict {
        /// Plural and group.
        resource: &'static str,
        /// The object's name.
        name: String,
    },
    /// 422.
    #[error("{kind} {name:?} is invalid: {reason}")]
    Invalid {
        /// Kind and group: `CSINode.storage.k8s.io`.
        kind: &'static str,
        /// The object's name.
        name: String,
        /// Field and complaint.
        reason: String,
    },
    /// Anything else: no connection, no permission, a 500.
    #[error("{0}")]
    Other(String),
}

/// Plural of Node.
pub const NODES: &str = "nodes";
/// Plural and group of CSINode.
pub const CSI_NODES: &str = "csinodes.storage.k8s.io";

/// `spec.nodeAllocatableUpdatePeriodSeconds` of the CSIDriver objects that have one above 0, by name.
pub type UpdatePeriods = BTreeMap<String, Duration>;

/// The requests that the kubelet's node info manager makes. Implementations bound them in time.
pub trait NodeStore: fmt::Debug + Send + Sync {
    /// GET of the Node.
    fn get_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Node, StoreError>>;

    /// PATCH of the Node's status sub-resource, which takes metadata too; no version is compared, and the patch may be empty
    /// ([`node_status_patch`](super::objects::node_status_patch)).
    fn patch_node_status<'a>(
        &'a self,
        name: &'a str,
        patch: &'a Value,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// GET of the CSINode.
    fn get_csi_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<CsiNode, StoreError>>;

    /// POST; answers the object as it is stored.
    fn create_csi_node<'a>(
        &'a self,
        csi_node: &'a CsiNode,
    ) -> BoxFuture<'a, Result<CsiNode, StoreError>>;

    /// PUT; a conflict if the object was changed since it was read.
    fn update_csi_node<'a>(
        &'a self,
        csi_node: &'a CsiNode,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// DELETE.
    fn delete_csi_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), StoreError>>;

    /// LIST and WATCH of the CSIDrivers, for as long as somebody holds the receiver. Empty until the first answer; a watch
    /// that breaks leaves what was known.
    fn update_periods(&self) -> watch::Receiver<UpdatePeriods>;
}
