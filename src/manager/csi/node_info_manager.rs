//! Makes a driver known to the cluster and forgotten again: the Node's annotation and labels, the CSINode's entry
//! (`pkg/volume/csi/nodeinfomanager/nodeinfomanager.go`).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::{MutexGuard, watch};

use super::node_client::NodeInfo;
use super::node_store::{NodeStore, StoreError, UpdatePeriods};
use super::objects::{CsiNode, Node, ObjectMeta, OwnerReference, node_status_patch};
use crate::klog;
use crate::manager::event::{EventSink, What};
use crate::manager::profile::Profile;
use crate::manager::retry::Steps;
use crate::manager::{go_text, lock};

mod csi_node_change;
mod error;
mod node_change;

use error::ChangeError;
pub use error::InitialiseError;
pub(super) use error::{InstallError, UninstallError, UpdateError};

/// Attempts at each change of Node or CSINode; every error is tried again (`updateBackoff`).
const UPDATE_BACKOFF: Steps = Steps {
    attempts: 4,
    first: Duration::from_millis(10),
    factor: 5,
    jitter: 10,
};

/// Between two questions whether the API server answers (`waitForAPIServerForever`).
const API_SERVER_POLL: Duration = Duration::from_secs(1);

/// Changes one node's two objects.
#[derive(Debug)]
pub struct NodeInfoManager {
    node_name: String,
    profile: Profile,
    /// None: a kubelet without a cluster, with which no CSI driver can register.
    store: Option<Arc<dyn NodeStore>>,
    events: EventSink,
    /// The Node's UID as the initialisation saw it; empty before.
    node_uid: Mutex<String>,
    changes: tokio::sync::Mutex<()>,
}

impl NodeInfoManager {
    /// For the node of this name. `events` gets each write.
    pub fn new(
        node_name: &str,
        profile: Profile,
        store: Option<Arc<dyn NodeStore>>,
        events: EventSink,
    ) -> Self {
        Self {
            node_name: node_name.to_owned(),
            profile,
            store,
            events,
            node_uid: Mutex::default(),
            changes: tokio::sync::Mutex::default(),
        }
    }

    /// Waits for the API server, however long that takes, and then makes the CSINode exist with its annotation. From
    /// 1.35 on no driver should be installed before (`initializeCSINode` in `csi_plugin.go`).
    pub async fn initialise(&self) -> Result<(), InitialiseError> {
        let Some(store) = &self.store else {
            tracing::warn!("Skipping CSINode initialization, no cluster");
            return Ok(());
        };
        loop {
            match store.get_csi_node(&self.node_name).await {
                Ok(_) | Err(StoreError::NotFound { .. }) => break,
                Err(err) => {
                    tracing::error!(%err, "Failed to contact API server when waiting for CSINode publishing");
                }
            }
            tokio::time::sleep(API_SERVER_POLL).await;
        }
        let attempts = self.profile.initialise_backoff().run(|| async {
            let inner = UPDATE_BACKOFF
                .run(|| self.try_initialise(store.as_ref()))
                .await;
            if let Err(errors) = &inner {
                tracing::error!(err = %go_text::aggregate(errors), "Failed to initialize CSINode");
            }
            inner
        });
        attempts.await.map_err(|errors| {
            let last = errors.last().and_then(|errors| errors.last());
            InitialiseError(last.map(ToString::to_string).unwrap_or_default())
        })
    }

    async fn try_initialise(&self, store: &dyn NodeStore) -> Result<(), ChangeError> {
        let _serial = self
            .serial(self.profile.serialises_csi_node_changes())
            .await;
        if self.profile.checks_csi_node_owner() {
            let uid = store.get_node(&self.node_name).await?.metadata.uid;
            *lock(&self.node_uid) = uid;
        }
        let mut csi_node = match store.get_csi_node(&self.node_name).await {
            Ok(csi_node) => csi_node,
            Err(StoreError::NotFound { .. }) => return self.create(store).await.map(drop),
            Err(error) => return Err(error.into()),
        };
        self.ensure_owned(store, &csi_node).await?;
        if self.set_migrated_plugins(&mut csi_node) {
            self.update(store, csi_node).await?;
        }
        Ok(())
    }

