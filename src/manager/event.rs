//! What happened, as it happened: the one source of `run`'s lines, of `check`'s verdict and of the tests' waiting.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::csi::objects::{CsiNode, Node};
use super::identity::Identity;
use super::json;
use super::operation_executor::OperationKind;
use super::plugin_handler::Plugin;

/// Events that a receiver may lag behind before it loses the oldest and is told so.
pub const EVENT_CAPACITY: usize = 1024;

/// Something that the manager saw or did.
#[derive(Clone, Debug)]
pub struct Event {
    /// When, on the runtime's clock.
    pub at: Instant,
    /// The registration socket that it concerns; none for the watcher itself and for what the node info manager writes.
    pub socket: Option<PathBuf>,
    /// What.
    pub what: What,
}

/// The kinds of events. Serialised with the kind's name in `event`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// The watcher runs: from here on new sockets are seen.
    Watching {
        /// The registration directory.
        #[serde(serialize_with = "json::path")]
        directory: PathBuf,
    },
    /// A part of the file system cannot be seen, or no longer.
    WatchFailed {
        /// What failed, with its path.
        error: String,
    },
    /// A socket appeared, or was seen again.
    Desired {
        /// Its new identity.
        identity: Identity,
        /// Whether the path was desired before.
        replaced: bool,
    },
    /// A socket is gone.
    Undesired,
    /// An operation began.
    OperationStarted {
        /// Which.
        operation: OperationKind,
    },
    /// The plugin's HTTP/2 connection is ready.
    Dialed,
    /// The plugin answered `GetInfo`.
    InfoReceived {
        /// Its answer; an empty endpoint is the registration socket by now.
        plugin: Plugin,
    },
    /// The handler of the plugin's type accepts it.
    Validated,
    /// The driver answered `NodeGetInfo`.
    NodeInfoReceived {
        /// The registered name.
        driver: String,
        /// `node_id`.
        node_id: String,
        /// `max_volumes_per_node`, unchecked.
        max_volumes_per_node: i64,
        /// `accessible_topology.segments`; none where the driver sends no topology.
        topology: Option<BTreeMap<String, String>>,
    },
    /// The driver did not.
    NodeInfoFailed {
        /// The registered name.
        driver: String,
        /// The gRPC error.
        error: String,
    },
    /// The Node was written.
    NodeWritten {
        /// As it was sent.
        node: Box<Node>,
    },
    /// The CSINode was created or written.
    CsiNodeWritten {
        /// As it was sent.
        csi_node: Box<CsiNode>,
    },
    /// The CSINode was deleted, since this node does not own it.
    CsiNodeDeleted,
    /// The handler has registered the plugin.
    HandlerRegistered,
    /// The handler has not.
    HandlerRefused {
        /// Its error.
        error: String,
    },
    /// `NotifyRegistrationStatus` was called.
    Notified {
        /// `plugin_registered`.
        registered: bool,
        /// `error`.
        text: String,
        /// Why the plugin did not take it; none where it did.
        failure: Option<String>,
    },
    /// The handler was told to forget the plugin.
    Deregistered {
        /// Its name.
        name: String,
    },
    /// An operation succeeded.
    OperationSucceeded {
        /// Which.
        operation: OperationKind,
    },
    /// An operation failed.
    OperationFailed {
        /// Which.
        operation: OperationKind,
        /// Why.
        error: String,
        /// No operation on this socket before this time has passed.
        #[serde(rename = "backoff_seconds", serialize_with = "json::seconds")]
        backoff: Duration,
    },
}

/// Where events go: to every receiver, or to nobody. Sending never waits.
#[derive(Clone, Debug)]
pub struct EventSink(broadcast::Sender<Event>);

impl Default for EventSink {
    fn default() -> Self {
        Self(broadcast::Sender::new(EVENT_CAPACITY))
    }
}

impl EventSink {
    /// All events from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.0.subscribe()
    }

    pub(super) fn emit(&self, what: What) {
        self.send(None, what);
    }

    pub(super) fn emit_for(&self, socket: &Path, what: What) {
        self.send(Some(socket.to_owned()), what);
    }

    fn send(&self, socket: Option<PathBuf>, what: What) {
        let at = Instant::now();
        // An error says that nobody listens, which is fine.
        let _ = self.0.send(Event { at, socket, what });
    }
}
