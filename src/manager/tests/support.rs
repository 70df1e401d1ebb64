//! A kubelet in memory: a network of duplex streams in place of sockets, plugins and drivers with scripted answers, and
//! the manager's own rooms from the caches to the generator. Nothing here touches a file or a real clock, so a paused
//! runtime advances only when everybody waits.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tower_service::Service;

use crate::manager::actual_state_of_world::ActualStateOfWorld;
use crate::manager::connector::{Connector, Stream};
use crate::manager::csi::node_store::{MemoryStore, NodeStore, StoreError};
use crate::manager::csi::objects::{CsiNode, Node};
use crate::manager::csi::{CsiHandler, NodeInfoManager};
use crate::manager::desired_state_of_world::DesiredStateOfWorld;
use crate::manager::event::{Event, EventSink, What};
use crate::manager::operation_executor::OperationExecutor;
use crate::manager::operation_generator::OperationGenerator;
use crate::manager::plugin_handler::{
    PluginHandler, PluginHandlers, RecordedCall, RecordingHandler,
};
use crate::manager::profile::Profile;
use crate::manager::reconciler::Reconciler;
use crate::manager::{BoxFuture, lock};
use crate::proto;
use crate::proto::csi::node_server::{Node as NodeService, NodeServer};
use crate::proto::registration::registration_server::{Registration, RegistrationServer};
use crate::uds::authority::Accepted;

/// Kubernetes 1.28: before failed registrations were retried.
pub(crate) const K119: Profile = Profile::from_minor(28).expect("1.28 is known");
/// Kubernetes 1.17: the oldest.
pub(crate) const K117: Profile = Profile::OLDEST;
/// Kubernetes 1.36: failed registrations are retried.
pub(crate) const K136: Profile = Profile::from_minor(36).expect("1.36 is known");

pub(crate) const SOCKET: &str = "/registry/driver-reg.sock";
pub(crate) const ENDPOINT: &str = "/plugins/driver/csi.sock";
pub(crate) const DRIVER: &str = "driver.example.com";
pub(crate) const NODE: &str = "node1";
pub(crate) const NODE_UID: &str = "11111111-1111-4111-8111-111111111111";

/// Longest wait for an event, on the virtual clock.
const PATIENCE: Duration = Duration::from_hours(1);

// === network ===

type Serve = Arc<dyn Fn(tokio::io::DuplexStream) + Send + Sync>;

/// Who listens where. A path without listener refuses, an unknown path does not exist.
#[derive(Default)]
pub(crate) struct Network {
    listeners: Mutex<HashMap<PathBuf, Option<Serve>>>,
    connections: Mutex<Vec<PathBuf>>,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Network")
    }
}

impl Network {
    pub(crate) fn listen(
        &self,
        path: &str,
        serve: impl Fn(tokio::io::DuplexStream) + Send + Sync + 'static,
    ) {
        lock(&self.listeners).insert(path.into(), Some(Arc::new(serve)));
    }

    pub(crate) fn refuse(&self, path: &str) {
        lock(&self.listeners).insert(path.into(), None);
    }

    pub(crate) fn remove(&self, path: &str) {
        lock(&self.listeners).remove(Path::new(path));
    }

    /// Attempts to reach `path`, successful or not.
    pub(crate) fn attempts(&self, path: &str) -> usize {
        let connections = lock(&self.connections);
        connections
            .iter()
            .filter(|reached| *reached == Path::new(path))
            .count()
    }
}

impl Connector for Network {
    fn connect<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            lock(&self.connections).push(path.to_owned());
            let listener = lock(&self.listeners).get(path).cloned();
            match listener {
                None => Err(io::Error::from_raw_os_error(2)),
                Some(None) => Err(io::Error::from_raw_os_error(111)),
                Some(Some(serve)) => {
                    let (client, server) = tokio::io::duplex(64 * 1024);
                    serve(server);
                    Ok(Box::new(client) as Box<dyn Stream>)
                }
            }
        })
    }
}

// === servers ===

/// A call as HTTP/2 carried it.
#[derive(Clone, Debug)]
pub(crate) struct HttpCall {
    /// Which connection of this server, from 1.
    pub(crate) connection: usize,
    pub(crate) path: String,
    pub(crate) authority: Option<String>,
    pub(crate) timeout: Option<String>,
}

