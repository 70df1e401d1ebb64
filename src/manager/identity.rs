//! Which incarnation of a socket path an entry speaks of: the reconciler compares nothing else.

use serde::Serialize;

/// Fresh for each time that a path is added to the desired state, never reused by one manager.
///
/// The kubelet takes a timestamp up to 1.31 and a random UUID from 1.32 on (`PluginInfo` in
/// `pluginmanager/cache/actual_state_of_world.go`). A count has the same meaning and cannot collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Identity(u64);

impl Identity {
    /// The `number`-th identity of a manager.
    pub(super) const fn nth(number: u64) -> Self {
        Self(number)
    }
}
