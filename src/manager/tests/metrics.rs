//! Rows M: what a scrape shows.

use super::support::*;
use crate::manager::metrics;
use crate::manager::state::State;
use crate::proto::CSI_PLUGIN;

pub(super) fn render(kubelet: &Kubelet) -> String {
    let reconciler = &kubelet.reconciler;
    metrics::render(
        &reconciler.desired,
        &reconciler.actual,
        &reconciler.executor,
    )
}

/// Samples of the kubelet's own metric.
fn samples(kubelet: &Kubelet) -> Vec<String> {
    let text = render(kubelet);
    let lines = text
        .lines()
        .filter(|line| line.starts_with("plugin_manager_total_plugins"));
    lines.map(str::to_owned).collect()
}

const DESIRED: &str = r#"plugin_manager_total_plugins{socket_path="/registry/driver-reg.sock",state="desired_state_of_world"} 1"#;
const ACTUAL: &str = r#"plugin_manager_total_plugins{socket_path="/registry/driver-reg.sock",state="actual_state_of_world"} 1"#;

#[tokio::test(start_paused = true)]
async fn m01_a_desired_plugin_is_one_sample() {
    let (kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    kubelet.see(SOCKET);
    assert_eq!(samples(&kubelet), [DESIRED]);
}

#[tokio::test(start_paused = true)]
async fn m02_a_registered_plugin_is_two_samples() {
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    kubelet.appear(SOCKET, &FakePlugin::csi());
    kubelet.start();
    kubelet.until_registered().await;
    assert_eq!(samples(&kubelet), [ACTUAL, DESIRED]);
}

#[tokio::test(start_paused = true)]
async fn m03_an_unregistered_plugin_is_none() {
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    kubelet.appear(SOCKET, &FakePlugin::csi());
    kubelet.start();
    kubelet.until_registered().await;
    kubelet.vanish(SOCKET);
    kubelet.until_unregistered().await;
    assert!(samples(&kubelet).is_empty());
}

#[tokio::test(start_paused = true)]
async fn operations_failures_and_backoff_are_counted() {
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    let plugin = FakePlugin::csi();
    plugin.next_get_info(Answer::error("not yet"));
    plugin.next_get_info(Answer::error("not yet"));
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_failed().await;
    kubelet.until_failed().await;
    let text = render(&kubelet);
    let path = r#"{socket_path="/registry/driver-reg.sock"}"#;
    for line in [
        format!("plugin_manager_operation_failures{path} 2"),
        format!("plugin_manager_operation_backoff_seconds{path} 1"),
        r#"plugin_manager_operations_total{operation="register",result="failed"} 2"#.into(),
    ] {
        assert!(text.lines().any(|have| have == line), "{line} in {text}");
    }
    kubelet.until_registered().await;
    let text = render(&kubelet);
    assert!(
        !text.contains(&format!("plugin_manager_operation_failures{path}")),
        "{text}"
    );
    assert!(
        text.contains(r#"operation="register",result="succeeded"} 1"#),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn labels_are_escaped() {
    let (kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    kubelet.see("/a\"b\\c\n.sock");
    assert!(render(&kubelet).contains(r#"socket_path="/a\"b\\c\n.sock""#));
}

#[tokio::test(start_paused = true)]
async fn the_state_shows_both_caches_handlers_and_backoff() {
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    kubelet.appear(SOCKET, &FakePlugin::csi());
    let failing = FakePlugin::csi();
    failing.every_get_info(Answer::error("no"));
    kubelet.appear("/registry/failing.sock", &failing);
    kubelet.start();
    kubelet.until_registered().await;
    pass(0).await;
    let reconciler = &kubelet.reconciler;
    let state = State::read(
        &reconciler.desired,
        &reconciler.actual,
        &reconciler.handlers,
        &reconciler.executor,
    );
    let state = serde_json::to_value(state).unwrap();
    assert_eq!(state["desired_state_of_world"].as_array().unwrap().len(), 2);
    assert_eq!(state["actual_state_of_world"][0]["socket_path"], SOCKET);
    assert_eq!(state["actual_state_of_world"][0]["name"], DRIVER);
    assert_eq!(state["handlers"], serde_json::json!([CSI_PLUGIN]));
    assert_eq!(
        state["operations"][0]["socket_path"],
        "/registry/failing.sock"
    );
    assert_eq!(state["operations"][0]["failures"], 1);
    assert_eq!(state["operations"][0]["backoff_seconds"], 0.5);
}