/// What a server saw, over all its connections.
#[derive(Debug, Default)]
pub(crate) struct HttpLog {
    calls: Mutex<Vec<HttpCall>>,
    opened: AtomicUsize,
    closed: AtomicUsize,
}

impl HttpLog {
    pub(crate) fn calls(&self) -> Vec<HttpCall> {
        lock(&self.calls).clone()
    }

    pub(crate) fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    pub(crate) fn closed(&self) -> usize {
        self.closed.load(Ordering::SeqCst)
    }
}

/// Serves one connection in a task of its own, until the peer or `kill` ends it.
pub(crate) fn serve<I, S>(stream: I, service: S, log: Arc<HttpLog>, kill: CancellationToken)
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Service<
            http::Request<Incoming>,
            Response = http::Response<tonic::body::Body>,
            Error = Infallible,
        >,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    let connection = log.opened.fetch_add(1, Ordering::SeqCst) + 1;
    let calls = log.clone();
    let service = service_fn(move |request: http::Request<Incoming>| {
        let timeout = request.headers().get("grpc-timeout");
        lock(&calls.calls).push(HttpCall {
            connection,
            path: request.uri().path().to_owned(),
            authority: request.uri().authority().map(ToString::to_string),
            timeout: timeout
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned),
        });
        service.clone().call(request)
    });
    tokio::spawn(async move {
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(Accepted::new(stream)), service);
        tokio::select! {
            // How a connection ends is the client's business.
            _ = connection => {}
            () = kill.cancelled() => {}
        }
        log.closed.fetch_add(1, Ordering::SeqCst);
    });
}

/// How a scripted server answers one call.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Good,
    After(Duration),
    Never,
    Error(Status),
}

impl Answer {
    pub(crate) fn error(text: &str) -> Self {
        Self::Error(Status::internal(text))
    }

    async fn give<T>(self, value: T) -> Result<Response<T>, Status> {
        match self {
            Self::Good => {}
            Self::After(delay) => tokio::time::sleep(delay).await,
            Self::Never => std::future::pending().await,
            Self::Error(status) => return Err(status),
        }
        Ok(Response::new(value))
    }
}

/// Answers in order, then one for ever.
#[derive(Debug)]
struct Script {
    next: VecDeque<Answer>,
    last: Answer,
}

impl Default for Script {
    fn default() -> Self {
        let next = VecDeque::new();
        let last = Answer::Good;
        Self { next, last }
    }
}

impl Script {
    fn pop(&mut self) -> Answer {
        self.next.pop_front().unwrap_or_else(|| self.last.clone())
    }
}

/// A notification as a plugin got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notification {
    pub(crate) registered: bool,
    pub(crate) error: String,
}

/// A registrar with scripted answers.
#[derive(Debug)]
pub(crate) struct FakePlugin {
    pub(crate) http: Arc<HttpLog>,
    /// Ends all its connections when cancelled.
    pub(crate) kill: CancellationToken,
    info: Mutex<proto::registration::PluginInfo>,
    get_info: Mutex<Script>,
    notify: Mutex<Script>,
    notifications: Mutex<Vec<Notification>>,
}

impl FakePlugin {
    pub(crate) fn new(
        plugin_type: &str,
        name: &str,
        endpoint: &str,
        versions: &[&str],
    ) -> Arc<Self> {
        let info = proto::registration::PluginInfo {
            r#type: plugin_type.into(),
            name: name.into(),
            endpoint: endpoint.into(),
            supported_versions: versions.iter().map(|&version| version.to_owned()).collect(),
        };
        Arc::new(Self {
            http: Arc::default(),
            kill: CancellationToken::new(),
            info: Mutex::new(info),
            get_info: Mutex::default(),
            notify: Mutex::default(),
            notifications: Mutex::default(),
        })
    }

    /// What the sidecar publishes for [`DRIVER`].
    pub(crate) fn csi() -> Arc<Self> {
        Self::new(proto::CSI_PLUGIN, DRIVER, ENDPOINT, &["1.0.0"])
    }

