//! A gRPC client channel over one Unix socket: one HTTP/2 connection, dialled once, never re-made behind the caller's
//! back. Both sides of the protocol need to know which process they talk to, and tonic's own channel hides that.

use std::error::Error;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response, Uri, header};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tonic::body::Body;
use tower_service::Service;

use super::authority::{Authority, Dialled, Disguise};

/// Receive window of a stream and of the connection, in bytes: the messages here are a few hundred.
const WINDOW: u32 = 64 * 1024;

/// Largest header list that a peer may send, in bytes.
const MAX_HEADER_LIST: u32 = 16 * 1024;

/// One live HTTP/2 connection. Cheap to clone; the connection ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Channel {
    connection: http2::SendRequest<Body>,
    origin: Uri,
    user_agent: HeaderValue,
    /// Why the connection broke: a call in flight only hears that it was cancelled.
    broken: Arc<OnceLock<String>>,
}

impl Channel {
    /// Dials `path` and returns once the connection is accepted. `authority` is what a kubelet would send to that
    /// socket, provided that the requests have this channel's [`origin`](Self::origin); `user_agent` names the caller.
    pub async fn connect(
        path: &Path,
        authority: Authority,
        user_agent: HeaderValue,
    ) -> io::Result<Self> {
        Self::over(
            UnixStream::connect(path).await?,
            path,
            authority,
            user_agent,
        )
        .await
    }

    /// As [`connect`](Self::connect), over a stream to `path` that is connected already.
    pub async fn over<S>(
        stream: S,
        path: &Path,
        authority: Authority,
        user_agent: HeaderValue,
    ) -> io::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (origin, disguise) = match authority {
            Authority::Localhost => (Uri::from_static("http://localhost"), None),
            Authority::PercentEncoded | Authority::Raw => {
                let disguise = Disguise::new(authority.value(path)).ok_or_else(|| {
                    let path = path.display();
                    let error = format!("no :authority can be made of the socket path {path}");
                    io::Error::new(io::ErrorKind::InvalidInput, error)
                })?;
                let origin = [b"http://", disguise.placeholder()].concat();
                let origin = Uri::try_from(origin).map_err(io::Error::other)?;
                (origin, Some(disguise))
            }
        };
        Self::handshake(Dialled::new(stream, disguise), origin, user_agent).await
    }

    async fn handshake<S>(
        stream: Dialled<S>,
        origin: Uri,
        user_agent: HeaderValue,
    ) -> io::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (connection, driver) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_header_list_size(MAX_HEADER_LIST)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| io::Error::other(cause(&error)))?;
        let broken = Arc::<OnceLock<String>>::default();
        let breaks = broken.clone();
        // Ends by itself: with the peer, or when the last `Channel` is dropped.
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                let _ = breaks.set(cause(&error));
            }
        });
        Ok(Self {
            connection,
            origin,
            user_agent,
            broken,
        })
    }

    /// The origin that generated clients need (`with_origin`). Its authority is `localhost`, or the placeholder that
    /// becomes the socket's path on the wire.
    pub fn origin(&self) -> Uri {
        self.origin.clone()
    }

    /// Whether the peer is gone.
    pub fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = CallError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connection.poll_ready(cx).map_err(CallError::from)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        request
            .headers_mut()
            .insert(header::USER_AGENT, self.user_agent.clone());
        let answer = self.connection.send_request(request);
        let broken = self.broken.clone();
        Box::pin(async move {
            answer.await.map_err(|source| match broken.get().cloned() {
                Some(cause) => CallError { cause, source },
                None => CallError::from(source),
            })
        })
    }
}

/// Why a call got no answer.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct CallError {
    cause: String,
    source: hyper::Error,
}

impl From<hyper::Error> for CallError {
    fn from(source: hyper::Error) -> Self {
        let cause = cause(&source);
        Self { cause, source }
    }
}

/// hyper's own text says only in which part of it an error came up.
fn cause(error: &hyper::Error) -> String {
    let source = error.source();
    source.map_or_else(|| error.to_string(), ToString::to_string)
}
