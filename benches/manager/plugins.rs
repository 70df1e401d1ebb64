//! The role that serves all plugins: a registration socket each, and one CSI driver that they share under different names.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use csi_node_driver_registrar::proto::CSI_PLUGIN;
use csi_node_driver_registrar::proto::csi::node_server::{Node, NodeServer};
use csi_node_driver_registrar::proto::csi::{NodeGetInfoRequest, NodeGetInfoResponse};
use csi_node_driver_registrar::proto::registration::registration_server::{
    Registration, RegistrationServer,
};
use csi_node_driver_registrar::proto::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use csi_node_driver_registrar::uds::authority::Accepted;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tonic::{Request, Response, Status, async_trait};

use super::Failure;

/// After an accept that failed, as for want of a file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Where a plugin publishes.
pub(crate) fn socket(registry: &Path, number: usize) -> PathBuf {
    registry.join(format!("p{number:05}.example.com-reg.sock"))
}

/// Says "listening", and "registered" when all but the hung ones were told so; ends with its input.
pub(crate) fn serve(registry: &Path, count: &str, hung: &str) -> Result<(), Failure> {
    let (count, hung): (usize, usize) = (count.parse()?, hung.parse()?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let endpoint = registry.join("../csi.sock");
        let driver = UnixListener::bind(&endpoint)?;
        tokio::spawn(accept(driver, |stream| {
            connection(stream, NodeServer::new(Driver));
        }));
        let told = Arc::new(Told {
            expected: count,
            plugins: Mutex::default(),
        });
        for number in 0..count {
            let listener = UnixListener::bind(socket(registry, number))?;
            let plugin = Plugin {
                number,
                endpoint: endpoint.display().to_string(),
                told: told.clone(),
            };
            tokio::spawn(accept(listener, move |stream| {
                connection(stream, RegistrationServer::new(plugin.clone()));
            }));
        }
        let hung: Vec<_> = (count..count + hung)
            .map(|number| UnixListener::bind(socket(registry, number)))
            .collect::<Result<_, _>>()?;
        say("listening")?;
        tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
        drop(hung);
        Ok(())
    })
}

fn say(word: &str) -> io::Result<()> {
    let mut output = io::stdout();
    writeln!(output, "{word}")?;
    output.flush()
}

async fn accept(listener: UnixListener, serve: impl Fn(UnixStream)) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => serve(stream),
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

fn connection<S>(stream: UnixStream, service: S)
where
    S: tower_service::Service<
            http::Request<hyper::body::Incoming>,
            Response = http::Response<tonic::body::Body>,
            Error = std::convert::Infallible,
        > + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
{
    let connection = http2::Builder::new(TokioExecutor::new()).serve_connection(
        TokioIo::new(Accepted::new(stream)),
        TowerToHyperService::new(service),
    );
    // How a connection ends is the client's business.
    tokio::spawn(async move {
        let _ = connection.await;
    });
}

/// Which plugins were told that they are registered.
struct Told {
    expected: usize,
    plugins: Mutex<BTreeSet<usize>>,
}

#[derive(Clone)]
struct Plugin {
    number: usize,
    endpoint: String,
    told: Arc<Told>,
}

#[async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: CSI_PLUGIN.to_owned(),
            name: format!("p{:05}.example.com", self.number),
            endpoint: self.endpoint.clone(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = status.into_inner();
        if status.plugin_registered {
            let mut plugins = self
                .told
                .plugins
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if plugins.insert(self.number) && plugins.len() == self.told.expected {
                say("registered").map_err(|error| Status::internal(error.to_string()))?;
            }
        } else {
            eprintln!("plugin {} was refused: {}", self.number, status.error);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

struct Driver;

#[async_trait]
impl Node for Driver {
    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        Ok(Response::new(NodeGetInfoResponse {
            node_id: "node1".to_owned(),
            max_volumes_per_node: 16,
            accessible_topology: None,
        }))
    }
}
