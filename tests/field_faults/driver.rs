//! Faults of the CSI driver.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use csi_node_driver_registrar::testing::csi_driver::{Behaviour, Fault};
use tonic::Code;

use crate::field::{answering, answering_as, complaint, registered, registrar_through};
use crate::support::{DRIVER, Kubelet, Node};

const NOTHING: [&str; 0] = [];

pub async fn f09_driver_comes_late() {
    let late = async |after: u64| {
        let node = Node::new();
        let mut registrar = node.registrar(NOTHING);
        tokio::time::sleep(Duration::from_secs(after)).await;
        assert!(registrar.is_running(), "gave up before {after} s");
        let _driver = node.driver();
        answering(&node.registration_socket(DRIVER), Duration::from_secs(5)).await;
        registrar.stop().await;
    };
    tokio::join!(late(35), late(90));
}

pub async fn f10_closed_then_silent_then_live_socket() {
    let node = Node::new();
    let registrar = node.registrar(NOTHING);
    let path = node.csi_socket();
    // Bound and closed: the file stays, connecting is refused.
    drop(UnixListener::bind(&path).unwrap());
    tokio::time::sleep(Duration::from_secs(2)).await;
    fs::remove_file(&path).unwrap();
    let silent = UnixListener::bind(&path).unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(node.published().is_empty());
    let _driver = node.driver();
    answering(&node.registration_socket(DRIVER), Duration::from_secs(5)).await;
    drop(silent);
    registrar.stop().await;
}

pub async fn f11_get_plugin_info_fails_or_is_slow() {
    let failing = Fault::Fails {
        code: Code::Unavailable,
        message: "starting".to_owned(),
        times: 3,
    };
    for fault in [failing, Fault::SlowOnce(Duration::from_secs(3))] {
        let node = Node::new();
        let mut behaviour = Behaviour::named(DRIVER);
        behaviour.plugin_info = fault.clone();
        let _driver = node.driver_with(behaviour);
        let registrar = node.registrar(NOTHING);
        let socket = node.published_as(DRIVER).await;
        registered(&socket).await;
        registrar.stop().await;
    }
}

pub async fn f12_no_access_to_the_drivers_socket() {
    let node = Node::new();
    let _driver = node.driver();
    let path = node.csi_socket();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    // Without capabilities root is an ordinary owner.
    let shell = "exec setpriv --bounding-set=-all --inh-caps=-all \"$@\"";
    let registrar = registrar_through(&node, shell, &[]);
    let path_text = path.display().to_string();
    let limit = Duration::from_secs(15);
    let line = complaint(&registrar, limit, &[&path_text, "permission denied"]).await;
    assert!(
        line.contains("SELinux") || line.contains("root"),
        "no hint: {line}"
    );
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    answering(&node.registration_socket(DRIVER), Duration::from_secs(5)).await;
    registrar.stop().await;
}

pub async fn f13_driver_comes_back_under_another_name() {
    let node = Node::new();
    let driver = node.driver();
    let registrar = node.registrar(NOTHING);
    let before = node.published_as(DRIVER).await;
    registered(&before).await;
    driver.stop().await.unwrap();
    let _driver = node.driver_with(Behaviour::named("other.example.com"));
    let after = node.registration_socket("other.example.com");
    answering_as("other.example.com", &after, Duration::from_secs(5)).await;
    node.unpublished(DRIVER).await;
    Kubelet::register(&after).await;
    registrar.stop().await;
    assert!(node.published().is_empty());
}
