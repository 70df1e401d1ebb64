//! The way from the command line to a registered driver and to a graceful end, on the real binary over real sockets.

mod support;

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::time::Duration;

use nix::sys::signal::Signal;
use support::{DRIVER, Kubelet, Node};

#[tokio::test]
async fn a_driver_is_registered_twice_and_withdrawn_at_the_end() {
    let node = Node::new();
    let _driver = node.driver();
    let registrar = node.registrar(["--v=5"]);
    let socket = node.published_as(DRIVER).await;
    assert_eq!(node.published(), [format!("{DRIVER}-reg.sock")]);
    let metadata = socket.symlink_metadata().unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o700);

    // The second time is a kubelet that restarted.
    for _ in 0..2 {
        let kubelet = Kubelet::dial(&socket).await;
        let info = kubelet.get_info().await;
        assert_eq!(info.r#type, "CSIPlugin");
        assert_eq!(info.name, DRIVER);
        assert_eq!(info.endpoint, node.csi_socket().display().to_string());
        assert_eq!(info.supported_versions, ["1.0.0"]);
        kubelet.notify(Ok(())).await;
    }
    registrar.stop().await;
    assert!(node.published().is_empty());
}

#[tokio::test]
async fn each_stop_signal_removes_the_socket() {
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ] {
        let node = Node::new();
        let _driver = node.driver();
        let mut registrar = node.registrar::<&str>([]);
        node.published_as(DRIVER).await;
        registrar.signal(signal);
        assert_eq!(registrar.exit().await.code(), Some(0), "{signal}");
        assert!(node.published().is_empty(), "{signal}");
    }
}

#[tokio::test]
async fn a_stop_before_the_driver_exists_is_a_success() {
    let node = Node::new();
    let mut registrar = node.registrar::<&str>([]);
    registrar.log().line("Running node-driver-registrar").await;
    registrar.signal(Signal::SIGTERM);
    assert_eq!(
        registrar.exit_within(Duration::from_secs(1)).await.code(),
        Some(0)
    );
}

#[tokio::test]
async fn a_second_signal_does_not_wait_for_a_call_in_flight() {
    let node = Node::new();
    let _driver = node.driver();
    let mut registrar = node.registrar::<&str>([]);
    let socket = node.published_as(DRIVER).await;
    // A request whose body never ends.
    let stream = tokio::net::UnixStream::connect(&socket).await.unwrap();
    let (mut stuck, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post("http://localhost/pluginregistration.Registration/GetInfo")
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
    let _unanswered = stuck.send_request(request, false).unwrap();
    // Connections are served in order: once this one is answered, the other has been read too.
    Kubelet::dial(&socket).await.get_info().await;

    registrar.signal(Signal::SIGTERM);
    node.unpublished(DRIVER).await;
    registrar.log().line("Stopping").await;
    registrar.signal(Signal::SIGTERM);
    assert_eq!(
        registrar.exit_within(Duration::from_secs(1)).await.code(),
        Some(1)
    );
}

#[tokio::test]
async fn a_refusal_is_answered_withdrawn_explained_and_fails() {
    let node = Node::new();
    let _driver = node.driver();
    let log = node.termination_log();
    let mut registrar = node.registrar([format!("--termination-log-path={}", log.display())]);
    let socket = node.published_as(DRIVER).await;
    let kubelet = Kubelet::dial(&socket).await;
    kubelet.get_info().await;
    kubelet
        .notify(Err(
            "RegisterPlugin error -- plugin registration failed with err: boom",
        ))
        .await;
    assert_eq!(registrar.exit().await.code(), Some(1));
    assert!(node.published().is_empty());
    let reason = std::fs::read_to_string(log).unwrap();
    assert!(
        reason.contains("registration failed with err: boom"),
        "{reason}"
    );
    let text = registrar.log().complete().await;
    assert!(text.lines().last().unwrap().contains("boom"), "{text}");
}

#[tokio::test]
async fn nothing_is_published_before_the_driver_is_ready() {
    let node = Node::new();
    let driver = node.driver();
    driver.change(|behaviour| behaviour.ready = Some(false));
    let registrar = node.registrar::<&str>([]);
    registrar.log().line("not ready yet").await;
    assert!(node.published().is_empty());
    driver.change(|behaviour| behaviour.ready = None);
    node.published_as(DRIVER).await;
    registrar.stop().await;
}

#[tokio::test]
async fn readiness_is_not_asked_for_where_it_is_not_wanted() {
    let node = Node::new();
    let driver = node.driver();
    driver.change(|behaviour| behaviour.ready = Some(false));
    let registrar = node.registrar(["--wait-for-ready=false"]);
    node.published_as(DRIVER).await;
    assert_eq!(driver.calls().borrow().probe, 0);
    registrar.stop().await;
}
