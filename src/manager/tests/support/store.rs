//! An API server that fails on demand.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::sync::watch;

use crate::manager::csi::node_store::{MemoryStore, NodeStore, StoreError, UpdatePeriods};
use crate::manager::csi::objects::{CsiNode, Node};
use crate::manager::{BoxFuture, lock};

/// An API server that fails on demand and counts its writes.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    pub(crate) memory: MemoryStore,
    /// For the next updates of the CSINode.
    update_errors: Mutex<VecDeque<StoreError>>,
    /// For every write, while set.
    broken: Mutex<Option<StoreError>>,
    pub(crate) node_patches: AtomicUsize,
    pub(crate) csi_node_writes: AtomicUsize,
}

impl FaultyStore {
    pub(crate) fn new(node: Node) -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryStore::new(node),
            update_errors: Mutex::default(),
            broken: Mutex::default(),
            node_patches: AtomicUsize::new(0),
            csi_node_writes: AtomicUsize::new(0),
        })
    }

    pub(crate) fn fail_updates(&self, errors: impl IntoIterator<Item = StoreError>) {
        lock(&self.update_errors).extend(errors);
    }

    pub(crate) fn break_writes(&self, error: Option<StoreError>) {
        *lock(&self.broken) = error;
    }

    pub(crate) fn writes(&self) -> (usize, usize) {
        (
            self.node_patches.load(Ordering::SeqCst),
            self.csi_node_writes.load(Ordering::SeqCst),
        )
    }

    pub(crate) fn node(&self) -> Node {
        self.memory.objects().0
    }

    pub(crate) fn csi_node(&self) -> CsiNode {
        self.memory.objects().1.expect("a CSINode exists")
    }

    /// Names of the drivers in the CSINode, in its order.
    pub(crate) fn drivers(&self) -> Vec<String> {
        let drivers = self.csi_node().spec.drivers.into_iter();
        drivers.map(|driver| driver.name).collect()
    }

    pub(crate) fn annotation(&self) -> Option<String> {
        let annotations = self.node().metadata.annotations;
        annotations.get("csi.volume.kubernetes.io/nodeid").cloned()
    }

    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        self.node().metadata.labels
    }

    fn write<'a, T: Send + 'a>(
        &'a self,
        counter: &AtomicUsize,
        request: BoxFuture<'a, Result<T, StoreError>>,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        if let Some(error) = lock(&self.broken).clone() {
            return Box::pin(async { Err(error) });
        }
        counter.fetch_add(1, Ordering::SeqCst);
        request
    }
}

impl NodeStore for FaultyStore {
    fn get_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Node, StoreError>> {
        self.memory.get_node(name)
    }

    fn patch_node_status<'a>(
        &'a self,
        name: &'a str,
        patch: &'a Value,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.write(
            &self.node_patches,
            self.memory.patch_node_status(name, patch),
        )
    }

    fn get_csi_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<CsiNode, StoreError>> {
        self.memory.get_csi_node(name)
    }

    fn create_csi_node<'a>(
        &'a self,
        csi_node: &'a CsiNode,
    ) -> BoxFuture<'a, Result<CsiNode, StoreError>> {
        self.write(&self.csi_node_writes, self.memory.create_csi_node(csi_node))
    }

    fn update_csi_node<'a>(
        &'a self,
        csi_node: &'a CsiNode,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        if let Some(error) = lock(&self.update_errors).pop_front() {
            return Box::pin(async { Err(error) });
        }
        self.write(&self.csi_node_writes, self.memory.update_csi_node(csi_node))
    }

    fn delete_csi_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        self.write(&self.csi_node_writes, self.memory.delete_csi_node(name))
    }

    fn update_periods(&self) -> watch::Receiver<UpdatePeriods> {
        self.memory.update_periods()
    }
}
