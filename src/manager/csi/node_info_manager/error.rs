//! What can go wrong, in the kubelet's words: plugins are told them.

use super::node_change::NodeChangeError;
use crate::manager::csi::node_store::StoreError;
use crate::manager::go_text::quote;

/// One attempt at a change failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChangeError {
    #[error("error getting kube client")]
    NoKubeClient,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Node(#[from] NodeChangeError),
    #[error("failed to patch status {} for node {node:?}: {source}", quote(patch))]
    Patch {
        patch: String,
        node: String,
        source: StoreError,
    },
    #[error("error deleting existing CSINode {name:?}: {source}")]
    Delete { name: String, source: StoreError },
    /// The next attempt creates a new one.
    #[error(
        "CSINode {name:?} was owned by different node (oldNodeID={old:?}, newNodeID={new:?}), deleted it"
    )]
    NotOwned {
        name: String,
        old: String,
        new: String,
    },
}

/// A change failed, with all its attempts.
#[derive(Debug, thiserror::Error)]
pub(in crate::manager::csi) enum UpdateError {
    #[error("error getting CSI client")]
    NoClient,
    #[error("error updating {object}: timed out waiting for the condition; caused by: {causes}")]
    Attempts {
        object: &'static str,
        causes: String,
    },
}

/// A driver could not be made known.
#[derive(Debug, thiserror::Error)]
pub(in crate::manager::csi) enum InstallError {
    #[error("error adding CSI driver node info: driverNodeID must not be empty")]
    EmptyNodeId,
    #[error("error updating Node object with CSI driver node info: {0}")]
    Node(UpdateError),
    #[error("error updating CSINode object with CSI driver node info: {0}")]
    CsiNode(UpdateError),
}

/// A driver could not be forgotten.
#[derive(Debug, thiserror::Error)]
pub(in crate::manager::csi) enum UninstallError {
    #[error("error uninstalling CSI driver from CSINode object {0}")]
    CsiNode(UpdateError),
    #[error("error removing CSI driver node info from Node object {0}")]
    Node(UpdateError),
}

/// The CSINode could not be initialised; a kubelet would exit and begin anew.
#[derive(Debug, thiserror::Error)]
#[error("failed to initialize CSINode after retrying: {0}")]
pub struct InitialiseError(pub(super) String);
