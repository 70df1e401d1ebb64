//! Rows R: from the difference between the caches to operations.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::support::*;
use crate::manager::actual_state_of_world::RegisteredPlugin;
use crate::manager::desired_state_of_world::DesiredPlugin;
use crate::manager::event::What;
use crate::manager::identity::Identity;
use crate::manager::plugin_handler::RecordingHandler;
use crate::manager::reconciler::plan;

/// A type that `pluginmanager`'s own tests use.
const DEVICE_PLUGIN: &str = "DevicePlugin";

#[tokio::test(start_paused = true)]
async fn r01_nothing_makes_nothing() {
    let (mut kubelet, handler) = Kubelet::recording(K136, DEVICE_PLUGIN);
    kubelet.start();
    pass(10).await;
    assert!(kubelet.actual().is_empty());
    assert!(handler.calls().is_empty());
    assert!(kubelet.pending_events().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r02_what_is_desired_is_registered_under_its_identity() {
    let (mut kubelet, handler) = Kubelet::recording(K136, DEVICE_PLUGIN);
    let plugin = FakePlugin::new(DEVICE_PLUGIN, "d", "/e", &["v1beta1"]);
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_registered().await;
    assert_eq!(kubelet.actual(), [SOCKET]);
    assert!(kubelet.is_registered(SOCKET));
    assert_eq!(names(&handler.calls()), ["validate", "register"]);
}

#[tokio::test(start_paused = true)]
async fn r03_what_is_desired_no_longer_is_unregistered() {
    let (mut kubelet, handler) = Kubelet::recording(K136, DEVICE_PLUGIN);
    let plugin = FakePlugin::new(DEVICE_PLUGIN, "d", "/e", &["v1beta1"]);
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_registered().await;
    kubelet.vanish(SOCKET);
    kubelet.until_unregistered().await;
    pass(10).await;
    assert!(kubelet.actual().is_empty());
    assert_eq!(
        names(&handler.calls()),
        ["validate", "register", "deregister"]
    );
}

#[tokio::test(start_paused = true)]
async fn r04_a_socket_that_is_seen_again_is_registered_anew() {
    let (mut kubelet, handler) = Kubelet::recording(K136, DEVICE_PLUGIN);
    let plugin = FakePlugin::new(DEVICE_PLUGIN, "d", "/e", &["v1beta1"]);
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_registered().await;
    kubelet.see(SOCKET);
    assert!(!kubelet.is_registered(SOCKET));
    kubelet.until_registered().await;
    assert_eq!(
        names(&handler.calls()),
        ["validate", "register", "deregister", "validate", "register"]
    );
    assert!(kubelet.is_registered(SOCKET));
}

#[tokio::test(start_paused = true)]
async fn r05_a_handler_may_come_later() {
    let mut kubelet = Kubelet::on(Arc::default(), K136);
    let plugin = FakePlugin::csi();
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    pass(2).await;
    assert!(plugin.notifications().iter().all(|told| !told.registered));
    assert!(!plugin.notifications().is_empty());
    pass(1).await;
    kubelet.add_handler(crate::proto::CSI_PLUGIN, Arc::<RecordingHandler>::default());
    kubelet.until_registered().await;
    assert!(plugin.notifications().last().unwrap().registered);
}

#[tokio::test(start_paused = true)]
async fn r06_other_answers_behind_the_same_file_are_not_noticed() {
    let (mut kubelet, handler) = Kubelet::recording(K136, DEVICE_PLUGIN);
    let plugin = FakePlugin::new(DEVICE_PLUGIN, "d", "/e", &["v1beta1"]);
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_registered().await;
    plugin.change(|info| info.name = "renamed".into());
    pass(600).await;
    assert_eq!(names(&handler.calls()), ["validate", "register"]);
    assert_eq!(plugin.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn r08_passes_come_at_once_and_then_every_second() {
    let (mut kubelet, _) = Kubelet::recording(K136, DEVICE_PLUGIN);
    let start = tokio::time::Instant::now();
    kubelet.start();
    // A pass shows itself by what it starts.
    for second in [0_u64, 1, 2, 3] {
        pass(0).await;
        let path = format!("/registry/{second}.sock");
        kubelet.appear(
            &path,
            &FakePlugin::new(DEVICE_PLUGIN, "d", "/e", &["v1beta1"]),
        );
        let started = kubelet
            .until(|what| matches!(what, What::OperationStarted { .. }))
            .await;
        let expected = if second == 0 {
            Duration::ZERO
        } else {
            Duration::from_secs(second)
        };
        assert_eq!(started.at - start, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_reconciler_starts_nothing() {
    let (mut kubelet, _) = Kubelet::recording(K136, DEVICE_PLUGIN);
    kubelet.start();
    pass(1).await;
    kubelet.stop.cancel();
    kubelet.appear(
        SOCKET,
        &FakePlugin::new(DEVICE_PLUGIN, "d", "/e", &["v1beta1"]),
    );
    pass(10).await;
    assert!(kubelet.pending_events().is_empty());
}

fn desired(entries: &[(u8, u8)]) -> Vec<DesiredPlugin> {
    let entry = |&(path, identity): &(u8, u8)| DesiredPlugin {
        socket_path: PathBuf::from(format!("/registry/{path}")),
        timestamp: SystemTime::UNIX_EPOCH,
        identity: Identity::nth(identity.into()),
    };
    entries.iter().map(entry).collect()
}

fn registered(plugin: &DesiredPlugin) -> RegisteredPlugin {
    RegisteredPlugin {
        socket_path: plugin.socket_path.clone(),
        identity: plugin.identity,
        handler: Arc::new(RecordingHandler::default()),
        plugin_type: String::new(),
        name: String::new(),
        endpoint: String::new(),
    }
}

fn entries() -> impl Strategy<Value = Vec<(u8, u8)>> {
    proptest::collection::btree_map(0..6_u8, 0..3_u8, 0..6)
        .prop_map(|map| map.into_iter().collect())
}

proptest! {
    #[test]
    fn carrying_out_the_plan_makes_both_states_equal(wanted in entries(), present in entries()) {
        let wanted = desired(&wanted);
        let mut actual: Vec<_> = desired(&present).iter().map(registered).collect();
        let first = plan(&wanted, &actual);
        for plugin in &first.unregister {
            actual.retain(|registered| registered.socket_path != plugin.socket_path);
        }
        for plugin in &first.register {
            prop_assert!(actual.iter().all(|registered| registered.socket_path != plugin.socket_path));
            actual.push(registered(plugin));
        }
        let second = plan(&wanted, &actual);
        prop_assert!(second.unregister.is_empty() && second.register.is_empty());
        prop_assert_eq!(actual.len(), wanted.len());
    }

    #[test]
    fn what_agrees_is_left_alone(wanted in entries()) {
        let wanted = desired(&wanted);
        let actual: Vec<_> = wanted.iter().map(registered).collect();
        let plan = plan(&wanted, &actual);
        prop_assert!(plan.unregister.is_empty() && plan.register.is_empty());
    }
}
