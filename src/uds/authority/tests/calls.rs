//! Real calls over real sockets: the kubelet's `:authority` from our client to a server with the adapter.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::HeaderValue;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tonic::{Request, Response, Status};

use super::super::{Accepted, Authority};
use crate::proto::registration::registration_client::RegistrationClient;
use crate::proto::registration::registration_server::{Registration, RegistrationServer};
use crate::proto::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use crate::uds::channel::Channel;

const DEADLINE: Duration = Duration::from_secs(20);

/// Longest path of a socket, in octets (`unix(7)`, less the NUL).
const MAX_PATH: usize = 107;

struct Plugin;

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            name: "x".into(),
            ..PluginInfo::default()
        }))
    }

    async fn notify_registration_status(
        &self,
        _: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        Ok(Response::new(RegistrationStatusResponse::default()))
    }
}

/// A stream that keeps what was read from it.
struct Tapped {
    stream: UnixStream,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Tapped {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let start = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let mut heard = self.heard.lock().unwrap();
        heard.extend_from_slice(&buf.filled()[start..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tapped {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, octets)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Serves one connection on `path`, and returns what the client says on it.
fn serve(path: &Path, adapter: bool) -> Arc<Mutex<Vec<u8>>> {
    let listener = UnixListener::bind(path).unwrap();
    let heard = Arc::default();
    let tap = Arc::clone(&heard);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let stream = Tapped { stream, heard: tap };
        let server = http2::Builder::new(TokioExecutor::new());
        let service = TowerToHyperService::new(RegistrationServer::new(Plugin));
        // How the connection ends is the client's to see.
        if adapter {
            let stream = TokioIo::new(Accepted::new(stream));
            let _ = server.serve_connection(stream, service).await;
        } else {
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        }
    });
    heard
}

/// Calls that server so many times on one connection.
async fn call(path: &Path, authority: Authority, calls: usize) -> Result<(), Status> {
    let user_agent = HeaderValue::from_static("test");
    let channel = Channel::connect(path, authority, user_agent).await.unwrap();
    let mut client = RegistrationClient::with_origin(channel.clone(), channel.origin());
    for _ in 0..calls {
        let answer = tokio::time::timeout(DEADLINE, client.get_info(InfoRequest {}));
        let answer = answer.await.expect("no answer")?;
        assert_eq!(answer.into_inner().name, "x");
    }
    Ok(())
}

/// The `:authority` of every request in what a client said.
fn authorities(heard: &Mutex<Vec<u8>>) -> Vec<Vec<u8>> {
    super::super::heard(&heard.lock().unwrap())
}

#[tokio::test]
async fn every_authority_reaches_the_service() {
    let dir = tempfile::tempdir().unwrap();
    for (authority, name) in [
        (Authority::Localhost, "localhost.sock"),
        (Authority::PercentEncoded, "percent-encoded.sock"),
        (Authority::Raw, "raw.sock"),
    ] {
        let path = dir.path().join(name);
        let heard = serve(&path, true);
        call(&path, authority, 200).await.unwrap();
        assert_eq!(authorities(&heard), vec![authority.value(&path); 200]);
    }
}

/// The day that this fails, h2 has been mended, and the adapter can go.
#[tokio::test]
async fn a_server_without_the_adapter_refuses_a_socket_path() {
    let dir = tempfile::tempdir().unwrap();
    for (authority, name, refused) in [
        (Authority::Localhost, "localhost.sock", false),
        (Authority::PercentEncoded, "percent-encoded.sock", true),
        (Authority::Raw, "raw.sock", true),
    ] {
        let path = dir.path().join(name);
        let heard = serve(&path, false);
        let result = call(&path, authority, 1).await;
        assert_eq!(authorities(&heard), [authority.value(&path)]);
        assert_eq!(result.is_err(), refused, "{authority:?}");
        if let Err(status) = result {
            let error = format!("{status:?}");
            assert!(error.contains("PROTOCOL_ERROR"), "{error}");
        }
    }
}

#[tokio::test]
async fn no_socket_without_a_path() {
    let user_agent = HeaderValue::from_static("test");
    for authority in [
        Authority::Localhost,
        Authority::PercentEncoded,
        Authority::Raw,
    ] {
        let channel = Channel::connect(Path::new(""), authority, user_agent.clone());
        assert!(channel.await.is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// h2's own encoder and decoder, with any octets that the path of a socket may have.
    #[test]
    fn any_path_of_a_socket(
        name in vec(any::<u8>().prop_filter("", |octet| !b"\0/".contains(octet)), 1..MAX_PATH),
        raw: bool,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = socket_path(dir.path(), name);
        let authority = if raw { Authority::Raw } else { Authority::PercentEncoded };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let heard = serve(&path, true);
            call(&path, authority, 3).await.unwrap();
            assert_eq!(authorities(&heard), vec![authority.value(&path); 3]);
        });
    }
}

/// A path in `dir` with this name, or the beginning of it that a socket's path has room for.
fn socket_path(dir: &Path, mut name: Vec<u8>) -> PathBuf {
    name.insert(0, b's');
    name.truncate(MAX_PATH - 1 - dir.as_os_str().as_bytes().len());
    dir.join(OsString::from_vec(name))
}
