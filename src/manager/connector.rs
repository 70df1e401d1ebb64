//! How the manager reaches sockets: a seam, so that tests run without a file system and on a virtual clock.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

use super::BoxFuture;
use super::go_text::OsError;
use super::server_preface::ServerPreface;
use crate::uds::authority::Authority;
use crate::uds::channel::Channel;

/// Longest time from a connected socket to the server's SETTINGS frame (grpc-go, `minConnectTimeout`).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// How the manager names itself to plugins and drivers.
const USER_AGENT: HeaderValue = HeaderValue::from_static(concat!(
    "kubelet-plugin-manager/",
    env!("CARGO_PKG_VERSION")
));

/// A connected byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connects to socket paths.
pub trait Connector: fmt::Debug + Send + Sync {
    /// One attempt to reach whoever listens at `path`.
    fn connect<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<Box<dyn Stream>>>;
}

/// Unix sockets of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnixConnector;

impl Connector for UnixConnector {
    fn connect<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream = UnixStream::connect(path).await?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}

/// No HTTP/2 connection came about, in grpc-go's words.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error(r#"connection error: desc = "transport: Error while dialing: dial unix {}: connect: {}""#, path.display(), OsError(source))]
    Dial { path: PathBuf, source: io::Error },
    #[error(r#"connection error: desc = "error reading server preface: EOF""#)]
    Closed,
    #[error(
        r#"connection error: desc = "initial http2 frame from server is not a settings frame""#
    )]
    NoSettings,
    #[error(r#"connection error: desc = "error reading server preface: no answer within {CONNECT_TIMEOUT:?}""#)]
    Silent,
}

/// One attempt for an HTTP/2 connection that grpc-go would call ready.
pub(super) async fn connect(
    connector: &dyn Connector,
    path: &Path,
    authority: Authority,
) -> Result<Channel, ConnectError> {
    let stream = connector
        .connect(path)
        .await
        .map_err(|source| ConnectError::Dial {
            path: path.to_owned(),
            source,
        })?;
    let (stream, settings) = ServerPreface::new(stream);
    let channel = Channel::over(stream, path, authority, USER_AGENT)
        .await
        .map_err(|_| ConnectError::Closed)?;
    match tokio::time::timeout(CONNECT_TIMEOUT, settings).await {
        Ok(Ok(true)) => Ok(channel),
        Ok(Ok(false)) => Err(ConnectError::NoSettings),
        Ok(Err(_)) => Err(ConnectError::Closed),
        Err(_) => Err(ConnectError::Silent),
    }
}
