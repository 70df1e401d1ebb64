//! A binary that is measured, and how it is started.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use csi_node_driver_registrar::testing::csi_driver::{Behaviour, CsiDriver, Fault};
use csi_node_driver_registrar::uds::watch::Watcher;
use tokio::time::Instant;

use crate::support::http::{http_endpoint, listening, loopback_address};
use crate::support::{DEADLINE, DRIVER, Kubelet, Node, Registrar, within};

/// A binary and the words before its flags.
#[derive(Debug)]
pub struct Subject {
    binary: PathBuf,
    subcommand: Option<&'static str>,
}

impl Subject {
    pub fn registrar(binary: &Path) -> Self {
        Self::new(binary, None)
    }

    /// Our registrar in a liveness probe's place.
    pub fn our_livenessprobe(binary: &Path) -> Self {
        Self::new(binary, Some("livenessprobe"))
    }

    pub fn livenessprobe(binary: &Path) -> Self {
        Self::new(binary, None)
    }

    fn new(binary: &Path, subcommand: Option<&'static str>) -> Self {
        let binary = binary
            .canonicalize()
            .unwrap_or_else(|error| panic!("{}: {error}", binary.display()));
        Self { binary, subcommand }
    }

    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Starts it as a registrar of this node, with an HTTP server, and without waiting for anything.
    pub fn start(&self, node: &Node, more: &[String]) -> (Registrar, SocketAddr) {
        let http = loopback_address();
        let mut arguments = node.arguments();
        arguments.push(http_endpoint(http));
        arguments.extend_from_slice(more);
        (self.spawn(&arguments), http)
    }

    /// Starts it as a liveness probe of this node's driver, and waits until it answers.
    pub async fn start_probing(&self, node: &Node) -> (Registrar, SocketAddr) {
        let http = loopback_address();
        let csi_address = format!("--csi-address={}", node.csi_socket().display());
        let process = self.spawn(&[csi_address, http_endpoint(http)]);
        listening(http).await;
        (process, http)
    }

    fn spawn(&self, arguments: &[String]) -> Registrar {
        let mut command = Command::new(&self.binary);
        command.env_clear().env("TZ", "UTC").stdin(Stdio::null());
        command.args(self.subcommand).args(arguments);
        Registrar::spawn(command)
    }

    /// Has it registered by a kubelet, which then hangs up.
    pub async fn register(&self, node: &Node, more: &[String]) -> (Registrar, SocketAddr) {
        let mut publication = Publication::of(node);
        let (registrar, http) = self.start(node, more);
        publication.seen().await;
        let kubelet = publication.answered().await;
        kubelet.notify(Ok(())).await;
        listening(http).await;
        (registrar, http)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.binary.file_name().unwrap_or_default();
        write!(f, "{}", name.display())?;
        self.subcommand.map_or(Ok(()), |word| write!(f, " {word}"))
    }
}

/// A driver whose every answer takes so long.
pub fn driver(node: &Node, delay: Duration) -> CsiDriver {
    let mut behaviour = Behaviour::named(DRIVER);
    if !delay.is_zero() {
        behaviour.plugin_info = Fault::Slow(delay);
        behaviour.probe = Fault::Slow(delay);
    }
    node.driver_with(behaviour)
}

/// The registration socket, from before it is there.
#[derive(Debug)]
pub struct Publication {
    watcher: Watcher,
    socket: PathBuf,
}

impl Publication {
    pub fn of(node: &Node) -> Self {
        Self {
            watcher: Watcher::new([node.registry()]),
            socket: node.registration_socket(DRIVER),
        }
    }

    /// Waits until the socket has its name, and tells when that was seen.
    pub async fn seen(&mut self) -> Instant {
        let seen = async {
            while self.socket.symlink_metadata().is_err() {
                self.watcher.changed().await;
            }
            Instant::now()
        };
        within(DEADLINE, "the registration socket", seen).await
    }

    /// Waits until `GetInfo` is answered there: a name may be seen before anybody listens.
    pub async fn answered(&self) -> Kubelet {
        within(DEADLINE, "GetInfo", async {
            loop {
                if let Ok(kubelet) = Kubelet::try_dial(&self.socket).await
                    && kubelet.try_get_info().await.is_ok()
                {
                    return kubelet;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }
}
