//! The manager without its watcher.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{FakePlugin, FaultyStore, NODE, Network};
use crate::manager::actual_state_of_world::ActualStateOfWorld;
use crate::manager::csi::node_store::NodeStore;
use crate::manager::csi::{CsiHandler, NodeInfoManager};
use crate::manager::desired_state_of_world::DesiredStateOfWorld;
use crate::manager::event::{Event, EventSink, What};
use crate::manager::operation_executor::OperationExecutor;
use crate::manager::operation_generator::OperationGenerator;
use crate::manager::plugin_handler::{PluginHandler, PluginHandlers, RecordingHandler};
use crate::manager::profile::Profile;
use crate::manager::reconciler::Reconciler;
use crate::proto;

/// Longest wait for an event, on the virtual clock.
const PATIENCE: Duration = Duration::from_hours(1);

/// The manager without its watcher: tests say which sockets exist.
pub(crate) struct Kubelet {
    pub(crate) network: Arc<Network>,
    pub(crate) reconciler: Arc<Reconciler>,
    pub(crate) events: EventSink,
    pub(crate) stop: CancellationToken,
    receiver: broadcast::Receiver<Event>,
}

impl Kubelet {
    /// On a network that may outlive it, with no handlers.
    pub(crate) fn on(network: Arc<Network>, profile: Profile) -> Self {
        let events = EventSink::default();
        let actual = Arc::<ActualStateOfWorld>::default();
        let generator = OperationGenerator {
            profile,
            authority: profile.registration_authority(),
            connector: network.clone(),
            actual: actual.clone(),
            events: events.clone(),
            observe: false,
            stop: CancellationToken::new(),
        };
        let reconciler = Reconciler {
            desired: Arc::<DesiredStateOfWorld>::default(),
            actual,
            handlers: Arc::<PluginHandlers>::default(),
            executor: OperationExecutor::new(events.clone()),
            generator: Arc::new(generator),
        };
        Self {
            network,
            reconciler: Arc::new(reconciler),
            receiver: events.subscribe(),
            events,
            stop: CancellationToken::new(),
        }
    }

    /// With a recording handler for `plugin_type`.
    pub(crate) fn recording(profile: Profile, plugin_type: &str) -> (Self, Arc<RecordingHandler>) {
        let kubelet = Self::on(Arc::default(), profile);
        let handler = Arc::<RecordingHandler>::default();
        kubelet.add_handler(plugin_type, handler.clone());
        (kubelet, handler)
    }

    /// With the CSI handler, against an initialised store.
    pub(crate) async fn csi(
        network: Arc<Network>,
        profile: Profile,
        store: Arc<FaultyStore>,
    ) -> (Self, Arc<CsiHandler>) {
        let kubelet = Self::on(network, profile);
        let handler = kubelet.csi_handler(profile, Some(store)).await;
        (kubelet, handler)
    }

    /// Adds a CSI handler.
    pub(crate) async fn csi_handler(
        &self,
        profile: Profile,
        store: Option<Arc<FaultyStore>>,
    ) -> Arc<CsiHandler> {
        let store = store.map(|store| store as Arc<dyn NodeStore>);
        let node_info = Arc::new(NodeInfoManager::new(
            NODE,
            profile,
            store,
            self.events.clone(),
        ));
        node_info.initialise().await.unwrap();
        let handler = CsiHandler::new(
            profile,
            self.network.clone(),
            node_info,
            self.events.clone(),
        );
        let handler = Arc::new(handler);
        self.add_handler(proto::CSI_PLUGIN, handler.clone());
        handler
    }

    pub(crate) fn add_handler(&self, plugin_type: &str, handler: Arc<dyn PluginHandler>) {
        self.reconciler.handlers.add(plugin_type, handler);
    }

    /// Starts reconciling.
    pub(crate) fn start(&self) {
        let (reconciler, stop) = (self.reconciler.clone(), self.stop.clone());
        tokio::spawn(async move { reconciler.run(&stop).await });
    }

    /// A plugin listens at `path`, and the watcher has seen it.
    pub(crate) fn appear(&self, path: &str, plugin: &Arc<FakePlugin>) {
        let plugin = plugin.clone();
        self.network
            .listen(path, move |stream| plugin.accept(stream));
        self.see(path);
    }

    /// The watcher sees `path`, whether anybody listens there or not.
    pub(crate) fn see(&self, path: &str) {
        self.reconciler
            .desired
            .add_or_update(Path::new(path))
            .unwrap();
    }

    /// `path` is gone, and the watcher has seen it.
    pub(crate) fn vanish(&self, path: &str) {
        self.network.remove(path);
        self.reconciler.desired.remove(Path::new(path));
    }

    /// Waits for the next event that `wanted` takes.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&What) -> bool) -> Event {
        let search = async {
            loop {
                let event = self
                    .receiver
                    .recv()
                    .await
                    .expect("the sink lives, the receiver keeps up");
                if wanted(&event.what) {
                    return event;
                }
            }
        };
        tokio::time::timeout(PATIENCE, search)
            .await
            .expect("the event comes")
    }

    pub(crate) async fn until_registered(&mut self) -> Event {
        self.until(|what| matches!(what, What::OperationSucceeded { operation } if operation.name() == "register"))
            .await
    }

    pub(crate) async fn until_unregistered(&mut self) -> Event {
        self.until(|what| matches!(what, What::OperationSucceeded { operation } if operation.name() == "unregister"))
            .await
    }

    /// Waits for the next failure and answers its error.
    pub(crate) async fn until_failed(&mut self) -> (Instant, String) {
        let event = self
            .until(|what| matches!(what, What::OperationFailed { .. }))
            .await;
        match event.what {
            What::OperationFailed { error, .. } => (event.at, error),
            _ => unreachable!("until matched it"),
        }
    }

    /// Forgets the events that nobody has waited for.
    pub(crate) fn skip_events(&mut self) {
        self.receiver = self.events.subscribe();
    }

    /// Names of the kinds of all events that nobody has waited for.
    pub(crate) fn pending_events(&mut self) -> Vec<What> {
        std::iter::from_fn(|| self.receiver.try_recv().ok())
            .map(|event| event.what)
            .collect()
    }

    /// Socket paths in the actual state.
    pub(crate) fn actual(&self) -> Vec<String> {
        let plugins = self.reconciler.actual.plugins().into_iter();
        plugins
            .map(|plugin| plugin.socket_path.display().to_string())
            .collect()
    }

    /// Whether the actual state holds the desired incarnation of `path`.
    pub(crate) fn is_registered(&self, path: &str) -> bool {
        let desired = self.reconciler.desired.plugins();
        let wanted = desired
            .iter()
            .find(|plugin| plugin.socket_path == Path::new(path));
        wanted.is_some_and(|plugin| self.reconciler.actual.has(plugin))
    }
}
