//! Rows P and W06: our registrar's binary under our manager, as a node would have them.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use csi_node_driver_registrar::manager::event::What;
use csi_node_driver_registrar::manager::profile::Profile;
use csi_node_driver_registrar::testing::csi_driver::Fault;
use nix::sys::signal::Signal;
use tonic::Code;

use crate::manager::{Manager, cluster, entry};
use crate::support::{DEADLINE, DRIVER, Kubelet, Node, Registrar, registrar_command, until};

const NEWEST: Profile = Profile::NEWEST;

/// What a kubelet needs beyond the backoff: its dial of ten seconds, and a pass or two.
const DIAL_AND_PASSES: Duration = Duration::from_secs(12);

#[tokio::test]
async fn w06_our_registrar_answers_both_forms_of_the_authority() {
    for minor in [17, 28, 29, 37] {
        let node = Node::new();
        let _driver = node.driver();
        let cluster = cluster();
        let profile = Profile::from_minor(minor).unwrap();
        let mut manager = Manager::start(&node.registry(), profile, &cluster).await;
        let registrar = node.registrar::<&str>([]);
        manager.until_registered().await;
        assert!(entry(&cluster, DRIVER).is_some(), "1.{minor}");
        registrar.log().line("status=\"registered\"").await;
        registrar.stop().await;
        manager.stop().await;
    }
}

#[tokio::test]
async fn p01_no_socket_before_the_driver_has_told_its_name() {
    let node = Node::new();
    let cluster = cluster();
    let mut manager = Manager::start(&node.registry(), NEWEST, &cluster).await;
    let registrar = node.registrar(["--v=1"]);
    registrar.log().line("Connecting to the CSI driver").await;
    assert!(node.published().is_empty());
    assert_eq!(manager.desired(), 0);
    let _driver = node.driver();
    manager.until_registered().await;
    registrar.stop().await;
}

#[tokio::test]
async fn p02_a_stale_socket_is_replaced_and_registered() {
    let node = Node::new();
    drop(UnixListener::bind(node.registration_socket(DRIVER)).unwrap());
    let cluster = cluster();
    let _driver = node.driver();
    let registrar = node.registrar::<&str>([]);
    until("the stale socket to be replaced", || {
        std::os::unix::net::UnixStream::connect(node.registration_socket(DRIVER)).is_ok()
    })
    .await;
    let mut manager = Manager::start(&node.registry(), NEWEST, &cluster).await;
    manager.until_registered().await;
    assert_eq!(node.published(), [format!("{DRIVER}-reg.sock")]);
    registrar.stop().await;
}

#[tokio::test]
async fn p03_a_regular_file_at_the_path_is_an_error_and_left_alone() {
    let node = Node::new();
    let path = node.registration_socket(DRIVER);
    fs::write(&path, "precious").unwrap();
    let _driver = node.driver();
    let manager = Manager::start(&node.registry(), NEWEST, &cluster()).await;
    let mut registrar = node.registrar::<&str>([]);
    assert_eq!(registrar.exit().await.code(), Some(1));
    let log = registrar.log().complete().await;
    assert!(log.contains("not a socket"), "{log}");
    assert_eq!(fs::read_to_string(path).unwrap(), "precious");
    assert_eq!(manager.desired(), 0);
}

#[tokio::test]
async fn p04_a_stop_removes_the_socket_and_the_driver_is_unregistered() {
    let node = Node::new();
    let _driver = node.driver();
    let cluster = cluster();
    let mut manager = Manager::start(&node.registry(), NEWEST, &cluster).await;
    let registrar = node.registrar::<&str>([]);
    manager.until_registered().await;
    registrar.stop().await;
    assert!(node.published().is_empty());
    manager.until_unregistered().await;
    assert_eq!(entry(&cluster, DRIVER), None);
    assert_eq!(manager.registered(), 0);
}

#[tokio::test]
async fn p05_a_refusal_ends_the_registrar_or_it_publishes_anew() {
    let node = Node::new();
    let driver = node.driver();
    driver.change(|behaviour| behaviour.node_info = broken());
    let cluster = cluster();
    let mut manager = Manager::start(&node.registry(), NEWEST, &cluster).await;
    let mut registrar = node.registrar::<&str>([]);
    assert_eq!(registrar.exit().await.code(), Some(1));
    let log = registrar.log().complete().await;
    assert!(log.contains("no such disk"), "{log}");
    assert!(node.published().is_empty());

    let registrar = node.registrar(["--registration-failure-policy=retry"]);
    registrar.log().line("no such disk").await;
    manager.unseen();
    driver.change(|behaviour| behaviour.node_info = Fault::None);
    manager
        .until(DEADLINE, "the socket to be published anew", |what| {
            matches!(what, What::Desired { .. })
        })
        .await;
    manager
        .until(DEADLINE, "the registration", |what| {
            *what == What::HandlerRegistered
        })
        .await;
    registrar.log().line("status=\"registered\"").await;
    registrar.stop().await;
}

/// A driver that does not know its node.
fn broken() -> Fault {
    Fault::Fails {
        code: Code::Internal,
        message: "no such disk".to_owned(),
        times: u32::MAX,
    }
}

