//! The role that is measured: our plugin manager with one of two handlers.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use csi_node_driver_registrar::manager::connector::UnixConnector;
use csi_node_driver_registrar::manager::csi::node_store::MemoryStore;
use csi_node_driver_registrar::manager::csi::objects::Node;
use csi_node_driver_registrar::manager::csi::{CsiHandler, NodeInfoManager};
use csi_node_driver_registrar::manager::event::EventSink;
use csi_node_driver_registrar::manager::plugin_handler::{
    HandlerError, Plugin, PluginHandler, RecordingHandler, RegisterError,
};
use csi_node_driver_registrar::manager::profile::Profile;
use csi_node_driver_registrar::manager::{BoxFuture, Config, PluginManager};
use csi_node_driver_registrar::proto::CSI_PLUGIN;
use tokio_util::sync::CancellationToken;

use super::Failure;

const NODE: &str = "node1";
const NODE_UID: &str = "9c0b4f2e-6d1a-4a53-8f0e-0d5c1b7a2e64";

/// What is done for a plugin beside the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handler {
    /// Nothing.
    Recording,
    /// `NodeGetInfo`, Node and CSINode, both in memory.
    Csi,
}

impl Handler {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Recording => "recording",
            Self::Csi => "CSI",
        }
    }
}

/// Says "deregistered" when so many plugins were.
pub(crate) fn run(registry: &Path, handler: &str, removals: &str) -> Result<(), Failure> {
    let removals = removals.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let events = EventSink::default();
        let connector = Arc::new(UnixConnector);
        let handler: Arc<dyn PluginHandler> = if handler == Handler::Csi.name() {
            let store = Arc::new(MemoryStore::new(Node::new(NODE, NODE_UID)));
            let node_info =
                NodeInfoManager::new(NODE, Profile::NEWEST, Some(store), events.clone());
            node_info.initialise().await?;
            let (connector, node_info) = (connector.clone(), Arc::new(node_info));
            Arc::new(CsiHandler::new(
                Profile::NEWEST,
                connector,
                node_info,
                events.clone(),
            ))
        } else {
            Arc::<RecordingHandler>::default()
        };
        let config = Config {
            registration_dir: registry.to_owned(),
            profile: Profile::NEWEST,
            authority: None,
            observe: false,
        };
        let manager = PluginManager::new(config, connector, events);
        let deregistered = AtomicUsize::new(0);
        manager.add_handler(
            CSI_PLUGIN,
            Arc::new(Counting {
                handler,
                deregistered,
                removals,
            }),
        );
        manager.run(std::future::pending()).await?;
        Ok(())
    })
}

/// Passes on, and counts.
#[derive(Debug)]
struct Counting {
    handler: Arc<dyn PluginHandler>,
    deregistered: AtomicUsize,
    removals: usize,
}

impl PluginHandler for Counting {
    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        self.handler.validate(plugin)
    }

    fn register<'a>(
        &'a self,
        plugin: &'a Plugin,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<(), RegisterError>> {
        self.handler.register(plugin, stop)
    }

    fn deregister<'a>(&'a self, name: &'a str, endpoint: Option<&'a str>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.handler.deregister(name, endpoint).await;
            if self.deregistered.fetch_add(1, Ordering::Relaxed) + 1 == self.removals {
                let mut output = io::stdout();
                // Who measures waits in vain then, and says so.
                let _ = writeln!(output, "deregistered").and_then(|()| output.flush());
            }
        })
    }
}
