//! Runs operations: one at a time for a socket, those for different sockets side by side, and after a failure none before its
//! backoff is over (`pluginmanager/operationexecutor` and `pkg/util/goroutinemap`).

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tokio::time::Instant;

use super::event::{EventSink, What};
use super::lock;
use super::operation_generator::OperationError;

/// Wait after a first failure (`initialDurationBeforeRetry`); it doubles with each further one.
pub(super) const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
/// Longest wait (`maxDurationBeforeRetry`).
pub(super) const MAX_BACKOFF: Duration = Duration::from_secs(122);

/// Operations that begin at once; further ones wait for their turn, with their deadlines still to come. The kubelet has no such
/// bound: ten thousand plugins at once miss the second that each has for `GetInfo`, and then its backoff. A node has some ten.
pub(super) const MAX_BEGINNING: usize = 256;
/// How long an operation counts as beginning, unless it ends before: what waits for a plugin that hangs, or for a socket
/// without listener, is to delay nobody.
pub(super) const BEGINNING: Duration = Duration::from_millis(250);

/// What an operation does to its plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// `RegisterPlugin`.
    Register,
    /// `UnregisterPlugin`.
    Unregister,
}

impl OperationKind {
    /// As metrics and events write it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::Unregister => "unregister",
        }
    }
}

/// How an operation ended, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Succeeded,
    Failed,
}

/// Why no operation was started. Both are expected, and swallowed by the reconciler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("an operation on this socket is already running")]
    AlreadyRunning,
    #[error("an operation on this socket failed; not before {remaining:?} have passed")]
    Backoff { remaining: Duration },
}

/// The wait that a failed operation leaves behind for the next one on its socket, of whatever kind.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    /// Failures since the last success.
    pub(super) failures: u64,
    /// The last one.
    pub(super) last_error: String,
    /// Its end, from which the wait counts.
    last_error_at: Instant,
    /// The wait.
    pub(super) duration: Duration,
}

impl Backoff {
    /// The backoff after one more failure (`ExponentialBackoff.Update`).
    fn after(previous: Option<Self>, last_error: String, now: Instant) -> Self {
        let (failures, duration) = previous.map_or((1, INITIAL_BACKOFF), |backoff| {
            (
                backoff.failures + 1,
                (2 * backoff.duration).min(MAX_BACKOFF),
            )
        });
        Self {
            failures,
            last_error,
            last_error_at: now,
            duration,
        }
    }

    /// What is left of the wait; none when an operation may start. The end itself belongs to the wait
    /// (`ExponentialBackoff.SafeToRetry`).
    pub(super) fn remaining(&self, now: Instant) -> Option<Duration> {
        self.duration.checked_sub(now - self.last_error_at)
    }
}

/// What is known of a socket's operations; nothing, once one has succeeded.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations {
    pub(super) running: Option<OperationKind>,
    pub(super) backoff: Option<Backoff>,
}

/// One moment of the executor.
#[derive(Clone, Debug, Default)]
pub(super) struct ExecutorState {
    pub(super) operations: BTreeMap<PathBuf, Operations>,
    /// Operations that ended, ever.
    pub(super) totals: BTreeMap<(OperationKind, Outcome), u64>,
}

/// Cheap to clone; all clones are one executor.
#[derive(Clone, Debug)]
pub(super) struct OperationExecutor {
    state: Arc<Mutex<ExecutorState>>,
    turns: Arc<Semaphore>,
    events: EventSink,
}

impl OperationExecutor {
    pub(super) fn new(events: EventSink) -> Self {
        Self {
            state: Arc::default(),
            turns: Arc::new(Semaphore::new(MAX_BEGINNING)),
            events,
        }
    }

    /// Starts `operation` on `socket_path`, unless one runs there or has failed too recently.
    pub(super) fn start(
        &self,
        kind: OperationKind,
        socket_path: &Path,
        operation: impl Future<Output = Result<(), OperationError>> + Send + 'static,
    ) -> Result<(), Refused> {
        {
            let mut state = lock(&self.state);
            let operations = state.operations.entry(socket_path.to_owned()).or_default();
            if operations.running.is_some() {
                return Err(Refused::AlreadyRunning);
            }
            let remaining = operations
                .backoff
                .as_ref()
                .and_then(|backoff| backoff.remaining(Instant::now()));
            if let Some(remaining) = remaining {
                return Err(Refused::Backoff { remaining });
            }
            operations.running = Some(kind);
        }
        self.events
            .emit_for(socket_path, What::OperationStarted { operation: kind });
        let executor = self.clone();
        let socket_path = socket_path.to_owned();
        tokio::spawn(async move {
            // An error would say that the semaphore was closed, which nobody does.
            let turn = executor.turns.acquire().await;
            // A task of its own, so that a panic ends the operation and not the manager. Where panics abort, as in the
            // release profile, nothing is left to recover.
            let mut operation = tokio::spawn(operation);
            let ended = tokio::time::timeout(BEGINNING, &mut operation).await;
            drop(turn);
            let ended = match ended {
                Ok(ended) => ended,
                Err(_) => operation.await,
            };
            let result = ended.unwrap_or_else(|error| Err(panicked(error)));
            executor.complete(kind, &socket_path, result);
        });
        Ok(())
    }

    /// What is running and waiting now, and the counts of what has ended.
    pub(super) fn state(&self) -> ExecutorState {
        lock(&self.state).clone()
    }

    fn complete(
        &self,
        operation: OperationKind,
        socket_path: &Path,
        result: Result<(), OperationError>,
    ) {
        let mut state = lock(&self.state);
        let outcome = if result.is_ok() {
            Outcome::Succeeded
        } else {
            Outcome::Failed
        };
        *state.totals.entry((operation, outcome)).or_default() += 1;
        let previous = state
            .operations
            .remove(socket_path)
            .and_then(|operations| operations.backoff);
        let Err(error) = result else {
            drop(state);
            self.events
                .emit_for(socket_path, What::OperationSucceeded { operation });
            return;
        };
        let error = error.to_string();
        let backoff = Backoff::after(previous, error.clone(), Instant::now());
        let duration = backoff.duration;
        state.operations.insert(
            socket_path.to_owned(),
            Operations {
                running: None,
                backoff: Some(backoff),
            },
        );
        drop(state);
        tracing::error!(
            "Operation for {:?} failed. No retries permitted for {duration:?}. Error: {error}",
            socket_path.display().to_string(),
        );
        self.events.emit_for(
            socket_path,
            What::OperationFailed {
                operation,
                error,
                backoff: duration,
            },
        );
    }
}

fn panicked(error: JoinError) -> OperationError {
    let Ok(panic) = error.try_into_panic() else {
        return OperationError::RuntimeStopped;
    };
    let panic: &dyn Any = panic.as_ref();
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text");
    OperationError::Panicked(text.to_owned())
}
