//! The handler of CSI drivers: version rules, one driver of a name, and what the cluster is told of it
//! (`RegistrationHandler` in `pkg/volume/csi/csi_plugin.go`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::node_client::{CSI_TIMEOUT, NodeInfo, Question, node_get_info};
use super::node_info_manager::{InstallError, NodeInfoManager, UninstallError};
use super::version::{Version, VersionError};
use crate::manager::connector::Connector;
use crate::manager::event::{EventSink, What};
use crate::manager::go_text::{quote, quoted_list};
use crate::manager::grpc_status::RpcError;
use crate::manager::plugin_handler::{HandlerError, Plugin, PluginHandler, RegisterError};
use crate::manager::profile::Profile;
use crate::manager::{BoxFuture, lock};

const NIL_DEREFERENCE: &str = "runtime error: invalid memory address or nil pointer dereference";

/// An answer of a driver with which it is not asked again, even by a kubelet that asks several times.
const FINAL_ANSWER: &str = "no handler registered for plugin type";

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
    NodeGetInfo(#[from] RpcError),
    /// In the words of `wait.ErrWaitTimeout`.
    #[error("timed out waiting for the condition")]
    NodeGetInfoAttempts,
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

#[derive(Debug)]
struct Driver {
    endpoint: String,
    version: Version,
}

/// Knows the registered drivers, in memory only.
#[derive(Debug)]
pub struct CsiHandler {
    profile: Profile,
    connector: Arc<dyn Connector>,
    node_info: Arc<NodeInfoManager>,
    events: EventSink,
    drivers: Mutex<BTreeMap<String, Driver>>,
}

impl CsiHandler {
    /// A handler that knows no drivers. `connector` reaches their endpoints.
    pub fn new(
        profile: Profile,
        connector: Arc<dyn Connector>,
        node_info: Arc<NodeInfoManager>,
        events: EventSink,
    ) -> Self {
        Self {
            profile,
            connector,
            node_info,
            events,
            drivers: Mutex::default(),
        }
    }

    /// Registered names and their endpoints.
    pub fn drivers(&self) -> BTreeMap<String, String> {
        let drivers = lock(&self.drivers);
        let drivers = drivers.iter();
        drivers
            .map(|(name, driver)| (name.clone(), driver.endpoint.clone()))
            .collect()
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
        match lock(&self.drivers).get(&plugin.name) {
            Some(known) if known.version >= version => {
                Err(unfit(Unfit::Duplicate(known.version.clone())))
            }
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
        lock(&self.drivers).insert(plugin.name.clone(), Driver { endpoint, version });
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
        let info = self.node_get_info(plugin, stop).await?;
        if info.node_id.is_empty() && self.profile.empty_node_id_panics() {
            return Err(CsiError::NilDereference);
        }
        self.node_info.install(&plugin.name, &info).await?;
        Ok(())
    }

    async fn node_get_info(
        &self,
        plugin: &Plugin,
        stop: &CancellationToken,
    ) -> Result<NodeInfo, CsiError> {
        let deadline = Instant::now() + CSI_TIMEOUT;
        let ask = || self.ask_driver(plugin, deadline, stop);
        let Some(backoff) = self.profile.node_get_info_backoff() else {
            return Ok(ask().await?);
        };
        let attempts = backoff.run(|| async {
            match ask().await {
                Err(error) if !error.message.contains(FINAL_ANSWER) => Err(error),
                last => Ok(last),
            }
        });
        let last = attempts.await.map_err(|_| CsiError::NodeGetInfoAttempts)?;
        Ok(last?)
    }

    async fn ask_driver(
        &self,
        plugin: &Plugin,
        deadline: Instant,
        stop: &CancellationToken,
    ) -> Result<NodeInfo, RpcError> {
        let question = Question {
            endpoint: Path::new(&plugin.endpoint),
            authority: self.profile.csi_authority(),
            deadline,
        };
        let result = node_get_info(self.connector.as_ref(), question, stop).await;
        let driver = plugin.name.clone();
        let what = match &result {
            Ok(info) => What::NodeInfoReceived {
                driver,
                node_id: info.node_id.clone(),
                max_volumes_per_node: info.max_volumes_per_node,
                topology: info.topology.clone(),
            },
            Err(err) => {
                tracing::info!(%err, "Error calling CSI NodeGetInfo()");
                let error = err.to_string();
                What::NodeInfoFailed { driver, error }
            }
        };
        self.events.emit_for(&plugin.socket_path, what);
        result
    }

    async fn unregister_driver(&self, name: &str) -> Result<(), UninstallError> {
        lock(&self.drivers).remove(name);
        self.node_info.uninstall(name).await
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
        })
    }
}
