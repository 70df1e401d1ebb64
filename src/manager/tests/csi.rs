//! Rows V11-V15 and H: the CSI handler, from the registration socket to Node and CSINode.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use super::support::*;
use crate::manager::csi::CsiHandler;
use crate::manager::csi::node_store::StoreError;
use crate::manager::event::{Event, What};
use crate::manager::plugin_handler::{Plugin, PluginHandler};
use crate::manager::profile::Profile;
use crate::proto::CSI_PLUGIN;

const SOCKET_B: &str = "/registry/second-reg.sock";
const ENDPOINT_B: &str = "/plugins/second/csi.sock";

/// A kubelet with the CSI handler, a cluster and a driver that listens.
struct World {
    kubelet: Kubelet,
    handler: Arc<CsiHandler>,
    store: Arc<FaultyStore>,
    driver: Arc<FakeDriver>,
}

async fn world(profile: Profile) -> World {
    let store = cluster();
    let (kubelet, handler) = Kubelet::csi(Arc::default(), profile, store.clone()).await;
    let driver = FakeDriver::new("id1");
    listen(&kubelet, ENDPOINT, &driver);
    World {
        kubelet,
        handler,
        store,
        driver,
    }
}

fn listen(kubelet: &Kubelet, endpoint: &str, driver: &Arc<FakeDriver>) {
    let driver = driver.clone();
    kubelet
        .network
        .listen(endpoint, move |stream| driver.accept(stream));
}

fn plugin(name: &str, versions: &[&str]) -> Plugin {
    Plugin {
        socket_path: SOCKET.into(),
        plugin_type: CSI_PLUGIN.into(),
        name: name.into(),
        endpoint: ENDPOINT.into(),
        supported_versions: versions.iter().map(|&version| version.to_owned()).collect(),
    }
}

fn verdict(handler: &CsiHandler, plugin: &Plugin) -> Result<(), String> {
    handler.validate(plugin).map_err(|error| error.to_string())
}

/// The text of the last refusal that the plugin was told.
fn last_refusal(plugin: &FakePlugin) -> String {
    let told = plugin.notifications().pop().expect("it was told something");
    assert!(!told.registered);
    told.error
}

#[tokio::test(start_paused = true)]
async fn v11_validation_follows_the_version_rules() {
    let world = world(K136).await;
    for good in [
        &["v1.0.0"][..],
        &["1.0.0"],
        &["0.2.0", "v1.0.0"],
        &["v1.2.3", "v0.3.0", "2.0.1"],
        &["v1.2.3", "boo", "v0.3.0", "2.0.1"],
    ] {
        assert_eq!(
            verdict(&world.handler, &plugin(DRIVER, good)),
            Ok(()),
            "{good:?}"
        );
    }
    let prefix = "validation failed for CSI Driver driver.example.com at endpoint /plugins/driver/csi.sock: \
                  kubernetes.io/csi: ValidatePlugin for CSI driver \"driver.example.com\" failed. ";
    for (bad, text) in [
        (
            &[][..],
            "Plugin returned an empty list for supported versions",
        ),
        (
            &["0.3.0", "2.0.0"],
            "None of the versions specified [\"0.3.0\" \"2.0.0\"] are supported. err=highest supported version reported is 0.3.0, must be v1.x",
        ),
        (
            &["4.9.12", "2.0.1"],
            "None of the versions specified [\"4.9.12\" \"2.0.1\"] are supported. err=could not find a highest supported version from versions ([4.9.12 2.0.1]) reported: <nil>",
        ),
    ] {
        let error = verdict(&world.handler, &plugin(DRIVER, bad)).unwrap_err();
        assert_eq!(error, format!("{prefix}{text}"));
    }
}

#[tokio::test(start_paused = true)]
async fn v12_another_name_at_the_same_endpoint_is_valid() {
    let mut world = world(K136).await;
    world.kubelet.appear(SOCKET, &FakePlugin::csi());
    world.kubelet.start();
    world.kubelet.until_registered().await;
    assert_eq!(
        verdict(&world.handler, &plugin("test.plugin2", &["1.0.0"])),
        Ok(())
    );
}

