//! An API server of one node, in memory: versions, conflicts, and the one validation that registration can meet.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::watch;

use super::{CSI_NODES, NODES, NodeStore, StoreError, UpdatePeriods};
use crate::manager::csi::objects::{CsiNode, Node};
use crate::manager::{BoxFuture, lock};

/// Holds one Node and, once it is created, its CSINode; of CSIDrivers, the one field that matters.
#[derive(Debug)]
pub struct MemoryStore {
    objects: Mutex<Objects>,
    update_periods: watch::Sender<UpdatePeriods>,
}

#[derive(Debug)]
struct Objects {
    node: Node,
    csi_node: Option<CsiNode>,
    /// The last `resourceVersion`; also makes the UIDs of CSINodes.
    version: u64,
}

impl Objects {
    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn node(&mut self, name: &str) -> Result<&mut Node, StoreError> {
        if self.node.metadata.name != name {
            return Err(StoreError::NotFound {
                resource: NODES,
                name: name.to_owned(),
            });
        }
        Ok(&mut self.node)
    }

    fn csi_node(&mut self, name: &str) -> Result<&mut CsiNode, StoreError> {
        self.csi_node
            .as_mut()
            .filter(|csi_node| csi_node.metadata.name == name)
            .ok_or_else(|| StoreError::NotFound {
                resource: CSI_NODES,
                name: name.to_owned(),
            })
    }

    fn create(&mut self, csi_node: &CsiNode) -> Result<CsiNode, StoreError> {
        let name = csi_node.metadata.name.clone();
        if self.csi_node(&name).is_ok() {
            let resource = CSI_NODES;
            return Err(StoreError::AlreadyExists { resource, name });
        }
        if csi_node
            .metadata
            .owner_references
            .iter()
            .any(|owner| owner.uid.is_empty())
        {
            return Err(StoreError::Invalid {
                kind: "CSINode.storage.k8s.io",
                name,
                reason: r#"metadata.ownerReferences.uid: Invalid value: "": uid must not be empty"#
                    .into(),
            });
        }
        let mut created = csi_node.clone();
        created.metadata.resource_version = self.next_version();
        created.metadata.uid = format!("00000000-0000-4000-8000-{:012x}", self.version);
        self.csi_node = Some(created.clone());
        Ok(created)
    }

    fn update(&mut self, csi_node: &CsiNode) -> Result<(), StoreError> {
        let name = &csi_node.metadata.name;
        if self.csi_node(name)?.metadata.resource_version != csi_node.metadata.resource_version {
            return Err(StoreError::Conflict {
                resource: CSI_NODES,
                name: name.clone(),
            });
        }
        let mut updated = csi_node.clone();
        updated.metadata.resource_version = self.next_version();
        self.csi_node = Some(updated);
        Ok(())
    }

    fn patch(&mut self, name: &str, patch: &Value) -> Result<(), StoreError> {
        let version = self.next_version();
        let node = self.node(name)?;
        let maps = [
            ("/metadata/annotations", &mut node.metadata.annotations),
            ("/metadata/labels", &mut node.metadata.labels),
            ("/status/allocatable", &mut node.status.allocatable),
            ("/status/capacity", &mut node.status.capacity),
        ];
        for (pointer, map) in maps {
            merge(map, patch.pointer(pointer).and_then(Value::as_object));
        }
        node.metadata.resource_version = version;
        Ok(())
    }
}

/// A merge patch of a map of strings.
fn merge(target: &mut BTreeMap<String, String>, patch: Option<&Map<String, Value>>) {
    for (key, value) in patch.into_iter().flatten() {
        match value.as_str() {
            Some(value) => target.insert(key.clone(), value.to_owned()),
            None => target.remove(key),
        };
    }
}

impl MemoryStore {
    /// A cluster with this Node and no CSINode.
    pub fn new(node: Node) -> Self {
        Self {
            objects: Mutex::new(Objects {
                node,
                csi_node: None,
                version: 0,
            }),
            update_periods: watch::Sender::default(),
        }
    }

