//! `/state`: what the manager believes at this moment, for people and scripts.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use tokio::time::Instant;

use super::actual_state_of_world::ActualStateOfWorld;
use super::desired_state_of_world::DesiredStateOfWorld;
use super::identity::Identity;
use super::json;
use super::operation_executor::{OperationExecutor, OperationKind};
use super::plugin_handler::PluginHandlers;

/// Both caches, the handlers and the operations. Durations are seconds.
#[derive(Debug, Serialize)]
pub struct State {
    desired_state_of_world: Vec<Desired>,
    actual_state_of_world: Vec<Actual>,
    /// Plugin types that have a handler.
    handlers: Vec<String>,
    operations: Vec<Operation>,
}

#[derive(Debug, Serialize)]
struct Desired {
    #[serde(serialize_with = "json::path")]
    socket_path: PathBuf,
    identity: Identity,
    /// Seconds since 1970.
    seen_at: f64,
}

#[derive(Debug, Serialize)]
struct Actual {
    #[serde(serialize_with = "json::path")]
    socket_path: PathBuf,
    identity: Identity,
    plugin_type: String,
    name: String,
    endpoint: String,
}

#[derive(Debug, Serialize)]
struct Operation {
    #[serde(serialize_with = "json::path")]
    socket_path: PathBuf,
    running: Option<OperationKind>,
    failures: u64,
    last_error: Option<String>,
    backoff_seconds: f64,
    backoff_remaining_seconds: f64,
}

impl State {
    pub(super) fn read(
        desired: &DesiredStateOfWorld,
        actual: &ActualStateOfWorld,
        handlers: &PluginHandlers,
        executor: &OperationExecutor,
    ) -> Self {
        Self {
            desired_state_of_world: read_desired(desired),
            actual_state_of_world: read_actual(actual),
            handlers: handlers.snapshot().into_keys().collect(),
            operations: read_operations(executor),
        }
    }
}

fn read_desired(desired: &DesiredStateOfWorld) -> Vec<Desired> {
    let plugins = desired.plugins().into_iter();
    plugins
        .map(|plugin| Desired {
            socket_path: plugin.socket_path,
            identity: plugin.identity,
            seen_at: plugin
                .timestamp
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs_f64(),
        })
        .collect()
}

fn read_actual(actual: &ActualStateOfWorld) -> Vec<Actual> {
    let plugins = actual.plugins().into_iter();
    plugins
        .map(|plugin| Actual {
            socket_path: plugin.socket_path,
            identity: plugin.identity,
            plugin_type: plugin.plugin_type,
            name: plugin.name,
            endpoint: plugin.endpoint,
        })
        .collect()
}

fn read_operations(executor: &OperationExecutor) -> Vec<Operation> {
    let seconds = |duration: Option<Duration>| duration.unwrap_or_default().as_secs_f64();
    let now = Instant::now();
    let operations = executor.state().operations.into_iter();
    operations
        .map(|(socket_path, operations)| {
            let backoff = operations.backoff.as_ref();
            Operation {
                socket_path,
                running: operations.running,
                failures: backoff.map_or(0, |backoff| backoff.failures),
                last_error: backoff.map(|backoff| backoff.last_error.clone()),
                backoff_seconds: seconds(backoff.map(|backoff| backoff.duration)),
                backoff_remaining_seconds: seconds(
                    backoff.and_then(|backoff| backoff.remaining(now)),
                ),
            }
        })
        .collect()
}
