//! A small bounded HTTP/1.1 server for probes and diagnostics: where it listens, what it refuses, when it hangs up. The rooms
//! that use it bring their own paths.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::errno::Errno;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

/// What an implementation of [`Handler`] is marked with.
pub use tonic::async_trait;

use crate::connections::{self, Listener, Session};
use crate::limits::http::{DRAIN, HEAD_TIMEOUT, MAX_AGE, MAX_CONNECTIONS, MAX_HEAD, MAX_HEADERS};

/// Where to listen, in the form of Go's `net.Listen("tcp", ...)`: `:PORT`, `HOST:PORT`, `[IPV6]:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
}

/// Why an endpoint cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// It cannot be read.
    #[error("{0:?} is no address to listen on: write :PORT, HOST:PORT or [IPV6]:PORT")]
    Syntax(String),
    /// Its host name stands for nothing.
    #[error("cannot look up the host of {endpoint}: {source}")]
    Lookup {
        /// The endpoint.
        endpoint: Endpoint,
        /// The resolver's answer.
        source: io::Error,
    },
    /// The system refuses.
    #[error("cannot listen on {endpoint}: {source}{}", hint(.source))]
    Bind {
        /// The endpoint.
        endpoint: Endpoint,
        /// The system's answer.
        source: io::Error,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another process on this host holds the port, with hostNetwork often another driver's sidecar: choose another"
        }
        io::ErrorKind::AddrNotAvailable => "; this host does not have that address",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need root or CAP_NET_BIND_SERVICE",
        _ => "",
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl std::str::FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let syntax = || EndpointError::Syntax(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(syntax)?;
        let port = port.parse().map_err(|_| syntax())?;
        let host = match host.strip_prefix('[') {
            Some(bracketed) => bracketed.strip_suffix(']').ok_or_else(syntax)?,
            None if host.contains(':') => return Err(syntax()),
            None => host,
        };
        if host.contains(['[', ']']) {
            return Err(syntax());
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

impl Endpoint {
    /// Every address, as the deprecated port flags mean it.
    pub fn any(port: u16) -> Self {
        Self {
            host: String::new(),
            port,
        }
    }

    /// Binds every address that the endpoint stands for. A wildcard is IPv4 and IPv6, as Go has it, and so is `localhost`;
    /// a family that this host does not have is left out. Other names go through the C library, which blocks.
    pub fn bind(&self) -> Result<Listeners, EndpointError> {
        let mut listeners = Vec::<StdListener>::new();
        let mut refusal = None;
        for ip in self.addresses()? {
            let port = match listeners.first().map(StdListener::local_addr) {
                // Port 0: all families on the port that the first one was given.
                Some(Ok(bound)) => bound.port(),
                _ => self.port,
            };
            match StdListener::bind(SocketAddr::new(ip, port)) {
                Ok(listener) => listeners.push(listener),
                // The IPv6 wildcard takes IPv4 along where the system is set so, which is the usual case.
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && ip.is_unspecified()
                        && !listeners.is_empty() => {}
                Err(error) if is_missing_family(&error) => refusal = refusal.or(Some(error)),
                Err(source) => {
                    let endpoint = self.clone();
                    return Err(EndpointError::Bind { endpoint, source });
                }
            }
        }
        match refusal {
            Some(source) if listeners.is_empty() => Err(EndpointError::Bind {
                endpoint: self.clone(),
                source,
            }),
            _ => Ok(Listeners(listeners)),
        }
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "the one look-up, before anything waits"
    )]
    fn addresses(&self) -> Result<Vec<IpAddr>, EndpointError> {
        let any = [
            IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        ];
        let loopback = [
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ];
        match self.host.as_str() {
            "" | "0.0.0.0" | "::" => Ok(any.to_vec()),
            "localhost" => Ok(loopback.to_vec()),
            host => (host, self.port)
                .to_socket_addrs()
                .map(|addresses| addresses.map(|address| address.ip()).take(1).collect())
                .map_err(|source| EndpointError::Lookup {
                    endpoint: self.clone(),
                    source,
                }),
        }
    }
}

/// A host without IPv6 either does not know the family, or has no such address.
fn is_missing_family(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL)
    )
}

/// Bound, not yet served: whoever binds knows that the port is his before anything else happens.
#[derive(Debug)]
pub struct Listeners(Vec<StdListener>);

impl Listeners {
    /// The addresses, with the port that was given where 0 was asked for.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0
            .iter()
            .filter_map(|listener| listener.local_addr().ok())
            .collect()
    }

    /// Answers requests until `stop`. Needs a tokio runtime.
    pub async fn serve(
        self,
        handler: Arc<dyn Handler>,
        stop: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let listeners = self
            .0
            .into_iter()
            .map(|listener| {
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener)
            })
            .collect::<io::Result<Vec<_>>>()?;
        serve(listeners, handler, stop).await;
        Ok(())
    }
}

/// Answers the requests on a listener's connections until `stop`.
pub async fn serve<L>(listener: L, handler: Arc<dyn Handler>, stop: impl Future<Output = ()>)
where
    L: Listener,
    L::Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    connections::serve(listener, MAX_CONNECTIONS, stop, DRAIN, |stream, session| {
        serve_connection(stream, session, handler.clone())
    })
    .await;
}

/// What a server answers with. An object, so that the server is in the binary once and not once for each room.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Answers a request; its body is not read. The answer must come within a bound of the handler's own.
    async fn handle(&self, request: Question) -> Answer;
}

