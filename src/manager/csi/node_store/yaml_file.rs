//! Keeps a file with both objects beside a store, so that a script sees at any time what a cluster would hold.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

use super::{NodeStore, StoreError, UpdatePeriods};
use crate::manager::BoxFuture;
use crate::manager::csi::objects::{CsiNode, Node};
use crate::manager::csi::yaml;

/// A store that passes everything on and writes the file anew after each change. The file is replaced as a whole: a
/// reader sees the old objects or the new ones.
#[derive(Debug)]
pub struct YamlFile {
    store: Arc<dyn NodeStore>,
    path: PathBuf,
    /// Appended to the file's name while it is written.
    temporary: PathBuf,
    /// The last writer has read last.
    writing: tokio::sync::Mutex<()>,
}

impl YamlFile {
    /// Writes `path` after each change of `store`; the file's directory has to exist.
    pub fn new(store: Arc<dyn NodeStore>, path: &Path) -> Self {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".new");
        Self {
            store,
            path: path.to_owned(),
            temporary: temporary.into(),
            writing: tokio::sync::Mutex::default(),
        }
    }

    /// Writes both objects of the node now; the CSINode only if there is one. A failure is logged: the store is what
    /// counts.
    pub async fn write(&self, node_name: &str) {
        let _writing = self.writing.lock().await;
        let text = match self.store.get_node(node_name).await {
            Ok(node) => yaml::object(&node),
            Err(error) => format!("# {error}\n"),
        };
        let text = match self.store.get_csi_node(node_name).await {
            Ok(csi_node) => text + "---\n" + &yaml::object(&csi_node),
            Err(_) => text,
        };
        if let Err(err) = self.replace(&text) {
            tracing::error!(%err, path = %self.path.display(), "Cannot write the objects file; check its directory");
        }
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        std::fs::write(&self.temporary, text)?;
        std::fs::rename(&self.temporary, &self.path)
    }
}

impl NodeStore for YamlFile {
    fn get_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Node, StoreError>> {
        self.store.get_node(name)
    }

    fn patch_node_status<'a>(
        &'a self,
        name: &'a str,
        patch: &'a Value,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.store.patch_node_status(name, patch).await?;
            self.write(name).await;
            Ok(())
        })
    }

    fn get_csi_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<CsiNode, StoreError>> {
        self.store.get_csi_node(name)
    }

    fn create_csi_node<'a>(
        &'a self,
        csi_node: &'a CsiNode,
    ) -> BoxFuture<'a, Result<CsiNode, StoreError>> {
        Box::pin(async move {
            let created = self.store.create_csi_node(csi_node).await?;
            self.write(&csi_node.metadata.name).await;
            Ok(created)
        })
    }

    fn update_csi_node<'a>(
        &'a self,
        csi_node: &'a CsiNode,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.store.update_csi_node(csi_node).await?;
            self.write(&csi_node.metadata.name).await;
            Ok(())
        })
    }

    fn delete_csi_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.store.delete_csi_node(name).await?;
            self.write(name).await;
            Ok(())
        })
    }

    fn update_periods(&self) -> watch::Receiver<UpdatePeriods> {
        self.store.update_periods()
    }
}
