//! The handler of CSI drivers: version rules, one driver of a name, and what the cluster is told of it
//! (`RegistrationHandler` in `pkg/volume/csi/csi_plugin.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::csi_node_updater::CsiNodeUpdater;
use super::drivers::{Asked, Driver, Drivers, NodeGetInfoError};
use super::node_info_manager::{InstallError, NodeInfoManager, UninstallError};
use super::version::{Version, VersionError};
use crate::manager::BoxFuture;
use crate::manager::connector::Connector;
use crate::manager::event::EventSink;
use crate::manager::go_text::{quote, quoted_list};
use crate::manager::plugin_handler::{HandlerError, Plugin, PluginHandler, RegisterError};
use crate::manager::profile::Profile;

const NIL_DEREFERENCE: &str = "runtime error: invalid memory address or nil pointer dereference";

/// What a driver's registration fails with; the plugin is told this text.
#[derive(Debug, thiserror::Error)]
enum CsiError {
    #[error("validation failed for CSI Driver {name} at endpoint {endpoint}: {source}")]
    Validation {
        name: String,
        endpoint: String,
        source: ValidateError,
    },
    #[error(transparent)]
    Register(#[from] ValidateError),
    #[error("driver name is empty")]
    EmptyName,
    #[error(transparent)]
    NodeGetInfo(#[from] NodeGetInfoError),
    /// What Go's runtime panics with.
    #[error("{NIL_DEREFERENCE}")]
    NilDereference,
    #[error(transparent)]
    Install(#[from] InstallError),
}

impl From<CsiError> for RegisterError {
    fn from(error: CsiError) -> Self {
        match error {
            CsiError::NilDereference => Self::Panicked(NIL_DEREFERENCE),
            error => Self::Refused(error.into()),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "kubernetes.io/csi: {caller} for CSI driver {} failed. {reason}",
    quote(name)
)]
struct ValidateError {
    caller: &'static str,
    name: String,
    reason: Unfit,
}

#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("Plugin returned an empty list for supported versions")]
    NoVersions,
    #[error(
        "None of the versions specified {} are supported. err={source}",
        quoted_list(versions)
    )]
    Versions {
        versions: Vec<String>,
        source: Box<VersionError>,
    },
    /// Or with the same version.
    #[error(
        "Another driver with the same name is already registered with a higher supported version: \"{0}\""
    )]
    Duplicate(Version),
}

/// Registers drivers and deregisters them.
#[derive(Debug)]
pub struct CsiHandler {
    profile: Profile,
    drivers: Arc<Drivers>,
    node_info: Arc<NodeInfoManager>,
    /// None in a kubelet that does not have it, and without a cluster.
    updater: Option<CsiNodeUpdater>,
}

impl CsiHandler {
    /// A handler that knows no drivers. `connector` reaches their endpoints. Has to be made within a tokio runtime, where it
    /// follows the CSIDriver objects.
    pub fn new(
        profile: Profile,
        connector: Arc<dyn Connector>,
        node_info: Arc<NodeInfoManager>,
        events: EventSink,
    ) -> Self {
        let drivers = Arc::new(Drivers::new(profile, connector, events));
        Self {
            profile,
            updater: CsiNodeUpdater::start(profile, drivers.clone(), node_info.clone()),
            drivers,
            node_info,
        }
    }

    /// Registered names and their endpoints.
    pub fn drivers(&self) -> BTreeMap<String, String> {
        self.drivers.endpoints()
    }

    /// Drivers that are asked for their limit again and again.
    #[cfg(test)]
    pub(in crate::manager) fn tickers(&self) -> usize {
        self.updater.as_ref().map_or(0, CsiNodeUpdater::running)
    }

    /// The version under which the plugin would be known (`validateVersions`).
    fn validate_versions(
        &self,
        caller: &'static str,
        plugin: &Plugin,
    ) -> Result<Version, ValidateError> {
        let unfit = |reason| ValidateError {
            caller,
            name: plugin.name.clone(),
            reason,
        };
        let versions = &plugin.supported_versions;
        if versions.is_empty() {
            return Err(unfit(Unfit::NoVersions));
        }
        let version =
            Version::highest_supported(versions, self.profile.version_errors_name_driver())
                .map_err(|source| {
                    unfit(Unfit::Versions {
                        versions: versions.clone(),
                        source: Box::new(source),
                    })
                })?;
        match self.drivers.version(&plugin.name) {
            Some(known) if known >= version => Err(unfit(Unfit::Duplicate(known))),
            _ => Ok(version),
        }
    }

    async fn register_driver(
        &self,
        plugin: &Plugin,
        stop: &CancellationToken,
    ) -> Result<(), CsiError> {
        tracing::info!(
            "kubernetes.io/csi: Register new plugin with name: {} at endpoint: {}",
            plugin.name,
            plugin.endpoint
        );
        let version = self.validate_versions("RegisterPlugin", plugin)?;
        let endpoint = plugin.endpoint.clone();
        self.drivers
            .insert(&plugin.name, Driver { endpoint, version });
        if plugin.name.is_empty() {
            // The kubelet forgets to forget it, too.
            return Err(CsiError::EmptyName);
        }
        let result = self.make_known(plugin, stop).await;
        match &result {
            Ok(()) | Err(CsiError::NilDereference) => {}
            Err(_) => {
                if let Err(err) = self.unregister_driver(&plugin.name).await {
                    tracing::error!(%err, "kubernetes.io/csi: registrationHandler.RegisterPlugin failed to unregister plugin due to previous error");
                }
            }
        }
        result
    }

    async fn make_known(&self, plugin: &Plugin, stop: &CancellationToken) -> Result<(), CsiError> {
        let asked = Asked {
            driver: &plugin.name,
            endpoint: &plugin.endpoint,
            socket: Some(&plugin.socket_path),
        };
        let info = self.drivers.node_get_info(asked, stop).await?;
        if info.node_id.is_empty() && self.profile.empty_node_id_panics() {
            return Err(CsiError::NilDereference);
        }
        self.node_info.install(&plugin.name, &info).await?;
        self.sync_updater(&plugin.name);
        Ok(())
    }

    async fn unregister_driver(&self, name: &str) -> Result<(), UninstallError> {
        self.drivers.remove(name);
        self.node_info.uninstall(name).await
    }

    fn sync_updater(&self, name: &str) {
        if let Some(updater) = &self.updater {
            updater.sync(name);
        }
    }
}

impl PluginHandler for CsiHandler {
    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        tracing::info!(
            "kubernetes.io/csi: Trying to validate a new CSI Driver with name: {} endpoint: {} versions: {}",
            plugin.name,
            plugin.endpoint,
            plugin.supported_versions.join(",")
        );
        self.validate_versions("ValidatePlugin", plugin)
            .map(drop)
            .map_err(|source| {
                let (name, endpoint) = (plugin.name.clone(), plugin.endpoint.clone());
                CsiError::Validation {
                    name,
                    endpoint,
                    source,
                }
                .into()
            })
    }

    fn register<'a>(
        &'a self,
        plugin: &'a Plugin,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<(), RegisterError>> {
        Box::pin(async move { Ok(self.register_driver(plugin, stop).await?) })
    }

    fn deregister<'a>(&'a self, name: &'a str, _endpoint: Option<&'a str>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            tracing::info!(
                "kubernetes.io/csi: registrationHandler.DeRegisterPlugin request for plugin {name}"
            );
            if let Err(err) = self.unregister_driver(name).await {
                tracing::error!(%err, "kubernetes.io/csi: registrationHandler.DeRegisterPlugin failed");
            }
            self.sync_updater(name);
        })
    }
}