    pub(crate) fn info(&self) -> proto::registration::PluginInfo {
        lock(&self.info).clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut proto::registration::PluginInfo)) {
        change(&mut lock(&self.info));
    }

    pub(crate) fn next_get_info(&self, answer: Answer) {
        lock(&self.get_info).next.push_back(answer);
    }

    pub(crate) fn every_get_info(&self, answer: Answer) {
        lock(&self.get_info).last = answer;
    }

    pub(crate) fn next_notify(&self, answer: Answer) {
        lock(&self.notify).next.push_back(answer);
    }

    pub(crate) fn every_notify(&self, answer: Answer) {
        lock(&self.notify).last = answer;
    }

    pub(crate) fn notifications(&self) -> Vec<Notification> {
        lock(&self.notifications).clone()
    }

    /// Number of `GetInfo` calls.
    pub(crate) fn asked(&self) -> usize {
        let calls = self.http.calls();
        calls
            .iter()
            .filter(|call| call.path.ends_with("/GetInfo"))
            .count()
    }

    /// Serves one connection.
    pub(crate) fn accept<I>(self: &Arc<Self>, stream: I)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let service = RegistrationServer::from_arc(self.clone());
        serve(stream, service, self.http.clone(), self.kill.clone());
    }
}

#[tonic::async_trait]
impl Registration for FakePlugin {
    async fn get_info(
        &self,
        _: Request<proto::registration::InfoRequest>,
    ) -> Result<Response<proto::registration::PluginInfo>, Status> {
        let answer = lock(&self.get_info).pop();
        answer.give(self.info()).await
    }

    async fn notify_registration_status(
        &self,
        request: Request<proto::registration::RegistrationStatus>,
    ) -> Result<Response<proto::registration::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        lock(&self.notifications).push(Notification {
            registered: status.plugin_registered,
            error: status.error,
        });
        let answer = lock(&self.notify).pop();
        answer
            .give(proto::registration::RegistrationStatusResponse {})
            .await
    }
}

/// A driver's Node service with scripted answers.
#[derive(Debug)]
pub(crate) struct FakeDriver {
    pub(crate) http: Arc<HttpLog>,
    info: Mutex<proto::csi::NodeGetInfoResponse>,
    answers: Mutex<Script>,
}

impl FakeDriver {
    pub(crate) fn new(node_id: &str) -> Arc<Self> {
        Arc::new(Self {
            http: Arc::default(),
            info: Mutex::new(proto::csi::NodeGetInfoResponse {
                node_id: node_id.into(),
                max_volumes_per_node: 0,
                accessible_topology: None,
            }),
            answers: Mutex::default(),
        })
    }

    pub(crate) fn set_topology(&self, segments: &[(&str, &str)]) {
        let segments = segments
            .iter()
            .map(|&(key, value)| (key.into(), value.into()))
            .collect();
        lock(&self.info).accessible_topology = Some(proto::csi::Topology { segments });
    }

    pub(crate) fn next_answer(&self, answer: Answer) {
        lock(&self.answers).next.push_back(answer);
    }

    pub(crate) fn accept<I>(self: &Arc<Self>, stream: I)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let service = NodeServer::from_arc(self.clone());
        serve(stream, service, self.http.clone(), CancellationToken::new());
    }
}

#[tonic::async_trait]
impl NodeService for FakeDriver {
    async fn node_get_info(
        &self,
        _: Request<proto::csi::NodeGetInfoRequest>,
    ) -> Result<Response<proto::csi::NodeGetInfoResponse>, Status> {
        let answer = lock(&self.answers).pop();
        let info = lock(&self.info).clone();
        answer.give(info).await
    }
}

// === store ===

/// An API server that fails on demand and counts its writes.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    pub(crate) memory: MemoryStore,
    /// For the next updates of the CSINode.
    update_errors: Mutex<VecDeque<StoreError>>,
    /// For every write, while set.
    broken: Mutex<Option<StoreError>>,
    pub(crate) node_patches: AtomicUsize,
    pub(crate) csi_node_writes: AtomicUsize,
}

