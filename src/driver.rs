//! The CSI driver as its client sees it: where it listens, what it is called, whether it is ready.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use nix::errno::Errno;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::{Code, Request, Status};

use crate::klog::verbose;
use crate::proto::csi::identity_client::IdentityClient;
use crate::proto::csi::{GetPluginInfoRequest, ProbeRequest};
use crate::proto::{MAX_MESSAGE_SIZE, is_undecodable};
use crate::uds::authority::Authority;
use crate::uds::channel::Channel;
use crate::uds::socket_file::{FileId, MAX_SOCKET_PATH};

/// What the registrar calls itself towards a driver.
const USER_AGENT: HeaderValue = HeaderValue::from_static("csi-node-driver-registrar");

/// First and longest pause after a failed connect: no event announces `listen()`, so the first tries come fast.
const CONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));

/// First and longest pause after a transient answer of a driver that is there.
const CALL_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Pause between two questions whether the driver is ready.
const READY_INTERVAL: Duration = Duration::from_millis(500);

/// How long `ready = false` is waited for.
const READY_LIMIT: Duration = Duration::from_mins(1);

/// How often a wait says what it waits for.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The path of a driver's Unix socket. CSI is spoken over nothing else (CSI specification, "Identity Service RPC").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(PathBuf);

/// Why an address cannot be a CSI driver's.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AddressError {
    /// Another transport, or no absolute path.
    #[error("{0:?} is no Unix socket: CSI drivers are dialled at /path, unix:///path or unix:path")]
    NotUnix(String),
    /// No path at all.
    #[error("the address is empty: give the path of the CSI driver's socket")]
    Empty,
    /// It can never be dialled.
    #[error("socket path {0:?} is {1} bytes long, the limit is {MAX_SOCKET_PATH}")]
    TooLong(PathBuf, usize),
}

impl std::str::FromStr for Address {
    type Err = AddressError;

    /// Takes `/abs`, `unix:///abs`, `unix:/abs` and `unix:rel`, as grpc-go's resolver does.
    fn from_str(address: &str) -> Result<Self, AddressError> {
        let path = match address.strip_prefix("unix:") {
            Some(rest) => match rest.strip_prefix("//") {
                // An authority has no meaning for Unix sockets: only the empty one of unix:///path.
                Some(path) if !path.starts_with('/') => {
                    return Err(AddressError::NotUnix(address.to_owned()));
                }
                Some(path) => path,
                None => rest,
            },
            None if address.is_empty() => return Err(AddressError::Empty),
            None if address.starts_with('/') => address,
            None => return Err(AddressError::NotUnix(address.to_owned())),
        };
        if path.is_empty() {
            return Err(AddressError::Empty);
        }
        if path.len() > MAX_SOCKET_PATH {
            return Err(AddressError::TooLong(path.into(), path.len()));
        }
        Ok(Self(path.into()))
    }
}

impl Address {
    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The directory that the socket is in.
    pub fn directory(&self) -> &Path {
        match self.0.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    /// Which socket is there now, if any.
    pub fn socket(&self) -> Option<FileId> {
        fs::metadata(&self.0)
            .ok()
            .map(|metadata| FileId::from(&metadata))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// A driver's name that can be part of a file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverName(String);

/// Why a driver's name cannot be registered.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NameError {
    /// GetPluginInfo answered without a name.
    #[error("the CSI driver's name is empty: its GetPluginInfo must return one")]
    Empty,
    /// It would leave the directory, or break every log.
    #[error(
        "the CSI driver's name {0:?} contains {1:?}: it must be a DNS name such as driver.example.com"
    )]
    Forbidden(String, char),
    /// The kubelet ignores such files.
    #[error(
        "the CSI driver's name {0:?} starts with a dot, and the kubelet ignores dot files: it must be a DNS name such as driver.example.com"
    )]
    Hidden(String),
}

impl TryFrom<String> for DriverName {
    type Error = NameError;

    fn try_from(name: String) -> Result<Self, NameError> {
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if let Some(forbidden) = name.chars().find(|c| *c == '/' || c.is_control()) {
            return Err(NameError::Forbidden(name, forbidden));
        }
        if name.starts_with('.') {
            return Err(NameError::Hidden(name));
        }
        Ok(Self(name))
    }
}