#[tokio::test(start_paused = true)]
async fn v13_the_same_name_and_version_is_a_duplicate() {
    let mut world = world(K136).await;
    world.kubelet.appear(SOCKET, &FakePlugin::csi());
    world.kubelet.start();
    world.kubelet.until_registered().await;
    let error = verdict(&world.handler, &plugin(DRIVER, &["1.0.0"])).unwrap_err();
    assert!(
        error.ends_with(
            r#"failed. Another driver with the same name is already registered with a higher supported version: "1.0.0""#
        ),
        "{error}"
    );
    assert_eq!(verdict(&world.handler, &plugin(DRIVER, &["1.0.1"])), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn v15_a_lower_version_is_a_duplicate() {
    let mut world = world(K136).await;
    world.kubelet.appear(
        SOCKET,
        &FakePlugin::new(CSI_PLUGIN, DRIVER, ENDPOINT, &["1.1.0"]),
    );
    world.kubelet.start();
    world.kubelet.until_registered().await;
    let error = verdict(&world.handler, &plugin(DRIVER, &["1.0.0"])).unwrap_err();
    assert!(
        error.ends_with(r#"higher supported version: "1.1.0""#),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn h01_the_cluster_knows_the_driver_before_the_plugin_is_told() {
    for profile in [K117, K119, K136, Profile::NEWEST] {
        let mut world = world(profile).await;
        world
            .driver
            .set_topology(&[("topology.example.com/zone", "a")]);
        let plugin = FakePlugin::csi();
        world.kubelet.skip_events();
        world.kubelet.appear(SOCKET, &plugin);
        world.kubelet.start();
        let mut order = Vec::new();
        loop {
            let Event { what, .. } = world.kubelet.until(|_| true).await;
            let step = match what {
                What::NodeInfoReceived { .. } => "NodeGetInfo",
                What::NodeWritten { .. } => "Node",
                What::CsiNodeWritten { .. } => "CSINode",
                What::Notified {
                    registered: true, ..
                } => "notified",
                What::OperationSucceeded { .. } => break,
                _ => continue,
            };
            order.push(step);
        }
        assert_eq!(
            order,
            ["NodeGetInfo", "Node", "CSINode", "notified"],
            "{profile}"
        );
        assert_eq!(
            world.handler.drivers().get(DRIVER).map(String::as_str),
            Some(ENDPOINT)
        );
        assert_eq!(
            world.store.annotation().as_deref(),
            Some(r#"{"driver.example.com":"id1"}"#)
        );
        assert!(
            world
                .store
                .labels()
                .contains_key("topology.example.com/zone")
        );
        assert_eq!(world.store.drivers(), [DRIVER]);
    }
}

#[tokio::test(start_paused = true)]
async fn h02_a_driver_that_fails_is_asked_once_and_forgotten() {
    let mut world = world(K136).await;
    world
        .driver
        .next_answer(Answer::Error(Status::unavailable("not ready")));
    let plugin = FakePlugin::csi();
    world.kubelet.appear(SOCKET, &plugin);
    world.kubelet.start();
    world.kubelet.until_failed().await;
    assert_eq!(world.driver.http.calls().len(), 1);
    assert!(world.handler.drivers().is_empty());
    assert_eq!(world.store.drivers(), [""; 0]);
    assert_eq!(
        last_refusal(&plugin),
        "RegisterPlugin error -- plugin registration failed with err: rpc error: code = Unavailable desc = not ready"
    );
    world.kubelet.until_registered().await;
}

#[tokio::test(start_paused = true)]
async fn h02_before_1_19_a_driver_that_fails_is_asked_five_times() {
    let mut world = world(K117).await;
    for _ in 0..5 {
        world
            .driver
            .next_answer(Answer::Error(Status::unavailable("not ready")));
    }
    let plugin = FakePlugin::csi();
    world.kubelet.skip_events();
    world.kubelet.appear(SOCKET, &plugin);
    let start = Instant::now();
    world.kubelet.start();
    let mut asked = Vec::new();
    let failed = loop {
        let Event { at, what, .. } = world.kubelet.until(|_| true).await;
        match what {
            What::NodeInfoFailed { .. } => asked.push((at - start).as_secs()),
            What::OperationFailed { .. } => break at,
            _ => {}
        }
    };
    assert_eq!(asked, [0, 1, 3, 7, 15]);
    assert_eq!((failed - start).as_secs(), 15);
    assert_eq!(
        last_refusal(&plugin),
        "RegisterPlugin error -- plugin registration failed with err: timed out waiting for the condition"
    );
    assert!(world.handler.drivers().is_empty());
}

#[tokio::test(start_paused = true)]
async fn h02_before_1_19_a_driver_may_recover_within_one_registration() {
    let mut world = world(K117).await;
    for _ in 0..2 {
        world
            .driver
            .next_answer(Answer::Error(Status::unavailable("not ready")));
    }
    let plugin = FakePlugin::csi();
    world.kubelet.appear(SOCKET, &plugin);
    let start = Instant::now();
    world.kubelet.start();
    let registered = world.kubelet.until_registered().await;
    assert_eq!((registered.at - start).as_secs(), 3);
    assert_eq!(plugin.asked(), 1);
    assert_eq!(world.store.drivers(), [DRIVER]);
}

#[tokio::test(start_paused = true)]
async fn h02_before_1_19_one_answer_is_final() {
    let mut world = world(K117).await;
    let text = "no handler registered for plugin type: CSIPlugin";
    world
        .driver
        .next_answer(Answer::Error(Status::internal(text)));
    let plugin = FakePlugin::csi();
    world.kubelet.appear(SOCKET, &plugin);
    world.kubelet.start();
    world.kubelet.until_failed().await;
    assert_eq!(world.driver.http.calls().len(), 1);
    assert!(last_refusal(&plugin).ends_with(&format!("code = Internal desc = {text}")));
}

#[tokio::test(start_paused = true)]
async fn h03_a_missing_endpoint_fails_at_once() {
    let mut world = world(K136).await;
    world.kubelet.network.remove(ENDPOINT);
    let plugin = FakePlugin::csi();
    world.kubelet.appear(SOCKET, &plugin);
    let start = Instant::now();
    world.kubelet.start();
    let (at, _) = world.kubelet.until_failed().await;
    assert_eq!(at, start);
    assert_eq!(
        last_refusal(&plugin),
        "RegisterPlugin error -- plugin registration failed with err: rpc error: code = Unavailable desc = \
         connection error: desc = \"transport: Error while dialing: dial unix /plugins/driver/csi.sock: connect: no such file or directory\""
    );
}

#[tokio::test(start_paused = true)]
async fn h04_a_driver_that_hangs_has_two_minutes() {
    let mut world = world(K136).await;
    world.driver.next_answer(Answer::Never);
    let plugin = FakePlugin::csi();
    world.kubelet.appear(SOCKET, &plugin);
    let start = Instant::now();
    world.kubelet.start();
    let (at, _) = world.kubelet.until_failed().await;
    assert_eq!(at - start, Duration::from_mins(2));
    assert!(
        last_refusal(&plugin)
            .ends_with("rpc error: code = DeadlineExceeded desc = context deadline exceeded")
    );
}

#[tokio::test(start_paused = true)]
async fn h04_before_1_19_the_two_minutes_are_for_all_attempts() {
    let mut world = world(K117).await;
    world.driver.next_answer(Answer::Never);
    let plugin = FakePlugin::csi();
    world.kubelet.appear(SOCKET, &plugin);
    let start = Instant::now();
    world.kubelet.start();
    let (at, _) = world.kubelet.until_failed().await;
    assert_eq!((at - start).as_secs(), 120 + 15);
    assert!(last_refusal(&plugin).ends_with("err: timed out waiting for the condition"));
}

#[tokio::test(start_paused = true)]
async fn h05_a_driver_without_node_id_is_refused() {
    let store = cluster();
    let (mut kubelet, handler) = Kubelet::csi(Arc::default(), K136, store.clone()).await;
    listen(&kubelet, ENDPOINT, &FakeDriver::new(""));
    let plugin = FakePlugin::csi();
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_failed().await;
    assert_eq!(
        last_refusal(&plugin),
        "RegisterPlugin error -- plugin registration failed with err: error adding CSI driver node info: driverNodeID must not be empty"
    );
    assert!(handler.drivers().is_empty());
    assert_eq!(store.annotation(), None);
    assert_eq!(store.drivers(), [""; 0]);
    assert!(kubelet.actual().is_empty());
}

#[tokio::test(start_paused = true)]
async fn h05_before_1_19_a_driver_without_node_id_panics_the_operation() {
    let mut world = world(K117).await;
    listen(&world.kubelet, ENDPOINT, &FakeDriver::new(""));
    let plugin = FakePlugin::csi();
    world.kubelet.appear(SOCKET, &plugin);
    world.kubelet.start();
    let (_, error) = world.kubelet.until_failed().await;
    assert_eq!(
        error,
        "recovered from panic \"runtime error: invalid memory address or nil pointer dereference\""
    );
    pass(600).await;
    assert_eq!(plugin.notifications(), []);
    assert_eq!(plugin.asked(), 1);
    assert_eq!(world.kubelet.actual(), [SOCKET]);
    assert!(world.handler.drivers().contains_key(DRIVER));
    assert_eq!(world.store.drivers(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn h06_the_plugin_is_told_why_it_failed_not_why_the_rollback_did() {
    let mut world = world(K136).await;
    let plugin = FakePlugin::csi();
    world.kubelet.appear(SOCKET, &plugin);
    world.kubelet.start();
    world.kubelet.until_registered().await;
    world
        .store
        .break_writes(Some(StoreError::Other("read-only".into())));
    plugin.change(|info| info.name = "second.example.com".into());
    world.kubelet.appear(SOCKET_B, &plugin);
    world.kubelet.until_failed().await;
    let text = last_refusal(&plugin);
    assert!(
        text.contains("failed with err: error updating Node object with CSI driver node info: error updating node: "),
        "{text}"
    );
    assert!(!text.contains("uninstalling"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn h07_a_driver_whose_socket_is_gone_leaves_only_labels() {
    let mut world = world(K136).await;
    world.driver.set_topology(&[("zone", "a")]);
    world.kubelet.appear(SOCKET, &FakePlugin::csi());
    world.kubelet.start();
    world.kubelet.until_registered().await;
    world.kubelet.vanish(SOCKET);
    world.kubelet.until_unregistered().await;
    assert_eq!(world.store.drivers(), [""; 0]);
    assert_eq!(world.store.annotation(), None);
    assert!(world.store.labels().contains_key("zone"));
    assert!(world.handler.drivers().is_empty());
}

#[tokio::test(start_paused = true)]
async fn h08_a_second_socket_of_a_name_is_refused_as_long_as_the_first_is_there() {
    let mut world = world(K136).await;
    let first = FakePlugin::csi();
    world.kubelet.appear(SOCKET, &first);
    world.kubelet.start();
    world.kubelet.until_registered().await;
    let second = FakePlugin::new(CSI_PLUGIN, DRIVER, ENDPOINT_B, &["1.0.0"]);
    world.kubelet.appear(SOCKET_B, &second);
    for _ in 0..4 {
        world.kubelet.until_failed().await;
        assert!(last_refusal(&second).contains("Another driver with the same name"));
    }
    assert_eq!(
        world.handler.drivers().get(DRIVER).map(String::as_str),
        Some(ENDPOINT)
    );
    assert_eq!(first.notifications().len(), 1);
    assert_eq!(world.store.drivers(), [DRIVER]);
    assert_eq!(world.kubelet.actual(), [SOCKET]);
}

#[tokio::test(start_paused = true)]
async fn h10_a_higher_version_takes_the_name_over() {
    let mut world = world(K136).await;
    listen(&world.kubelet, ENDPOINT_B, &FakeDriver::new("id2"));
    world.kubelet.appear(SOCKET, &FakePlugin::csi());
    world.kubelet.start();
    world.kubelet.until_registered().await;
    let second = FakePlugin::new(CSI_PLUGIN, DRIVER, ENDPOINT_B, &["1.1.0"]);
    world.kubelet.appear(SOCKET_B, &second);
    world.kubelet.until_registered().await;
    assert_eq!(
        world.handler.drivers().get(DRIVER).map(String::as_str),
        Some(ENDPOINT_B)
    );
    assert_eq!(world.kubelet.actual(), [SOCKET, SOCKET_B]);
    assert_eq!(
        world.store.annotation().as_deref(),
        Some(r#"{"driver.example.com":"id2"}"#)
    );
    // Whichever socket goes takes the name with it; the other is not registered again.
    world.kubelet.vanish(SOCKET);
    world.kubelet.until_unregistered().await;
    pass(600).await;
    assert!(world.handler.drivers().is_empty());
    assert_eq!(world.store.drivers(), [""; 0]);
    assert_eq!(world.kubelet.actual(), [SOCKET_B]);
}

#[tokio::test(start_paused = true)]
async fn h13_a_driver_without_name_blocks_itself() {
    let mut world = world(K136).await;
    let plugin = FakePlugin::new(CSI_PLUGIN, "", ENDPOINT, &["1.0.0"]);
    world.kubelet.appear(SOCKET, &plugin);
    world.kubelet.start();
    world.kubelet.until_failed().await;
    assert_eq!(
        last_refusal(&plugin),
        "RegisterPlugin error -- plugin registration failed with err: driver name is empty"
    );
    world.kubelet.until_failed().await;
    assert!(last_refusal(&plugin).contains("Another driver with the same name"));
    assert!(world.driver.http.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn h15_without_a_cluster_no_driver_registers() {
    let mut kubelet = Kubelet::on(Arc::default(), K136);
    kubelet.csi_handler(K136, None).await;
    listen(&kubelet, ENDPOINT, &FakeDriver::new("id1"));
    let plugin = FakePlugin::csi();
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_failed().await;
    let text = last_refusal(&plugin);
    assert!(
        text.ends_with("caused by: error getting kube client"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn h16_a_restarted_kubelet_registers_the_same_plugin_again() {
    let network = Arc::<Network>::default();
    let store = cluster();
    let plugin = FakePlugin::csi();
    for times in 1..=2 {
        let (mut kubelet, handler) = Kubelet::csi(network.clone(), K136, store.clone()).await;
        listen(&kubelet, ENDPOINT, &FakeDriver::new("id1"));
        kubelet.appear(SOCKET, &plugin);
        kubelet.start();
        kubelet.until_registered().await;
        kubelet.stop.cancel();
        assert_eq!(plugin.notifications().len(), times);
        assert_eq!(store.drivers(), [DRIVER]);
        assert_eq!(handler.drivers().len(), 1);
    }
}

// Beyond the table.

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_accepts_and_says_nothing_fails_after_the_connect_timeout() {
    let mut world = world(K136).await;
    world.kubelet.network.listen(ENDPOINT, |stream| {
        tokio::spawn(async move {
            let _open = stream;
            std::future::pending::<()>().await;
        });
    });
    let plugin = FakePlugin::csi();
    world.kubelet.appear(SOCKET, &plugin);
    let start = Instant::now();
    world.kubelet.start();
    let (at, _) = world.kubelet.until_failed().await;
    assert_eq!(at - start, Duration::from_secs(20));
    assert!(last_refusal(&plugin).contains("code = Unavailable"));
}

#[tokio::test(start_paused = true)]
async fn a_failed_notification_makes_the_driver_flap() {
    let mut world = world(K136).await;
    let plugin = FakePlugin::csi();
    plugin.next_notify(Answer::error("what?"));
    world.kubelet.appear(SOCKET, &plugin);
    world.kubelet.start();
    world.kubelet.until_failed().await;
    assert_eq!(world.store.drivers(), [""; 0]);
    world.kubelet.until_registered().await;
    assert_eq!(world.store.drivers(), [DRIVER]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_higher_version_removes_the_working_driver() {
    let mut world = world(K136).await;
    world.kubelet.appear(SOCKET, &FakePlugin::csi());
    world.kubelet.start();
    world.kubelet.until_registered().await;
    // Nobody listens at the second endpoint.
    let second = FakePlugin::new(CSI_PLUGIN, DRIVER, ENDPOINT_B, &["1.1.0"]);
    world.kubelet.appear(SOCKET_B, &second);
    world.kubelet.until_failed().await;
    assert!(world.handler.drivers().is_empty());
    assert_eq!(world.store.drivers(), [""; 0]);
    assert_eq!(
        world.kubelet.actual(),
        [SOCKET],
        "the manager does not know"
    );
}