    /// A CSIDriver of this name has this `nodeAllocatableUpdatePeriodSeconds`, or none; or there is no such object.
    pub fn set_update_period(&self, driver: &str, period: Option<Duration>) {
        self.update_periods.send_modify(|periods| {
            match period {
                Some(period) => periods.insert(driver.to_owned(), period),
                None => periods.remove(driver),
            };
        });
    }

    /// Both objects at this moment.
    pub fn objects(&self) -> (Node, Option<CsiNode>) {
        let objects = lock(&self.objects);
        (objects.node.clone(), objects.csi_node.clone())
    }

    fn answer<'a, T: Send + 'a>(
        &'a self,
        request: impl FnOnce(&mut Objects) -> Result<T, StoreError> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        Box::pin(async { request(&mut lock(&self.objects)) })
    }
}

impl NodeStore for MemoryStore {
    fn get_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Node, StoreError>> {
        self.answer(move |objects| objects.node(name).cloned())
    }

    fn patch_node_status<'a>(
        &'a self,
        name: &'a str,
        patch: &'a Value,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.answer(move |objects| objects.patch(name, patch))
    }

    fn get_csi_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<CsiNode, StoreError>> {
        self.answer(move |objects| objects.csi_node(name).cloned())
    }

    fn create_csi_node<'a>(
        &'a self,
        csi_node: &'a CsiNode,
    ) -> BoxFuture<'a, Result<CsiNode, StoreError>> {
        self.answer(move |objects| objects.create(csi_node))
    }

    fn update_csi_node<'a>(
        &'a self,
        csi_node: &'a CsiNode,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.answer(move |objects| objects.update(csi_node))
    }

    fn delete_csi_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        self.answer(move |objects| {
            objects.csi_node(name)?;
            objects.csi_node = None;
            Ok(())
        })
    }

    fn update_periods(&self) -> watch::Receiver<UpdatePeriods> {
        self.update_periods.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::csi::objects::{ObjectMeta, node_status_patch};

    fn csi_node() -> CsiNode {
        CsiNode::new(ObjectMeta {
            name: "node1".into(),
            ..ObjectMeta::default()
        })
    }

    #[tokio::test]
    async fn an_update_of_an_old_version_is_a_conflict() {
        let store = MemoryStore::new(Node::new("node1", "uid"));
        let created = store.create_csi_node(&csi_node()).await.unwrap();
        store.update_csi_node(&created).await.unwrap();
        let error = store.update_csi_node(&created).await.unwrap_err();
        assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_csi_node_is_created_once_and_deleted_once() {
        let store = MemoryStore::new(Node::new("node1", "uid"));
        let error = store.get_csi_node("node1").await.unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"csinodes.storage.k8s.io "node1" not found"#
        );
        store.create_csi_node(&csi_node()).await.unwrap();
        let error = store.create_csi_node(&csi_node()).await.unwrap_err();
        assert!(matches!(error, StoreError::AlreadyExists { .. }), "{error}");
        store.delete_csi_node("node1").await.unwrap();
        let error = store.delete_csi_node("node1").await.unwrap_err();
        assert!(matches!(error, StoreError::NotFound { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_patch_changes_only_what_differs() {
        let mut original = Node::new("node1", "uid");
        original.metadata.labels.insert("gone".into(), "1".into());
        original.metadata.labels.insert("kept".into(), "1".into());
        let store = MemoryStore::new(original.clone());
        let mut other = original.clone();
        other.metadata.labels.insert("kept".into(), "2".into());
        let patch = node_status_patch(&original, &other);
        store.patch_node_status("node1", &patch).await.unwrap();
        let mut changed = original.clone();
        changed.metadata.labels.remove("gone");
        changed.metadata.labels.insert("new".into(), "3".into());
        let patch = node_status_patch(&original, &changed);
        store.patch_node_status("node1", &patch).await.unwrap();
        let (node, _) = store.objects();
        let labels: Vec<_> = node.metadata.labels.into_iter().collect();
        assert_eq!(
            labels,
            [("kept".into(), "2".into()), ("new".into(), "3".into())]
        );
    }
}