impl DriverName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Why the API server would refuse this name in a CSINode, if it would (`ValidateCSIDriverName` in
    /// `pkg/apis/core/validation`: at most 63 bytes, and a DNS-1123 subdomain once it is in lower case).
    pub fn api_server_objection(&self) -> Option<&'static str> {
        let label = |label: &str| {
            let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            edge(label.chars().next())
                && edge(label.chars().next_back())
                && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        };
        if self.0.len() > 63 {
            Some("it is longer than 63 bytes")
        } else if !self.0.split('.').all(label) {
            Some("it is no DNS-1123 subdomain")
        } else {
            None
        }
    }
}

impl fmt::Display for DriverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a driver cannot be registered, however long one waits.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An answer that no repetition mends.
    #[error("the CSI driver at {address} answers {method} with {code:?}: {message}")]
    Refused {
        /// Where the driver listens.
        address: Address,
        /// The call.
        method: &'static str,
        /// Its gRPC code.
        code: Code,
        /// The driver's text.
        message: String,
    },
    /// Bytes that are no answer.
    #[error(
        "the CSI driver at {address} answers {method} with a message that cannot be decoded: {message}; does it speak CSI 1.x?"
    )]
    Undecodable {
        /// Where the driver listens.
        address: Address,
        /// The call.
        method: &'static str,
        /// What the decoder says.
        message: String,
    },
    /// A name that cannot be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Its directory was removed under a bind mount.
    #[error(
        "directory {0} of the CSI driver's socket was removed and cannot come back in this container: restart the pod"
    )]
    DirectoryGone(PathBuf),
    /// The limit that was set for the wait is over.
    #[error("the CSI driver at {address} did not tell its name within {limit:?}: {reason}")]
    TimedOut {
        /// Where the driver should listen.
        address: Address,
        /// `--driver-wait-timeout`.
        limit: Duration,
        /// The last failure.
        reason: String,
    },
}

/// A driver that told its name.
#[derive(Clone, Debug)]
pub struct Identified {
    /// Its name.
    pub name: DriverName,
    /// The socket that answered: another one there later is another process.
    pub socket: Option<FileId>,
}

/// How a driver is asked.
#[derive(Clone, Debug)]
pub struct Driver {
    /// Where it listens.
    pub address: Address,
    /// Deadline of connecting, and of each call.
    pub timeout: Duration,
    /// Whether a `Probe` that answers `ready = false` is waited for.
    pub wait_for_ready: bool,
}

/// Why one attempt brought no name.
enum Failure {
    Connect(io::Error),
    Call(&'static str, Status),
    Fatal(Error),
}

impl Driver {
    /// Waits for the driver and returns its name. Ends only with a name, with an error that waiting cannot mend, or after
    /// `limit`. Drop the future to stop waiting.
    ///
    /// `changes` carries a value whenever the driver's directory changed: a socket that appeared is tried at once, and an
    /// attempt under way on a socket that was replaced is given up for the new one.
    pub async fn identify(
        &self,
        limit: Option<Duration>,
        mut changes: watch::Receiver<()>,
    ) -> Result<Identified, Error> {
        let mut wait = Wait::new(self, limit);
        loop {
            changes.mark_unchanged();
            let socket = self.address.socket();
            let attempt = async {
                tokio::select! {
                    result = self.attempt() => Some(result),
                    () = self.replaced(socket, &mut changes) => None,
                }
            };
            let pause = match wait.during(attempt).await? {
                None => continue,
                Some(Ok((name, ready))) if ready || wait.has_waited_for_readiness() => {
                    return Ok(Identified { name, socket });
                }
                Some(Ok((name, _))) => wait.not_ready(&name),
                Some(Err(failure)) => wait.failed(failure)?,
            };
            let pausing = async {
                tokio::select! {
                    () = sleep(pause) => false,
                    Ok(()) = changes.changed() => true,
                }
            };
            if wait.during(pausing).await? {
                wait.be_quick();
            }
        }
    }

