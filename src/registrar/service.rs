//! The kubelet's `Registration` service over one published socket. Translation only: what a call means is decided by
//! [`Status`](super::status::Status).

use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, async_trait};
use tower_service::Service;

use super::status::{PublicationId, Status as RegistrarStatus};
use crate::connections::{self, Session};
use crate::in_flight::InFlight;
use crate::klog::verbose;
use crate::limits::registration::{
    DRAIN, MAX_CONNECTIONS, MAX_ERROR_RESETS, MAX_HEADER_LIST, MAX_MESSAGE_SIZE,
    MAX_PENDING_RESETS, MAX_SEND_BUFFER, MAX_STREAMS, SMALL_MESSAGE, WINDOW,
};
use crate::proto::CSI_PLUGIN;
use crate::proto::registration::registration_client::RegistrationClient;
use crate::proto::registration::registration_server::{Registration, RegistrationServer};
use crate::proto::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use crate::uds::authority::{Accepted, Authority};
use crate::uds::channel::Channel;
use crate::uds::paced::Paced;

/// Versions of the CSI specification that a driver behind this registrar speaks. The original says 1.0.0 for every
/// driver, and the kubelet refuses a second registration of a name unless its version is higher.
const SUPPORTED_VERSIONS: [&str; 1] = ["1.0.0"];

/// What precedes a message: whether it is compressed, and its length (`Length-Prefixed-Message` of gRPC over HTTP/2).
const MESSAGE_HEAD: usize = 5;

/// The user agent of our own questions (health checks, a stand-by's): they are answered, but say nothing about a kubelet.
pub const OWN_USER_AGENT: HeaderValue = HeaderValue::from_static("csi-node-driver-registrar-check");

/// Response metadata of `GetInfo` that tells our own questions where the registration stands ([`Phase::name`]).
///
/// [`Phase::name`]: super::status::Phase::name
const STATUS_METADATA: &str = "csi-registrar-status";

/// What a kubelet called.
#[derive(Debug)]
pub enum Call {
    /// `GetInfo`, for the first time through this publication.
    Asked(PublicationId),
    /// `NotifyRegistrationStatus`; its error where the kubelet refused.
    Notified(PublicationId, Result<(), String>),
}

/// What the kubelet is told, and whom its calls are reported to.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// The driver's name.
    pub name: String,
    /// The path of the driver's socket on the host.
    pub endpoint: String,
    /// The publication that the calls come through.
    pub publication: PublicationId,
    /// Where calls are reported.
    pub calls: mpsc::Sender<Call>,
    /// Where the registration stands, for our own questions.
    pub status: watch::Receiver<RegistrarStatus>,
    /// What bounds the calls with large messages.
    pub large_calls: InFlight,
}

#[derive(Debug)]
struct RegistrationService {
    plugin: Plugin,
    asked: AtomicBool,
}

#[async_trait]
impl Registration for RegistrationService {
    async fn get_info(
        &self,
        request: Request<InfoRequest>,
    ) -> Result<Response<PluginInfo>, Status> {
        verbose!(4, request = "{}", "Received GetInfo call");
        let is_own = request
            .metadata()
            .get("user-agent")
            .is_some_and(|agent| agent.as_bytes() == OWN_USER_AGENT.as_bytes());
        if !is_own && !self.asked.swap(true, Ordering::Relaxed) {
            self.report(Call::Asked(self.plugin.publication)).await;
        }
        let mut response = Response::new(PluginInfo {
            r#type: CSI_PLUGIN.to_owned(),
            name: self.plugin.name.clone(),
            endpoint: self.plugin.endpoint.clone(),
            supported_versions: SUPPORTED_VERSIONS.map(str::to_owned).to_vec(),
        });
        if is_own {
            let status = self.plugin.status.borrow().phase().name();
            response
                .metadata_mut()
                .insert(STATUS_METADATA, MetadataValue::from_static(status));
        }
        Ok(response)
    }

