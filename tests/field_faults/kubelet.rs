//! Faults of the kubelet's side, and of whoever takes its place.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::field::{
    answering, complaint, complaints, failed, http_endpoint, identity, listening, loopback_address,
    registered,
};
use crate::support::{DEADLINE, DRIVER, Kubelet, Node, get, until};

const NOTHING: [&str; 0] = [];

/// As `operation_generator.go` of the kubelet words it.
const REFUSAL: &str = "RegisterPlugin error -- plugin registration failed with err: boom";

pub async fn f14_refusal() {
    let node = Node::new();
    let _driver = node.driver();
    let registrar = node.registrar(NOTHING);
    let socket = node.published_as(DRIVER).await;
    answering(&socket, DEADLINE).await;
    let kubelet = Kubelet::dial(&socket).await;
    kubelet.get_info().await;
    kubelet.notify(Err(REFUSAL)).await;
    let log = failed(registrar, DEADLINE).await;
    let last = complaints(&log).last().copied().unwrap_or_default();
    assert!(last.contains(REFUSAL), "the last complaint is {last:?}");
    assert!(node.published().is_empty());
}

pub async fn f15_five_refusals_with_policy_retry() {
    let node = Node::new();
    let _driver = node.driver();
    let registrar = node.registrar(["--registration-failure-policy=retry"]);
    let socket = node.published_as(DRIVER).await;
    for attempt in 0..5 {
        answering(&socket, DEADLINE).await;
        let kubelet = Kubelet::dial(&socket).await;
        kubelet.get_info().await;
        kubelet.notify(Err(REFUSAL)).await;
        let refused = identity(&socket);
        assert!(refused.is_some(), "the socket does not stay up");
        let begin = Instant::now();
        // 1 s, 2 s, 4 s and so on, up to a fifth less; and what a busy machine adds.
        let delay = Duration::from_secs(1 << attempt);
        let limit = delay + Duration::from_secs(3);
        loop {
            let now = identity(&socket);
            assert!(now.is_some(), "the path vanished between two attempts");
            if now != refused {
                break;
            }
            assert!(begin.elapsed() < limit, "no new attempt within {limit:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let waited = begin.elapsed();
        assert!(
            waited >= delay * 3 / 4,
            "attempt {attempt} after {waited:?}"
        );
    }
    Kubelet::register(&socket).await;
    registrar.stop().await;
    assert!(node.published().is_empty());
}

pub async fn f16_kubelet_never_calls() {
    let node = Node::new();
    let _driver = node.driver();
    let registrar = node.registrar(NOTHING);
    node.published_as(DRIVER).await;
    let line = complaint(&registrar, Duration::from_secs(75), &["kubelet"]).await;
    assert!(line.contains("plugins_registry"), "{line}");
    registrar.stop().await;
}

pub async fn f17_notification_after_130_seconds() {
    let node = Node::new();
    let _driver = node.driver();
    let mut registrar = node.registrar(NOTHING);
    let socket = node.published_as(DRIVER).await;
    answering(&socket, DEADLINE).await;
    let kubelet = Kubelet::dial(&socket).await;
    kubelet.get_info().await;
    tokio::time::sleep(Duration::from_secs(130)).await;
    kubelet.notify(Ok(())).await;
    assert!(registrar.is_running());
    registrar.log().line("NotifyRegistrationStatus").await;
    registrar.stop().await;
}

pub async fn f18_replaced_by_another_registrar() {
    let node = Node::new();
    let _driver = node.driver();
    let address = loopback_address();
    let older = node.registrar([http_endpoint(address)]);
    let socket = node.published_as(DRIVER).await;
    listening(address).await;
    registered(&socket).await;
    assert_eq!(get(address, "/readyz").await.status, 200);

    // The second time the other one has no chance to withdraw.
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let before = identity(&socket);
        let mut newer = node.registrar(NOTHING);
        until("the newer registrar's socket", || {
            identity(&socket).is_some_and(|now| Some(now) != before)
        })
        .await;
        answering(&socket, DEADLINE).await;
        complaint(&older, DEADLINE, &["another registrar"]).await;
        let readiness = get(address, "/readyz").await;
        assert_eq!(readiness.status, 503, "{readiness:?}");
        assert!(readiness.body.contains("superseded"), "{readiness:?}");
        assert_eq!(get(address, "/healthz").await.status, 200);
        newer.signal(signal);
        newer.exit().await;
        // Three questions, ten seconds apart, if the other one left its socket.
        answering(&socket, Duration::from_secs(40)).await;
        Kubelet::register(&socket).await;
        assert_eq!(get(address, "/readyz").await.status, 200);
    }
    older.stop().await;
    assert!(node.published().is_empty());
}

pub async fn f31_path_too_long_on_the_host() {
    let node = Node::new();
    let _driver = node.driver();
    let root = format!("/var/lib/{}", "k".repeat(60));
    let argument = format!("--kubelet-registration-path={root}/plugins/d/csi.sock");
    let registrar = node.registrar([argument]);
    let host_path = format!("{root}/plugins_registry/{DRIVER}-reg.sock");
    let length = host_path.len().to_string();
    assert!(host_path.len() > 107);
    complaint(&registrar, DEADLINE, &[&host_path, &length, "107"]).await;
    node.published_as(DRIVER).await;
    registrar.stop().await;

    // Nothing is derived where no component is called `plugins`.
    let argument = format!("--kubelet-registration-path=/{}/d/csi.sock", "p".repeat(90));
    let registrar = node.registrar([argument]);
    answering(&node.published_as(DRIVER).await, DEADLINE).await;
    assert!(complaints(&registrar.log().text()).is_empty());
    registrar.stop().await;
}
