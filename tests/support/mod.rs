//! The harness of the black-box tests: a node's directories, the registrar's real binary, and a kubelet's client. Everything
//! here waits for events, each under one deadline.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test file uses its own part of the harness"
)]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "clippy takes only what is marked as a test for one; a test may block, and fails by a panic"
)]

pub mod command;
pub mod http;
pub mod raw_driver;
pub mod tree;
pub mod usage;

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::http::HeaderValue;
use csi_node_driver_registrar::proto::registration::registration_client::RegistrationClient;
use csi_node_driver_registrar::proto::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use csi_node_driver_registrar::testing::csi_driver::{Behaviour, CsiDriver};
use csi_node_driver_registrar::uds::authority::Authority;
use csi_node_driver_registrar::uds::channel::Channel;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use self::usage::Usage;

/// How long anything may take that should happen at once. Generous: the machines are shared.
pub const DEADLINE: Duration = Duration::from_secs(15);

/// The driver's name in most tests.
pub const DRIVER: &str = "driver.example.com";

/// The directories of a node, as a DaemonSet mounts them.
pub struct Node {
    root: tempfile::TempDir,
}

impl Node {
    pub fn new() -> Self {
        let root = tempfile::Builder::new().prefix("node").tempdir().unwrap();
        let node = Self { root };
        fs::create_dir_all(node.csi_socket().parent().unwrap()).unwrap();
        fs::create_dir(node.registry()).unwrap();
        node
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// The driver's socket, both as the registrar and as the kubelet sees it.
    pub fn csi_socket(&self) -> PathBuf {
        self.root.path().join("plugins/d/csi.sock")
    }

    /// The kubelet's plugin registry.
    pub fn registry(&self) -> PathBuf {
        self.root.path().join("plugins_registry")
    }

    pub fn registration_socket(&self, driver: &str) -> PathBuf {
        self.registry().join(format!("{driver}-reg.sock"))
    }

    pub fn termination_log(&self) -> PathBuf {
        self.root.path().join("termination-log")
    }

    /// The names in the registry.
    pub fn published(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.registry())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub fn driver(&self) -> CsiDriver {
        self.driver_with(Behaviour::named(DRIVER))
    }

    pub fn driver_with(&self, behaviour: Behaviour) -> CsiDriver {
        CsiDriver::start(&self.csi_socket(), behaviour).unwrap()
    }

    /// The arguments that every registrar of this node needs.
    pub fn arguments(&self) -> Vec<String> {
        vec![
            format!("--csi-address={}", self.csi_socket().display()),
            format!(
                "--kubelet-registration-path={}",
                self.csi_socket().display()
            ),
            format!("--plugin-registration-path={}", self.registry().display()),
        ]
    }

    /// A registrar with the usual arguments and these.
    pub fn registrar<A: AsRef<OsStr>>(&self, more: impl IntoIterator<Item = A>) -> Registrar {
        let mut command = registrar_command();
        command.args(self.arguments()).args(more);
        Registrar::spawn(command)
    }

    /// Waits until something has this name in the registry, and no temporary name beside it.
    pub async fn published_as(&self, driver: &str) -> PathBuf {
        let path = self.registration_socket(driver);
        until(&format!("{} to appear", path.display()), || {
            path.symlink_metadata().is_ok()
        })
        .await;
        path
    }

    pub async fn unpublished(&self, driver: &str) {
        let path = self.registration_socket(driver);
        until(&format!("{} to vanish", path.display()), || {
            path.symlink_metadata().is_err()
        })
        .await;
    }
}

/// The binary under test: `REGISTRAR_BIN`, or the one that cargo built with the tests.
pub fn registrar_binary() -> PathBuf {
    std::env::var_os("REGISTRAR_BIN").map_or_else(
        || env!("CARGO_BIN_EXE_csi-node-driver-registrar").into(),
        PathBuf::from,
    )
}

/// The binary with a clean environment and nobody to read from.
pub fn registrar_command() -> Command {
    let mut command = Command::new(registrar_binary());
    command.env_clear().env("TZ", "UTC").stdin(Stdio::null());
    command
}

/// Polls a condition that has no event of its own.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    within(DEADLINE, what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Runs something that must end in time.
pub async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    timeout(limit, future)
        .await
        .unwrap_or_else(|_| panic!("waited {limit:?} for {what}"))
}

/// A registrar's process. It is killed when the test ends, and its log is shown if the test failed.
pub struct Registrar {
    child: Child,
    log: Log,
}

/// What a process wrote to standard error so far.
#[derive(Clone)]
pub struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    grown: watch::Receiver<()>,
}

impl Registrar {
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = Log::of(child.stderr.take().unwrap());
        Self { child, log }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits for the end.
    pub async fn exit(&mut self) -> ExitStatus {
        self.exit_within(DEADLINE).await
    }