    /// Returns when another socket than `socket` is at the address.
    async fn replaced(&self, socket: Option<FileId>, changes: &mut watch::Receiver<()>) {
        while changes.changed().await.is_ok() {
            if self.address.socket() != socket {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    async fn attempt(&self) -> Result<(DriverName, bool), Failure> {
        verbose!(1, csiAddress = %self.address, "Connecting to the CSI driver");
        let dial = Channel::connect(self.address.path(), Authority::Localhost, USER_AGENT);
        let channel = timeout(self.timeout, dial)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(Failure::Connect)?;
        // Together on one connection, so that readiness costs no second round trip.
        let (name, ready) = tokio::join!(self.name(channel.clone()), self.ready(channel));
        Ok((name?, ready))
    }

    async fn name(&self, channel: Channel) -> Result<DriverName, Failure> {
        const METHOD: &str = "/csi.v1.Identity/GetPluginInfo";
        verbose!(5, method = METHOD, request = "{}", "GRPC call");
        let mut client = identity(channel);
        let request = self.request(GetPluginInfoRequest {});
        let answer = self.bounded(client.get_plugin_info(request)).await;
        let status = match answer {
            Ok(answer) => {
                let name = answer.into_inner().name;
                verbose!(5, method = METHOD, response = name, "GRPC response");
                return DriverName::try_from(name).map_err(|error| Failure::Fatal(error.into()));
            }
            Err(status) => status,
        };
        let address = self.address.clone();
        let message = status.message().to_owned();
        Err(if is_undecodable(&status) {
            Failure::Fatal(Error::Undecodable {
                address,
                method: METHOD,
                message,
            })
        } else if is_transient(status.code()) {
            Failure::Call(METHOD, status)
        } else {
            Failure::Fatal(Error::Refused {
                address,
                method: METHOD,
                code: status.code(),
                message,
            })
        })
    }

    /// `false` only if the driver says so: absent means ready (CSI specification, `ProbeResponse.ready`), and a driver
    /// that does not answer `Probe` was always registered.
    async fn ready(&self, channel: Channel) -> bool {
        if !self.wait_for_ready {
            return true;
        }
        let mut client = identity(channel);
        let request = self.request(ProbeRequest {});
        match self.bounded(client.probe(request)).await {
            Ok(answer) => answer.into_inner().ready.unwrap_or(true),
            Err(status) => {
                verbose!(4, err = %status, "Probe failed: the CSI driver counts as ready");
                true
            }
        }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }

    async fn bounded<T>(&self, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        timeout(self.timeout, call).await.unwrap_or_else(|_| {
            Err(Status::deadline_exceeded(format!(
                "no answer within {:?}",
                self.timeout
            )))
        })
    }
}

fn identity(channel: Channel) -> IdentityClient<Channel> {
    let origin = channel.origin();
    IdentityClient::with_origin(channel, origin).max_decoding_message_size(MAX_MESSAGE_SIZE)
}

/// Codes that a driver gives while it starts or is loaded. All others are an answer.
fn is_transient(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Unknown
            | Code::Internal
            | Code::Aborted
            | Code::ResourceExhausted
            | Code::Cancelled
    )
}

/// What one wait remembers: how long it lasts, why, and how patient it has become.
struct Wait<'a> {
    driver: &'a Driver,
    limit: Option<Duration>,
    since: Instant,
    next_report: Instant,
    not_ready_since: Option<Instant>,
    reason: String,
    connect_pause: Duration,
    call_pause: Duration,
}

impl<'a> Wait<'a> {
    fn new(driver: &'a Driver, limit: Option<Duration>) -> Self {
        let now = Instant::now();
        Self {
            driver,
            limit,
            since: now,
            next_report: now + REPORT_INTERVAL,
            not_ready_since: None,
            reason: "no answer yet".to_owned(),
            connect_pause: CONNECT_PAUSE.0,
            call_pause: CALL_PAUSE.0,
        }
    }

