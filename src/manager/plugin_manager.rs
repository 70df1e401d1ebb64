//! The whole: one registration directory, one kubelet (`pluginmanager/plugin_manager.go`).

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::actual_state_of_world::ActualStateOfWorld;
use super::connector::Connector;
use super::desired_state_of_world::DesiredStateOfWorld;
use super::event::{Event, EventSink, What};
use super::metrics;
use super::operation_executor::OperationExecutor;
use super::operation_generator::OperationGenerator;
use super::plugin_handler::{PluginHandler, PluginHandlers};
use super::plugin_watcher::{PluginWatcher, StartError};
use super::profile::Profile;
use super::reconciler::Reconciler;
use super::state::State;
use crate::uds::authority::Authority;

/// What a manager does, and as which kubelet.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where registration sockets appear; made if it is missing.
    pub registration_dir: PathBuf,
    /// Which kubelet's behaviour.
    pub profile: Profile,
    /// `:authority` of registration calls; none for the profile's.
    pub authority: Option<Authority>,
    /// Only look: ask plugins what they are, but send no notification and call no driver.
    pub observe: bool,
}

/// Watches, reconciles, registers.
#[derive(Debug)]
pub struct PluginManager {
    config: Config,
    events: EventSink,
    reconciler: Reconciler,
    /// Stops operations, where the profile does.
    stop_operations: CancellationToken,
}

impl PluginManager {
    /// A manager with no handlers yet. `events` is shared with the handlers.
    pub fn new(config: Config, connector: Arc<dyn Connector>, events: EventSink) -> Self {
        let actual = Arc::<ActualStateOfWorld>::default();
        let stop_operations = CancellationToken::new();
        let generator = OperationGenerator {
            profile: config.profile,
            authority: config
                .authority
                .unwrap_or_else(|| config.profile.registration_authority()),
            connector,
            actual: actual.clone(),
            events: events.clone(),
            observe: config.observe,
            stop: stop_operations.clone(),
        };
        let reconciler = Reconciler {
            desired: Arc::<DesiredStateOfWorld>::default(),
            actual,
            handlers: Arc::<PluginHandlers>::default(),
            executor: OperationExecutor::new(events.clone()),
            generator: Arc::new(generator),
        };
        Self {
            config,
            events,
            reconciler,
            stop_operations,
        }
    }

    /// Adds the handler of a plugin type; it may replace one, at any time. Operations under way keep theirs.
    pub fn add_handler(&self, plugin_type: &str, handler: Arc<dyn PluginHandler>) {
        self.reconciler.handlers.add(plugin_type, handler);
    }

    /// All events from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Watches and reconciles until `shutdown`. Operations under way end with it from Kubernetes 1.37 on; before, they go
    /// on to their own deadlines.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) -> Result<(), StartError> {
        let watcher = PluginWatcher::start(
            &self.config.registration_dir,
            self.config.profile,
            self.reconciler.desired.clone(),
            self.events.clone(),
        );
        let watcher = match watcher {
            Ok(watcher) => Some(watcher),
            Err(error) if self.config.profile.start_error_ends_run() => return Err(error),
            Err(error) => {
                tracing::error!(err = %error, "Plugin watcher did not start; no socket will be seen");
                let error = error.to_string();
                self.events.emit(What::WatchFailed { error });
                None
            }
        };
        let stop = CancellationToken::new();
        let watch = async {
            match watcher {
                Some(watcher) => watcher.run(&stop).await,
                None => stop.cancelled().await,
            }
        };
        let end = async {
            shutdown.await;
            stop.cancel();
            if self.config.profile.stop_cancels_operations() {
                self.stop_operations.cancel();
            }
        };
        tokio::join!(watch, self.reconciler.run(&stop), end);
        Ok(())
    }

    /// Both caches, handlers and operations, for `/state`.
    pub fn state(&self) -> State {
        State::read(
            &self.reconciler.desired,
            &self.reconciler.actual,
            &self.reconciler.handlers,
            &self.reconciler.executor,
        )
    }

    /// Prometheus' text format, for `/metrics`.
    pub fn metrics(&self) -> String {
        metrics::render(
            &self.reconciler.desired,
            &self.reconciler.actual,
            &self.reconciler.executor,
        )
    }
}
