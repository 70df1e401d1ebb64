//! The drop-in's flags: each with values that it takes and refuses, what contradicts what, and where it listens.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use csi_node_driver_registrar::command::VERSION;
use tokio::net::{TcpSocket, TcpStream};

use crate::drop_in;
use crate::support::command::{Ended, run_command};
use crate::support::{Node, Registrar, get};

async fn run(arguments: &[&str]) -> Ended {
    let mut command = drop_in();
    command.args(arguments);
    run_command(command).await
}

/// Fails with exit code 1, and these texts in one error line each.
async fn assert_fails(arguments: &[&str], texts: &[&str]) {
    let ended = run(arguments).await;
    assert_eq!(ended.code, Some(1), "{arguments:?}: {}", ended.stderr);
    let errors = ended.errors();
    assert_eq!(errors.len(), texts.len(), "{arguments:?}: {}", ended.stderr);
    for (error, text) in errors.iter().zip(texts) {
        assert!(
            error.contains(text),
            "{arguments:?}: no {text:?} in {error}"
        );
    }
}

#[tokio::test]
async fn every_flag_takes_its_values() {
    for argument in [
        "--csi-address=/run/csi/socket",
        "-csi-address=unix:///csi/csi.sock",
        "--probe-timeout=3s",
        "--probe-timeout=1h2m3s",
        "-probe-timeout=.5s",
        "--probe-timeout=0",
        "--health-port=9808",
        "-health-port=1",
        "--health-port=no number",
        "--http-endpoint=",
        "--http-endpoint=:8080",
        "--metrics-address=",
        "--metrics-address=localhost:8080",
        "--metrics-path=/metrics",
        "--metrics-path=",
        "--connection-timeout=30s",
        "--automaxprocs",
        "--automaxprocs=false",
        "-v=5",
        "--v=0",
        "--vmodule=prober=5",
        "--logging-format=json",
        "--log-flush-frequency=1s",
        "--logtostderr",
        "--stderrthreshold=INFO",
    ] {
        let ended = run(&[argument, "--version"]).await;
        assert_eq!(ended.code, Some(0), "{argument}: {}", ended.stderr);
        let name = ended.stdout.strip_suffix(&format!(" {VERSION}\n"));
        assert_eq!(name, Some("livenessprobe"), "{argument}");
    }
    // Of two values the last counts.
    let ended = run(&["-probe-timeout", "1s", "--probe-timeout", "2s", "--version"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[tokio::test]
async fn every_flag_refuses_what_it_cannot_read() {
    for (argument, reason) in [
        (
            "--probe-timeout=3",
            "invalid value \"3\" for flag -probe-timeout: parse error",
        ),
        (
            "--probe-timeout=",
            "invalid value \"\" for flag -probe-timeout: parse error",
        ),
        (
            "--probe-timeout=3 s",
            "invalid value \"3 s\" for flag -probe-timeout: parse error",
        ),
        (
            "--connection-timeout=30",
            "invalid value \"30\" for flag -connection-timeout: parse error",
        ),
        (
            "--automaxprocs=x",
            "invalid boolean value \"x\" for -automaxprocs: strconv.ParseBool: parsing \"x\": invalid syntax",
        ),
        (
            "--v=x",
            "invalid value \"x\" for flag -v: strconv.ParseUint: parsing \"x\": invalid syntax",
        ),
        // Flags of the registrar, and of nobody.
        ("--timeout=1s", "flag provided but not defined: -timeout"),
        (
            "--kubelet-registration-path=/x",
            "flag provided but not defined: -kubelet-registration-path",
        ),
        (
            "--liveness-endpoint=:1",
            "flag provided but not defined: -liveness-endpoint",
        ),
        ("--bogus", "flag provided but not defined: -bogus"),
        ("---v", "bad flag syntax: ---v"),
    ] {
        let ended = run(&[argument, "--version"]).await;
        assert_eq!(ended.code, Some(2), "{argument}: {}", ended.stderr);
        let mut lines = ended.stderr.lines();
        assert_eq!(lines.next(), Some(reason));
        assert_eq!(lines.next(), Some("Usage of livenessprobe:"), "{argument}");
        assert_eq!(ended.stdout, "");
    }
}

#[tokio::test]
async fn help_is_the_usage_with_every_flag_and_default() {
    let ended = run(&["--help"]).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""));
    let usage = ended.stderr;
    for text in [
        "Usage of livenessprobe:\n",
        "  -automaxprocs\n",
        "  -connection-timeout duration\n",
        "  -csi-address string\n    \tAddress of the CSI driver socket. (default \"/run/csi/socket\")\n",
        "  -health-port 9808\n",
        " (default \"9808\")\n",
        "  -http-endpoint string\n",
        "  -metrics-address :8080\n",
        "  -metrics-path string\n",
        "(default \"/metrics\")\n",
        "  -probe-timeout duration\n    \tProbe timeout in seconds. (default 3s)\n",
        "  -version\n",
        "  -v value\n",
        "  -logging-format",
    ] {
        assert!(usage.contains(text), "no {text:?} in\n{usage}");
    }
}

#[tokio::test]
async fn what_cannot_be_had_is_named_and_fails() {
    let long = format!("--csi-address=/{}", "x".repeat(107));
    let http = "--http-endpoint=127.0.0.1:0";
    for (argument, text) in [
        ("--csi-address=", "--csi-address: the address is empty"),
        (
            "--csi-address=localhost:9",
            "--csi-address: \\\"localhost:9\\\" is no Unix socket",
        ),
        (
            "--csi-address=dns:driver",
            "--csi-address: \\\"dns:driver\\\" is no Unix socket",
        ),
        (&long, "is 108 bytes long, the limit is 107"),
        (
            "--probe-timeout=0",
            "--probe-timeout: it must be greater than zero",
        ),
        (
            "--probe-timeout=-1s",
            "--probe-timeout: it must be greater than zero",
        ),
        ("--metrics-path=", "--metrics-path: \\\"\\\" is no path"),
        (
            "--metrics-path=metrics",
            "--metrics-path: \\\"metrics\\\" is no path",
        ),
        (
            "--metrics-path=/healthz",
            "--metrics-path: /healthz is where",
        ),
        (
            "--health-port=9809",
            "Only one of `--health-port` and `--http-endpoint` can be explicitly set",
        ),
        (
            "--health-port=09808",
            "Only one of `--health-port` and `--http-endpoint` can be explicitly set",
        ),
        (
            "--metrics-address=:0",
            "Only one of `--metrics-address` and `--http-endpoint` can be explicitly set",
        ),
        ("--logging-format=xml", "Unsupported log format"),
    ] {
        assert_fails(&[http, argument], &[text]).await;
    }
    for endpoint in ["9808", "localhost", ":65536", "::1:80", ":http"] {
        let text = format!("--http-endpoint: \\\"{endpoint}\\\" is no address to listen on");
        assert_fails(&[&format!("--http-endpoint={endpoint}")], &[&text]).await;
        let text = text.replace("http-endpoint", "metrics-address");
        assert_fails(&[&format!("--metrics-address={endpoint}")], &[&text]).await;
    }
    for port in ["", "0", "-1", "65536", "http", "0x10", "9808 "] {
        let text = format!("--health-port: \\\"{port}\\\" is no port: ports are 1 to 65535");
        assert_fails(&[&format!("--health-port={port}")], &[&text]).await;
    }
    // Together, so that a manifest is mended once.
    assert_fails(
        &[
            "--csi-address=",
            "--probe-timeout=0",
            "--health-port=x",
            "--metrics-address=x",
        ],
        &[
            "--csi-address",
            "--probe-timeout",
            "--health-port",
            "--metrics-address",
        ],
    )
    .await;
}

#[tokio::test]
async fn the_metrics_path_does_not_matter_where_no_metrics_are_served() {
    let (_reserved, port) = reserved_port();
    let mut command = drop_in();
    command.args([
        &format!("--health-port={port}"),
        "--metrics-path=",
        "--csi-address=/none",
    ]);
    let process = Registrar::spawn(command);
    process.address_of("liveness").await;
    process.stop().await;
}

#[tokio::test]
async fn a_busy_port_is_named_with_its_flag_and_who_may_hold_it() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    let (_reserved, free) = reserved_port();
    let health = format!("--health-port={port}");
    let free = format!("--health-port={free}");
    for (arguments, flag, endpoint) in [
        (vec![health.as_str()], "--health-port", format!(":{port}")),
        (
            vec![&format!("--http-endpoint=localhost:{port}")],
            "--http-endpoint",
            format!("localhost:{port}"),
        ),
        (
            vec![&free, &format!("--metrics-address=127.0.0.1:{port}")],
            "--metrics-address",
            format!("127.0.0.1:{port}"),
        ),
    ] {
        let error = format!("{flag}: cannot listen on {endpoint}: Address already in use");
        let ended = run(&arguments).await;
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        let [line] = ended.errors()[..] else {
            panic!("{}", ended.stderr)
        };
        assert!(
            line.contains(&error) && line.contains("another driver's sidecar"),
            "{line}"
        );
    }
}

