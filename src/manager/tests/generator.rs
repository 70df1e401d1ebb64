//! Rows G: the steps of registering and unregistering, and what a failure in each leaves behind.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use super::support::*;
use crate::manager::BoxFuture;
use crate::manager::actual_state_of_world::ActualStateOfWorld;
use crate::manager::desired_state_of_world::DesiredPlugin;
use crate::manager::event::What;
use crate::manager::identity::Identity;
use crate::manager::plugin_handler::{
    HandlerError, Plugin, PluginHandler, RecordedCall, RecordingHandler, RegisterError,
};
use crate::manager::profile::Profile;
use crate::proto::CSI_PLUGIN;
use crate::uds::authority::Authority;

fn refused(error: &str) -> Notification {
    Notification {
        registered: false,
        error: error.into(),
    }
}

fn accepted() -> Notification {
    Notification {
        registered: true,
        error: String::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn g01_a_type_without_handler_is_refused_by_name() {
    for profile in [K117, K119, K136] {
        let (mut kubelet, _) = Kubelet::recording(profile, CSI_PLUGIN);
        let plugin = FakePlugin::new("Foo", DRIVER, ENDPOINT, &["1.0.0"]);
        kubelet.appear(SOCKET, &plugin);
        kubelet.start();
        let (_, error) = kubelet.until_failed().await;
        let text = "RegisterPlugin error -- no handler registered for plugin type: Foo at socket /registry/driver-reg.sock";
        assert_eq!(
            error,
            format!("RegisterPlugin error -- failed to send error at socket {SOCKET}, err: {text}")
        );
        assert!(kubelet.actual().is_empty());
        kubelet.until_failed().await;
        assert_eq!(
            plugin.notifications(),
            [refused(text), refused(text)],
            "retried"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn g01_device_and_dra_plugins_are_refused_likewise() {
    for plugin_type in ["DevicePlugin", "DRAPlugin", "csiplugin"] {
        let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
        let plugin = FakePlugin::new(plugin_type, DRIVER, ENDPOINT, &["1.0.0"]);
        kubelet.appear(SOCKET, &plugin);
        kubelet.start();
        kubelet.until_failed().await;
        let told = &plugin.notifications()[0];
        assert!(
            told.error
                .contains(&format!("plugin type: {plugin_type} at")),
            "{told:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn g02_a_plugin_that_is_not_valid_is_refused_with_the_reason() {
    for profile in [K117, K119, K136] {
        let (mut kubelet, handler) = Kubelet::recording(profile, CSI_PLUGIN);
        handler.refuse_validation("no good");
        let plugin = FakePlugin::csi();
        kubelet.appear(SOCKET, &plugin);
        kubelet.start();
        let (_, error) = kubelet.until_failed().await;
        let text = "RegisterPlugin error -- plugin validation failed with err: no good";
        assert_eq!(
            error,
            format!("RegisterPlugin error -- failed to send error at socket {SOCKET}, err: {text}")
        );
        assert_eq!(names(&handler.calls()), ["validate"]);
        assert!(kubelet.actual().is_empty());
        kubelet.until_registered().await;
        assert_eq!(plugin.notifications(), [refused(text), accepted()]);
    }
}

/// The plugin that the handler was given first.
fn first_plugin(handler: &RecordingHandler) -> Plugin {
    match handler.calls().remove(0) {
        RecordedCall::Validate(plugin) => plugin,
        call => panic!("validation comes first, not {call:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn g03_no_endpoint_means_the_registration_socket() {
    let (mut kubelet, handler) = Kubelet::recording(K136, CSI_PLUGIN);
    kubelet.appear(SOCKET, &FakePlugin::new(CSI_PLUGIN, DRIVER, "", &["1.0.0"]));
    kubelet.start();
    kubelet.until_registered().await;
    assert_eq!(first_plugin(&handler).endpoint, SOCKET);
}

#[tokio::test(start_paused = true)]
async fn g04_an_endpoint_is_passed_on_unchanged() {
    let (mut kubelet, handler) = Kubelet::recording(K136, CSI_PLUGIN);
    kubelet.appear(
        SOCKET,
        &FakePlugin::new(CSI_PLUGIN, DRIVER, "../odd//path", &["1.0.0"]),
    );
    kubelet.start();
    kubelet.until_registered().await;
    assert_eq!(first_plugin(&handler).endpoint, "../odd//path");
}

#[tokio::test(start_paused = true)]
async fn g05_a_failed_registration_is_undone_and_tried_again() {
    let (mut kubelet, handler) = Kubelet::recording(K136, CSI_PLUGIN);
    handler.refuse_registration("not today");
    let plugin = FakePlugin::csi();
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    // The entry is gone before the plugin is told.
    kubelet
        .until(|what| matches!(what, What::Notified { .. }))
        .await;
    assert!(kubelet.actual().is_empty());
    let (failed_at, error) = kubelet.until_failed().await;
    let text = "RegisterPlugin error -- plugin registration failed with err: not today";
    assert_eq!(error, text);
    let registered = kubelet.until_registered().await;
    assert!(registered.at - failed_at > Duration::from_millis(500));
    assert_eq!(plugin.notifications(), [refused(text), accepted()]);
    assert_eq!(plugin.asked(), 2);
    assert_eq!(
        names(&handler.calls()),
        ["validate", "register", "validate", "register"]
    );
    assert!(kubelet.is_registered(SOCKET));
}

#[tokio::test(start_paused = true)]
async fn g06_before_1_36_a_failed_registration_stays_failed() {
    for profile in [K117, K119, Profile::from_minor(35).unwrap()] {
        let (mut kubelet, handler) = Kubelet::recording(profile, CSI_PLUGIN);
        handler.refuse_registration("not today");
        let plugin = FakePlugin::csi();
        kubelet.appear(SOCKET, &plugin);
        kubelet.start();
        kubelet.until_failed().await;
        pass(600).await;
        assert_eq!(names(&handler.calls()), ["validate", "register"]);
        assert_eq!(plugin.notifications().len(), 1);
        assert!(!plugin.notifications()[0].registered);
        assert!(kubelet.is_registered(SOCKET), "the manager believes it");
        let metrics = super::metrics::render(&kubelet);
        assert!(
            metrics.contains(r#"state="actual_state_of_world"} 1"#),
            "{metrics}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn g07_a_new_socket_helps_where_nothing_else_does() {
    let (mut kubelet, handler) = Kubelet::recording(K119, CSI_PLUGIN);
    handler.refuse_registration("not today");
    let plugin = FakePlugin::csi();
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_failed().await;
    kubelet.vanish(SOCKET);
    kubelet.appear(SOCKET, &plugin);
    kubelet.until_registered().await;
    assert_eq!(
        names(&handler.calls()),
        ["validate", "register", "deregister", "validate", "register"]
    );
}

#[tokio::test(start_paused = true)]
async fn g08_a_failed_notification_takes_the_plugin_back_and_starts_over() {
    let (mut kubelet, handler) = Kubelet::recording(K136, CSI_PLUGIN);
    let plugin = FakePlugin::csi();
    plugin.next_notify(Answer::error("what?"));
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    let (_, error) = kubelet.until_failed().await;
    assert_eq!(
        error,
        format!(
            "RegisterPlugin error -- failed to send registration status at socket {SOCKET}, err: : rpc error: code = Internal desc = what?"
        )
    );
    assert!(kubelet.actual().is_empty());
    kubelet.until_registered().await;
    assert_eq!(
        names(&handler.calls()),
        ["validate", "register", "deregister", "validate", "register"]
    );
    assert!(kubelet.is_registered(SOCKET));
}

#[tokio::test(start_paused = true)]
async fn g08_the_entry_is_gone_before_the_handler_is_told() {
    let kubelet = Kubelet::on(Arc::default(), K136);
    let handler = watching(&kubelet);
    let mut kubelet = kubelet;
    let plugin = FakePlugin::csi();
    plugin.next_notify(Answer::error("what?"));
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_failed().await;
    assert_eq!(handler.seen(), [0]);
}

#[tokio::test(start_paused = true)]
async fn g09_before_1_36_a_failed_notification_changes_nothing() {
    let (mut kubelet, handler) = Kubelet::recording(K119, CSI_PLUGIN);
    let plugin = FakePlugin::csi();
    plugin.next_notify(Answer::error("what?"));
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_failed().await;
    pass(600).await;
    assert_eq!(names(&handler.calls()), ["validate", "register"]);
    assert_eq!(plugin.notifications().len(), 1);
    assert!(kubelet.is_registered(SOCKET));
}

#[tokio::test(start_paused = true)]
async fn g10_a_notification_is_an_error_whenever_it_says_one() {
    // Delivered, without a text: no error.
    let (mut kubelet, handler) = Kubelet::recording(K119, CSI_PLUGIN);
    let plugin = FakePlugin::csi();
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_registered().await;
    // Delivered, with a text: the text.
    handler.refuse_registration("first");
    kubelet.see(SOCKET);
    let (_, error) = kubelet.until_failed().await;
    assert_eq!(
        error,
        "RegisterPlugin error -- plugin registration failed with err: first"
    );
    // Not delivered: the text and the cause.
    handler.refuse_registration("second");
    plugin.next_notify(Answer::error("deaf"));
    kubelet.see(SOCKET);
    let (_, error) = kubelet.until_failed().await;
    assert_eq!(
        error,
        "RegisterPlugin error -- plugin registration failed with err: second: rpc error: code = Internal desc = deaf"
    );
}

#[tokio::test(start_paused = true)]
async fn g11_a_plugin_that_fails_at_first_is_registered_later() {
    for profile in [K117, K119, K136] {
        let (mut kubelet, handler) = Kubelet::recording(profile, CSI_PLUGIN);
        let plugin = FakePlugin::csi();
        for _ in 0..3 {
            plugin.next_get_info(Answer::error("not yet"));
        }
        kubelet.appear(SOCKET, &plugin);
        kubelet.start();
        kubelet.until_registered().await;
        assert_eq!(plugin.asked(), 4);
        assert_eq!(names(&handler.calls()), ["validate", "register"]);
    }
}

/// Counts the actual state's entries whenever it is told to deregister.
#[derive(Debug)]
struct WatchingHandler {
    actual: Arc<ActualStateOfWorld>,
    seen: std::sync::Mutex<Vec<usize>>,
}

impl WatchingHandler {
    fn seen(&self) -> Vec<usize> {
        crate::manager::lock(&self.seen).clone()
    }
}

impl PluginHandler for WatchingHandler {
    fn validate(&self, _: &Plugin) -> Result<(), HandlerError> {
        Ok(())
    }

    fn register<'a>(
        &'a self,
        _: &'a Plugin,
        _: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<(), RegisterError>> {
        Box::pin(async { Ok(()) })
    }

    fn deregister<'a>(&'a self, _: &'a str, _: Option<&'a str>) -> BoxFuture<'a, ()> {
        crate::manager::lock(&self.seen).push(self.actual.plugins().len());
        Box::pin(async {})
    }
}

fn watching(kubelet: &Kubelet) -> Arc<WatchingHandler> {
    let handler = Arc::new(WatchingHandler {
        actual: kubelet.reconciler.actual.clone(),
        seen: std::sync::Mutex::default(),
    });
    kubelet.add_handler(CSI_PLUGIN, handler.clone());
    handler
}

#[tokio::test(start_paused = true)]
async fn g13_the_entry_is_gone_before_the_handler_deregisters() {
    let mut kubelet = Kubelet::on(Arc::default(), K136);
    let handler = watching(&kubelet);
    kubelet.appear(SOCKET, &FakePlugin::csi());
    kubelet.start();
    kubelet.until_registered().await;
    kubelet.vanish(SOCKET);
    kubelet.until_unregistered().await;
    assert_eq!(handler.seen(), [0]);
}

#[tokio::test(start_paused = true)]
async fn g14_deregistration_uses_what_was_registered_and_asks_nobody() {
    for (minor, endpoint) in [
        (37, Some(ENDPOINT)),
        (33, Some(ENDPOINT)),
        (32, None),
        (19, None),
    ] {
        let profile = Profile::from_minor(minor).unwrap();
        let (mut kubelet, handler) = Kubelet::recording(profile, CSI_PLUGIN);
        let plugin = FakePlugin::csi();
        kubelet.appear(SOCKET, &plugin);
        kubelet.start();
        kubelet.until_registered().await;
        plugin.change(|info| info.name = "renamed".into());
        kubelet.vanish(SOCKET);
        kubelet.until_unregistered().await;
        let expected = RecordedCall::Deregister(DRIVER.into(), endpoint.map(str::to_owned));
        assert_eq!(handler.calls().last(), Some(&expected), "1.{minor}");
        assert_eq!(kubelet.network.attempts(SOCKET), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn g15_before_1_19_a_plugin_that_is_gone_stays_registered() {
    let (mut kubelet, handler) = Kubelet::recording(K117, CSI_PLUGIN);
    let plugin = FakePlugin::csi();
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_registered().await;
    kubelet.vanish(SOCKET);
    let (_, error) = kubelet.until_failed().await;
    assert_eq!(
        error,
        format!(
            "UnregisterPlugin error -- dial failed at socket {SOCKET}, err: failed to dial socket {SOCKET}, err: context deadline exceeded"
        )
    );
    kubelet.until_failed().await;
    assert_eq!(kubelet.actual(), [SOCKET]);
    assert_eq!(names(&handler.calls()), ["validate", "register"]);
    // A successor can be asked, and is taken back under its own name.
    plugin.change(|info| info.name = "renamed".into());
    kubelet.appear(SOCKET, &plugin);
    kubelet.until_registered().await;
    let deregistered = RecordedCall::Deregister("renamed".into(), None);
    assert!(
        handler.calls().contains(&deregistered),
        "{:?}",
        handler.calls()
    );
    assert!(kubelet.is_registered(SOCKET));
}

#[tokio::test(start_paused = true)]
async fn g17_an_entry_that_cannot_be_stored_does_not_stop_the_registration() {
    let (mut kubelet, handler) = Kubelet::recording(K136, CSI_PLUGIN);
    // No path, no `:authority` of it.
    let reconciler = Arc::get_mut(&mut kubelet.reconciler).unwrap();
    let generator = Arc::get_mut(&mut reconciler.generator).unwrap();
    generator.authority = Authority::Localhost;
    // Only the empty path cannot be stored.
    let plugin = FakePlugin::csi();
    let service = plugin.clone();
    kubelet
        .network
        .listen("", move |stream| service.accept(stream));
    let desired = DesiredPlugin {
        socket_path: Path::new("").into(),
        timestamp: SystemTime::UNIX_EPOCH,
        identity: Identity::nth(1),
    };
    let generator = kubelet.reconciler.generator.clone();
    generator
        .register(desired, kubelet.reconciler.handlers.snapshot())
        .await
        .unwrap();
    assert!(kubelet.actual().is_empty());
    assert_eq!(names(&handler.calls()), ["validate", "register"]);
    assert_eq!(plugin.notifications(), [accepted()]);
}

#[tokio::test(start_paused = true)]
async fn plugins_that_hang_do_not_delay_others() {
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    for number in 0..50 {
        let plugin = FakePlugin::csi();
        plugin.every_get_info(Answer::Never);
        kubelet.appear(&format!("/registry/{number}.sock"), &plugin);
        kubelet
            .network
            .refuse(&format!("/registry/refusing-{number}.sock"));
        kubelet.see(&format!("/registry/refusing-{number}.sock"));
    }
    kubelet.appear("/registry/zzz.sock", &FakePlugin::csi());
    let start = tokio::time::Instant::now();
    kubelet.start();
    let registered = kubelet.until_registered().await;
    assert_eq!(registered.at, start);
}
