//! What registering and unregistering a plugin consist of, step by step, with the errors that the plugin is told
//! (`pluginmanager/operationexecutor/operation_generator.go`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::actual_state_of_world::{ActualStateOfWorld, RegisteredPlugin};
use super::connector::Connector;
use super::desired_state_of_world::DesiredPlugin;
use super::event::{EventSink, What};
use super::grpc_status::RpcError;
use super::plugin_handler::{HandlerMap, Plugin, PluginHandler, RegisterError};
use super::profile::Profile;
use super::registration_client::{DialError, Dialer, RegistrationClient};
use crate::klog;
use crate::uds::authority::Authority;

/// An operation's failure, worded as the kubelet logs it.
#[derive(Debug, thiserror::Error)]
pub(super) enum OperationError {
    #[error("{operation} error -- dial failed at socket {path}, err: failed to dial socket {path}, err: {source}", path = socket_path.display())]
    Dial {
        operation: &'static str,
        socket_path: PathBuf,
        source: DialError,
    },
    #[error("{operation} error -- failed to get plugin info using RPC GetInfo at socket {}, err: {source}", socket_path.display())]
    GetInfo {
        operation: &'static str,
        socket_path: PathBuf,
        source: RpcError,
    },
    /// No handler, or it refused the plugin. The kubelet's words are wrong where the plugin did get the text.
    #[error("RegisterPlugin error -- failed to send error at socket {}, err: {source}", socket_path.display())]
    Refused {
        socket_path: PathBuf,
        source: NotifyError,
    },
    #[error("{0}")]
    Register(NotifyError),
    #[error("RegisterPlugin error -- failed to send registration status at socket {}, err: {source}", socket_path.display())]
    Notify {
        socket_path: PathBuf,
        source: NotifyError,
    },
    #[error("UnregisterPlugin error -- no handler registered for plugin type: {plugin_type} at socket {}", socket_path.display())]
    UnregisterWithoutHandler {
        plugin_type: String,
        socket_path: PathBuf,
    },
    /// Without notification, since the manager only observes.
    #[error("{0}")]
    Observed(String),
    #[error("recovered from panic {0:?}")]
    Panicked(String),
    #[error("the runtime stopped before the operation ended")]
    RuntimeStopped,
}

/// The outcome of a notification, which is an error whenever its text is one, even if it was delivered
/// (`notifyPlugin`).
#[derive(Debug, thiserror::Error)]
pub(super) enum NotifyError {
    #[error("{text}")]
    Delivered { text: String },
    #[error("{text}: {source}")]
    Undelivered { text: String, source: RpcError },
}

const REGISTER: &str = "RegisterPlugin";
const UNREGISTER: &str = "UnregisterPlugin";

/// Makes operations, all against the same actual state.
#[derive(Debug)]
pub(super) struct OperationGenerator {
    pub(super) profile: Profile,
    pub(super) authority: Authority,
    pub(super) connector: Arc<dyn Connector>,
    pub(super) actual: Arc<ActualStateOfWorld>,
    pub(super) events: EventSink,
    /// Whether plugins are only looked at: no notification, no handler but for its validation.
    pub(super) observe: bool,
    /// Ends what operations wait for; never, where the version does not.
    pub(super) stop: CancellationToken,
}

impl OperationGenerator {
    /// Registers `plugin` with the handler of its type among `handlers`.
    pub(super) async fn register(
        self: Arc<Self>,
        desired: DesiredPlugin,
        handlers: HandlerMap,
    ) -> Result<(), OperationError> {
        let socket_path = desired.socket_path.as_path();
        let (mut client, plugin) = self.ask(REGISTER, socket_path).await?;
        let handler = match self.accept(&plugin, &handlers) {
            Ok(handler) => handler,
            Err(text) if self.observe => return Err(OperationError::Observed(text)),
            Err(text) => {
                let source = self.refuse(&mut client, socket_path, text).await;
                let socket_path = socket_path.to_owned();
                return Err(OperationError::Refused {
                    socket_path,
                    source,
                });
            }
        };
        // Before the handler is called: a socket that goes away meanwhile must find something to unregister.
        let added = self.actual.add(RegisteredPlugin {
            socket_path: socket_path.to_owned(),
            identity: desired.identity,
            handler: handler.clone(),
            plugin_type: plugin.plugin_type.clone(),
            name: plugin.name.clone(),
            endpoint: plugin.endpoint.clone(),
        });
        if let Err(err) = added {
            tracing::error!(%err, path = %socket_path.display(), "RegisterPlugin error -- failed to add plugin");
        }
        if self.observe {
            return Ok(());
        }
        self.hand_over(&mut client, &plugin, handler.as_ref()).await
    }