impl FaultyStore {
    pub(crate) fn new(node: Node) -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryStore::new(node),
            update_errors: Mutex::default(),
            broken: Mutex::default(),
            node_patches: AtomicUsize::new(0),
            csi_node_writes: AtomicUsize::new(0),
        })
    }

    pub(crate) fn fail_updates(&self, errors: impl IntoIterator<Item = StoreError>) {
        lock(&self.update_errors).extend(errors);
    }

    pub(crate) fn break_writes(&self, error: Option<StoreError>) {
        *lock(&self.broken) = error;
    }

    pub(crate) fn writes(&self) -> (usize, usize) {
        (
            self.node_patches.load(Ordering::SeqCst),
            self.csi_node_writes.load(Ordering::SeqCst),
        )
    }

    pub(crate) fn node(&self) -> Node {
        self.memory.objects().0
    }

    pub(crate) fn csi_node(&self) -> CsiNode {
        self.memory.objects().1.expect("a CSINode exists")
    }

    /// Names of the drivers in the CSINode, in its order.
    pub(crate) fn drivers(&self) -> Vec<String> {
        let drivers = self.csi_node().spec.drivers.into_iter();
        drivers.map(|driver| driver.name).collect()
    }

    pub(crate) fn annotation(&self) -> Option<String> {
        let annotations = self.node().metadata.annotations;
        annotations.get("csi.volume.kubernetes.io/nodeid").cloned()
    }

    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        self.node().metadata.labels
    }

    fn write<'a, T: Send + 'a>(
        &'a self,
        counter: &AtomicUsize,
        request: BoxFuture<'a, Result<T, StoreError>>,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        if let Some(error) = lock(&self.broken).clone() {
            return Box::pin(async { Err(error) });
        }
        counter.fetch_add(1, Ordering::SeqCst);
        request
    }
}

impl NodeStore for FaultyStore {
    fn get_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Node, StoreError>> {
        self.memory.get_node(name)
    }

    fn patch_node_status<'a>(
        &'a self,
        original: &'a Node,
        changed: &'a Node,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.write(
            &self.node_patches,
            self.memory.patch_node_status(original, changed),
        )
    }

    fn get_csi_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<CsiNode, StoreError>> {
        self.memory.get_csi_node(name)
    }

    fn create_csi_node<'a>(
        &'a self,
        csi_node: &'a CsiNode,
    ) -> BoxFuture<'a, Result<CsiNode, StoreError>> {
        self.write(&self.csi_node_writes, self.memory.create_csi_node(csi_node))
    }

    fn update_csi_node<'a>(
        &'a self,
        csi_node: &'a CsiNode,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        if let Some(error) = lock(&self.update_errors).pop_front() {
            return Box::pin(async { Err(error) });
        }
        self.write(&self.csi_node_writes, self.memory.update_csi_node(csi_node))
    }

    fn delete_csi_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        self.write(&self.csi_node_writes, self.memory.delete_csi_node(name))
    }
}

// === kubelet ===

/// The manager without its watcher: tests say which sockets exist.
pub(crate) struct Kubelet {
    pub(crate) network: Arc<Network>,
    pub(crate) reconciler: Arc<Reconciler>,
    pub(crate) events: EventSink,
    pub(crate) stop: CancellationToken,
    receiver: broadcast::Receiver<Event>,
}

impl Kubelet {
    /// On a network that may outlive it, with no handlers.
    pub(crate) fn on(network: Arc<Network>, profile: Profile) -> Self {
        let events = EventSink::default();
        let actual = Arc::<ActualStateOfWorld>::default();
        let generator = OperationGenerator {
            profile,
            authority: profile.registration_authority(),
            connector: network.clone(),
            actual: actual.clone(),
            events: events.clone(),
            observe: false,
            stop: CancellationToken::new(),
        };
        let reconciler = Reconciler {
            desired: Arc::<DesiredStateOfWorld>::default(),
            actual,
            handlers: Arc::<PluginHandlers>::default(),
            executor: OperationExecutor::new(events.clone()),
            generator: Arc::new(generator),
        };
        Self {
            network,
            reconciler: Arc::new(reconciler),
            receiver: events.subscribe(),
            events,
            stop: CancellationToken::new(),
        }
    }

    /// With a recording handler for `plugin_type`.
    pub(crate) fn recording(profile: Profile, plugin_type: &str) -> (Self, Arc<RecordingHandler>) {
        let kubelet = Self::on(Arc::default(), profile);
        let handler = Arc::<RecordingHandler>::default();
        kubelet.add_handler(plugin_type, handler.clone());
        (kubelet, handler)
    }

    /// With the CSI handler, against an initialised store.
    pub(crate) async fn csi(
        network: Arc<Network>,
        profile: Profile,
        store: Arc<FaultyStore>,
    ) -> (Self, Arc<CsiHandler>) {
        let kubelet = Self::on(network, profile);
        let handler = kubelet.csi_handler(profile, Some(store)).await;
        (kubelet, handler)
    }

