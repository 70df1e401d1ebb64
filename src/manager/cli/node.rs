//! A node without a cluster: its two objects, which outlive kubelets, and kubelets one after another.

use std::path::Path;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde_json::Value;
use tokio::sync::broadcast;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use super::Error;
use crate::klog;
use crate::manager::connector::UnixConnector;
use crate::manager::csi::node_store::{MemoryStore, NodeStore, YamlFile};
use crate::manager::csi::objects::{CsiNode, NODE_ID_ANNOTATION, Node};
use crate::manager::csi::{CsiHandler, InitialiseError, NodeInfoManager};
use crate::manager::event::{Event, EventSink, What};
use crate::manager::profile::Profile;
use crate::manager::{Config, PluginManager, StartError};
use crate::proto::CSI_PLUGIN;
use crate::uds::authority::Authority;

/// The UID of every Node that is made here.
const NODE_UID: &str = "9c0b4f2e-6d1a-4a53-8f0e-0d5c1b7a2e64";

/// Which node, and whose kubelet; for every command.
#[derive(Debug, Args)]
pub(super) struct NodeArguments {
    /// Kubernetes version whose kubelet to be, such as 1.28
    #[arg(long, value_name = "VERSION", default_value_t)]
    pub(super) profile: Profile,

    /// Name of the node, and of its Node and CSINode
    #[arg(long, value_name = "NAME", default_value = "node1")]
    pub(super) node_name: String,

    /// Log to standard error with this verbosity, as the kubelet's --v
    #[arg(short, long = "v", value_name = "LEVEL")]
    pub(super) verbosity: Option<klog::Level>,
}

impl NodeArguments {
    /// Logs from here on, at `default` if no verbosity was given; `None` is silence.
    pub(super) fn start_logging(&self, default: Option<klog::Level>) {
        if let Some(level) = self.verbosity.or(default) {
            let settings = klog::Settings {
                verbosity: klog::Verbosity::new(level, []),
                ..klog::Settings::default()
            };
            // Only a second subscriber of one process could be refused.
            let _ = klog::init(settings);
        }
    }
}

/// What registration calls carry as `:authority`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum AuthorityName {
    /// The socket's path, percent-encoded, as kubelets do since 1.29
    PercentEncoded,
    /// The socket's path as it is, as kubelets did up to 1.28
    Raw,
    /// What no kubelet sends there, but any HTTP/2 server takes
    Localhost,
}

impl From<AuthorityName> for Authority {
    fn from(name: AuthorityName) -> Self {
        match name {
            AuthorityName::PercentEncoded => Self::PercentEncoded,
            AuthorityName::Raw => Self::Raw,
            AuthorityName::Localhost => Self::Localhost,
        }
    }
}

/// The cluster, as far as one node is concerned: an API server `S`, here in memory or a real one. `events` of all its
/// kubelets go one way.
#[derive(Debug)]
pub(super) struct Cluster<S = MemoryStore> {
    node_name: String,
    profile: Profile,
    api_server: Arc<S>,
    /// How kubelets reach it.
    store: Arc<dyn NodeStore>,
    events: EventSink,
}

