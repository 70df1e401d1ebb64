//! The three kinds of probe of a pod - liveness (`/healthz`), readiness (`/readyz`), exec (`probe`) - on the real binary, side by
//! side in every phase of its life.

#![allow(clippy::unwrap_used, reason = "test code")]

mod support;

use std::fs;
use std::net::SocketAddr;

use csi_node_driver_registrar::testing::csi_driver::{Behaviour, Fault};
use support::{DEADLINE, DRIVER, Kubelet, Node, registrar_command, try_get, within};

const HTTP: &str = "--http-endpoint=127.0.0.1:0";

/// What the probes say: status of `/healthz` and `/readyz`, 0 if nobody listens; exit codes of `probe` and
/// `probe --registered`.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    healthz: u16,
    readyz: u16,
    probe: i32,
    probe_registered: i32,
}

const fn told(healthz: u16, readyz: u16, probe: i32, probe_registered: i32) -> Told {
    Told {
        healthz,
        readyz,
        probe,
        probe_registered,
    }
}

const WAITING: Told = told(200, 503, 1, 1);
const PUBLISHED: Told = told(200, 503, 0, 1);
const REGISTERED: Told = told(200, 200, 0, 0);

async fn status(http: SocketAddr, path: &str) -> u16 {
    try_get(http, path).await.map_or(0, |answer| answer.status)
}

async fn probe(node: &Node, more: &[&str]) -> i32 {
    let mut command = tokio::process::Command::from(registrar_command());
    command.arg("probe").args(node.arguments()).args(more);
    let output = command.kill_on_drop(true).output();
    let output = within(DEADLINE, "probe", output).await.unwrap();
    output.status.code().unwrap()
}

async fn asked(node: &Node, http: SocketAddr) -> Told {
    Told {
        healthz: status(http, "/healthz").await,
        readyz: status(http, "/readyz").await,
        probe: probe(node, &[]).await,
        probe_registered: probe(node, &["--registered"]).await,
    }
}

/// Waits for a phase that begins by itself.
async fn comes_to(node: &Node, http: SocketAddr, phase: &str, expected: Told) {
    within(DEADLINE, phase, async {
        while asked(node, http).await != expected {}
    })
    .await;
}

#[tokio::test]
async fn in_every_phase_each_probe_tells_what_it_is_for() {
    let node = Node::new();
    let registrar = node.registrar([HTTP, "--v=5"]);
    let http = registrar.http_address().await;
    assert_eq!(asked(&node, http).await, WAITING, "no driver");

    let driver = node.driver_with(Behaviour {
        plugin_info: Fault::Hangs,
        ..Behaviour::named(DRIVER)
    });
    registrar.log().line("Identity/GetPluginInfo").await;
    assert_eq!(asked(&node, http).await, WAITING, "a driver that hangs");
    driver.stop().await.unwrap();

    let driver = node.driver();
    let socket = node.published_as(DRIVER).await;
    assert_eq!(asked(&node, http).await, PUBLISHED, "published");
    let kubelet = Kubelet::dial(&socket).await;
    kubelet.get_info().await;
    assert_eq!(asked(&node, http).await, PUBLISHED, "called");
    kubelet.notify(Ok(())).await;
    assert_eq!(asked(&node, http).await, REGISTERED, "registered");

    // The registrar's restart would not bring the driver back: `/healthz/driver` and `--liveness-endpoint` tell that.
    driver.stop().await.unwrap();
    assert_eq!(asked(&node, http).await, REGISTERED, "the driver is gone");
    assert_eq!(status(http, "/healthz/driver").await, 500);
    let _driver = node.driver();

    let registry = node.registry();
    fs::remove_dir_all(&registry).unwrap();
    comes_to(&node, http, "no directory", told(404, 503, 1, 1)).await;
    fs::create_dir(&registry).unwrap();
    comes_to(&node, http, "published again", PUBLISHED).await;

    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "").unwrap();
    comes_to(&node, http, "a file in the way", told(500, 503, 1, 1)).await;
    fs::remove_file(&socket).unwrap();
    comes_to(&node, http, "published once more", PUBLISHED).await;
    Kubelet::register(&socket).await;
    assert_eq!(asked(&node, http).await, REGISTERED, "registered again");

    let successor = node.registrar::<&str>([]);
    // The driver is served, by another: nothing to restart, and not us to send traffic to.
    comes_to(&node, http, "superseded", PUBLISHED).await;
    Kubelet::register(&socket).await;
    let superseded = told(200, 503, 0, 0);
    comes_to(&node, http, "superseded, registered", superseded).await;
    successor.stop().await;
    comes_to(&node, http, "alone again", PUBLISHED).await;
    Kubelet::register(&socket).await;
    assert_eq!(asked(&node, http).await, REGISTERED, "registered at last");

    registrar.stop().await;
    assert_eq!(asked(&node, http).await, told(0, 0, 1, 1), "stopped");
}

#[tokio::test]
async fn a_refusal_that_is_tried_again_is_no_reason_to_restart() {
    let node = Node::new();
    let _driver = node.driver();
    let registrar = node.registrar([HTTP, "--registration-failure-policy=retry"]);
    let http = registrar.http_address().await;
    let socket = node.published_as(DRIVER).await;
    let kubelet = Kubelet::dial(&socket).await;
    kubelet.get_info().await;
    kubelet.notify(Err("no room on this node")).await;
    let refused = asked(&node, http).await;
    assert_eq!((refused.healthz, refused.readyz), (200, 503));
    assert_eq!(refused.probe_registered, 1);

    within(DEADLINE, "a registration after all", async {
        while Kubelet::try_dial(&socket).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    Kubelet::register(&socket).await;
    assert_eq!(asked(&node, http).await, REGISTERED);
    registrar.stop().await;
}
