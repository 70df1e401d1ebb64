//! Which plugins are registered, as the manager believes: it asks nobody, and forgets all when it restarts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::desired_state_of_world::{CacheError, DesiredPlugin};
use super::identity::Identity;
use super::lock;
use super::plugin_handler::PluginHandler;
use crate::klog;

/// A plugin that is registered, or whose handler is at work on it.
#[derive(Clone, Debug)]
pub(super) struct RegisteredPlugin {
    /// Path of the registration socket.
    pub(super) socket_path: PathBuf,
    /// The desired state's identity when its registration began.
    pub(super) identity: Identity,
    /// Who registered it, and will take it back; the plugin is not asked again.
    pub(super) handler: Arc<dyn PluginHandler>,
    /// `PluginInfo.type`.
    pub(super) plugin_type: String,
    /// `PluginInfo.name`.
    pub(super) name: String,
    /// `PluginInfo.endpoint`, or the registration socket where that was empty.
    pub(super) endpoint: String,
}

/// The cache of `pluginmanager/cache/actual_state_of_world.go`.
#[derive(Debug, Default)]
pub(super) struct ActualStateOfWorld(Mutex<BTreeMap<PathBuf, RegisteredPlugin>>);

impl ActualStateOfWorld {
    /// Stores `plugin`, replacing what has the same path.
    pub(super) fn add(&self, plugin: RegisteredPlugin) -> Result<(), CacheError> {
        if plugin.socket_path.as_os_str().is_empty() {
            return Err(CacheError::EmptySocketPath);
        }
        let path = plugin.socket_path.clone();
        if lock(&self.0).insert(path.clone(), plugin).is_some() {
            klog::verbose!(2, path = %path.display(), "Plugin exists in actual state cache");
        }
        Ok(())
    }

    /// Forgets `socket_path`, if it is there.
    pub(super) fn remove(&self, socket_path: &Path) {
        lock(&self.0).remove(socket_path);
    }

    /// All entries, by path.
    pub(super) fn plugins(&self) -> Vec<RegisteredPlugin> {
        lock(&self.0).values().cloned().collect()
    }

    /// Whether this very incarnation of the path is registered.
    pub(super) fn has(&self, plugin: &DesiredPlugin) -> bool {
        lock(&self.0)
            .get(&plugin.socket_path)
            .is_some_and(|registered| registered.identity == plugin.identity)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::manager::plugin_handler::RecordingHandler;

    fn desired(socket_path: &str, number: u64) -> DesiredPlugin {
        DesiredPlugin {
            socket_path: socket_path.into(),
            timestamp: SystemTime::UNIX_EPOCH,
            identity: Identity::nth(number),
        }
    }

    fn registered(plugin: &DesiredPlugin) -> RegisteredPlugin {
        RegisteredPlugin {
            socket_path: plugin.socket_path.clone(),
            identity: plugin.identity,
            handler: Arc::new(RecordingHandler::default()),
            plugin_type: "CSIPlugin".into(),
            name: "plugin".into(),
            endpoint: "/plugin.sock".into(),
        }
    }

    #[test]
    fn c05_an_added_plugin_is_there_under_its_identity() {
        let actual = ActualStateOfWorld::default();
        let plugin = desired("/registry/plugin.sock", 1);
        actual.add(registered(&plugin)).unwrap();
        assert_eq!(actual.plugins().len(), 1);
        assert!(actual.has(&plugin));
    }

    #[test]
    fn c06_an_empty_path_is_refused() {
        let actual = ActualStateOfWorld::default();
        let plugin = desired("", 1);
        let error = actual.add(registered(&plugin)).unwrap_err();
        assert_eq!(error, CacheError::EmptySocketPath);
        assert!(!actual.has(&plugin));
        assert!(actual.plugins().is_empty());
    }

    #[test]
    fn c07_a_removed_plugin_is_gone() {
        let actual = ActualStateOfWorld::default();
        let plugin = desired("/registry/plugin.sock", 1);
        actual.add(registered(&plugin)).unwrap();
        actual.remove(&plugin.socket_path);
        assert!(actual.plugins().is_empty());
        assert!(!actual.has(&plugin));
        actual.remove(&plugin.socket_path);
    }

    #[test]
    fn c08_another_identity_is_another_plugin() {
        let actual = ActualStateOfWorld::default();
        actual
            .add(registered(&desired("/registry/plugin.sock", 1)))
            .unwrap();
        assert!(!actual.has(&desired("/registry/plugin.sock", 2)));
    }
}