#[tokio::test]
async fn p06_a_restarted_kubelet_registers_the_driver_again_without_the_registrar() {
    let node = Node::new();
    let driver = node.driver();
    let cluster = cluster();
    let mut registrar = node.registrar::<&str>([]);
    for _ in 0..3 {
        let mut manager = Manager::start(&node.registry(), NEWEST, &cluster).await;
        manager.until_registered().await;
        manager.stop().await;
    }
    assert!(registrar.is_running());
    assert_eq!(driver.calls().borrow().node_info, 3);
    let drivers = cluster.objects().1.unwrap().spec.drivers;
    assert_eq!(drivers.len(), 1, "{drivers:?}");
    registrar.stop().await;
}

#[tokio::test]
async fn p07_further_questions_and_notifications_are_answered_alike() {
    let node = Node::new();
    let _driver = node.driver();
    let cluster = cluster();
    let mut manager = Manager::start(&node.registry(), NEWEST, &cluster).await;
    let mut registrar = node.registrar::<&str>([]);
    manager.until_registered().await;
    let kubelet = Kubelet::dial(&node.registration_socket(DRIVER)).await;
    let first = kubelet.get_info().await;
    assert_eq!(first.name, DRIVER);
    for _ in 0..3 {
        assert_eq!(kubelet.get_info().await, first);
        kubelet.notify(Ok(())).await;
    }
    assert!(registrar.is_running());
    assert_eq!(manager.unseen(), [], "nothing for the kubelet to see");
    registrar.stop().await;
}

/// The kubelet restarts over the dead socket, dials it in vain and waits out its backoff. Backoff that has grown to its
/// two minutes is waited out likewise; that it grows no further is E04.
#[tokio::test]
async fn p08_after_a_kill_the_driver_is_registered_within_backoff_and_dial() {
    let node = Node::new();
    let _driver = node.driver();
    let cluster = cluster();
    let mut manager = Manager::start(&node.registry(), NEWEST, &cluster).await;
    let mut registrar = node.registrar::<&str>([]);
    manager.until_registered().await;
    registrar.signal(Signal::SIGKILL);
    assert_eq!(registrar.exit().await.code(), None);
    assert!(
        node.registration_socket(DRIVER).exists(),
        "a kill leaves it"
    );
    manager.stop().await;

    let mut manager = Manager::start(&node.registry(), NEWEST, &cluster).await;
    let failed = manager
        .until(DIAL_AND_PASSES, "the dial to fail", |what| {
            matches!(what, What::OperationFailed { .. })
        })
        .await;
    let What::OperationFailed { backoff, .. } = failed.what else {
        unreachable!("until matched it")
    };
    let registrar = node.registrar::<&str>([]);
    manager
        .until(backoff + DIAL_AND_PASSES, "the registration", |what| {
            *what == What::HandlerRegistered
        })
        .await;
    registrar.log().line("status=\"registered\"").await;
    registrar.stop().await;
}

#[tokio::test]
async fn p09_a_successor_keeps_the_driver_registered_when_the_predecessor_goes() {
    let node = Node::new();
    let _driver = node.driver();
    let cluster = cluster();
    let mut manager = Manager::start(&node.registry(), NEWEST, &cluster).await;
    let old = node.registrar::<&str>([]);
    manager.until_registered().await;
    let new = node.registrar::<&str>([]);
    manager.until_registered().await;
    old.stop().await;
    new.log().line("status=\"registered\"").await;
    assert_eq!(manager.registered(), 1);
    assert!(node.registration_socket(DRIVER).exists());

    // What another implementation does at its end.
    fs::remove_file(node.registration_socket(DRIVER)).unwrap();
    manager.until_registered().await;
    assert!(entry(&cluster, DRIVER).is_some());
    new.stop().await;
    manager.until_unregistered().await;
    assert!(node.published().is_empty());
}

#[tokio::test]
async fn p11_get_info_is_answered_within_a_second_under_load() {
    const CLIENTS: usize = 32;
    const CALLS: usize = 100;
    let node = Node::new();
    let _driver = node.driver();
    let registrar = node.registrar::<&str>([]);
    let socket = node.published_as(DRIVER).await;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let socket = socket.clone();
            tokio::spawn(async move {
                let kubelet = Kubelet::dial(&socket).await;
                for _ in 0..CALLS {
                    // Fails after the kubelet's second.
                    kubelet.get_info().await;
                }
            })
        })
        .collect();
    let mut manager = Manager::start(&node.registry(), NEWEST, &cluster()).await;
    manager.until_registered().await;
    for client in clients {
        client.await.unwrap();
    }
    registrar.stop().await;
}

#[tokio::test]
async fn p12_a_path_that_is_too_long_is_a_clear_error() {
    let node = Node::new();
    let _driver = node.driver();
    let mut registry = node.root().join("deep");
    while registry.as_os_str().len() < 100 {
        registry.push("directory");
    }
    fs::create_dir_all(&registry).unwrap();
    let mut command = registrar_command();
    command
        .args(node.arguments())
        .arg(format!("--plugin-registration-path={}", registry.display()));
    let mut registrar = Registrar::spawn(command);
    assert_eq!(registrar.exit().await.code(), Some(1));
    let log = registrar.log().complete().await;
    let socket: PathBuf = registry.join(format!("{DRIVER}-reg.sock"));
    let length = format!("{} bytes long, the limit is 107", socket.as_os_str().len());
    assert!(log.contains(&length), "{log}");
    assert!(log.contains(socket.to_str().unwrap()), "{log}");
    assert_eq!(fs::read_dir(registry).unwrap().count(), 0);
}