    /// Takes `plugin` back. Before 1.19 the plugin has to answer first, and names what is taken back.
    pub(super) async fn unregister(
        self: Arc<Self>,
        plugin: RegisteredPlugin,
        handlers: HandlerMap,
    ) -> Result<(), OperationError> {
        let socket_path = plugin.socket_path.as_path();
        let (handler, name) = if self.profile.unregister_needs_plugin() {
            let (_, answer) = self.ask(UNREGISTER, socket_path).await?;
            let Some(handler) = handlers.get(&answer.plugin_type) else {
                return Err(OperationError::UnregisterWithoutHandler {
                    plugin_type: answer.plugin_type,
                    socket_path: socket_path.to_owned(),
                });
            };
            (handler.clone(), answer.name)
        } else {
            (plugin.handler.clone(), plugin.name.clone())
        };
        // Before the handler is called: a socket that comes back meanwhile must find nothing registered.
        self.actual.remove(socket_path);
        if !self.observe {
            self.deregister(handler.as_ref(), socket_path, &name, &plugin.endpoint)
                .await;
        }
        Ok(())
    }

    async fn ask<'a>(
        &'a self,
        operation: &'static str,
        socket_path: &'a Path,
    ) -> Result<(RegistrationClient<'a>, Plugin), OperationError> {
        let dialer = Dialer {
            connector: self.connector.as_ref(),
            authority: self.authority,
            stop: &self.stop,
        };
        let mut client = RegistrationClient::dial(dialer, socket_path)
            .await
            .map_err(|source| OperationError::Dial {
                operation,
                socket_path: socket_path.to_owned(),
                source,
            })?;
        self.events.emit_for(socket_path, What::Dialed);
        let plugin = client
            .get_info()
            .await
            .map_err(|source| OperationError::GetInfo {
                operation,
                socket_path: socket_path.to_owned(),
                source,
            })?;
        let received = What::InfoReceived {
            plugin: plugin.clone(),
        };
        self.events.emit_for(socket_path, received);
        Ok((client, plugin))
    }

    /// The handler that takes this plugin, or what the plugin is told.
    fn accept(
        &self,
        plugin: &Plugin,
        handlers: &HandlerMap,
    ) -> Result<Arc<dyn PluginHandler>, String> {
        let Some(handler) = handlers.get(&plugin.plugin_type) else {
            return Err(format!(
                "RegisterPlugin error -- no handler registered for plugin type: {} at socket {}",
                plugin.plugin_type,
                plugin.socket_path.display()
            ));
        };
        handler.validate(plugin).map_err(|error| {
            format!("RegisterPlugin error -- plugin validation failed with err: {error}")
        })?;
        self.events.emit_for(&plugin.socket_path, What::Validated);
        Ok(handler.clone())
    }

    async fn hand_over(
        &self,
        client: &mut RegistrationClient<'_>,
        plugin: &Plugin,
        handler: &dyn PluginHandler,
    ) -> Result<(), OperationError> {
        let socket_path = plugin.socket_path.as_path();
        let retried = self.profile.retries_failed_registration();
        if let Err(error) = handler.register(plugin, &self.stop).await {
            let error = match error {
                RegisterError::Refused(error) => error.to_string(),
                // As it is: registered to the manager's mind, and told nothing.
                RegisterError::Panicked(text) => {
                    return Err(OperationError::Panicked(text.to_owned()));
                }
            };
            self.events.emit_for(
                socket_path,
                What::HandlerRefused {
                    error: error.clone(),
                },
            );
            if retried {
                self.actual.remove(socket_path);
            }
            let text =
                format!("RegisterPlugin error -- plugin registration failed with err: {error}");
            return Err(OperationError::Register(
                self.refuse(client, socket_path, text).await,
            ));
        }
        self.events.emit_for(socket_path, What::HandlerRegistered);
        let Err(source) = self.notify(client, socket_path, true, "").await else {
            return Ok(());
        };
        if retried {
            self.actual.remove(socket_path);
            self.deregister(handler, socket_path, &plugin.name, &plugin.endpoint)
                .await;
        }
        Err(OperationError::Notify {
            socket_path: socket_path.to_owned(),
            source: NotifyError::Undelivered {
                text: String::new(),
                source,
            },
        })
    }

    async fn deregister(
        &self,
        handler: &dyn PluginHandler,
        socket_path: &Path,
        name: &str,
        endpoint: &str,
    ) {
        let endpoint = self.profile.deregister_gets_endpoint().then_some(endpoint);
        handler.deregister(name, endpoint).await;
        let name = name.to_owned();
        klog::verbose!(4, pluginName = %name, "DeRegisterPlugin called");
        self.events
            .emit_for(socket_path, What::Deregistered { name });
    }

    /// Tells the plugin that it is refused, and makes the operation's error of it.
    async fn refuse(
        &self,
        client: &mut RegistrationClient<'_>,
        socket_path: &Path,
        text: String,
    ) -> NotifyError {
        match self.notify(client, socket_path, false, &text).await {
            Ok(()) => NotifyError::Delivered { text },
            Err(source) => NotifyError::Undelivered { text, source },
        }
    }

    async fn notify(
        &self,
        client: &mut RegistrationClient<'_>,
        socket_path: &Path,
        registered: bool,
        text: &str,
    ) -> Result<(), RpcError> {
        let result = client.notify(registered, text).await;
        self.events.emit_for(
            socket_path,
            What::Notified {
                registered,
                text: text.to_owned(),
                failure: result.as_ref().err().map(ToString::to_string),
            },
        );
        result
    }
}
