//! Rows E: one operation for a socket, and the backoff.

use std::future::pending;
use std::path::Path;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::support::*;
use crate::manager::event::{EventSink, What};
use crate::manager::operation_executor::{
    BEGINNING, MAX_BEGINNING, OperationExecutor, OperationKind, Refused,
};
use crate::proto::CSI_PLUGIN;

const OTHER: &str = "/registry/other-reg.sock";

/// Starts an operation that ends with `end`, or never.
fn start(
    executor: &OperationExecutor,
    kind: OperationKind,
    path: &str,
) -> Result<oneshot::Sender<()>, Refused> {
    let (end, ended) = oneshot::channel();
    executor.start(kind, Path::new(path), async {
        if ended.await.is_err() {
            pending::<()>().await;
        }
        Ok(())
    })?;
    Ok(end)
}

fn running(executor: &OperationExecutor) -> usize {
    let state = executor.state();
    state
        .operations
        .values()
        .filter(|operations| operations.running.is_some())
        .count()
}

#[tokio::test(start_paused = true)]
async fn e01_registrations_of_two_sockets_run_at_once() {
    let executor = OperationExecutor::new(EventSink::default());
    start(&executor, OperationKind::Register, SOCKET).unwrap();
    start(&executor, OperationKind::Register, OTHER).unwrap();
    assert_eq!(running(&executor), 2);
}

#[tokio::test(start_paused = true)]
async fn e02_a_second_registration_of_a_socket_is_refused() {
    let executor = OperationExecutor::new(EventSink::default());
    let end = start(&executor, OperationKind::Register, SOCKET).unwrap();
    let refused = start(&executor, OperationKind::Register, SOCKET).unwrap_err();
    assert_eq!(refused, Refused::AlreadyRunning);
    let refused = start(&executor, OperationKind::Unregister, SOCKET).unwrap_err();
    assert_eq!(refused, Refused::AlreadyRunning);
    end.send(()).unwrap();
    pass(1).await;
    start(&executor, OperationKind::Register, SOCKET).unwrap();
}

#[tokio::test(start_paused = true)]
async fn e03_unregistrations_follow_the_same_rule() {
    let executor = OperationExecutor::new(EventSink::default());
    start(&executor, OperationKind::Unregister, SOCKET).unwrap();
    start(&executor, OperationKind::Unregister, OTHER).unwrap();
    assert_eq!(running(&executor), 2);
    let refused = start(&executor, OperationKind::Unregister, SOCKET).unwrap_err();
    assert_eq!(refused, Refused::AlreadyRunning);
}