    pub async fn exit_within(&mut self, limit: Duration) -> ExitStatus {
        let child = &mut self.child;
        within(limit, "the registrar to end", async {
            loop {
                if let Some(status) = child.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await
    }

    /// Asks it to stop and checks that it does so with success.
    pub async fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.exit().await;
        assert_eq!(
            status.code(),
            Some(0),
            "{status:?}, signal {:?}",
            status.signal()
        );
    }

    /// What it uses of the machine.
    pub fn usage(&self) -> Usage {
        Usage::of(self.pid())
    }

    /// Its resident memory in KiB.
    pub fn resident(&self) -> u64 {
        self.usage().resident()
    }

    /// How many descriptors it has open.
    pub fn descriptors(&self) -> usize {
        self.usage().descriptors()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The address of its HTTP server, which must have been asked to choose a port (`--http-endpoint=127.0.0.1:0`). In
    /// either log format.
    pub async fn http_address(&self) -> SocketAddr {
        Self::listening(&self.log.line("HTTP server listening").await)
    }

    /// As [`http_address`](Self::http_address), of the one of several servers that serves this. Of a text log.
    pub async fn address_of(&self, serves: &str) -> SocketAddr {
        Self::listening(&self.log.line(&format!("serves=\"{serves}\"")).await)
    }

    fn listening(line: &str) -> SocketAddr {
        let (_, rest) = line.split_once("endpoint").unwrap();
        let address = rest.trim_start_matches(['"', '=', ':']).split('"').next();
        address.unwrap().parse().unwrap()
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the registrar's log\n{}", self.log.text());
        }
    }
}

impl Log {
    /// Reads `stream` to its end.
    pub fn of(stream: impl Read + Send + 'static) -> Self {
        let (sender, grown) = watch::channel(());
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let written = lines.clone();
        // Ends with the process: a thread, since the process must never wait for its reader.
        std::thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                written
                    .lock()
                    .unwrap()
                    .push(String::from_utf8_lossy(&line).into_owned());
                sender.send_replace(());
            }
        });
        Self { lines, grown }
    }

    pub fn text(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    pub fn count(&self, text: &str) -> usize {
        self.lines()
            .iter()
            .filter(|line| line.contains(text))
            .count()
    }

    /// The first line that contains `text`.
    pub async fn line(&self, text: &str) -> String {
        self.line_within(DEADLINE, text).await
    }

    pub async fn line_within(&self, limit: Duration, text: &str) -> String {
        let mut grown = self.grown.clone();
        let found = timeout(limit, async {
            loop {
                grown.mark_unchanged();
                if let Some(line) = self.lines().into_iter().find(|line| line.contains(text)) {
                    return Some(line);
                }
                if grown.changed().await.is_err() {
                    return self.lines().into_iter().find(|line| line.contains(text));
                }
            }
        })
        .await;
        match found {
            Ok(Some(line)) => line,
            _ => panic!(
                "no line with {text:?} within {limit:?} in the log:\n{}",
                self.text()
            ),
        }
    }

    /// Waits until the process has closed standard error, so that nothing is missing any more.
    pub async fn complete(&self) -> String {
        let mut grown = self.grown.clone();
        within(DEADLINE, "the log to end", async {
            while grown.changed().await.is_ok() {}
        })
        .await;
        self.text()
    }
}

/// A kubelet's connection to a registration socket, with its `:authority` (`dial` in
/// `pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go`).
#[derive(Clone)]
pub struct Kubelet {
    channel: Channel,
}

impl Kubelet {
    pub async fn dial(path: &Path) -> Self {
        within(DEADLINE, "the registration socket", Self::try_dial(path))
            .await
            .unwrap()
    }

    pub async fn try_dial(path: &Path) -> io::Result<Self> {
        let agent = HeaderValue::from_static("grpc-go/1.82.1");
        let channel = Channel::connect(path, Authority::PercentEncoded, agent).await?;
        Ok(Self { channel })
    }

    fn client(&self) -> RegistrationClient<Channel> {
        RegistrationClient::with_origin(self.channel.clone(), self.channel.origin())
    }

    /// `GetInfo`, within the kubelet's second.
    pub async fn get_info(&self) -> PluginInfo {
        timeout(Duration::from_secs(1), self.try_get_info())
            .await
            .expect("GetInfo took over a second")
            .unwrap()
    }

    pub async fn try_get_info(&self) -> Result<PluginInfo, tonic::Status> {
        let answer = self.client().get_info(InfoRequest {}).await?;
        Ok(answer.into_inner())
    }

    /// `NotifyRegistrationStatus`, within the kubelet's five seconds.
    pub async fn notify(&self, outcome: Result<(), &str>) {
        timeout(Duration::from_secs(5), self.try_notify(outcome))
            .await
            .expect("the notification took over 5 seconds")
            .unwrap();
    }

    pub async fn try_notify(&self, outcome: Result<(), &str>) -> Result<(), tonic::Status> {
        let status = RegistrationStatus {
            plugin_registered: outcome.is_ok(),
            error: outcome.err().unwrap_or_default().to_owned(),
        };
        self.client().notify_registration_status(status).await?;
        Ok(())
    }

    pub fn is_closed(&self) -> bool {
        self.channel.is_closed()
    }

    /// One whole registration.
    pub async fn register(path: &Path) -> Self {
        let kubelet = Self::dial(path).await;
        kubelet.get_info().await;
        kubelet.notify(Ok(())).await;
        kubelet
    }
}

/// A whole HTTP answer.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// `GET path`, on a connection of its own.
pub async fn get(address: SocketAddr, path: &str) -> HttpAnswer {
    try_get(address, path).await.unwrap()
}

/// The same of a server that may be gone.
pub async fn try_get(address: SocketAddr, path: &str) -> io::Result<HttpAnswer> {
    try_request(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
    )
    .await
}

/// Sends these octets and reads to the end.
pub async fn request(address: SocketAddr, octets: &str) -> HttpAnswer {
    try_request(address, octets).await.unwrap()
}

async fn try_request(address: SocketAddr, octets: &str) -> io::Result<HttpAnswer> {
    let mut answer = String::new();
    within(Duration::from_mins(1), "an HTTP answer", async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(octets.as_bytes()).await?;
        stream.read_to_string(&mut answer).await
    })
    .await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    Ok(HttpAnswer {
        status: head
            .split(' ')
            .nth(1)
            .unwrap_or_default()
            .parse()
            .unwrap_or_default(),
        head: head.to_owned(),
        body: body.to_owned(),
    })
}
