//! One connection to a CSI driver, and the Identity calls over it. Each has a deadline, and is counted.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use nix::errno::Errno;
use tokio::time::{Instant, timeout};
use tonic::{Code, Request, Response, Status};

use super::Address;
use crate::klog::verbose;
use crate::metrics::Metrics;
use crate::proto::csi::identity_client::IdentityClient;
use crate::proto::csi::{GetPluginInfoRequest, ProbeRequest};
use crate::proto::{MAX_MESSAGE_SIZE, is_undecodable};
use crate::uds::authority::Authority;
use crate::uds::channel::Channel;

/// What a sidecar calls itself towards a driver.
const USER_AGENT: HeaderValue = HeaderValue::from_static("csi-node-driver-registrar");

const GET_PLUGIN_INFO: &str = "/csi.v1.Identity/GetPluginInfo";
const PROBE: &str = "/csi.v1.Identity/Probe";

/// One connection to a driver. Cheap to clone; clones share the connection.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    identity: IdentityClient<Channel>,
    metrics: Metrics,
}

/// No connection came about.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {}: {source}{}", .path.display(), hint(.source, .path))]
pub(crate) struct ConnectError {
    pub(super) path: PathBuf,
    pub(super) source: io::Error,
}

impl ConnectError {
    /// Whether there is nothing at the path.
    pub(crate) fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    /// Whether somebody listens there, and has not accepted so many connections that the system takes no more for him.
    pub(crate) fn is_busy(&self) -> bool {
        self.source.kind() == io::ErrorKind::WouldBlock
    }
}

/// A call that brought no answer, or one that is an error.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{method} failed with {:?}: {}", .status.code(), .status.message())]
pub(crate) struct CallError {
    /// The full method.
    pub method: &'static str,
    /// What came back, or what went wrong here.
    pub status: Box<Status>,
}

impl CallError {
    /// Its gRPC code.
    pub(crate) fn code(&self) -> Code {
        self.status.code()
    }

    /// The driver's text.
    pub(crate) fn message(&self) -> &str {
        self.status.message()
    }

    /// Whether bytes came that are no answer.
    pub(crate) fn is_undecodable(&self) -> bool {
        is_undecodable(&self.status)
    }

    /// Whether a driver gives such an answer while it starts or is loaded. All others are an answer.
    pub(crate) fn is_transient(&self) -> bool {
        !self.is_undecodable()
            && matches!(
                self.code(),
                Code::Unavailable
                    | Code::DeadlineExceeded
                    | Code::Unknown
                    | Code::Internal
                    | Code::Aborted
                    | Code::ResourceExhausted
                    | Code::Cancelled
            )
    }
}

impl Client {
    /// Connects within `limit`. Calls are counted in `metrics`.
    pub(crate) async fn connect(
        address: &Address,
        limit: Duration,
        metrics: Metrics,
    ) -> Result<Self, ConnectError> {
        let path = address.path();
        let channel = timeout(
            limit,
            Channel::connect(path, Authority::Localhost, USER_AGENT),
        )
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(|source| ConnectError {
            path: path.to_owned(),
            source,
        })?;
        let origin = channel.origin();
        let identity = IdentityClient::with_origin(channel, origin);
        Ok(Self {
            identity: identity.max_decoding_message_size(MAX_MESSAGE_SIZE),
            metrics,
        })
    }

    /// `GetPluginInfo`: the driver's name as it gives it, unchecked. It becomes the label of all calls counted from now on.
    pub(crate) async fn plugin_name(&self, limit: Duration) -> Result<String, CallError> {
        let mut identity = self.identity.clone();
        let request = request(GetPluginInfoRequest {}, limit);
        let metrics = self.metrics.clone();
        let call = async {
            let answer = identity.get_plugin_info(request).await;
            if let Ok(answer) = &answer {
                metrics.set_driver_name(&answer.get_ref().name);
            }
            answer
        };
        let answer = self.call(GET_PLUGIN_INFO, limit, call).await?;
        verbose!(
            5,
            method = GET_PLUGIN_INFO,
            response = answer.name,
            "GRPC response"
        );
        Ok(answer.name)
    }

    /// `Probe`: whether the driver is ready. Absent means that it is (CSI specification, `ProbeResponse.ready`).
    pub(crate) async fn probe(&self, limit: Duration) -> Result<bool, CallError> {
        let mut identity = self.identity.clone();
        let request = request(ProbeRequest {}, limit);
        let answer = self.call(PROBE, limit, identity.probe(request)).await?;
        let ready = answer.ready.unwrap_or(true);
        verbose!(5, method = PROBE, response = ready, "GRPC response");
        Ok(ready)
    }

    async fn call<T>(
        &self,
        method: &'static str,
        limit: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CallError> {
        verbose!(5, method, request = "{}", "GRPC call");
        let begin = Instant::now();
        let answer = timeout(limit, call).await.unwrap_or_else(|_| {
            Err(Status::deadline_exceeded(format!(
                "no answer within {limit:?}"
            )))
        });
        let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        self.metrics.called(method, code, begin.elapsed());
        answer
            .map(Response::into_inner)
            .map_err(|status| CallError {
                method,
                status: Box::new(status),
            })
    }
}

/// A request that tells the driver its deadline too.
fn request<T>(message: T, limit: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
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
        Some(Errno::EAGAIN) => "; the CSI driver does not accept the connections that wait for it",
        Some(Errno::ECONNREFUSED) => "; the socket is there, but nobody listens on it",
        _ => "",
    }
}
