//! The registered CSI drivers, in memory only, and what they are asked (`csiDrivers`, `csi_client.go`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::node_client::{CSI_TIMEOUT, NodeInfo, Question, node_get_info};
use super::version::Version;
use crate::manager::connector::Connector;
use crate::manager::event::{EventSink, What};
use crate::manager::grpc_status::RpcError;
use crate::manager::lock;
use crate::manager::profile::Profile;

/// An answer of a driver with which it is not asked again, even by a kubelet that asks several times.
const FINAL_ANSWER: &str = "no handler registered for plugin type";

/// A driver did not say what its node is.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeGetInfoError {
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// In the words of `wait.ErrWaitTimeout`.
    #[error("timed out waiting for the condition")]
    Attempts,
}

/// Where a driver listens, and as what it registered.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) endpoint: String,
    pub(super) version: Version,
}

/// Which driver is asked, and for whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    /// The registered name.
    pub(super) driver: &'a str,
    pub(super) endpoint: &'a str,
    /// The registration socket, where a registration asks.
    pub(super) socket: Option<&'a Path>,
}

/// Knows the drivers by name.
#[derive(Debug)]
pub(super) struct Drivers {
    profile: Profile,
    connector: Arc<dyn Connector>,
    events: EventSink,
    known: Mutex<BTreeMap<String, Driver>>,
}

impl Drivers {
    pub(super) fn new(profile: Profile, connector: Arc<dyn Connector>, events: EventSink) -> Self {
        Self {
            profile,
            connector,
            events,
            known: Mutex::default(),
        }
    }

    /// Names and endpoints.
    pub(super) fn endpoints(&self) -> BTreeMap<String, String> {
        let known = lock(&self.known);
        let known = known.iter();
        known
            .map(|(name, driver)| (name.clone(), driver.endpoint.clone()))
            .collect()
    }

    pub(super) fn endpoint(&self, name: &str) -> Option<String> {
        let known = lock(&self.known);
        known.get(name).map(|driver| driver.endpoint.clone())
    }

    pub(super) fn version(&self, name: &str) -> Option<Version> {
        let known = lock(&self.known);
        known.get(name).map(|driver| driver.version.clone())
    }

    /// Takes the place of a driver of the same name.
    pub(super) fn insert(&self, name: &str, driver: Driver) {
        lock(&self.known).insert(name.to_owned(), driver);
    }

    pub(super) fn remove(&self, name: &str) {
        lock(&self.known).remove(name);
    }

    /// Asks within [`CSI_TIMEOUT`], as often as the profile does.
    pub(super) async fn node_get_info(
        &self,
        asked: Asked<'_>,
        stop: &CancellationToken,
    ) -> Result<NodeInfo, NodeGetInfoError> {
        let deadline = Instant::now() + CSI_TIMEOUT;
        let ask = || self.ask_once(asked, deadline, stop);
        let Some(backoff) = self.profile.node_get_info_backoff() else {
            return Ok(ask().await?);
        };
        let attempts = backoff.run(|| async {
            match ask().await {
                Err(error) if !error.message.contains(FINAL_ANSWER) => Err(error),
                last => Ok(last),
            }
        });
        let last = attempts.await.map_err(|_| NodeGetInfoError::Attempts)?;
        Ok(last?)
    }

    async fn ask_once(
        &self,
        asked: Asked<'_>,
        deadline: Instant,
        stop: &CancellationToken,
    ) -> Result<NodeInfo, RpcError> {
        let question = Question {
            endpoint: Path::new(asked.endpoint),
            authority: self.profile.csi_authority(),
            deadline,
        };
        let result = node_get_info(self.connector.as_ref(), question, stop).await;
        let driver = asked.driver.to_owned();
        let what = match &result {
            Ok(info) => What::NodeInfoReceived {
                driver,
                node_id: info.node_id.clone(),
                max_volumes_per_node: info.max_volumes_per_node,
                topology: info.topology.clone(),
            },
            Err(err) => {
                tracing::info!(%err, "Error calling CSI NodeGetInfo()");
                let error = err.to_string();
                What::NodeInfoFailed { driver, error }
            }
        };
        match asked.socket {
            Some(socket) => self.events.emit_for(socket, what),
            None => self.events.emit(what),
        }
        result
    }
}
