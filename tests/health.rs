//! The diagnostics server on the real binary: what probes are told in every phase, where it listens, and what it bears.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "clippy takes only what is marked as a test for one; a test may block, and fails by a panic"
)]

mod support;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use csi_node_driver_registrar::testing::csi_driver::{Behaviour, CsiDriver};
use support::command::{Ended, run};
use support::tree::tree;
use support::{
    DEADLINE, DRIVER, HttpAnswer, Kubelet, Node, Registrar, get, request, until, within,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const HTTP: &str = "--http-endpoint=127.0.0.1:0";

/// How long a client may take for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections at once.
const MAX_CONNECTIONS: usize = 128;

/// A node with a driver, a registrar with an HTTP server, and its published socket.
struct Published {
    node: Node,
    _driver: CsiDriver,
    registrar: Registrar,
    socket: PathBuf,
    http: SocketAddr,
}

impl Published {
    async fn new(more: &[&str]) -> Self {
        let node = Node::new();
        let driver = node.driver();
        let registrar = node.registrar([&[HTTP], more].concat());
        let socket = node.published_as(DRIVER).await;
        let http = registrar.http_address().await;
        Self {
            node,
            _driver: driver,
            registrar,
            socket,
            http,
        }
    }

    async fn healthz(&self) -> (u16, String) {
        let answer = get(self.http, "/healthz").await;
        (answer.status, answer.body)
    }

    async fn readyz(&self) -> (u16, String) {
        let answer = get(self.http, "/readyz").await;
        (answer.status, answer.body)
    }

    /// Puts something in the registration socket's place without a moment in which nothing is there.
    fn replace_with<T>(&self, make: impl FnOnce(&Path) -> T) -> T {
        let aside = self.node.root().join("aside");
        let value = make(&aside);
        fs::rename(aside, &self.socket).unwrap();
        value
    }

    async fn until_ready_says(&self, text: &str) {
        within(DEADLINE, text, async {
            while !self.readyz().await.1.contains(text) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    /// What `/healthz` answers for something bad in the socket's place; well within the deadline of the call.
    async fn assert_is_unhealthy(&self, text: &str) {
        let asked = Instant::now();
        let (status, body) = self.healthz().await;
        assert_eq!(status, 500, "{body}");
        assert!(body.contains(text), "{body}");
        assert_eq!(body.lines().count(), 1, "{body}");
        assert!(
            asked.elapsed() < Duration::from_secs(8),
            "{:?}",
            asked.elapsed()
        );
    }
}

#[tokio::test]
async fn before_the_driver_exists_it_is_healthy_and_not_ready() {
    let node = Node::new();
    let registrar = node.registrar([HTTP]);
    let http = registrar.http_address().await;
    let healthy = get(http, "/healthz").await;
    assert_eq!(
        (healthy.status, healthy.body.as_str()),
        (200, "waiting for the CSI driver")
    );
    let ready = get(http, "/readyz").await;
    assert_eq!(
        (ready.status, ready.body.as_str()),
        (503, "waiting for the CSI driver")
    );
    // The driver comes after all.
    let _driver = node.driver();
    node.published_as(DRIVER).await;
    let healthy = get(http, "/healthz").await;
    assert_eq!((healthy.status, healthy.body.as_str()), (200, "ok"));
    registrar.stop().await;
}

#[tokio::test]
async fn readiness_follows_the_kubelet() {
    let published = Published::new(&[]).await;
    let (status, body) = published.readyz().await;
    assert_eq!(status, 503);
    assert!(body.contains("the kubelet has not called yet"), "{body}");
    // Our own check is no call of a kubelet.
    assert_eq!(published.healthz().await, (200, "ok".to_owned()));
    assert_eq!(published.readyz().await.1, body);

    let kubelet = Kubelet::dial(&published.socket).await;
    kubelet.get_info().await;
    let (status, body) = published.readyz().await;
    assert_eq!(status, 503);
    assert!(body.contains("has not told the outcome"), "{body}");
    assert_eq!(published.healthz().await.0, 200);

    kubelet.notify(Ok(())).await;
    assert_eq!(published.readyz().await, (200, "ok".to_owned()));
    assert_eq!(published.healthz().await, (200, "ok".to_owned()));
    published.registrar.stop().await;
}

#[tokio::test]
async fn a_refusal_makes_it_unready_and_leaves_it_healthy() {
    let published = Published::new(&["--registration-failure-policy=retry"]).await;
    let kubelet = Kubelet::dial(&published.socket).await;
    kubelet.get_info().await;
    kubelet.notify(Err("no room on this node")).await;
    let (status, body) = published.readyz().await;
    assert_eq!(status, 503);
    assert!(body.contains("no room on this node"), "{body}");
    assert_eq!(published.healthz().await.0, 200);
    published.registrar.stop().await;
}

#[tokio::test]
async fn a_missing_socket_is_not_found() {
    let published = Published::new(&[]).await;
    Kubelet::register(&published.socket).await;
    // With its directory, so that it stays away.
    fs::remove_dir_all(published.node.registry()).unwrap();
    let expected = (404, "registration socket does not exist".to_owned());
    assert_eq!(published.healthz().await, expected);
    published.until_ready_says("gone").await;
    assert_eq!(published.readyz().await.0, 503);

    fs::create_dir(published.node.registry()).unwrap();
    published.node.published_as(DRIVER).await;
    assert_eq!(published.healthz().await, (200, "ok".to_owned()));
    published.registrar.stop().await;
}

#[tokio::test]
async fn a_socket_with_another_name_is_unhealthy_and_a_successor_is_not() {
    let published = Published::new(&[]).await;
    Kubelet::register(&published.socket).await;

    let other = Node::new();
    let _driver = other.driver_with(Behaviour::named("other.example.com"));
    let stranger = other.registrar::<&str>([]);
    let socket = other.published_as("other.example.com").await;
    fs::rename(&socket, &published.socket).unwrap();
    published
        .assert_is_unhealthy("invalid driver name other.example.com")
        .await;
    published.until_ready_says("superseded").await;
    assert_eq!(published.readyz().await.0, 503);

    let successor = published.node.registrar::<&str>([]);
    successor.log().line("Registration socket published").await;
    assert_eq!(published.healthz().await, (200, "ok".to_owned()));
    assert_eq!(published.readyz().await.0, 503);
    published.registrar.stop().await;
    stranger.stop().await;
    successor.stop().await;
}

#[tokio::test]
async fn a_dead_or_silent_socket_is_unhealthy_in_time() {
    let published = Published::new(&["--timeout=200ms"]).await;
    published.replace_with(|path| drop(UnixListener::bind(path).unwrap()));
    published.assert_is_unhealthy("Connection refused").await;

    let silent = published.replace_with(|path| UnixListener::bind(path).unwrap());
    published
        .assert_is_unhealthy("no answer within 200ms")
        .await;

    // Nobody accepts, and the queue is full.
    let mut queue = Vec::new();
    silent.set_nonblocking(true).unwrap();
    let full = loop {
        match tokio::net::UnixStream::connect(&published.socket).await {
            Ok(stream) => queue.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    published.assert_is_unhealthy("does not respond").await;
    published.registrar.stop().await;
}

#[tokio::test]
async fn a_file_in_the_way_is_unhealthy_and_left_alone() {
    for (what, make) in [
        (
            "a regular file",
            &(|path: &Path| fs::write(path, "mine").unwrap()) as &dyn Fn(&Path),
        ),
        ("a symbolic link", &|path| {
            std::os::unix::fs::symlink("/nowhere", path).unwrap();
        }),
        ("a directory", &|path| fs::create_dir(path).unwrap()),
    ] {
        let published = Published::new(&[]).await;
        Kubelet::register(&published.socket).await;
        if what == "a directory" {
            // Nothing replaces a socket by a directory at once.
            fs::remove_file(&published.socket).unwrap();
            make(&published.socket);
        } else {
            published.replace_with(make);
        }
        published.until_ready_says(what).await;
        assert_eq!(published.readyz().await.0, 503);
        let before = tree(published.node.root());
        for _ in 0..8 {
            published.assert_is_unhealthy("is not a socket").await;
        }
        let log = published.registrar.log().clone();
        published.registrar.stop().await;
        assert_eq!(tree(published.node.root()), before, "{what}");
        let log = log.complete().await;
        for text in [
            "took the registration socket's place",
            "Health check failed",
        ] {
            assert_eq!(log.matches(text).count(), 1, "{what}: {log}");
        }
    }
}

#[tokio::test]
async fn failing_checks_are_logged_calmly_with_their_reasons_and_their_end() {
    let published = Published::new(&[]).await;
    let kept = published.node.root().join("kept");
    fs::rename(&published.socket, &kept).unwrap();
    fs::remove_dir(published.node.registry()).unwrap();
    for _ in 0..25 {
        assert_eq!(published.healthz().await.0, 404);
    }
    fs::create_dir(published.node.registry()).unwrap();
    fs::write(&published.socket, "").unwrap();
    published.assert_is_unhealthy("is not a socket").await;
    published.assert_is_unhealthy("is not a socket").await;
    fs::rename(&kept, &published.socket).unwrap();
    assert_eq!(published.healthz().await.0, 200);
    assert_eq!(published.healthz().await.0, 200);
    let log = published.registrar.log().clone();
    published.registrar.stop().await;

    let log = log.complete().await;
    let failed = log
        .lines()
        .filter(|line| line.contains("Health check failed"));
    // The first, every tenth, and what is news.
    let expected = [
        ("socket does not exist", "failures=1"),
        ("socket does not exist", "failures=11"),
        ("socket does not exist", "failures=21"),
        ("is not a socket", "failures=26"),
    ];
    let failed: Vec<_> = failed.collect();
    assert_eq!(failed.len(), expected.len(), "{log}");
    for (line, (reason, failures)) in failed.iter().zip(expected) {
        assert!(line.contains(reason) && line.ends_with(failures), "{line}");
    }
    let ended: Vec<_> = log
        .lines()
        .filter(|line| line.contains("Health check succeeds again"))
        .collect();
    assert_eq!(ended.len(), 1, "{log}");
    assert!(ended[0].contains("failures=27"), "{log}");
}

#[tokio::test]
async fn probes_may_use_any_usual_method_and_http_version() {
    let published = Published::new(&[]).await;
    for (asked, body) in [
        ("GET /healthz HTTP/1.1\r\nHost: x", "ok"),
        ("GET /healthz?verbose=1 HTTP/1.1\r\nHost: x", "ok"),
        ("HEAD /healthz HTTP/1.1\r\nHost: x", ""),
        (
            "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 0",
            "ok",
        ),
        ("GET /healthz HTTP/1.0", "ok"),
        ("GET http://x/healthz HTTP/1.1\r\nHost: x", "ok"),
    ] {
        let octets = format!("{asked}\r\nConnection: close\r\n\r\n");
        let answer = request(published.http, &octets).await;
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (200, body),
            "{asked}: {answer:?}"
        );
        let head = answer.head.to_lowercase();
        assert!(
            head.contains("content-type: text/plain; charset=utf-8"),
            "{head}"
        );
        assert!(head.contains("content-length: 2"), "{head}");
    }
    published.registrar.stop().await;
}

#[tokio::test]
async fn every_other_path_is_not_found() {
    let published = Published::new(&[]).await;
    for path in [
        "/",
        "/healthz/",
        "/Healthz",
        "//healthz",
        "/readyz/x",
        "/../healthz",
        "/debug/pprof/",
        "/debug/pprof/cmdline",
        "/debug/pprof/profile",
        "*",
    ] {
        let answer = get(published.http, path).await;
        assert_eq!(answer.status, 404, "{path}: {answer:?}");
        assert_eq!(answer.body, "404 page not found\n");
    }
    published.registrar.stop().await;
}

#[tokio::test]
async fn pprof_is_served_where_asked_for() {
    let published = Published::new(&["--enable-pprof", "--mode=ä b"]).await;
    let index = get(published.http, "/debug/pprof/").await;
    assert_eq!(index.status, 200);
    assert!(index.head.contains("text/html"), "{}", index.head);
    assert!(
        index.body.contains("/debug/pprof/") && index.body.contains("cmdline"),
        "{}",
        index.body
    );

    let HttpAnswer { status, body, .. } = get(published.http, "/debug/pprof/cmdline").await;
    assert_eq!(status, 200);
    let shown: Vec<_> = body.split('\0').map(str::to_owned).collect();
    let mut expected = vec![support::registrar_binary().display().to_string()];
    expected.extend(published.node.arguments());
    expected.extend([HTTP, "--enable-pprof", "--mode=ä b"].map(str::to_owned));
    assert_eq!(shown, expected);

    for path in ["/debug/pprof/heap", "/debug/pprof/cmdline/", "/debug/pprof"] {
        assert_eq!(get(published.http, path).await.status, 404, "{path}");
    }
    published.registrar.stop().await;
}

/// The port of an address that nobody else is given, and that a listener can still take.
fn reserved_port() -> (TcpSocket, u16) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket
        .bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

async fn answers(ip: impl Into<std::net::IpAddr>, port: u16) -> bool {
    TcpStream::connect((ip.into(), port)).await.is_ok()
}

/// An address of this host that is no loopback address, where it has one.
fn address_of_this_host() -> Option<Ipv4Addr> {
    // Connecting sends nothing: it only chooses the source address.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("198.51.100.1:9").ok()?;
    match socket.local_addr().ok()?.ip() {
        std::net::IpAddr::V4(ip) if !ip.is_loopback() => Some(ip),
        _ => None,
    }
}

#[tokio::test]
async fn an_address_stands_for_what_it_stands_for_in_go() {
    for (endpoint, v4, v6) in [
        (":0", true, true),
        ("0.0.0.0:0", true, true),
        ("[::]:0", true, true),
        ("localhost:0", true, true),
        ("127.0.0.1:0", true, false),
        ("[::1]:0", false, true),
    ] {
        let node = Node::new();
        let registrar = node.registrar([format!("--http-endpoint={endpoint}")]);
        let port = registrar.http_address().await.port();
        assert_ne!(port, 0);
        assert_eq!(answers(Ipv4Addr::LOCALHOST, port).await, v4, "{endpoint}");
        assert_eq!(answers(Ipv6Addr::LOCALHOST, port).await, v6, "{endpoint}");
        if let Some(outside) = address_of_this_host() {
            let is_wildcard = matches!(endpoint, ":0" | "0.0.0.0:0" | "[::]:0");
            assert_eq!(answers(outside, port).await, is_wildcard, "{endpoint}");
        }
        registrar.stop().await;
    }
}

#[tokio::test]
async fn a_port_alone_is_served_on_every_address() {
    let (_reserved, port) = reserved_port();
    for argument in [
        format!("--http-endpoint=:{port}"),
        format!("--http-endpoint=0.0.0.0:{port}"),
        format!("--health-port={port}"),
        format!("-health-port={port:#x}"),
    ] {
        let node = Node::new();
        let registrar = node.registrar([&argument]);
        registrar.log().line("HTTP server listening").await;
        assert!(answers(Ipv4Addr::LOCALHOST, port).await, "{argument}");
        assert!(answers(Ipv6Addr::LOCALHOST, port).await, "{argument}");
        let answer = get((Ipv4Addr::LOCALHOST, port).into(), "/healthz").await;
        assert_eq!(answer.status, 200);
        registrar.stop().await;
    }
}

async fn assert_fails_before_publishing(node: &Node, argument: &str, reason: &str) -> Ended {
    let log = node.termination_log();
    fs::write(&log, "").unwrap();
    let before = tree(&node.registry());
    let mut arguments = node.arguments();
    arguments.push(argument.to_owned());
    arguments.push(format!("--termination-log-path={}", log.display()));
    let ended = run(&arguments).await;
    assert_eq!(ended.code, Some(1), "{argument}");
    let [error] = ended.errors()[..] else {
        panic!("{}", ended.stderr)
    };
    assert!(error.contains(reason), "{error}");
    // Not even for a moment: the directory's own time would tell.
    assert_eq!(tree(&node.registry()), before);
    let message = fs::read_to_string(log).unwrap();
    assert!(message.contains(reason), "{message}");
    ended
}

#[tokio::test]
async fn a_busy_port_fails_before_anything_is_published() {
    let node = Node::new();
    let driver = node.driver();
    let v4 = TcpListener::bind("127.0.0.1:0").unwrap();
    let v6 = TcpListener::bind("[::1]:0").unwrap();
    let any = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    for endpoint in [
        format!("127.0.0.1:{}", port(&v4)),
        format!("localhost:{}", port(&v4)),
        format!(":{}", port(&v4)),
        format!("[::1]:{}", port(&v6)),
        format!("localhost:{}", port(&v6)),
        format!("0.0.0.0:{}", port(&any)),
        format!(":{}", port(&any)),
    ] {
        let argument = format!("--http-endpoint={endpoint}");
        let reason = format!("cannot listen on {endpoint}: Address already in use");
        assert_fails_before_publishing(&node, &argument, &reason).await;
    }
    let argument = format!("--health-port={}", port(&any));
    assert_fails_before_publishing(&node, &argument, "Address already in use").await;
    assert_eq!(driver.calls().borrow().plugin_info, 0);
}

#[tokio::test]
async fn an_address_that_this_host_does_not_have_fails_likewise() {
    let node = Node::new();
    for (endpoint, reason) in [
        ("198.51.100.1:0", "this host does not have that address"),
        ("no-such-host.invalid:0", "cannot look up the host"),
        ("localhost", "is no address to listen on"),
        ("::1:80", "is no address to listen on"),
        (":65536", "is no address to listen on"),
    ] {
        let argument = format!("--http-endpoint={endpoint}");
        assert_fails_before_publishing(&node, &argument, reason).await;
    }
}

#[tokio::test]
async fn only_one_of_the_two_address_flags_can_be_set() {
    let node = Node::new();
    let mut arguments = node.arguments();
    arguments.extend(["--health-port=9809", HTTP].map(str::to_owned));
    let ended = run(&arguments).await;
    assert_eq!(ended.code, Some(1));
    let reason = "Only one of `--health-port` and `--http-endpoint` can be set";
    assert!(ended.errors()[0].contains(reason), "{}", ended.stderr);
    // A port of zero or less is none.
    for port in ["0", "-5"] {
        let registrar = node.registrar([format!("--health-port={port}"), HTTP.into()]);
        registrar.http_address().await;
        registrar.stop().await;
    }
}

async fn connect(http: SocketAddr) -> TcpStream {
    within(DEADLINE, "a connection", TcpStream::connect(http))
        .await
        .unwrap()
}

/// One whole answer on a connection that stays open.
async fn ask(stream: &mut TcpStream, octets: &[u8]) -> String {
    stream.write_all(octets).await.unwrap();
    let mut answer = Vec::new();
    within(DEADLINE, "an answer", async {
        loop {
            let text = String::from_utf8_lossy(&answer).to_lowercase();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.split("content-length: ").nth(1).unwrap();
                let length: usize = length.lines().next().unwrap().parse().unwrap();
                if body.len() >= length {
                    return text.clone();
                }
            }
            assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "{text}");
        }
    })
    .await
}

/// Reads to the end, however the peer ends it.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

const GET: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

#[tokio::test]
async fn a_connection_is_kept_for_further_requests() {
    let published = Published::new(&[]).await;
    let mut stream = connect(published.http).await;
    for _ in 0..5 {
        let answer = ask(&mut stream, GET).await;
        assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    }
    published.registrar.stop().await;
}

#[tokio::test]
async fn whoever_has_nothing_more_to_send_is_still_answered() {
    let published = Published::new(&[]).await;
    for requests in [1, 3] {
        let mut stream = connect(published.http).await;
        stream.write_all(&GET.repeat(requests)).await.unwrap();
        stream.shutdown().await.unwrap();
        let answers = within(DEADLINE, "the answers", read_to_end(&mut stream)).await;
        assert_eq!(answers.matches("200 OK").count(), requests, "{answers}");
    }
    published.registrar.stop().await;
}

#[tokio::test]
async fn a_connection_ends_with_its_client() {
    let published = Published::new(&[]).await;
    let descriptors = format!("/proc/{}/fd", published.registrar.pid());
    let open = || fs::read_dir(&descriptors).unwrap().count();
    let before = open();
    for n in 0..60 {
        let mut stream = connect(published.http).await;
        match n % 3 {
            0 => {}
            1 => stream.write_all(&GET[..20]).await.unwrap(),
            _ => drop(ask(&mut stream, GET).await),
        }
    }
    until("the descriptors to be closed", || open() <= before).await;
    published.registrar.stop().await;
}

#[tokio::test]
async fn what_is_too_large_or_no_http_is_refused_and_closed() {
    let published = Published::new(&[]).await;
    let large = format!(
        "GET /healthz HTTP/1.1\r\nX: {}\r\n\r\n",
        "x".repeat(64 * 1024)
    );
    let many = format!("GET /healthz HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(1000));
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(64 * 1024));
    for (octets, status) in [
        (large.as_bytes(), "431"),
        (many.as_bytes(), "431"),
        (long.as_bytes(), "4"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""),
        (b"garbage\r\n\r\n", "400"),
        (
            b"GET /healthz HTTP/1.1\r\nTransfer-Encoding: x\r\nContent-Length: 5\r\n\r\n",
            "400",
        ),
    ] {
        let mut stream = connect(published.http).await;
        // It may hang up before it has read all of it.
        let _ = stream.write_all(octets).await;
        let answer = within(DEADLINE, "the end", read_to_end(&mut stream)).await;
        let shown = String::from_utf8_lossy(&octets[..octets.len().min(40)]);
        if !answer.is_empty() {
            let expected = format!("HTTP/1.1 {status}");
            assert!(answer.starts_with(&expected), "{shown:?}: {answer}");
        }
    }
    // A body is not waited for, and takes no later request's place.
    let mut stream = connect(published.http).await;
    let answer = ask(
        &mut stream,
        b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nstart",
    )
    .await;
    assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    within(DEADLINE, "the end", read_to_end(&mut stream)).await;
    assert_eq!(published.healthz().await, (200, "ok".to_owned()));
    published.registrar.stop().await;
}

/// All at once, since each takes its ten seconds.
#[tokio::test]
async fn a_client_that_says_nothing_or_dawdles_is_hung_up_on() {
    let published = Published::new(&[]).await;
    let opened = Instant::now();
    let mut silent = connect(published.http).await;
    let mut halfway = connect(published.http).await;
    halfway.write_all(&GET[..20]).await.unwrap();
    let mut idle = connect(published.http).await;
    ask(&mut idle, GET).await;
    let (mut dawdler, mut dawdling) = connect(published.http).await.into_split();
    let trickle = tokio::spawn(async move {
        for octet in GET.iter().cycle().filter(|octet| **octet != b'\n') {
            if dawdling.write_all(&[*octet]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    let mut buffer = [0; 1024];
    let limit = HEAD_TIMEOUT + DEADLINE;
    within(limit, "all of them to be closed", async {
        for (who, stream) in [
            ("silent", &mut silent),
            ("halfway", &mut halfway),
            ("idle", &mut idle),
        ] {
            let read = stream.read(&mut buffer).await;
            assert!(matches!(read, Ok(0) | Err(_)), "{who}: {read:?}");
            assert!(
                opened.elapsed() + Duration::from_secs(1) >= HEAD_TIMEOUT,
                "{who}"
            );
        }
        let read = dawdler.read(&mut buffer).await;
        assert!(matches!(read, Ok(0) | Err(_)), "dawdler: {read:?}");
    })
    .await;
    trickle.abort();
    assert_eq!(published.healthz().await, (200, "ok".to_owned()));
    published.registrar.stop().await;
}

#[tokio::test]
async fn two_hundred_idle_connections_keep_nobody_out() {
    let published = Published::new(&[]).await;
    // One that has shown that it is real outlives those that have not.
    let mut real = connect(published.http).await;
    ask(&mut real, GET).await;
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(connect(published.http).await);
    }
    assert_eq!(published.healthz().await, (200, "ok".to_owned()));
    ask(&mut real, GET).await;

    let closed = |stream: &TcpStream| !matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    // The real one, the one that was just answered, and the youngest idle ones are what is left.
    let left = MAX_CONNECTIONS - 2;
    until("the oldest to be closed", || {
        idle.iter().filter(|stream| closed(stream)).count() >= idle.len() - left
    })
    .await;
    let open: Vec<_> = idle.iter().map(|stream| !closed(stream)).collect();
    let first_open = open.iter().position(|open| *open).unwrap();
    assert!(open[first_open..].iter().all(|open| *open), "{open:?}");
    assert!(open.len() - first_open >= left, "{open:?}");
    published.registrar.stop().await;
}