    /// Never an error: since 1.36 the kubelet then deregisters the driver and starts over with growing delays.
    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        tracing::info!(
            status = if status.plugin_registered {
                "registered"
            } else {
                "refused"
            },
            err = (!status.error.is_empty()).then_some(&status.error),
            "Received NotifyRegistrationStatus call"
        );
        let outcome = if status.plugin_registered {
            Ok(())
        } else {
            Err(status.error)
        };
        self.report(Call::Notified(self.plugin.publication, outcome))
            .await;
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

impl RegistrationService {
    async fn report(&self, call: Call) {
        // Nobody listens any more when the process ends; the kubelet gets its answer all the same.
        let _ = self.plugin.calls.send(call).await;
    }
}

/// Serves a published socket until `stop`, then gives calls in flight [`DRAIN`].
pub async fn serve(
    listener: StdListener,
    plugin: Plugin,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let large_calls = plugin.large_calls.clone();
    let service = RegistrationServer::new(RegistrationService {
        plugin,
        asked: AtomicBool::new(false),
    })
    .max_decoding_message_size(MAX_MESSAGE_SIZE);
    connections::serve(listener, MAX_CONNECTIONS, stop, DRAIN, |stream, session| {
        serve_connection(stream, session, service.clone(), large_calls.clone())
    })
    .await;
    Ok(())
}

async fn serve_connection(
    stream: UnixStream,
    mut session: Session,
    service: RegistrationServer<RegistrationService>,
    large_calls: InFlight,
) {
    let finished = session.clone();
    let service = service_fn(move |request: http::Request<Incoming>| {
        let mut service = service.clone();
        let finished = finished.clone();
        let large_calls = large_calls.clone();
        async move {
            verbose!(5, method = request.uri().path(), "GRPC call");
            let (head, body) = request.into_parts();
            let message = whole(body, &large_calls).await;
            let response = match message {
                Ok(message) => {
                    let request = http::Request::from_parts(head, Full::new(message));
                    service.call(request).await
                }
                Err(status) => return Ok(status.into_http()),
            };
            finished.completed_a_request();
            response
        }
    });
    let mut connection = std::pin::pin!(
        http2::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(MAX_STREAMS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_header_list_size(MAX_HEADER_LIST)
            .max_send_buf_size(MAX_SEND_BUFFER)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_ERROR_RESETS)
            .serve_connection(TokioIo::new(Accepted::new(Paced::new(stream))), service)
    );
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = session.stopped() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        let error: &(dyn std::error::Error + 'static) = &error;
        let cause = error.source().unwrap_or(error);
        if !is_hang_up(cause) {
            verbose!(4, err = %cause, "A connection to the registration socket broke");
        }
    }
}

/// A client that says goodbye does not wait for our answer to it.
fn is_hang_up(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|error| {
        matches!(
            error.kind(),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
        )
    })
}

/// All of a call's message. Not left to tonic, which reserves memory for what a message says that it will be.
async fn whole(mut body: Incoming, large_calls: &InFlight) -> Result<Bytes, Status> {
    let mut message = BytesMut::new();
    if !read(&mut body, &mut message, SMALL_MESSAGE).await? {
        let rest = large_calls.run(read(
            &mut body,
            &mut message,
            MESSAGE_HEAD + MAX_MESSAGE_SIZE,
        ));
        let rest = rest.await.unwrap_or_else(|| {
            Err(Status::resource_exhausted(
                "too many calls with large messages",
            ))
        });
        if !rest? {
            return Err(Status::out_of_range(format!(
                "the message is longer than {MAX_MESSAGE_SIZE} bytes"
            )));
        }
    }
    Ok(message.freeze())
}

/// Reads on until the end, or until there are more than `limit` bytes; whether it was the end.
async fn read(body: &mut Incoming, message: &mut BytesMut, limit: usize) -> Result<bool, Status> {
    while message.len() <= limit {
        let Some(frame) = body.frame().await else {
            return Ok(true);
        };
        let frame = frame.map_err(|error| Status::from_error(Box::new(error)))?;
        // Copied, since what was read keeps the whole buffer alive that it was read into. Trailers mean nothing here.
        if let Ok(data) = frame.into_data() {
            message.extend_from_slice(&data);
        }
    }
    Ok(false)
}

/// Asks a registration socket who it is, as our own check: the answer counts for no kubelet. `limit` bounds connecting and
/// the call together.
pub async fn ask(path: &Path, limit: Duration) -> Result<Answer, AskError> {
    let asking = async {
        let channel = Channel::connect(path, Authority::Localhost, OWN_USER_AGENT).await?;
        let origin = channel.origin();
        let mut client = RegistrationClient::with_origin(channel, origin)
            .max_decoding_message_size(MAX_MESSAGE_SIZE);
        let answer = client.get_info(InfoRequest {}).await.map_err(Box::new)?;
        let status = answer.metadata().get(STATUS_METADATA);
        let status = status
            .and_then(|status| status.to_str().ok())
            .map(str::to_owned);
        let PluginInfo { name, endpoint, .. } = answer.into_inner();
        Ok(Answer {
            name,
            endpoint,
            status,
        })
    };
    timeout(limit, asking)
        .await
        .unwrap_or(Err(AskError::TimedOut(limit)))
}

/// Who a registration socket says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The driver's name.
    pub name: String,
    /// The path of the driver's socket on the host.
    pub endpoint: String,
    /// Where the registration stands, if a registrar of ours answered.
    pub status: Option<String>,
}

/// Why a registration socket did not say who it is.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody accepts connections.
    #[error("cannot connect: {0}")]
    Connect(#[from] io::Error),
    /// It answers something else.
    #[error("GetInfo failed with {:?}: {}", .0.code(), .0.message())]
    Call(#[from] Box<Status>),
    /// It takes too long.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}
