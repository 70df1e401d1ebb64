//! The manager in the test's own process, to hold a registrar's binary against.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use csi_node_driver_registrar::manager::connector::UnixConnector;
use csi_node_driver_registrar::manager::csi::node_store::{MemoryStore, NodeStore};
use csi_node_driver_registrar::manager::csi::objects::{CsiNodeDriver, Node};
use csi_node_driver_registrar::manager::csi::{CsiHandler, NodeInfoManager};
use csi_node_driver_registrar::manager::event::{Event, EventSink, What};
use csi_node_driver_registrar::manager::profile::Profile;
use csi_node_driver_registrar::manager::{Config, OperationKind, PluginManager, StartError};
use csi_node_driver_registrar::proto::CSI_PLUGIN;
use tokio::sync::{broadcast, oneshot};
use tokio::task::JoinHandle;

use crate::support::{DEADLINE, within};

const NODE: &str = "node1";

/// A cluster with one node.
pub(crate) fn cluster() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(Node::new(NODE, "uid")))
}

/// What the cluster knows of `driver`.
pub(crate) fn entry(cluster: &MemoryStore, driver: &str) -> Option<CsiNodeDriver> {
    let drivers = cluster.objects().1?.spec.drivers;
    drivers.into_iter().find(|entry| entry.name == driver)
}

/// A kubelet that runs.
pub(crate) struct Manager {
    running: Arc<PluginManager>,
    events: broadcast::Receiver<Event>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), StartError>>,
}

impl Manager {
    pub(crate) async fn start(
        registry: &Path,
        profile: Profile,
        cluster: &Arc<MemoryStore>,
    ) -> Self {
        let events = EventSink::default();
        let connector = Arc::new(UnixConnector);
        let store = cluster.clone() as Arc<dyn NodeStore>;
        let node_info = NodeInfoManager::new(NODE, profile, Some(store), events.clone());
        node_info.initialise().await.unwrap();
        let handler = CsiHandler::new(
            profile,
            connector.clone(),
            Arc::new(node_info),
            events.clone(),
        );
        let config = Config {
            registration_dir: registry.to_owned(),
            profile,
            authority: None,
            observe: false,
        };
        let receiver = events.subscribe();
        let manager = Arc::new(PluginManager::new(config, connector, events));
        manager.add_handler(CSI_PLUGIN, Arc::new(handler));
        let (stop, stopped) = oneshot::channel();
        let running = manager.clone();
        let task = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            running.run(stopped).await
        });
        let mut manager = Self {
            running: manager,
            events: receiver,
            stop,
            task,
        };
        manager
            .until(DEADLINE, "the watch", |what| {
                matches!(what, What::Watching { .. })
            })
            .await;
        manager
    }

    pub(crate) async fn until(
        &mut self,
        limit: Duration,
        what: &str,
        wanted: impl Fn(&What) -> bool,
    ) -> Event {
        within(limit, what, async {
            loop {
                let event = self.events.recv().await.unwrap();
                if wanted(&event.what) {
                    return event;
                }
            }
        })
        .await
    }

    /// Waits for the next registration that succeeds. None may fail before.
    pub(crate) async fn until_registered(&mut self) {
        let event = self
            .until(DEADLINE, "a registration", |what| {
                matches!(
                    what,
                    What::OperationSucceeded {
                        operation: OperationKind::Register
                    } | What::OperationFailed { .. }
                )
            })
            .await;
        assert!(
            matches!(event.what, What::OperationSucceeded { .. }),
            "{event:?}"
        );
    }

    pub(crate) async fn until_unregistered(&mut self) {
        self.until(DEADLINE, "an unregistration", |what| {
            let operation = OperationKind::Unregister;
            *what == What::OperationSucceeded { operation }
        })
        .await;
    }

    /// Events that have come and that nobody has waited for.
    pub(crate) fn unseen(&mut self) -> Vec<What> {
        let mut unseen = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            unseen.push(event.what);
        }
        unseen
    }

    /// Sockets in the actual state of the world.
    pub(crate) fn registered(&self) -> usize {
        let state = serde_json::to_value(self.running.state()).unwrap();
        state["actual_state_of_world"].as_array().unwrap().len()
    }

    /// Sockets in the desired state of the world.
    pub(crate) fn desired(&self) -> usize {
        let state = serde_json::to_value(self.running.state()).unwrap();
        state["desired_state_of_world"].as_array().unwrap().len()
    }

    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        within(DEADLINE, "the manager to stop", self.task)
            .await
            .unwrap()
            .unwrap();
    }
}
