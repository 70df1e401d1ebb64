//! Abuse of both servers: what it costs is bounded, and a registration works meanwhile and afterwards.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::field::{
    Usage, answering, descriptors_at_most, http_endpoint, listening, loopback_address, registering,
};
use crate::frames::Attack;
use crate::support::{DEADLINE, DRIVER, Kubelet, Node, Registrar, get};

/// What abuse may add to the memory of any registrar, in KiB. What it may cost ours in all is a row of its own.
const MAY_ADD: u64 = 16 * 1024;

/// Descriptors of a registrar under abuse: 64 and 128 connections, and what it has open by itself.
const MAX_DESCRIPTORS: usize = 64 + 128 + 32;

/// A registrar that serves both, registered.
pub struct Target {
    /// Its directories go with it.
    _node: Node,
    pub registrar: Registrar,
    pub usage: Usage,
    pub socket: PathBuf,
    pub http: SocketAddr,
}

impl Target {
    pub async fn start(node: Node, arguments: &[&str]) -> Self {
        let http = loopback_address();
        let mut all = vec![http_endpoint(http)];
        all.extend(arguments.iter().map(ToString::to_string));
        let registrar = node.registrar(all);
        let socket = node.published_as(DRIVER).await;
        answering(&socket, DEADLINE).await;
        listening(http).await;
        Kubelet::register(&socket).await;
        Self {
            usage: Usage::of(registrar.pid()),
            _node: node,
            registrar,
            socket,
            http,
        }
    }

    /// It is as well as before.
    pub async fn is_well(&mut self) {
        assert!(self.registrar.is_running());
        registering(&self.socket).await;
        assert_eq!(get(self.http, "/healthz").await.status, 200);
    }
}

/// Runs threads that attack, beside the runtime, until all have ended.
pub async fn attack<A: Attacker>(attackers: impl IntoIterator<Item = A>) {
    let threads: Vec<_> = attackers.into_iter().map(std::thread::spawn).collect();
    while threads.iter().any(|thread| !thread.is_finished()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

pub trait Attacker: FnOnce() + Send + 'static {}

impl<F: FnOnce() + Send + 'static> Attacker for F {}

/// Opens connections and keeps them, each with its first octets said.
pub fn idle(
    path: &Path,
    http: SocketAddr,
    count: usize,
    says: &[u8],
) -> Vec<(UnixStream, TcpStream)> {
    (0..count)
        .map(|_| {
            let mut unix = UnixStream::connect(path).unwrap();
            let mut tcp = TcpStream::connect(http).unwrap();
            unix.set_read_timeout(Some(DEADLINE)).unwrap();
            tcp.set_read_timeout(Some(DEADLINE)).unwrap();
            // May be cut off meanwhile.
            let _ = unix.write_all(says);
            let _ = tcp.write_all(says);
            (unix, tcp)
        })
        .collect()
}

/// `count` probes of `/healthz` over one connection, kept alive.
pub fn probes(http: SocketAddr, count: usize) {
    let mut stream = TcpStream::connect(http).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    for n in 0..count {
        let sent = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        sent.unwrap_or_else(|error| panic!("probe {n}: {error}"));
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nok") {
            let mut octets = [0; 512];
            let read = stream.read(&mut octets).unwrap();
            assert!(read > 0, "probe {n}: {}", String::from_utf8_lossy(&answer));
            answer.extend(&octets[..read]);
        }
    }
}

/// Says one octet after the other and never comes to an end.
fn slowly(mut stream: impl Write, request: &[u8], until: Instant) {
    for octet in request.iter().cycle() {
        if Instant::now() > until || stream.write_all(&[*octet]).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub async fn f22_probes_idle_connections_garbage_slowloris() {
    let node = Node::new();
    let _driver = node.driver();
    let mut target = Target::start(node, &[]).await;
    let (socket, http, usage) = (target.socket.clone(), target.http, target.usage);
    let memory = usage.peak_memory();
    let descriptors = usage.descriptors();

    let prober = move || probes(http, 2500);
    attack([prober, prober, prober, prober]).await;

    for says in [b"".as_slice(), b"\x00\xff\x16\x03\x01garbage\r\n\r\n"] {
        let held = idle(&socket, http, 200, says);
        registering(&socket).await;
        assert_eq!(get(http, "/healthz").await.status, 200);
        let open = usage.descriptors();
        assert!(open <= MAX_DESCRIPTORS, "{open} descriptors are open");
        drop(held);
    }

    let until = Instant::now() + Duration::from_secs(3);
    let path = socket.clone();
    let over_http = move || {
        slowly(
            TcpStream::connect(http).unwrap(),
            b"GET / HTTP/1.1\r\nA: ",
            until,
        );
    };
    let over_unix = move || {
        slowly(
            UnixStream::connect(&path).unwrap(),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0",
            until,
        );
    };
    let slow = async {
        tokio::join!(
            attack(std::iter::repeat_n(over_http, 32)),
            attack(std::iter::repeat_n(over_unix, 32))
        )
    };
    let meanwhile = async {
        for _ in 0..10 {
            registering(&socket).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::join!(slow, meanwhile);

    target.is_well().await;
    descriptors_at_most(usage, descriptors + 4).await;
    let added = usage.peak_memory() - memory;
    assert!(added <= MAY_ADD, "{added} KiB more memory");
    target.registrar.stop().await;
}

pub async fn f23_http2_abuse() {
    let node = Node::new();
    let _driver = node.driver();
    let mut target = Target::start(node, &[]).await;
    let memory = target.usage.peak_memory();
    let descriptors = target.usage.descriptors();
    for kind in Attack::ALL {
        let path = target.socket.clone();
        let attacker = move || kind.run(&path, Duration::from_secs(1));
        let attacking = attack(std::iter::repeat_n(attacker, 4));
        let meanwhile = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            registering(&target.socket).await;
        };
        tokio::join!(attacking, meanwhile);
        assert!(target.registrar.is_running(), "{kind:?}");
        let added = target.usage.peak_memory() - memory;
        assert!(added <= MAY_ADD, "{added} KiB more memory after {kind:?}");
    }
    target.is_well().await;
    descriptors_at_most(target.usage, descriptors + 4).await;
    target.registrar.stop().await;
}
