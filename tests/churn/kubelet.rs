//! The plugin manager as a kubelet's process has it: on a thread and a runtime of its own, so that its death takes every
//! operation under way along. Node and CSINode outlive it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use csi_node_driver_registrar::manager::connector::UnixConnector;
use csi_node_driver_registrar::manager::csi::node_store::MemoryStore;
use csi_node_driver_registrar::manager::csi::objects::CsiNode;
use csi_node_driver_registrar::manager::csi::{CsiHandler, NodeInfoManager};
use csi_node_driver_registrar::manager::event::{Event, EventSink, What};
use csi_node_driver_registrar::manager::profile::Profile;
use csi_node_driver_registrar::manager::{Config, PluginManager};
use csi_node_driver_registrar::proto::CSI_PLUGIN;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::oneshot;

use super::journal::Journal;
use super::support::{DEADLINE, within};

/// The name of Node and CSINode.
pub const NODE: &str = "node1";

/// A kubelet that runs. Dropping it kills it.
pub struct Kubelet {
    pub manager: Arc<PluginManager>,
    pub handler: Arc<CsiHandler>,
    inherited: Mutex<BTreeSet<String>>,
    touched: Arc<Mutex<BTreeSet<String>>>,
    stop: Option<oneshot::Sender<()>>,
    /// Dropped: the process is gone.
    life: Option<oneshot::Sender<()>>,
    ended: Option<oneshot::Receiver<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Kubelet {
    /// Starts one; it watches `registry` a moment later.
    pub fn start(
        registry: &Path,
        profile: Profile,
        store: &Arc<MemoryStore>,
        journal: &Journal,
    ) -> Self {
        let events = EventSink::default();
        let connector = Arc::new(UnixConnector);
        let node_info = NodeInfoManager::new(NODE, profile, Some(store.clone()), events.clone());
        let node_info = Arc::new(node_info);
        let handler = CsiHandler::new(
            profile,
            connector.clone(),
            node_info.clone(),
            events.clone(),
        );
        let handler = Arc::new(handler);
        let config = Config {
            registration_dir: registry.to_owned(),
            profile,
            authority: None,
            observe: false,
        };
        let manager = Arc::new(PluginManager::new(config, connector, events.clone()));
        manager.add_handler(CSI_PLUGIN, handler.clone());
        let touched = Arc::<Mutex<BTreeSet<String>>>::default();
        let following = follow(events.subscribe(), journal.clone(), touched.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let (life, death) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let running = manager.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                tokio::spawn(following);
                let living = async {
                    node_info.initialise().await.unwrap();
                    let shutdown = async {
                        let _ = stopped.await;
                    };
                    running.run(shutdown).await.unwrap();
                };
                tokio::select! {
                    () = living => {}
                    _ = death => {}
                }
            });
            drop(runtime);
            let _ = end.send(());
        });
        Self {
            manager,
            handler,
            inherited: Mutex::new(names(store.objects().1.as_ref())),
            touched,
            stop: Some(stop),
            life: Some(life),
            ended: Some(ended),
            thread: Some(thread),
        }
    }

    /// Drivers that a kubelet before this one has left in the CSINode and that this one has never met. It does not know
    /// that they are its to remove, and no kubelet does (`pkg/volume/csi` keeps its drivers in memory only).
    pub fn inherited(&self) -> BTreeSet<String> {
        let touched = self.touched.lock().unwrap();
        let mut inherited = self.inherited.lock().unwrap();
        inherited.retain(|name| !touched.contains(name));
        inherited.clone()
    }

    /// Stops it, or lets it die where it stands.
    pub async fn end(mut self, gracefully: bool) {
        if gracefully {
            self.stop = None;
        } else {
            self.life = None;
        }
        let ended = self.ended.take().unwrap();
        within(DEADLINE, "the kubelet to end", ended)
            .await
            .expect("the kubelet panicked");
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.life = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Names in the CSINode.
pub fn names(csi_node: Option<&CsiNode>) -> BTreeSet<String> {
    let drivers = csi_node.iter().flat_map(|csi_node| &csi_node.spec.drivers);
    drivers.map(|driver| driver.name.clone()).collect()
}

async fn follow(
    mut events: broadcast::Receiver<Event>,
    journal: Journal,
    touched: Arc<Mutex<BTreeSet<String>>>,
) {
    loop {
        let Event { at, socket, what } = match events.recv().await {
            Ok(event) => event,
            Err(RecvError::Lagged(events)) => panic!("{events} events of the kubelet are lost"),
            Err(RecvError::Closed) => return,
        };
        // Whatever becomes of this registration, from here on the entry is in this kubelet's hands.
        if let What::NodeInfoReceived { driver, .. } | What::NodeInfoFailed { driver, .. } = &what {
            touched.lock().unwrap().insert(driver.clone());
        }
        let text = match what {
            What::NodeWritten { .. } => continue,
            What::CsiNodeWritten { csi_node } => {
                format!("CSINode has {:?}", names(Some(&csi_node)))
            }
            what => format!("{what:?}"),
        };
        let socket = socket.as_deref().and_then(Path::file_name);
        let socket = socket.unwrap_or_default().display();
        journal.note_at(at.into_std(), format!("    kubelet {socket}: {text}"));
    }
}