/// The part of a request that matters here.
#[derive(Clone, Debug)]
pub struct Question {
    /// For a handler that minds.
    pub method: Method,
    /// Without the query.
    pub path: String,
    /// What follows the question mark; empty without one.
    pub query: String,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its media type.
    pub content_type: &'static str,
    /// Its body.
    pub body: Bytes,
}

impl Answer {
    /// Plain text.
    pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: body.into(),
        }
    }

    /// 404, for every path that nobody serves.
    pub fn not_found() -> Self {
        Self::text(StatusCode::NOT_FOUND, "404 page not found\n")
    }

    fn into_response(self) -> http::Response<Full<Bytes>> {
        let mut response = http::Response::new(Full::new(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(self.content_type),
        );
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
        response
    }
}

async fn serve_connection<S>(stream: S, mut session: Session, handler: Arc<dyn Handler>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let finished = session.clone();
    let service = service_fn(move |request: http::Request<Incoming>| {
        let handler = handler.clone();
        let finished = finished.clone();
        async move {
            let question = Question {
                method: request.method().clone(),
                path: request.uri().path().to_owned(),
                query: request.uri().query().unwrap_or_default().to_owned(),
            };
            // A client that sends many requests at once waits its turn after each.
            tokio::task::yield_now().await;
            // It holds on to the connection's buffer, and hyper would take another one to hear of a client that goes away.
            drop(request);
            let answer = handler.handle(question).await;
            finished.completed_a_request();
            Ok::<_, Infallible>(answer.into_response())
        }
    });
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            // Whoever closes its sending side behind a request (`... | nc`) is answered all the same, as by Go's server.
            .half_close(true)
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_HEADERS)
            .serve_connection(TokioIo::new(stream), service)
    );
    // A client that breaks off, or sends no HTTP, got its 400 from hyper; there is nobody to tell more.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = session.stopped() => {}
        // hyper waits for ever for a client that does not read, and, after what is no HTTP, even for one that has gone.
        () = sleep(MAX_AGE) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(MAX_AGE, connection).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    #[test]
    fn reads_what_go_reads() {
        for (text, host, port) in [
            (":9809", "", 9809),
            ("0.0.0.0:80", "0.0.0.0", 80),
            ("localhost:0", "localhost", 0),
            ("[::1]:65535", "::1", 65535),
            ("[::]:1", "::", 1),
            ("node.example.com:9809", "node.example.com", 9809),
        ] {
            let read = endpoint(text);
            assert_eq!((read.host.as_str(), read.port), (host, port), "{text}");
            assert_eq!(read.to_string(), text);
        }
        for text in [
            "",
            "9809",
            "localhost",
            "::1:80",
            "[::1:80",
            "[::1]80",
            "[[::1]:80",
            "a]:80",
            ":65536",
            ":-1",
            ":http",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_wildcard_answers_on_both_families() {
        for text in [":0", "0.0.0.0:0", "[::]:0"] {
            let listeners = endpoint(text).bind().unwrap();
            let port = listeners.addresses()[0].port();
            for ip in ["127.0.0.1", "::1"] {
                let address = SocketAddr::new(ip.parse().unwrap(), port);
                std::net::TcpStream::connect(address)
                    .unwrap_or_else(|error| panic!("{text} at {address}: {error}"));
            }
        }
    }

    #[test]
    fn localhost_is_both_loopback_addresses_on_one_port_and_nothing_else() {
        let listeners = endpoint("localhost:0").bind().unwrap();
        let addresses = listeners.addresses();
        assert!(
            addresses.iter().all(|address| address.ip().is_loopback()),
            "{addresses:?}"
        );
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        assert_eq!(addresses[0].port(), addresses[1].port());
    }

    #[test]
    fn a_busy_port_is_an_error_that_names_it() {
        let first = endpoint("127.0.0.1:0").bind().unwrap();
        let port = first.addresses()[0].port();
        for host in ["127.0.0.1", "localhost", ""] {
            let error = endpoint(&format!("{host}:{port}")).bind().unwrap_err();
            assert!(
                error.to_string().contains(&format!("{host}:{port}")),
                "{error}"
            );
        }
    }

    #[test]
    fn an_unknown_host_is_an_error() {
        let error = endpoint("no-such-host.invalid:0").bind().unwrap_err();
        assert!(matches!(error, EndpointError::Lookup { .. }), "{error}");
    }

    /// Says `pong` to everybody.
    struct Pong;

    #[async_trait]
    impl Handler for Pong {
        async fn handle(&self, _: Question) -> Answer {
            Answer::text(StatusCode::OK, "pong")
        }
    }

    /// Accepts one connection.
    struct Once(std::cell::RefCell<Option<tokio::io::DuplexStream>>);

    impl Listener for Once {
        type Stream = tokio::io::DuplexStream;

        fn poll_accept(
            &self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<io::Result<Self::Stream>> {
            let stream = self.0.borrow_mut().take();
            stream.map_or(std::task::Poll::Pending, |stream| {
                std::task::Poll::Ready(Ok(stream))
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_nothing_else_ends_ends_with_its_age() {
        use tokio::io::AsyncWriteExt;

        let (mut client, stream) = tokio::io::duplex(256);
        let listener = Once(std::cell::RefCell::new(Some(stream)));
        let talking = async {
            // The answers are never read.
            let said = "GET / HTTP/1.1\r\n\r\n".repeat(1000);
            timeout(MAX_AGE * 3, client.write_all(said.as_bytes())).await
        };
        tokio::select! {
            () = serve(listener, Arc::new(Pong), std::future::pending()) => unreachable!(),
            ended = talking => assert!(ended.expect("the connection ends").is_err()),
        }
    }
}