    /// Node first, then CSINode. What the Node got stays when the CSINode fails; undoing it is the caller's.
    pub(super) async fn install(&self, driver: &str, info: &NodeInfo) -> Result<(), InstallError> {
        if info.node_id.is_empty() {
            return Err(InstallError::EmptyNodeId);
        }
        let change = |node: &mut Node| {
            let dropped = self.profile.install_drops_attach_limit()
                && node_change::drop_attach_limit(node, driver);
            let added = node_change::add_node_id(node, driver, &info.node_id)?;
            let labelled = node_change::add_topology(node, &info.topology())?;
            Ok(dropped || added || labelled)
        };
        self.change_node(change).await.map_err(InstallError::Node)?;
        self.update_driver(driver, info).await
    }

    /// The CSINode alone, with no question whether there is a node id (`UpdateCSIDriver`).
    pub(super) async fn update_driver(
        &self,
        driver: &str,
        info: &NodeInfo,
    ) -> Result<(), InstallError> {
        let store = self.client().map_err(InstallError::CsiNode)?;
        UPDATE_BACKOFF
            .run(|| self.try_install(store, driver, info))
            .await
            .map_err(|errors| InstallError::CsiNode(attempts("CSINode", &errors)))
    }

    /// How often drivers are asked for their limits; none without a cluster.
    pub(super) fn update_periods(&self) -> Option<watch::Receiver<UpdatePeriods>> {
        self.store.as_ref().map(|store| store.update_periods())
    }

    /// CSINode first, then Node. Labels stay, and so does a CSINode without drivers.
    pub(super) async fn uninstall(&self, driver: &str) -> Result<(), UninstallError> {
        let store = self.client().map_err(UninstallError::CsiNode)?;
        UPDATE_BACKOFF
            .run(|| self.try_uninstall(store, driver))
            .await
            .map_err(|errors| UninstallError::CsiNode(attempts("CSINode", &errors)))?;
        let change = |node: &mut Node| {
            let dropped = self.profile.uninstall_drops_attach_limit()
                && node_change::drop_attach_limit(node, driver);
            Ok(node_change::remove_node_id(node, driver)? || dropped)
        };
        self.change_node(change).await.map_err(UninstallError::Node)
    }

    fn client(&self) -> Result<&dyn NodeStore, UpdateError> {
        self.store.as_deref().ok_or(UpdateError::NoClient)
    }

