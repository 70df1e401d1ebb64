//! The probe beside the registrar: its flags, and registrations that fail while the driver lives.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;

use csi_node_driver_registrar::testing::csi_driver::{Behaviour, CsiDriver, Fault};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::support::command::{run, run_command};
use crate::support::tree::tree;
use crate::support::{DEADLINE, DRIVER, Kubelet, Node, Registrar, get, registrar_command, within};
use crate::{Probed, Way};

/// With the diagnostics on an address of their own, and no wait for a readiness that is not there.
async fn start(node: &Node, more: &[&str]) -> (Probed, SocketAddr) {
    let probed = Way::Merged
        .start(node, &[&["--http-endpoint=localhost:0"], more].concat())
        .await;
    let diagnostics = probed.process.address_of("diagnostics").await;
    (probed, diagnostics)
}

async fn until_ready_says(diagnostics: SocketAddr, status: u16, text: &str) {
    within(DEADLINE, text, async {
        loop {
            let answer = get(diagnostics, "/readyz").await;
            if answer.status == status && answer.body.contains(text) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// The registration failed, the driver lives, and whoever asks is told why.
async fn assert_outlived(probed: &mut Probed, diagnostics: SocketAddr, text: &str) {
    until_ready_says(diagnostics, 503, text).await;
    probed.assert_alive().await;
    let line = probed
        .process
        .log()
        .line("The registration failed, beginning anew")
        .await;
    assert!(line.contains(text) && line.contains("retryIn="), "{line}");
    assert!(probed.process.is_running());
}

async fn assert_registers(node: &Node, probed: &Probed, diagnostics: SocketAddr, name: &str) {
    let socket = within(Duration::from_secs(40), "the socket", async {
        loop {
            let path = node.registration_socket(name);
            let found = path.symlink_metadata();
            if found.is_ok_and(|found| found.file_type().is_socket()) {
                return path;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    Kubelet::register(&socket).await;
    until_ready_says(diagnostics, 200, "ok").await;
    probed.assert_alive().await;
}

#[tokio::test]
async fn a_name_that_cannot_be_registered_does_not_take_the_driver_down() {
    let node = Node::new();
    let driver = node.driver_with(Behaviour::named("a/b"));
    let (mut probed, diagnostics) = start(&node, &[]).await;
    assert_outlived(&mut probed, diagnostics, "contains '/'").await;
    assert!(node.published().is_empty());
    driver.kill().await;
    let _driver = node.driver();
    assert_registers(&node, &probed, diagnostics, DRIVER).await;
    probed.process.stop().await;
    assert!(node.published().is_empty());
}

#[tokio::test]
async fn a_driver_that_comes_back_under_such_a_name_neither() {
    let node = Node::new();
    let driver = node.driver();
    let (mut probed, diagnostics) = start(&node, &[]).await;
    assert_registers(&node, &probed, diagnostics, DRIVER).await;
    driver.kill().await;
    let driver = CsiDriver::start(&node.csi_socket(), Behaviour::named("")).unwrap();
    assert_outlived(&mut probed, diagnostics, "name is empty").await;
    assert!(node.published().is_empty());
    driver.kill().await;
    let _driver = node.driver();
    assert_registers(&node, &probed, diagnostics, DRIVER).await;
}

#[tokio::test]
async fn a_driver_that_refuses_its_name_neither() {
    let node = Node::new();
    let driver = node.driver();
    driver.change(|behaviour| {
        behaviour.plugin_info = Fault::Fails {
            code: Code::Unimplemented,
            message: "no such method".to_owned(),
            times: 2,
        };
    });
    let (mut probed, diagnostics) = start(&node, &["--wait-for-ready=false"]).await;
    assert_outlived(&mut probed, diagnostics, "no such method").await;
    assert_registers(&node, &probed, diagnostics, DRIVER).await;
}

#[tokio::test]
async fn a_driver_that_is_late_beyond_its_limit_neither() {
    let node = Node::new();
    let (mut probed, diagnostics) = start(&node, &["--driver-wait-timeout=300ms"]).await;
    until_ready_says(diagnostics, 503, "did not tell its name within 300ms").await;
    probed.assert_fails(&["waiting for the CSI driver"]).await;
    assert!(probed.process.is_running());
    let _driver = node.driver();
    assert_registers(&node, &probed, diagnostics, DRIVER).await;
}

#[tokio::test]
async fn what_is_in_the_way_of_the_socket_neither() {
    let node = Node::new();
    let _driver = node.driver();
    let place = node.registration_socket(DRIVER);
    fs::write(&place, "mine").unwrap();
    let (mut probed, diagnostics) = start(&node, &[]).await;
    assert_outlived(&mut probed, diagnostics, place.to_str().unwrap()).await;
    assert_eq!(fs::read_to_string(&place).unwrap(), "mine");
    fs::remove_file(&place).unwrap();
    assert_registers(&node, &probed, diagnostics, DRIVER).await;
}

#[tokio::test]
async fn a_registration_directory_that_is_missing_neither() {
    let node = Node::new();
    let _driver = node.driver();
    fs::remove_dir(node.registry()).unwrap();
    let (mut probed, diagnostics) = start(&node, &[]).await;
    assert_outlived(
        &mut probed,
        diagnostics,
        "cannot publish the registration socket",
    )
    .await;
    fs::create_dir(node.registry()).unwrap();
    assert_registers(&node, &probed, diagnostics, DRIVER).await;
}

#[tokio::test]
async fn failures_are_tried_again_with_growing_delays() {
    let node = Node::new();
    let _driver = node.driver_with(Behaviour::named("a/b"));
    let (probed, _) = start(&node, &[]).await;
    let failed = "The registration failed, beginning anew";
    within(DEADLINE, "three failures", async {
        while probed.process.log().count(failed) < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let lines = probed.process.log().lines();
    let delays = lines
        .iter()
        .filter(|line| line.contains(failed))
        .map(|line| {
            let (_, delay) = line.split_once("retryIn=").unwrap();
            delay.parse::<f64>().unwrap()
        });
    let delays: Vec<_> = delays.collect();
    assert!(
        delays.windows(2).all(|pair| pair[1] > pair[0] * 1.2),
        "{delays:?}"
    );
    assert!(delays[0] > 0.5, "{delays:?}");
}

#[tokio::test]
async fn a_refused_registration_is_tried_again_and_the_endpoint_goes_on() {
    let node = Node::new();
    let _driver = node.driver();
    let (mut probed, diagnostics) = start(&node, &[]).await;
    let socket = node.published_as(DRIVER).await;
    let kubelet = Kubelet::dial(&socket).await;
    kubelet.get_info().await;
    kubelet.notify(Err("boom")).await;
    until_ready_says(diagnostics, 503, "boom").await;
    probed.assert_alive().await;
    probed.process.log().line_within(DEADLINE, "boom").await;
    assert!(probed.process.is_running());
    // A fresh socket takes the place of the refused one.
    until_ready_says(diagnostics, 503, "the kubelet has not called yet").await;
    assert_registers(&node, &probed, diagnostics, DRIVER).await;
}

#[tokio::test]
async fn an_explicit_exit_is_warned_about_and_exits() {
    let node = Node::new();
    let _driver = node.driver();
    let (mut probed, _) = start(&node, &["--registration-failure-policy=exit"]).await;
    let warning = probed
        .process
        .log()
        .line("--registration-failure-policy=exit")
        .await;
    assert!(
        warning.starts_with('W') && warning.contains("use retry"),
        "{warning}"
    );
    let kubelet = Kubelet::dial(&node.published_as(DRIVER).await).await;
    kubelet.get_info().await;
    kubelet.notify(Err("boom")).await;
    assert_eq!(probed.process.exit().await.code(), Some(1));
    assert!(
        probed
            .process
            .log()
            .complete()
            .await
            .lines()
            .last()
            .unwrap()
            .contains("boom")
    );
}

#[tokio::test]
async fn a_drivers_directory_that_is_gone_for_good_is_the_end_all_the_same() {
    let node = Node::new();
    let directory = node.root().join("d");
    fs::create_dir(&directory).unwrap();
    let mut command = registrar_command();
    command
        .current_dir(&directory)
        .args(node.arguments())
        .args([
            "--csi-address=unix:csi.sock",
            "--liveness-endpoint=127.0.0.1:0",
        ]);
    let mut process = Registrar::spawn(command);
    process.address_of("liveness").await;
    fs::remove_dir(&directory).unwrap();
    assert_eq!(process.exit().await.code(), Some(1));
    let log = process.log().complete().await;
    assert!(
        log.lines()
            .last()
            .unwrap()
            .contains("was removed and cannot come back"),
        "{log}"
    );
}

#[tokio::test]
async fn the_registration_and_the_probe_are_stopped_together() {
    let node = Node::new();
    let _driver = node.driver();
    let (mut probed, diagnostics) = start(&node, &[]).await;
    assert_registers(&node, &probed, diagnostics, DRIVER).await;
    probed.process.signal(Signal::SIGTERM);
    let status = probed.process.exit_within(Duration::from_secs(1)).await;
    assert_eq!(status.code(), Some(0));
    assert!(node.published().is_empty());
}

/// Fails before anything is published or even asked.
async fn assert_fails_before_publishing(more: &[&str], texts: &[&str]) {
    let node = Node::new();
    let driver = node.driver();
    let before = tree(&node.registry());
    let mut command = registrar_command();
    command.args(node.arguments()).args(more);
    let ended = run_command(command).await;
    assert_eq!(ended.code, Some(1), "{more:?}: {}", ended.stderr);
    let [error] = ended.errors()[..] else {
        panic!("{more:?}: {}", ended.stderr)
    };
    for text in texts {
        assert!(error.contains(text), "{more:?}: no {text:?} in {error}");
    }
    assert_eq!(tree(&node.registry()), before);
    assert_eq!(driver.calls().borrow().plugin_info, 0);
}

#[tokio::test]
async fn the_address_of_the_diagnostics_is_taken() {
    let text = "--liveness-endpoint: it must be another address than --http-endpoint";
    for [first, second] in [
        [
            "--http-endpoint=127.0.0.1:9",
            "--liveness-endpoint=127.0.0.1:9",
        ],
        ["--http-endpoint=:9", "--liveness-endpoint=:9"],
        ["--health-port=9", "--liveness-endpoint=:9"],
    ] {
        assert_fails_before_publishing(&[first, second], &[text]).await;
    }
}

#[tokio::test]
async fn a_busy_or_malformed_address_fails_before_anything_is_published() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = held.local_addr().unwrap();
    for endpoint in [
        busy.to_string(),
        format!("localhost:{}", busy.port()),
        format!(":{}", busy.port()),
    ] {
        let texts = [
            "--liveness-endpoint: cannot listen on",
            endpoint.as_str(),
            "Address already in use",
            "another driver's sidecar",
        ];
        let argument = format!("--liveness-endpoint={endpoint}");
        assert_fails_before_publishing(&[&argument], &texts).await;
    }
    for endpoint in ["9808", "localhost", ":65536"] {
        let argument = format!("--liveness-endpoint={endpoint}");
        let texts = [
            "--liveness-endpoint: ",
            endpoint,
            "is no address to listen on",
        ];
        assert_fails_before_publishing(&[&argument], &texts).await;
    }
    for timeout in ["0", "-1s"] {
        let argument = format!("--probe-timeout={timeout}");
        let texts = ["--probe-timeout: it must be greater than zero"];
        assert_fails_before_publishing(&["--liveness-endpoint=:0", &argument], &texts).await;
    }
    let ended = run(["--probe-timeout=3"]).await;
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
}

#[tokio::test]
async fn the_timeout_alone_serves_nothing() {
    let node = Node::new();
    let _driver = node.driver();
    let registrar = node.registrar(["--probe-timeout=1s"]);
    Kubelet::register(&node.published_as(DRIVER).await).await;
    assert_eq!(registrar.log().count("HTTP server listening"), 0);
    registrar.stop().await;
}