impl<S: NodeStore + 'static> Cluster<S> {
    /// The node that the arguments name, in the cluster of this API server.
    pub(super) fn of(arguments: &NodeArguments, api_server: S) -> Self {
        let api_server = Arc::new(api_server);
        Self {
            node_name: arguments.node_name.clone(),
            profile: arguments.profile,
            store: api_server.clone(),
            api_server,
            events: EventSink::default(),
        }
    }

    /// Also keeps both objects in the file at `path`, from now on.
    pub(super) async fn write_to(&mut self, path: &Path) -> Result<(), Error> {
        // Later failures are logged; one at the start is a wrong setting.
        std::fs::write(path, "").map_err(|source| Error::ObjectsFile {
            path: path.to_owned(),
            source,
        })?;
        let file = Arc::new(YamlFile::new(self.store.clone(), path));
        file.write(&self.node_name).await;
        self.store = file;
        Ok(())
    }

    /// All events of all kubelets from now on.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Whether removing a socket is enough to have its plugin deregistered.
    pub(super) fn forgets_plugins_that_are_gone(&self) -> bool {
        !self.profile.unregister_needs_plugin()
    }

    /// Starts a kubelet whose caches are empty.
    pub(super) async fn kubelet(&self, settings: Settings<'_>) -> Result<Kubelet, InitialiseError> {
        let connector = Arc::new(UnixConnector);
        let config = Config {
            registration_dir: settings.registration_dir.to_owned(),
            profile: self.profile,
            authority: settings.authority.map(Authority::from),
            observe: settings.observe,
        };
        let node_info = NodeInfoManager::new(
            &self.node_name,
            self.profile,
            Some(self.store.clone()),
            self.events.clone(),
        );
        node_info.initialise().await?;
        let handler = CsiHandler::new(
            self.profile,
            connector.clone(),
            Arc::new(node_info),
            self.events.clone(),
        );
        let manager = Arc::new(PluginManager::new(config, connector, self.events.clone()));
        manager.add_handler(CSI_PLUGIN, Arc::new(handler));
        let stop = CancellationToken::new();
        let (running, stopped) = (manager.clone(), stop.clone());
        let task = tokio::spawn(async move { running.run(stopped.cancelled_owned()).await });
        Ok(Kubelet {
            manager,
            stop,
            task,
        })
    }
}

impl Cluster {
    /// A fresh node in memory.
    pub(super) fn new(arguments: &NodeArguments) -> Self {
        let node = Node::new(&arguments.node_name, NODE_UID);
        Self::of(arguments, MemoryStore::new(node))
    }

    /// Node and CSINode.
    pub(super) fn objects(&self) -> (Node, Option<CsiNode>) {
        self.api_server.objects()
    }

    /// The same as JSON, the CSINode if there is one.
    pub(super) fn values(&self) -> Vec<Value> {
        let (node, csi_node) = self.objects();
        let node = serde_json::to_value(node);
        let csi_node = csi_node.map(serde_json::to_value);
        [Some(node), csi_node]
            .into_iter()
            .flatten()
            .map(|value| value.expect("objects have string keys and no numbers that JSON lacks"))
            .collect()
    }

    /// Whether nothing but labels is left of `driver`.
    pub(super) fn has_forgotten(&self, driver: &str) -> bool {
        let (node, csi_node) = self.objects();
        let is_listed = csi_node
            .iter()
            .flat_map(|csi_node| &csi_node.spec.drivers)
            .any(|listed| listed.name == driver);
        let ids = node.metadata.annotations.get(NODE_ID_ANNOTATION);
        let ids = ids.and_then(|ids| serde_json::from_str::<Value>(ids).ok());
        !is_listed && ids.is_none_or(|ids| ids.get(driver).is_none())
    }
}

/// What differs between the commands' kubelets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings<'a> {
    /// Where registration sockets appear.
    pub(super) registration_dir: &'a Path,
    /// None: as the profile's kubelet.
    pub(super) authority: Option<AuthorityName>,
    /// Whether to look only.
    pub(super) observe: bool,
}

/// A kubelet that runs.
#[derive(Debug)]
pub(super) struct Kubelet {
    pub(super) manager: Arc<PluginManager>,
    /// Asks it to stop.
    pub(super) stop: CancellationToken,
    task: JoinHandle<Result<(), StartError>>,
}

impl Kubelet {
    /// Waits until it watches its directory, as `events` since before its start tell.
    pub(super) async fn watches(
        &mut self,
        events: &mut broadcast::Receiver<Event>,
    ) -> Result<(), StartError> {
        let watching = async {
            while let Ok(event) = events.recv().await {
                if matches!(event.what, What::Watching { .. } | What::WatchFailed { .. }) {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = watching => Ok(()),
            result = &mut self.task => flatten(result),
        }
    }

    /// Waits for the end.
    pub(super) async fn ended(self) -> Result<(), StartError> {
        flatten(self.task.await)
    }

    /// Stops it.
    pub(super) async fn stop(self) -> Result<(), StartError> {
        self.stop.cancel();
        self.ended().await
    }
}

fn flatten(result: Result<Result<(), StartError>, JoinError>) -> Result<(), StartError> {
    // Nobody aborts the task: it panicked, and so does whoever needs it.
    result.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}
