//! Which API server `run` writes to, where it shall.

use std::path::PathBuf;

use clap::Args;

use crate::manager::csi::node_store::{ConnectError, KubeStore};

/// None of them: the node is in memory.
#[derive(Debug, Args)]
pub(super) struct ApiServerArguments {
    /// Write Node and CSINode to the API server of this kubeconfig file, with a node's rights
    #[arg(long, value_name = "FILE", requires = "node_name", conflicts_with_all = ["in_cluster", "observe"])]
    kubeconfig: Option<PathBuf>,

    /// Write them to the API server of the cluster whose pod this is
    #[arg(long, requires = "node_name", conflicts_with = "observe")]
    in_cluster: bool,
}

impl ApiServerArguments {
    /// The API server that was named, not asked anything yet.
    pub(super) async fn connect(&self) -> Result<Option<KubeStore>, ConnectError> {
        if self.kubeconfig.is_none() && !self.in_cluster {
            return Ok(None);
        }
        KubeStore::connect(self.kubeconfig.as_deref())
            .await
            .map(Some)
    }
}
