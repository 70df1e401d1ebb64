//! Compares what exists with what is registered, once a second, and starts the operations that make up the difference
//! (`pluginmanager/reconciler/reconciler.go`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::actual_state_of_world::{ActualStateOfWorld, RegisteredPlugin};
use super::desired_state_of_world::{DesiredPlugin, DesiredStateOfWorld};
use super::identity::Identity;
use super::operation_executor::{OperationExecutor, OperationKind, Refused};
use super::operation_generator::OperationGenerator;
use super::plugin_handler::PluginHandlers;
use crate::klog;

/// From the end of one pass to the start of the next (`loopSleepDuration`).
pub(super) const LOOP_SLEEP: Duration = Duration::from_secs(1);

/// What one pass wants done.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// Registered, but not desired, or only under another identity.
    pub(super) unregister: Vec<RegisteredPlugin>,
    /// Desired, but not registered under this identity. An incarnation that replaces a registered one is in both lists;
    /// the executor lets it wait for its predecessor.
    pub(super) register: Vec<DesiredPlugin>,
}

/// The difference between the two states.
pub(super) fn plan(desired: &[DesiredPlugin], actual: &[RegisteredPlugin]) -> Plan {
    let wanted: BTreeMap<_, Identity> = desired
        .iter()
        .map(|plugin| (&plugin.socket_path, plugin.identity))
        .collect();
    let registered: BTreeMap<_, Identity> = actual
        .iter()
        .map(|plugin| (&plugin.socket_path, plugin.identity))
        .collect();
    Plan {
        unregister: actual
            .iter()
            .filter(|plugin| wanted.get(&plugin.socket_path) != Some(&plugin.identity))
            .cloned()
            .collect(),
        register: desired
            .iter()
            .filter(|plugin| registered.get(&plugin.socket_path) != Some(&plugin.identity))
            .cloned()
            .collect(),
    }
}

/// Everything that a pass needs.
#[derive(Debug)]
pub(super) struct Reconciler {
    pub(super) desired: Arc<DesiredStateOfWorld>,
    pub(super) actual: Arc<ActualStateOfWorld>,
    pub(super) handlers: Arc<PluginHandlers>,
    pub(super) executor: OperationExecutor,
    pub(super) generator: Arc<OperationGenerator>,
}

impl Reconciler {
    /// Makes passes until `stop`, the first at once.
    pub(super) async fn run(&self, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            self.reconcile();
            tokio::select! {
                () = tokio::time::sleep(LOOP_SLEEP) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// One pass: unregistrations are started first. That an operation runs already, or waits, is expected.
    pub(super) fn reconcile(&self) {
        let plan = plan(&self.desired.plugins(), &self.actual.plugins());
        for plugin in plan.unregister {
            let path = plugin.socket_path.clone();
            let operation = self
                .generator
                .clone()
                .unregister(plugin, self.handlers.snapshot());
            let started = self
                .executor
                .start(OperationKind::Unregister, &path, operation);
            log_start(started, OperationKind::Unregister, &path);
        }
        for plugin in plan.register {
            // It may have been registered since the plan was made, by an operation that has just ended.
            if self.actual.has(&plugin) {
                continue;
            }
            let path = plugin.socket_path.clone();
            let operation = self
                .generator
                .clone()
                .register(plugin, self.handlers.snapshot());
            let started = self
                .executor
                .start(OperationKind::Register, &path, operation);
            log_start(started, OperationKind::Register, &path);
        }
    }
}

fn log_start(started: Result<(), Refused>, kind: OperationKind, path: &std::path::Path) {
    let operation = kind.name();
    match started {
        Ok(()) => klog::verbose!(1, operation, path = %path.display(), "Operation started"),
        Err(reason) => {
            klog::verbose!(4, operation, path = %path.display(), %reason, "Operation not started");
        }
    }
}