#[tokio::test(start_paused = true)]
async fn e04_backoff_doubles_up_to_two_minutes_and_two_seconds() {
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    let plugin = FakePlugin::csi();
    // Attempts take time, so that the wait is seen to count from their ends.
    plugin.every_get_info(Answer::Never);
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    for backoff in [
        0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 122.0, 122.0, 122.0,
    ] {
        let (failed_at, _) = kubelet.until_failed().await;
        let started = kubelet
            .until(|what| matches!(what, What::OperationStarted { .. }))
            .await;
        let gap = (started.at - failed_at).as_secs_f64();
        // Passes come once a second.
        assert!(
            gap > backoff && gap <= backoff + 1.0,
            "{gap} after a backoff of {backoff}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn e05_success_resets_the_backoff() {
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    let plugin = FakePlugin::csi();
    for _ in 0..5 {
        plugin.next_get_info(Answer::error("not yet"));
    }
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_registered().await;
    assert_eq!(plugin.asked(), 6);
    plugin.next_get_info(Answer::error("once more"));
    kubelet.see(SOCKET);
    let failed = kubelet
        .until(|what| matches!(what, What::OperationFailed { .. }))
        .await;
    let What::OperationFailed { backoff, .. } = failed.what else {
        unreachable!("until matched it")
    };
    assert_eq!(backoff, Duration::from_millis(500));
}

#[tokio::test(start_paused = true)]
async fn e05_a_new_identity_does_not_reset_the_backoff() {
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    kubelet.network.refuse(SOCKET);
    kubelet.see(SOCKET);
    kubelet.start();
    for _ in 0..9 {
        kubelet.until_failed().await;
    }
    let (failed_at, _) = kubelet.until_failed().await;
    kubelet.vanish(SOCKET);
    kubelet.appear(SOCKET, &FakePlugin::csi());
    let registered = kubelet.until_registered().await;
    assert!(registered.at - failed_at > Duration::from_secs(122));
}

#[tokio::test(start_paused = true)]
async fn e07_a_panic_is_an_error_of_the_operation() {
    let (mut kubelet, handler) = Kubelet::recording(K136, CSI_PLUGIN);
    handler.panic_in_registration();
    let plugin = FakePlugin::csi();
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    let (_, error) = kubelet.until_failed().await;
    assert!(
        error.contains("recovered from panic \"a handler that panics\""),
        "{error}"
    );
    assert!(kubelet.is_registered(SOCKET), "nothing is cleaned up");
    assert_eq!(plugin.notifications(), []);
    kubelet.appear(OTHER, &FakePlugin::csi());
    kubelet.until_registered().await;
    pass(600).await;
    assert_eq!(plugin.asked(), 1, "not tried again");
    kubelet.see(SOCKET);
    kubelet.until_registered().await;
}

#[tokio::test(start_paused = true)]
async fn e08_a_socket_that_goes_during_its_registration_is_unregistered_after_it() {
    let (mut kubelet, handler) = Kubelet::recording(K136, CSI_PLUGIN);
    handler.delay_registration(Duration::from_secs(30));
    let plugin = FakePlugin::csi();
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    pass(5).await;
    kubelet.vanish(SOCKET);
    pass(20).await;
    assert_eq!(names(&handler.calls()), ["validate", "register"]);
    kubelet.until_registered().await;
    kubelet.until_unregistered().await;
    pass(60).await;
    assert_eq!(
        names(&handler.calls()),
        ["validate", "register", "deregister"]
    );
    assert!(kubelet.actual().is_empty());
}

// Beyond the table.

/// An executor with as many operations that began just now, and hang, as may begin at once, and one more that says when it
/// begins. Ends the first where its sender is used.
fn crowd() -> (
    OperationExecutor,
    oneshot::Sender<()>,
    oneshot::Receiver<Instant>,
) {
    let executor = OperationExecutor::new(EventSink::default());
    let path = |number: usize| format!("/registry/{number}.sock");
    let mut ends: Vec<_> = (0..MAX_BEGINNING)
        .map(|number| start(&executor, OperationKind::Register, &path(number)).unwrap())
        .collect();
    let (began, begins) = oneshot::channel();
    let operation = async {
        began.send(Instant::now()).unwrap();
        Ok(())
    };
    let last = path(MAX_BEGINNING);
    executor
        .start(OperationKind::Register, Path::new(&last), operation)
        .unwrap();
    let refused = start(&executor, OperationKind::Register, &last).unwrap_err();
    assert_eq!(refused, Refused::AlreadyRunning, "it waits");
    (executor, ends.remove(0), begins)
}

#[tokio::test(start_paused = true)]
async fn an_operation_beyond_the_bound_begins_when_one_ends() {
    let begin = Instant::now();
    let (_executor, end, mut begins) = crowd();
    tokio::time::sleep(BEGINNING / 2).await;
    assert!(begins.try_recv().is_err());
    end.send(()).unwrap();
    assert_eq!(begins.await.unwrap() - begin, BEGINNING / 2);
}

#[tokio::test(start_paused = true)]
async fn operations_that_hang_delay_others_for_a_moment_only() {
    let begin = Instant::now();
    let (executor, _end, begins) = crowd();
    assert_eq!(begins.await.unwrap() - begin, BEGINNING);
    pass(1).await;
    assert_eq!(running(&executor), MAX_BEGINNING, "they go on");
}
