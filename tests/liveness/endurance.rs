//! What probes and clients cost over time: nothing that grows.

use std::os::unix::net::UnixListener as StdListener;
use std::time::Duration;

use csi_node_driver_registrar::limits::http::MAX_CONNECTIONS;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{DEADLINE, DRIVER, Node, get, until, within};
use crate::{Probed, WAYS, Way};

/// What an allocator may keep for itself, in KiB.
const KEPT: u64 = 256;

const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

/// Reads one answer on a connection that is kept.
async fn until_ok(stream: &mut TcpStream) {
    let mut answer = Vec::new();
    within(DEADLINE, "an answer", async {
        while !answer.ends_with(b"\r\n\r\nok") {
            assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
        }
    })
    .await;
}

/// Probes on one connection after the other, a hundred on each; a kubelet makes one for each probe.
async fn many(probed: &Probed, times: u32) {
    for _ in 0..times / 100 {
        let mut stream = TcpStream::connect(probed.http).await.unwrap();
        for _ in 0..100 {
            stream.write_all(REQUEST).await.unwrap();
            until_ok(&mut stream).await;
        }
    }
}

#[tokio::test]
async fn ten_thousand_probes_leave_nothing_behind() {
    for way in WAYS {
        let node = Node::new();
        let driver = node.driver();
        let probed = way.start(&node, &[]).await;
        probed.until_alive().await;
        many(&probed, 1_000).await;
        let (resident, descriptors) = (probed.process.resident(), probed.process.descriptors());
        let before = driver.calls().borrow().probe;
        many(&probed, 10_000).await;
        assert_eq!(driver.calls().borrow().probe - before, 10_000);
        until("descriptors to be closed", || {
            probed.process.descriptors() <= descriptors
        })
        .await;
        let grown = probed.process.resident().saturating_sub(resident);
        assert!(grown <= KEPT, "{way:?}: {grown} KiB");
        probed.process.stop().await;
    }
}

#[tokio::test]
async fn failing_probes_leave_nothing_behind_either() {
    for way in WAYS {
        let node = Node::new();
        let driver = node.driver();
        let probed = way.start(&node, &["--probe-timeout=10ms"]).await;
        probed.until_alive().await;
        driver.stop().await.unwrap();
        // Accepted by the system, and never answered.
        let silent = StdListener::bind(node.csi_socket()).unwrap();
        let failing = async |times| {
            for _ in 0..times {
                probed.assert_fails(&["DeadlineExceeded"]).await;
                // The backlog has an end.
                silent.accept().unwrap();
            }
        };
        failing(50).await;
        let (resident, descriptors) = (probed.process.resident(), probed.process.descriptors());
        failing(500).await;
        // The registrar asks the silent one itself now and then.
        until("descriptors to be closed", || {
            probed.process.descriptors() <= descriptors + 2
        })
        .await;
        let grown = probed.process.resident().saturating_sub(resident);
        assert!(grown <= KEPT, "{way:?}: {grown} KiB");
    }
}

#[tokio::test]
async fn two_hundred_idle_connections_cost_two_mebibytes_and_keep_nobody_out() {
    for way in WAYS {
        let node = Node::new();
        let _driver = node.driver();
        let probed = way.start(&node, &[]).await;
        probed.until_alive().await;
        if way == Way::Merged {
            // Its own socket is there, and counted.
            node.published_as(DRIVER).await;
        }
        let (resident, descriptors) = (probed.process.resident(), probed.process.descriptors());
        let mut idle = Vec::new();
        for n in 0..200 {
            let mut stream = TcpStream::connect(probed.http).await.unwrap();
            // The later half has asked before: those hold buffers.
            if n >= 100 {
                stream.write_all(REQUEST).await.unwrap();
                until_ok(&mut stream).await;
            }
            idle.push(stream);
        }
        // The oldest had to go.
        for mut closed in idle.drain(..200 - MAX_CONNECTIONS) {
            let mut octet = [0];
            let end = within(DEADLINE, "the oldest to be closed", closed.read(&mut octet)).await;
            assert_eq!(end.unwrap_or_default(), 0);
        }
        let grown = probed.process.resident().saturating_sub(resident);
        assert!(grown <= 2 * 1024, "{way:?}: {grown} KiB");
        until("descriptors within the bound", || {
            probed.process.descriptors() <= descriptors + MAX_CONNECTIONS
        })
        .await;
        for _ in 0..10 {
            probed.assert_alive().await;
        }
        drop(idle);
        until("them to be forgotten", || {
            probed.process.descriptors() <= descriptors
        })
        .await;
    }
}

#[tokio::test]
async fn abuse_is_bounded_in_memory_and_the_next_probe_is_answered() {
    let endless = [
        b"GET /healthz HTTP/1.1\r\nX: ".to_vec(),
        vec![b'x'; 256 * 1024],
    ]
    .concat();
    let many_headers = format!("GET /healthz HTTP/1.1\r\n{}", "X: y\r\n".repeat(10_000));
    let garbage: Vec<u8> = (0..=u8::MAX).rev().cycle().take(100_000).collect();
    let long_path = format!("GET /{} HTTP/1.1\r\n\r\n", "p".repeat(100_000));
    let unread = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1_000);
    let unfinished = format!("GET /healthz HTTP/1.1\r\nX: {}", "x".repeat(15_000));
    let attacks = [
        endless,
        many_headers.into_bytes(),
        garbage,
        long_path.into_bytes(),
        unread.into_bytes(),
        unfinished.into_bytes(),
    ];
    for way in WAYS {
        let node = Node::new();
        let _driver = node.driver();
        let probed = way.start(&node, &[]).await;
        probed.until_alive().await;
        let resident = probed.process.resident();
        for (n, attack) in attacks.iter().enumerate() {
            let mut held = Vec::new();
            for _ in 0..150 {
                let mut stream = TcpStream::connect(probed.http).await.unwrap();
                // It may be refused in the middle.
                let _ = stream.try_write(attack);
                let rest = tokio::time::timeout(Duration::from_millis(5), stream.write_all(attack));
                let _ = rest.await;
                held.push(stream);
            }
            probed.assert_alive().await;
            let grown = probed.process.resident().saturating_sub(resident);
            assert!(grown <= 6 * 1024, "{way:?}, attack {n}: {grown} KiB");
            drop(held);
            assert_eq!(get(probed.http, "/healthz").await.status, 200);
        }
    }
}
