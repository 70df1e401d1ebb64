//! A CSI driver for tests: Identity and Node over a Unix socket, with whatever answers and faults it is told to have.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Request as HttpRequest;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tonic::{Code, Request, Response, Status, async_trait};
use tower_service::Service;

use crate::connections::{self, Session};
use crate::proto::csi::identity_server::{Identity, IdentityServer};
use crate::proto::csi::node_server::{Node, NodeServer};
use crate::proto::csi::{
    GetPluginInfoRequest, GetPluginInfoResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    ProbeRequest, ProbeResponse, Topology,
};
use crate::uds::authority::Accepted;

/// Connections at once.
const MAX_CONNECTIONS: usize = 64;

/// How long calls in flight may take when the driver stops: a crash does not wait either.
const DRAIN: Duration = Duration::ZERO;

/// How a driver answers. Changes hold from the next call on.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// What `GetPluginInfo` calls it.
    pub name: String,
    /// `ProbeResponse.ready`.
    pub ready: Option<bool>,
    /// `NodeGetInfoResponse.node_id`.
    pub node_id: String,
    /// `NodeGetInfoResponse.max_volumes_per_node`.
    pub max_volumes: i64,
    /// `NodeGetInfoResponse.accessible_topology`; empty is sent as absent.
    pub topology: BTreeMap<String, String>,
    /// What is wrong with `GetPluginInfo`.
    pub plugin_info: Fault,
    /// What is wrong with `Probe`.
    pub probe: Fault,
    /// What is wrong with `NodeGetInfo`.
    pub node_info: Fault,
}

impl Behaviour {
    /// A driver without faults on node `node1`.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ready: Some(true),
            node_id: "node1".to_owned(),
            max_volumes: 0,
            topology: BTreeMap::new(),
            plugin_info: Fault::None,
            probe: Fault::None,
            node_info: Fault::None,
        }
    }
}

/// What is wrong with one method.
#[derive(Clone, Debug, Default)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// It fails this many times, then works.
    Fails {
        /// With this code.
        code: Code,
        /// With this text.
        message: String,
        /// So often.
        times: u32,
    },
    /// Its next answer comes late, the ones after that in time.
    SlowOnce(Duration),
    /// Every answer comes late.
    Slow(Duration),
    /// No answer ever comes.
    Hangs,
}

/// Calls received so far, those that failed by a fault included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// `GetPluginInfo`.
    pub plugin_info: u32,
    /// `Probe`.
    pub probe: u32,
    /// `NodeGetInfo`.
    pub node_info: u32,
}

/// A running driver. Dropping it closes its socket and leaves the file, as a crash does.
#[derive(Debug)]
pub struct CsiDriver {
    path: PathBuf,
    answers: Answers,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<()>,
}

impl CsiDriver {
    /// Starts a driver at `path`, over whatever is there.
    pub fn start(path: &Path, behaviour: Behaviour) -> io::Result<Self> {
        if path.symlink_metadata().is_ok() {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        let answers = Answers {
            behaviour: Arc::new(Mutex::new(behaviour)),
            calls: Arc::new(watch::channel(Calls::default()).0),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let given = answers.clone();
        let server = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            connections::serve(
                listener,
                MAX_CONNECTIONS,
                stopped,
                DRAIN,
                |stream, session| serve_connection(stream, session, given.clone()),
            )
            .await;
        });
        Ok(Self {
            path: path.to_owned(),
            answers,
            stop: Some(stop),
            server,
        })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Changes how it answers.
    pub fn change(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.answers.behaviour());
    }

    /// Calls so far, and word of further ones.
    pub fn calls(&self) -> watch::Receiver<Calls> {
        self.answers.calls.subscribe()
    }

    /// Stops as a crash does: connections are cut, the socket's file stays.
    pub async fn kill(mut self) {
        self.stop = None;
        let _ = (&mut self.server).await;
    }

    /// Stops, and takes the socket's file away.
    pub async fn stop(self) -> io::Result<()> {
        let path = self.path.clone();
        self.kill().await;
        std::fs::remove_file(path)
    }
}

/// What the services answer from.
#[derive(Clone, Debug)]
struct Answers {
    behaviour: Arc<Mutex<Behaviour>>,
    calls: Arc<watch::Sender<Calls>>,
}

impl Answers {
    fn behaviour(&self) -> std::sync::MutexGuard<'_, Behaviour> {
        self.behaviour
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, lets its fault happen, and says how the driver behaves after that.
    async fn called(
        &self,
        count: fn(&mut Calls) -> &mut u32,
        fault: fn(&mut Behaviour) -> &mut Fault,
    ) -> Result<Behaviour, Status> {
        self.calls.send_modify(|calls| *count(calls) += 1);
        let happens = take(fault(&mut self.behaviour()));
        match happens {
            Fault::None => {}
            Fault::Fails { code, message, .. } => return Err(Status::new(code, message)),
            Fault::Slow(delay) | Fault::SlowOnce(delay) => tokio::time::sleep(delay).await,
            Fault::Hangs => std::future::pending().await,
        }
        Ok(self.behaviour().clone())
    }
}

/// What happens to this call; what is left for the next one stays.
fn take(fault: &mut Fault) -> Fault {
    let now = fault.clone();
    match fault {
        Fault::Fails { times, .. } if *times > 1 => *times -= 1,
        Fault::Fails { .. } | Fault::SlowOnce(_) => *fault = Fault::None,
        Fault::None | Fault::Slow(_) | Fault::Hangs => {}
    }
    now
}

#[async_trait]
impl Identity for Answers {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let behaviour = self
            .called(
                |calls| &mut calls.plugin_info,
                |behaviour| &mut behaviour.plugin_info,
            )
            .await?;
        Ok(Response::new(GetPluginInfoResponse {
            name: behaviour.name,
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
        }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let behaviour = self
            .called(|calls| &mut calls.probe, |behaviour| &mut behaviour.probe)
            .await?;
        Ok(Response::new(ProbeResponse {
            ready: behaviour.ready,
        }))
    }
}

#[async_trait]
impl Node for Answers {
    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let behaviour = self
            .called(
                |calls| &mut calls.node_info,
                |behaviour| &mut behaviour.node_info,
            )
            .await?;
        let segments = behaviour.topology.into_iter().collect();
        let topology = Some(Topology { segments }).filter(|topology| !topology.segments.is_empty());
        Ok(Response::new(NodeGetInfoResponse {
            node_id: behaviour.node_id,
            max_volumes_per_node: behaviour.max_volumes,
            accessible_topology: topology,
        }))
    }
}

async fn serve_connection(stream: UnixStream, session: Session, answers: Answers) {
    let identity = IdentityServer::new(answers.clone());
    let node = NodeServer::new(answers);
    let service = service_fn(move |request: HttpRequest<Incoming>| {
        let (mut identity, mut node) = (identity.clone(), node.clone());
        let session = session.clone();
        async move {
            let response = if request.uri().path().starts_with("/csi.v1.Node/") {
                node.call(request).await
            } else {
                identity.call(request).await
            };
            session.completed_a_request();
            response
        }
    });
    // Kubelets before 1.26 send the socket's path as `:authority` here, too, and drivers in Go take it.
    let stream = Accepted::new(stream);
    let _ = http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