    async fn serial(&self, needed: bool) -> Option<MutexGuard<'_, ()>> {
        if needed {
            Some(self.changes.lock().await)
        } else {
            None
        }
    }

    async fn change_node(
        &self,
        change: impl Fn(&mut Node) -> Result<bool, node_change::NodeChangeError> + Send + Sync,
    ) -> Result<(), UpdateError> {
        UPDATE_BACKOFF
            .run(|| self.try_change_node(&change))
            .await
            .map_err(|errors| attempts("node", &errors))
    }

    async fn try_change_node(
        &self,
        change: &(impl Fn(&mut Node) -> Result<bool, node_change::NodeChangeError> + Send + Sync),
    ) -> Result<(), ChangeError> {
        let _serial = self.serial(self.profile.serialises_node_changes()).await;
        let store = self.store.as_ref().ok_or(ChangeError::NoKubeClient)?;
        let original = store.get_node(&self.node_name).await?;
        let mut changed = original.clone();
        if change(&mut changed)? {
            self.patch(store.as_ref(), &node_status_patch(&original, &changed))
                .await?;
            let node = Box::new(changed);
            self.events.emit(What::NodeWritten { node });
        }
        Ok(())
    }

    async fn patch(&self, store: &dyn NodeStore, patch: &Value) -> Result<(), ChangeError> {
        let patched = store.patch_node_status(&self.node_name, patch).await;
        patched.map_err(|source| ChangeError::Patch {
            patch: patch.to_string(),
            node: self.node_name.clone(),
            source,
        })
    }

    async fn try_install(
        &self,
        store: &dyn NodeStore,
        driver: &str,
        info: &NodeInfo,
    ) -> Result<(), ChangeError> {
        let _serial = self
            .serial(self.profile.serialises_csi_node_changes())
            .await;
        let mut csi_node = match store.get_csi_node(&self.node_name).await {
            Err(StoreError::NotFound { .. }) => self.create(store).await?,
            result => result?,
        };
        self.ensure_owned(store, &csi_node).await?;
        let installed = csi_node_change::add_driver(
            &mut csi_node,
            driver,
            info,
            self.profile.compares_volume_limit(),
        );
        let annotated = self.set_migrated_plugins(&mut csi_node);
        if !installed && !annotated {
            return Ok(());
        }
        self.update(store, csi_node).await
    }

    async fn try_uninstall(&self, store: &dyn NodeStore, driver: &str) -> Result<(), ChangeError> {
        let _serial = self
            .serial(self.profile.serialises_csi_node_changes())
            .await;
        let mut csi_node = match store.get_csi_node(&self.node_name).await {
            Err(StoreError::NotFound { .. }) => return Ok(()),
            result => result?,
        };
        if csi_node_change::remove_driver(&mut csi_node, driver) {
            self.update(store, csi_node).await?;
        }
        Ok(())
    }

    fn set_migrated_plugins(&self, csi_node: &mut CsiNode) -> bool {
        csi_node_change::set_migrated_plugins(csi_node, &self.profile.migrated_plugins())
    }

    async fn create(&self, store: &dyn NodeStore) -> Result<CsiNode, ChangeError> {
        let uid = if self.profile.checks_csi_node_owner() {
            lock(&self.node_uid).clone()
        } else {
            store.get_node(&self.node_name).await?.metadata.uid
        };
        let mut csi_node = CsiNode::new(ObjectMeta {
            name: self.node_name.clone(),
            owner_references: vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Node".into(),
                name: self.node_name.clone(),
                uid,
                other: Map::new(),
            }],
            ..ObjectMeta::default()
        });
        self.set_migrated_plugins(&mut csi_node);
        let created = store.create_csi_node(&csi_node).await?;
        let csi_node = Box::new(created.clone());
        self.events.emit(What::CsiNodeWritten { csi_node });
        Ok(created)
    }

    async fn update(&self, store: &dyn NodeStore, csi_node: CsiNode) -> Result<(), ChangeError> {
        store.update_csi_node(&csi_node).await?;
        let csi_node = Box::new(csi_node);
        self.events.emit(What::CsiNodeWritten { csi_node });
        Ok(())
    }

    /// Deletes a CSINode that belongs to another incarnation of this node, and fails then.
    async fn ensure_owned(
        &self,
        store: &dyn NodeStore,
        csi_node: &CsiNode,
    ) -> Result<(), ChangeError> {
        if !self.profile.checks_csi_node_owner() {
            return Ok(());
        }
        let uid = lock(&self.node_uid).clone();
        let Some(old) = csi_node_change::foreign_owner(csi_node, &self.node_name, &uid) else {
            return Ok(());
        };
        let name = self.node_name.clone();
        klog::verbose!(2, csiNode = %name, oldNodeID = %old, newNodeID = %uid, "existing CSINode is owned by different node, cleaning up");
        if let Err(source) = store.delete_csi_node(&name).await {
            return Err(ChangeError::Delete { name, source });
        }
        self.events.emit(What::CsiNodeDeleted);
        Err(ChangeError::NotOwned {
            name,
            old,
            new: uid,
        })
    }
}

fn attempts(object: &'static str, errors: &[ChangeError]) -> UpdateError {
    UpdateError::Attempts {
        object,
        causes: go_text::aggregate(errors),
    }
}

#[cfg(test)]
mod tests;
