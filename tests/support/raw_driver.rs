//! A CSI driver whose answers no gRPC library would send: bytes and trailers as the test wants them.

use std::path::Path;

use bytes::Bytes;
use http::{HeaderMap, Response};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// What every call is answered with.
#[derive(Clone)]
pub struct Answer {
    pub status: u16,
    pub body: Bytes,
    /// The trailer `grpc-status`; none if there are to be no trailers.
    pub grpc_status: Option<&'static str>,
}

impl Answer {
    /// A message in a whole gRPC frame, and success.
    pub fn message(message: &[u8]) -> Self {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        Self::bytes([&[0], &length[..], message].concat())
    }

    /// Any bytes, and success.
    pub fn bytes(body: impl Into<Bytes>) -> Self {
        Self {
            status: 200,
            body: body.into(),
            grpc_status: Some("0"),
        }
    }
}

/// A running server; it ends when this is dropped.
pub struct RawDriver(JoinHandle<()>);

impl RawDriver {
    /// Answers every call at `path` with `answer`.
    pub fn start(path: &Path, answer: Answer) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        Self(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, answer.clone()));
            }
        }))
    }
}

impl Drop for RawDriver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn serve(stream: tokio::net::UnixStream, answer: Answer) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        let response = Response::builder()
            .status(answer.status)
            .header("content-type", "application/grpc")
            .body(())
            .unwrap();
        let Ok(mut stream) = respond.send_response(response, false) else {
            continue;
        };
        let ends = answer.grpc_status.is_none();
        let _ = stream.send_data(answer.body.clone(), ends);
        if let Some(status) = answer.grpc_status {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", status.parse().unwrap());
            let _ = stream.send_trailers(trailers);
        }
    }
}
