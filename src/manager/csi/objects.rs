//! Node and CSINode, as far as registration touches them, with Kubernetes' names: what is written to files and events is
//! what `kubectl get -o yaml` would show.

use std::collections::BTreeMap;

use serde::Serialize;

/// Where the Node keeps the drivers' names for it, a JSON object (`annotationKeyNodeID`).
pub const NODE_ID_ANNOTATION: &str = "csi.volume.kubernetes.io/nodeid";

/// `metadata` of both kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectMeta {
    /// The node's name, for both kinds.
    pub name: String,
    /// Given by the API server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Changed by each write; an update that carries an old one is a conflict.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Topology labels, on a Node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Node ids on a Node, migrated plugins on a CSINode.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The Node, on a CSINode.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
}

/// Who owns an object: it is collected with its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    /// `v1`.
    pub api_version: String,
    /// `Node`.
    pub kind: String,
    /// The node's name.
    pub name: String,
    /// The node's UID, which a node of the same name that is made anew does not share.
    pub uid: String,
}

/// A Node, core/v1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename = "Node", rename_all = "camelCase")]
pub struct Node {
    api_version: &'static str,
    /// Name, labels, annotations.
    pub metadata: ObjectMeta,
    spec: Empty,
    /// Capacity and allocatable.
    pub status: NodeStatus,
}

/// `status` of a [`Node`]: resource names and quantities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Of old, with a key for each driver's attach limit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, String>,
    /// Likewise.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub allocatable: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Empty {}

impl Node {
    /// A node without labels and annotations.
    pub fn new(name: &str, uid: &str) -> Self {
        Self {
            api_version: "v1",
            metadata: ObjectMeta {
                name: name.to_owned(),
                uid: uid.to_owned(),
                ..ObjectMeta::default()
            },
            spec: Empty {},
            status: NodeStatus::default(),
        }
    }
}

/// A CSINode, storage.k8s.io/v1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename = "CSINode", rename_all = "camelCase")]
pub struct CsiNode {
    api_version: &'static str,
    /// Name, owner, migrated plugins.
    pub metadata: ObjectMeta,
    /// The drivers.
    pub spec: CsiNodeSpec,
}

/// `spec` of a [`CsiNode`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CsiNodeSpec {
    /// In the order of their last change.
    pub drivers: Vec<CsiNodeDriver>,
}

/// What the scheduler and the attacher know of a driver on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CsiNodeDriver {
    /// The registered name.
    pub name: String,
    /// The driver's name for this node.
    #[serde(rename = "nodeID")]
    pub node_id: String,
    /// Sorted keys of the driver's topology; their values are labels of the Node.
    pub topology_keys: Vec<String>,
    /// None: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<VolumeNodeResources>,
}

/// How much of a driver's resources a node takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeNodeResources {
    /// Volumes.
    pub count: i32,
}

impl CsiNode {
    /// A CSINode without drivers.
    pub fn new(metadata: ObjectMeta) -> Self {
        Self {
            api_version: "storage.k8s.io/v1",
            metadata,
            spec: CsiNodeSpec::default(),
        }
    }
}
