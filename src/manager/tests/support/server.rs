//! HTTP/2 servers that note what they are sent, and scripted answers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};
use tower_service::Service;

use crate::manager::lock;
use crate::uds::authority::Accepted;

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
pub(super) fn serve<I, S>(stream: I, service: S, log: Arc<HttpLog>, kill: CancellationToken)
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

    pub(super) async fn give<T>(self, value: T) -> Result<Response<T>, Status> {
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
pub(super) struct Script {
    pub(super) next: VecDeque<Answer>,
    pub(super) last: Answer,
}

impl Default for Script {
    fn default() -> Self {
        let next = VecDeque::new();
        let last = Answer::Good;
        Self { next, last }
    }
}

impl Script {
    pub(super) fn pop(&mut self) -> Answer {
        self.next.pop_front().unwrap_or_else(|| self.last.clone())
    }
}
