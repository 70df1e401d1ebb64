//! What a plugin type has to do for the manager: the seam between registration and CSI.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{BoxFuture, json, lock};

#[cfg(any(test, feature = "testing"))]
mod recording;

#[cfg(any(test, feature = "testing"))]
pub use recording::{RecordedCall, RecordingHandler};

/// A plugin as its `GetInfo` answer describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plugin {
    /// Its registration socket.
    #[serde(serialize_with = "json::path")]
    pub socket_path: PathBuf,
    /// `type`.
    pub plugin_type: String,
    /// `name`.
    pub name: String,
    /// `endpoint`; the registration socket where the plugin sent none.
    pub endpoint: String,
    /// `supported_versions`.
    pub supported_versions: Vec<String>,
}

/// A handler's own error; its text is what the plugin is told.
pub type HandlerError = Box<dyn Error + Send + Sync>;

/// Why a plugin was not registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The plugin is told so.
    #[error(transparent)]
    Refused(HandlerError),
    /// The kubelet's handler panics, with this text: nobody is told, and nothing is cleaned up.
    #[error("{0}")]
    Panicked(&'static str),
}

/// `cache.PluginHandler` of `pluginmanager/cache/types.go`. One operation at a time is made for a socket, but several
/// sockets may carry the same name at once.
pub trait PluginHandler: fmt::Debug + Send + Sync {
    /// Whether this plugin may be registered. Nothing is changed.
    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError>;

    /// Registers the plugin. Where it refuses, the handler has cleaned up by itself: it is not told to deregister. `stop` ends
    /// what the handler waits for, not what it has to tidy up.
    fn register<'a>(
        &'a self,
        plugin: &'a Plugin,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<(), RegisterError>>;

    /// Takes back what was registered under `name`. The endpoint is given from Kubernetes 1.33 on.
    fn deregister<'a>(&'a self, name: &'a str, endpoint: Option<&'a str>) -> BoxFuture<'a, ()>;
}

/// Handlers by plugin type; the last one that is added for a type wins, also while the manager runs
/// (`reconciler.AddHandler`).
#[derive(Debug, Default)]
pub(super) struct PluginHandlers(Mutex<HandlerMap>);

/// One moment's handlers; each operation works with those of its start.
pub(super) type HandlerMap = BTreeMap<String, Arc<dyn PluginHandler>>;

impl PluginHandlers {
    pub(super) fn add(&self, plugin_type: &str, handler: Arc<dyn PluginHandler>) {
        lock(&self.0).insert(plugin_type.to_owned(), handler);
    }

    pub(super) fn snapshot(&self) -> HandlerMap {
        lock(&self.0).clone()
    }
}
