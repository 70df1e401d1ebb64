//! `/metrics`: what it says in each phase, and that a real parser takes it.
//!
//! With `PROMTOOL` in the environment the exposition is also given to `promtool check metrics`; `tests/metrics/run` does so.

#![allow(clippy::unwrap_used, reason = "test code")]

mod support;

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use support::{DRIVER, Kubelet, Node, get, until};

async fn scrape(address: SocketAddr) -> String {
    let answer = get(address, "/metrics").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let head = answer.head.to_lowercase();
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    check(&answer.body);
    answer.body
}

/// What Prometheus' own parser and linter say.
fn check(exposition: &str) {
    let Some(promtool) = std::env::var_os("PROMTOOL") else {
        return;
    };
    let mut linter = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    linter
        .stdin
        .take()
        .unwrap()
        .write_all(exposition.as_bytes())
        .unwrap();
    let output = linter.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(
        output.status.success() && said.is_empty(),
        "promtool: {said}\n{exposition}"
    );
}

fn value(exposition: &str, sample: &str) -> Option<f64> {
    let lines = exposition.lines().filter_map(|line| line.rsplit_once(' '));
    let mut values = lines
        .filter(|(name, _)| *name == sample)
        .map(|(_, value)| value);
    values.next().map(|value| value.parse().unwrap())
}

fn registered(exposition: &str) -> Option<f64> {
    value(
        exposition,
        &format!("csi_registrar_registered{{driver_name=\"{DRIVER}\"}}"),
    )
}

fn notifications(exposition: &str, result: &str) -> Option<f64> {
    let labels = format!("driver_name=\"{DRIVER}\",result=\"{result}\"");
    value(
        exposition,
        &format!("csi_registrar_notifications_total{{{labels}}}"),
    )
}

#[tokio::test]
async fn the_metrics_follow_the_registration() {
    let node = Node::new();
    let registrar = node.registrar([
        "--http-endpoint=127.0.0.1:0",
        "--registration-failure-policy=retry",
    ]);
    let address = registrar.http_address().await;

    let waiting = scrape(address).await;
    assert_eq!(registered(&waiting), None);
    assert_eq!(
        value(&waiting, "csi_registrar_publications_total"),
        Some(0.0)
    );
    let waited = value(&waiting, "csi_registrar_driver_wait_seconds").unwrap();
    let version = format!(
        "csi_registrar_build_info{{version=\"v{}\"}}",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(value(&waiting, &version), Some(1.0));
    for name in [
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_cpu_seconds_total",
        "process_start_time_seconds",
    ] {
        assert!(
            value(&waiting, name).is_some_and(|value| value >= 0.0),
            "{name}"
        );
    }

    let _driver = node.driver();
    let socket = node.published_as(DRIVER).await;
    let published = scrape(address).await;
    assert_eq!(registered(&published), Some(0.0));
    assert_eq!(
        value(&published, "csi_registrar_publications_total"),
        Some(1.0)
    );
    assert!(value(&published, "csi_registrar_driver_wait_seconds").unwrap() > waited);

    let kubelet = Kubelet::register(&socket).await;
    let confirmed = scrape(address).await;
    assert_eq!(registered(&confirmed), Some(1.0));
    assert_eq!(notifications(&confirmed, "registered"), Some(1.0));
    assert_eq!(notifications(&confirmed, "refused"), None);
    let durations = "csi_registrar_registration_duration_seconds_count";
    assert_eq!(value(&confirmed, durations), Some(1.0));

    kubelet.notify(Err("boom")).await;
    let refused = scrape(address).await;
    assert_eq!(registered(&refused), Some(0.0));
    assert_eq!(notifications(&refused, "refused"), Some(1.0));
    registrar.stop().await;
}

#[tokio::test]
async fn a_registrar_that_was_superseded_says_so() {
    let node = Node::new();
    let _driver = node.driver();
    let first = node.registrar(["--http-endpoint=127.0.0.1:0"]);
    let address = first.http_address().await;
    Kubelet::register(&node.published_as(DRIVER).await).await;
    assert_eq!(registered(&scrape(address).await), Some(1.0));

    let second = node.registrar(["--http-endpoint=127.0.0.1:0"]);
    second.log().line("Registration socket published").await;
    first.log().line("standing by").await;
    assert_eq!(registered(&scrape(address).await), Some(0.0));
    second.stop().await;
    until("the first to publish again", || {
        first.log().count("Registration socket published") == 2
    })
    .await;
    assert_eq!(
        value(&scrape(address).await, "csi_registrar_publications_total"),
        Some(2.0)
    );
    first.stop().await;
}
