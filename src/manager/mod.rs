//! The kubelet's side of plugin registration, so that a driver can be tried without a cluster.
//!
//! One thing flows one way: an inotify event changes the *desired* state of the world, the reconciler compares it with
//! the *actual* state and asks the executor for operations, the operation generator speaks to the plugin and to the
//! handler of its type, and for CSI the node info manager writes Node and CSINode. Rooms carry the kubelet's names
//! (`pkg/kubelet/pluginmanager`, `pkg/volume/csi`).

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

mod actual_state_of_world;
pub mod cli;
pub mod connector;
pub mod csi;
mod desired_state_of_world;
pub mod event;
mod go_text;
mod grpc_status;
mod identity;
mod json;
mod metrics;
mod operation_executor;
mod operation_generator;
pub mod plugin_handler;
mod plugin_manager;
mod plugin_watcher;
pub mod profile;
mod reconciler;
mod registration_client;
mod retry;
mod server_preface;
pub mod state;
#[cfg(test)]
mod tests;

pub use identity::Identity;
pub use operation_executor::OperationKind;
pub use plugin_manager::{Config, PluginManager};
pub use plugin_watcher::StartError;

/// A future behind a trait object, as the traits of this room return them.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Locks a cache. A panic elsewhere does not make its content wrong: each change is one call on a map.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
