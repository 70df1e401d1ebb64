//! Which sockets exist: what the watcher has seen, and therefore what ought to be registered.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use super::identity::Identity;
use super::lock;
use crate::klog;

/// Sockets that one manager follows. The kubelet has no such bound; a node has some ten.
pub(super) const MAX_SOCKETS: usize = 10_000;

/// A path could not be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CacheError {
    /// As the kubelet says it.
    #[error("socket path is empty")]
    EmptySocketPath,
    /// The bound of this manager.
    #[error(
        "more than {MAX_SOCKETS} sockets; remove the stale ones from the registration directory"
    )]
    Full,
}

/// A socket that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DesiredPlugin {
    /// Path of the registration socket, the key of both caches.
    pub(super) socket_path: PathBuf,
    /// When this incarnation was seen. For people; only the identity is compared.
    pub(super) timestamp: SystemTime,
    /// Which incarnation this is.
    pub(super) identity: Identity,
}

/// What [`DesiredStateOfWorld::add_or_update`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) identity: Identity,
    /// Whether the path was there before.
    pub(super) replaced: bool,
}

/// The cache of `pluginmanager/cache/desired_state_of_world.go`.
#[derive(Debug, Default)]
pub(super) struct DesiredStateOfWorld(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    plugins: BTreeMap<PathBuf, DesiredPlugin>,
    identities: u64,
}

impl DesiredStateOfWorld {
    /// Stores `socket_path` under a fresh identity, replacing what was there: the difference to the actual state's
    /// identity is what makes the reconciler register it again.
    pub(super) fn add_or_update(&self, socket_path: &Path) -> Result<Added, CacheError> {
        if socket_path.as_os_str().is_empty() {
            return Err(CacheError::EmptySocketPath);
        }
        let mut entries = lock(&self.0);
        let known = entries.plugins.contains_key(socket_path);
        if known {
            klog::verbose!(2, path = %socket_path.display(), "Plugin exists in desired state cache, identity will be updated");
        } else if entries.plugins.len() >= MAX_SOCKETS {
            return Err(CacheError::Full);
        }
        entries.identities += 1;
        let identity = Identity::nth(entries.identities);
        #[allow(
            clippy::disallowed_methods,
            reason = "the kubelet's own stamp, shown and never compared"
        )]
        let plugin = DesiredPlugin {
            socket_path: socket_path.to_owned(),
            timestamp: SystemTime::now(),
            identity,
        };
        entries.plugins.insert(socket_path.to_owned(), plugin);
        Ok(Added {
            identity,
            replaced: known,
        })
    }

    /// Forgets `socket_path`; answers whether it was there.
    pub(super) fn remove(&self, socket_path: &Path) -> bool {
        lock(&self.0).plugins.remove(socket_path).is_some()
    }

    /// All entries, by path.
    pub(super) fn plugins(&self) -> Vec<DesiredPlugin> {
        lock(&self.0).plugins.values().cloned().collect()
    }

    /// Whether `socket_path` is desired.
    #[cfg(test)]
    pub(super) fn exists(&self, socket_path: &Path) -> bool {
        lock(&self.0).plugins.contains_key(socket_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKET: &str = "/registry/plugin.sock";

    #[test]
    fn c01_a_path_is_added_once() {
        let desired = DesiredStateOfWorld::default();
        assert!(!desired.add_or_update(Path::new(SOCKET)).unwrap().replaced);
        assert_eq!(desired.plugins().len(), 1);
        assert!(desired.exists(Path::new(SOCKET)));
    }

    #[test]
    fn c02_adding_again_refreshes_the_entry() {
        let desired = DesiredStateOfWorld::default();
        desired.add_or_update(Path::new(SOCKET)).unwrap();
        let first = desired.plugins().remove(0);
        assert!(desired.add_or_update(Path::new(SOCKET)).unwrap().replaced);
        let plugins = desired.plugins();
        assert_eq!(plugins.len(), 1);
        assert_ne!(plugins[0].identity, first.identity);
        assert!(plugins[0].timestamp >= first.timestamp);
    }

    #[test]
    fn c03_an_empty_path_is_refused() {
        let desired = DesiredStateOfWorld::default();
        let error = desired.add_or_update(Path::new("")).unwrap_err();
        assert_eq!(error.to_string(), "socket path is empty");
        assert!(desired.plugins().is_empty());
    }

    #[test]
    fn c04_removing_twice_is_no_error() {
        let desired = DesiredStateOfWorld::default();
        desired.add_or_update(Path::new(SOCKET)).unwrap();
        assert!(desired.remove(Path::new(SOCKET)));
        assert!(!desired.remove(Path::new(SOCKET)));
        assert!(desired.plugins().is_empty());
    }

    #[test]
    fn an_identity_does_not_come_back_after_removal() {
        let desired = DesiredStateOfWorld::default();
        desired.add_or_update(Path::new(SOCKET)).unwrap();
        let first = desired.plugins().remove(0).identity;
        desired.remove(Path::new(SOCKET));
        desired.add_or_update(Path::new(SOCKET)).unwrap();
        assert_ne!(desired.plugins()[0].identity, first);
    }

    #[test]
    fn a_full_cache_refuses_new_paths_and_still_updates_old_ones() {
        let desired = DesiredStateOfWorld::default();
        for number in 0..MAX_SOCKETS {
            desired
                .add_or_update(Path::new(&format!("/registry/{number}")))
                .unwrap();
        }
        assert_eq!(
            desired.add_or_update(Path::new(SOCKET)),
            Err(CacheError::Full)
        );
        assert!(
            desired
                .add_or_update(Path::new("/registry/0"))
                .unwrap()
                .replaced
        );
    }
}