#[tokio::test]
async fn the_default_is_port_9808_on_every_address() {
    // Whoever holds it, this test or somebody else on this machine: it is busy.
    let _held = TcpListener::bind("0.0.0.0:9808");
    assert_fails(
        &[],
        &["--health-port: cannot listen on :9808: Address already in use"],
    )
    .await;
    // An empty endpoint is none.
    assert_fails(
        &["--http-endpoint=", "--health-port=9808"],
        &["--health-port: cannot listen on :9808: Address already in use"],
    )
    .await;
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

fn both(port: u16) -> [SocketAddr; 2] {
    [
        (Ipv4Addr::LOCALHOST, port).into(),
        (Ipv6Addr::LOCALHOST, port).into(),
    ]
}

fn spawn(node: &Node, arguments: &[&str]) -> Registrar {
    let mut command = drop_in();
    command
        .arg(format!("--csi-address={}", node.csi_socket().display()))
        .args(arguments);
    Registrar::spawn(command)
}

#[tokio::test]
async fn the_health_port_is_served_on_both_families_without_metrics() {
    let node = Node::new();
    let _driver = node.driver();
    let (_reserved, port) = reserved_port();
    let process = spawn(&node, &["-health-port", &port.to_string()]);
    process.address_of("liveness").await;
    for address in both(port) {
        assert_eq!(get(address, "/healthz").await.body, "ok", "{address}");
        assert_eq!(get(address, "/metrics").await.status, 404, "{address}");
    }
    process.stop().await;
}

#[tokio::test]
async fn metrics_may_have_an_address_of_their_own() {
    let node = Node::new();
    let _driver = node.driver();
    let (_reserved, port) = reserved_port();
    let health = format!("--health-port={port}");
    let process = spawn(
        &node,
        &[
            &health,
            "--metrics-address=localhost:0",
            "--metrics-path=/healthz",
        ],
    );
    let metrics = process.address_of("metrics").await;
    for address in both(metrics.port()) {
        // Nothing else is there, so that any path may be chosen.
        let answer = get(address, "/healthz").await;
        assert_eq!(answer.status, 200);
        assert!(
            answer.body.contains("csi_driver_probe_ready"),
            "{}",
            answer.body
        );
        assert_eq!(get(address, "/metrics").await.status, 404, "{address}");
    }
    for address in both(port) {
        assert_eq!(get(address, "/healthz").await.body, "ok");
        assert_eq!(get(address, "/metrics").await.status, 404);
    }
    process.stop().await;
}

#[tokio::test]
async fn metrics_are_beside_the_probe_on_an_http_endpoint_at_the_path_that_is_asked_for() {
    let node = Node::new();
    let _driver = node.driver();
    for (argument, path) in [("--v=0", "/metrics"), ("--metrics-path=/a/b", "/a/b")] {
        let process = spawn(&node, &["--http-endpoint=localhost:0", argument]);
        let port = process.address_of("liveness").await.port();
        for address in both(port) {
            assert_eq!(get(address, "/healthz").await.body, "ok");
            let answer = get(address, path).await;
            assert!(
                answer.body.contains("process_start_time_seconds"),
                "{answer:?}"
            );
        }
        if path != "/metrics" {
            assert_eq!(get(both(port)[0], "/metrics").await.status, 404);
        }
        process.stop().await;
    }
}

#[tokio::test]
async fn a_loopback_endpoint_is_on_that_family_alone() {
    let node = Node::new();
    for (endpoint, served) in [("127.0.0.1:0", [true, false]), ("[::1]:0", [false, true])] {
        let process = spawn(&node, &[&format!("--http-endpoint={endpoint}")]);
        let port = process.address_of("liveness").await.port();
        for (address, served) in both(port).into_iter().zip(served) {
            assert_eq!(
                TcpStream::connect(address).await.is_ok(),
                served,
                "{endpoint} {address}"
            );
        }
        process.stop().await;
    }
}

#[tokio::test]
async fn settings_without_effect_are_warned_about_once() {
    let node = Node::new();
    for (argument, text) in [
        ("--connection-timeout=30s", "--connection-timeout"),
        ("--logtostderr", "logtostderr"),
        ("--v=0", ""),
    ] {
        let process = spawn(&node, &["--http-endpoint=127.0.0.1:0", argument]);
        process.address_of("liveness").await;
        let lines = process.log().lines();
        let warnings: Vec<_> = lines.iter().filter(|line| line.starts_with('W')).collect();
        assert_eq!(
            warnings.len(),
            usize::from(!text.is_empty()),
            "{warnings:?}"
        );
        assert!(
            warnings.iter().all(|line| line.contains(text)),
            "{warnings:?}"
        );
        process.stop().await;
    }
}

#[tokio::test]
async fn the_longest_timeout_is_one() {
    let node = Node::new();
    let _driver = node.driver();
    let longest = "--probe-timeout=2562047h47m16.854775807s";
    let process = spawn(&node, &["--http-endpoint=127.0.0.1:0", longest]);
    let http = process.address_of("liveness").await;
    assert_eq!(get(http, "/healthz").await.body, "ok");
    process.stop().await;
}
