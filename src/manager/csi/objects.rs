//! Node and CSINode, as far as registration touches them, with Kubernetes' names: what is written to files and events is
//! what `kubectl get -o yaml` would show. What an API server stores beside that is carried along, since a CSINode is
//! written as a whole.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

/// Where the Node keeps the drivers' names for it, a JSON object (`annotationKeyNodeID`).
pub const NODE_ID_ANNOTATION: &str = "csi.volume.kubernetes.io/nodeid";

/// `metadata` of both kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectMeta {
    /// The node's name, for both kinds.
    pub name: String,
    /// Given by the API server.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Changed by each write; an update that carries an old one is a conflict.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Topology labels, on a Node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Node ids on a Node, migrated plugins on a CSINode.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The Node, on a CSINode.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
    /// What registration does not know, as it was read.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Who owns an object: it is collected with its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// What registration does not know, as it was read.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A Node, core/v1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename = "Node", rename_all = "camelCase")]
pub struct Node {
    #[serde(skip_deserializing, default = "core")]
    api_version: &'static str,
    /// Name, labels, annotations.
    pub metadata: ObjectMeta,
    #[serde(skip_deserializing)]
    spec: Empty,
    /// Capacity and allocatable.
    #[serde(default)]
    pub status: NodeStatus,
}

/// `status` of a [`Node`]: resource names and quantities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Of old, with a key for each driver's attach limit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, String>,
    /// Likewise.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub allocatable: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Empty {}

fn core() -> &'static str {
    "v1"
}

fn storage() -> &'static str {
    "storage.k8s.io/v1"
}

/// Go writes an empty list as `null` where it has none.
fn null_is_empty<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// An API server also keeps resources that name no count, which are no limit.
fn none_without_count<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<VolumeNodeResources>, D::Error> {
    #[derive(Deserialize)]
    struct Read {
        count: Option<i32>,
    }
    let read = Option::<Read>::deserialize(deserializer)?;
    let count = read.and_then(|resources| resources.count);
    Ok(count.map(|count| VolumeNodeResources { count }))
}

impl Node {
    /// A node without labels and annotations.
    pub fn new(name: &str, uid: &str) -> Self {
        Self {
            api_version: core(),
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename = "CSINode", rename_all = "camelCase")]
pub struct CsiNode {
    #[serde(skip_deserializing, default = "storage")]
    api_version: &'static str,
    /// Name, owner, migrated plugins.
    pub metadata: ObjectMeta,
    /// The drivers.
    #[serde(default)]
    pub spec: CsiNodeSpec,
    /// What registration does not know, as it was read.
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// `spec` of a [`CsiNode`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CsiNodeSpec {
    /// In the order of their last change.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub drivers: Vec<CsiNodeDriver>,
}

/// What the scheduler and the attacher know of a driver on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CsiNodeDriver {
    /// The registered name.
    pub name: String,
    /// The driver's name for this node.
    #[serde(rename = "nodeID")]
    pub node_id: String,
    /// Sorted keys of the driver's topology; their values are labels of the Node.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub topology_keys: Vec<String>,
    /// None: no limit.
    #[serde(default, deserialize_with = "none_without_count")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<VolumeNodeResources>,
}

/// How much of a driver's resources a node takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeNodeResources {
    /// Volumes.
    pub count: i32,
}

/// How `changed` differs from `original` in what registration changes, as a patch of the status sub-resource; empty where
/// it does not (`preparePatchBytesforNodeStatus` in `k8s.io/component-helpers/node/util`). For maps of strings a strategic
/// merge patch is a JSON merge patch.
pub fn node_status_patch(original: &Node, changed: &Node) -> Value {
    let (from, to) = (&original.metadata, &changed.metadata);
    let metadata = object([
        ("annotations", map_patch(&from.annotations, &to.annotations)),
        ("labels", map_patch(&from.labels, &to.labels)),
    ]);
    let (from, to) = (&original.status, &changed.status);
    let status = object([
        ("allocatable", map_patch(&from.allocatable, &to.allocatable)),
        ("capacity", map_patch(&from.capacity, &to.capacity)),
    ]);
    object([("metadata", metadata), ("status", status)])
}

/// What differs is set, what is missing is `null`.
fn map_patch(from: &BTreeMap<String, String>, to: &BTreeMap<String, String>) -> Value {
    let gone = from.keys().filter(|key| !to.contains_key(*key));
    let gone = gone.map(|key| (key.clone(), Value::Null));
    let set = to
        .iter()
        .filter(|(key, value)| from.get(*key) != Some(*value));
    let set = set.map(|(key, value)| (key.clone(), json!(value)));
    Value::Object(gone.chain(set).collect())
}

/// An object of the members that are not empty.
fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    let filled = members
        .into_iter()
        .filter(|(_, value)| value.as_object().is_some_and(|map| !map.is_empty()));
    Value::Object(filled.map(|(key, value)| (key.to_owned(), value)).collect())
}

impl CsiNode {
    /// A CSINode without drivers.
    pub fn new(metadata: ObjectMeta) -> Self {
        Self {
            api_version: storage(),
            metadata,
            spec: CsiNodeSpec::default(),
            other: Map::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_registration_does_not_know_is_written_back() {
        let stored = json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {
                "name": "node1", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/kept"],
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": "n", "controller": true}],
            },
            "spec": {"drivers": [{"name": "d", "nodeID": "1", "topologyKeys": ["k"], "allocatable": {"count": 3}}]},
            "status": {"storageHealth": []},
        });
        let csi_node: CsiNode = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(serde_json::to_value(csi_node).unwrap(), stored);
    }

    #[test]
    fn what_go_leaves_out_or_writes_as_null_is_empty() {
        let read = |spec: Value| {
            let stored = json!({"metadata": {"name": "node1"}, "spec": spec});
            serde_json::from_value::<CsiNode>(stored)
                .unwrap()
                .spec
                .drivers
        };
        assert_eq!(read(json!({"drivers": null})), []);
        let drivers = read(json!({"drivers": [
            {"name": "d", "nodeID": "1", "topologyKeys": null, "allocatable": {}},
            {"name": "d", "nodeID": "1"},
        ]}));
        assert_eq!(drivers[0], drivers[1]);
        assert_eq!(drivers[0].allocatable, None);
    }

    #[test]
    fn a_patch_names_only_what_differs() {
        let mut original = Node::new("node1", "uid");
        original.metadata.labels.insert("gone".into(), "1".into());
        original.metadata.labels.insert("kept".into(), "1".into());
        let mut changed = original.clone();
        assert_eq!(node_status_patch(&original, &changed), json!({}));
        changed.metadata.labels.remove("gone");
        changed.metadata.labels.insert("new".into(), "2".into());
        changed.status.capacity.insert("cpu".into(), "1".into());
        let patch = json!({
            "metadata": {"labels": {"gone": null, "new": "2"}},
            "status": {"capacity": {"cpu": "1"}},
        });
        assert_eq!(node_status_patch(&original, &changed), patch);
    }
}