    /// Adds a CSI handler.
    pub(crate) async fn csi_handler(
        &self,
        profile: Profile,
        store: Option<Arc<FaultyStore>>,
    ) -> Arc<CsiHandler> {
        let store = store.map(|store| store as Arc<dyn NodeStore>);
        let node_info = Arc::new(NodeInfoManager::new(
            NODE,
            profile,
            store,
            self.events.clone(),
        ));
        node_info.initialise().await.unwrap();
        let handler = CsiHandler::new(
            profile,
            self.network.clone(),
            node_info,
            self.events.clone(),
        );
        let handler = Arc::new(handler);
        self.add_handler(proto::CSI_PLUGIN, handler.clone());
        handler
    }

    pub(crate) fn add_handler(&self, plugin_type: &str, handler: Arc<dyn PluginHandler>) {
        self.reconciler.handlers.add(plugin_type, handler);
    }

    /// Starts reconciling.
    pub(crate) fn start(&self) {
        let (reconciler, stop) = (self.reconciler.clone(), self.stop.clone());
        tokio::spawn(async move { reconciler.run(&stop).await });
    }

    /// A plugin listens at `path`, and the watcher has seen it.
    pub(crate) fn appear(&self, path: &str, plugin: &Arc<FakePlugin>) {
        let plugin = plugin.clone();
        self.network
            .listen(path, move |stream| plugin.accept(stream));
        self.see(path);
    }

    /// The watcher sees `path`, whether anybody listens there or not.
    pub(crate) fn see(&self, path: &str) {
        self.reconciler
            .desired
            .add_or_update(Path::new(path))
            .unwrap();
    }

    /// `path` is gone, and the watcher has seen it.
    pub(crate) fn vanish(&self, path: &str) {
        self.network.remove(path);
        self.reconciler.desired.remove(Path::new(path));
    }

    /// Waits for the next event that `wanted` takes.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&What) -> bool) -> Event {
        let search = async {
            loop {
                let event = self
                    .receiver
                    .recv()
                    .await
                    .expect("the sink lives, the receiver keeps up");
                if wanted(&event.what) {
                    return event;
                }
            }
        };
        tokio::time::timeout(PATIENCE, search)
            .await
            .expect("the event comes")
    }

    pub(crate) async fn until_registered(&mut self) -> Event {
        self.until(|what| matches!(what, What::OperationSucceeded { operation } if operation.name() == "register"))
            .await
    }

    pub(crate) async fn until_unregistered(&mut self) -> Event {
        self.until(|what| matches!(what, What::OperationSucceeded { operation } if operation.name() == "unregister"))
            .await
    }

    /// Waits for the next failure and answers its error.
    pub(crate) async fn until_failed(&mut self) -> (Instant, String) {
        let event = self
            .until(|what| matches!(what, What::OperationFailed { .. }))
            .await;
        match event.what {
            What::OperationFailed { error, .. } => (event.at, error),
            _ => unreachable!("until matched it"),
        }
    }

    /// Forgets the events that nobody has waited for.
    pub(crate) fn skip_events(&mut self) {
        self.receiver = self.events.subscribe();
    }

    /// Names of the kinds of all events that nobody has waited for.
    pub(crate) fn pending_events(&mut self) -> Vec<What> {
        std::iter::from_fn(|| self.receiver.try_recv().ok())
            .map(|event| event.what)
            .collect()
    }

    /// Socket paths in the actual state.
    pub(crate) fn actual(&self) -> Vec<String> {
        let plugins = self.reconciler.actual.plugins().into_iter();
        plugins
            .map(|plugin| plugin.socket_path.display().to_string())
            .collect()
    }

    /// Whether the actual state holds the desired incarnation of `path`.
    pub(crate) fn is_registered(&self, path: &str) -> bool {
        let desired = self.reconciler.desired.plugins();
        let wanted = desired
            .iter()
            .find(|plugin| plugin.socket_path == Path::new(path));
        wanted.is_some_and(|plugin| self.reconciler.actual.has(plugin))
    }
}

/// Names of the methods, in order.
pub(crate) fn names(calls: &[RecordedCall]) -> Vec<&'static str> {
    let name = |call: &RecordedCall| match call {
        RecordedCall::Validate(_) => "validate",
        RecordedCall::Register(_) => "register",
        RecordedCall::Deregister(..) => "deregister",
    };
    calls.iter().map(name).collect()
}

/// A cluster of one node.
pub(crate) fn cluster() -> Arc<FaultyStore> {
    FaultyStore::new(Node::new(NODE, NODE_UID))
}

/// Lets the virtual clock run.
pub(crate) async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}