    /// Runs a part of the wait, reports every [`REPORT_INTERVAL`] meanwhile, and ends it at the limit.
    async fn during<T>(&mut self, part: impl Future<Output = T>) -> Result<T, Error> {
        let mut part = std::pin::pin!(part);
        let end = self.limit.map(|limit| self.since + limit);
        loop {
            let next = end.map_or(self.next_report, |end| end.min(self.next_report));
            match timeout_at(next, part.as_mut()).await {
                Ok(result) => return Ok(result),
                Err(_) if end.is_some_and(|end| end <= Instant::now()) => {
                    return Err(Error::TimedOut {
                        address: self.driver.address.clone(),
                        limit: self.limit.unwrap_or_default(),
                        reason: self.reason.clone(),
                    });
                }
                Err(_) => self.report(),
            }
        }
    }

    fn report(&mut self) {
        self.next_report += REPORT_INTERVAL;
        tracing::warn!(
            csiAddress = %self.driver.address,
            waited = self.since.elapsed().as_secs(),
            err = self.reason,
            "Still waiting for the CSI driver"
        );
    }

    /// Takes note of a failure, and says how long to pause.
    fn failed(&mut self, failure: Failure) -> Result<Duration, Error> {
        let address = &self.driver.address;
        match failure {
            Failure::Fatal(error) => Err(error),
            Failure::Connect(error) => {
                if error.kind() == io::ErrorKind::NotFound && is_removed(address.directory()) {
                    return Err(Error::DirectoryGone(address.directory().to_owned()));
                }
                let hint = hint(&error, address.path());
                self.reason = format!("cannot connect to {address}: {error}{hint}");
                verbose!(1, err = self.reason, "Connection attempt failed");
                Ok(grow(&mut self.connect_pause, CONNECT_PAUSE))
            }
            Failure::Call(method, status) => {
                self.reason = format!(
                    "{method} at {address} failed with {:?}: {}",
                    status.code(),
                    status.message()
                );
                verbose!(1, err = self.reason, "Call failed");
                Ok(grow(&mut self.call_pause, CALL_PAUSE))
            }
        }
    }

    /// Something changed: the driver may be about to listen.
    fn be_quick(&mut self) {
        self.connect_pause = CONNECT_PAUSE.0;
        self.call_pause = CALL_PAUSE.0;
    }

    fn not_ready(&mut self, name: &DriverName) -> Duration {
        self.reason = format!(
            "CSI driver {name} at {} answers Probe with ready = false",
            self.driver.address
        );
        if self.not_ready_since.is_none() {
            self.not_ready_since = Some(Instant::now());
            tracing::info!(csiDriverName = %name, limit = READY_LIMIT.as_secs(), "The CSI driver is not ready yet, waiting for it");
        }
        READY_INTERVAL
    }

    fn has_waited_for_readiness(&self) -> bool {
        let over = self
            .not_ready_since
            .is_some_and(|since| since.elapsed() >= READY_LIMIT);
        if over {
            tracing::warn!(csiAddress = %self.driver.address, limit = READY_LIMIT.as_secs(), "The CSI driver is still not ready, registering it anyway");
        }
        over
    }
}

/// The pause to make now; the next one is twice as long, up to the longest.
fn grow(pause: &mut Duration, (_, longest): (Duration, Duration)) -> Duration {
    let now = *pause;
    *pause = (now * 2).min(longest);
    now
}

/// Whether a directory is gone for good as seen from here: a bind mount keeps a removed directory at the path, empty and
/// without a link, and nothing can be made in it any more.
pub fn is_removed(directory: &Path) -> bool {
    fs::metadata(directory).is_ok_and(|metadata| metadata.nlink() == 0)
}

fn hint(error: &io::Error, path: &Path) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EACCES | Errno::EPERM) => {
            "; usually SELinux (run the container privileged) or a user other than root"
        }
        Some(Errno::ENOENT) => {
            "; has the driver started, and is its socket's directory mounted here?"
        }
        // A file that is no socket refuses connections too.
        Some(Errno::ECONNREFUSED)
            if fs::metadata(path).is_ok_and(|found| !found.file_type().is_socket()) =>
        {
            "; what is there is no socket: remove it, then the CSI driver can listen there"
        }
        Some(Errno::ECONNREFUSED) => "; the socket is there, but nobody listens on it",
        _ => "",
    }
}
