//! TERM in every phase: exit 0 in time, nothing of ours is left, nothing of anybody else's is gone.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use csi_node_driver_registrar::testing::csi_driver::{Behaviour, Fault};
use nix::sys::signal::Signal;

use crate::field::{answering, complaint, identity, registered};
use crate::frames::Client;
use crate::support::{DEADLINE, DRIVER, Kubelet, Node, Registrar, until};

const NOTHING: [&str; 0] = [];

/// Calls in flight have two seconds; the rest is what a busy machine adds.
const LIMIT: Duration = Duration::from_secs(4);

async fn stops(mut registrar: Registrar, phase: &str) {
    registrar.signal(Signal::SIGTERM);
    let status = registrar.exit_within(LIMIT).await;
    assert_eq!(status.code(), Some(0), "{phase}: {status:?}");
}

pub async fn term_while_the_driver_is_waited_for() {
    let node = Node::new();
    let registrar = node.registrar(NOTHING);
    registrar.log().line("Running").await;
    stops(registrar, "no driver").await;

    let silent = UnixListener::bind(node.csi_socket()).unwrap();
    let registrar = node.registrar(NOTHING);
    let path = node.csi_socket();
    let accepted = tokio::task::spawn_blocking(move || silent.accept().map(|_| silent));
    let silent = accepted.await.unwrap().unwrap();
    stops(registrar, "a silent driver").await;
    drop(silent);
    fs::remove_file(path).unwrap();

    let mut behaviour = Behaviour::named(DRIVER);
    behaviour.plugin_info = Fault::Hangs;
    behaviour.ready = Some(false);
    let driver = node.driver_with(behaviour);
    let registrar = node.registrar(NOTHING);
    let mut calls = driver.calls();
    calls.wait_for(|calls| calls.plugin_info > 0).await.unwrap();
    stops(registrar, "a driver that hangs").await;

    driver.change(|behaviour| behaviour.plugin_info = Fault::None);
    let registrar = node.registrar(NOTHING);
    registrar.log().line("not ready").await;
    stops(registrar, "a driver that is not ready").await;
    assert!(node.published().is_empty());
}

pub async fn term_with_a_kubelet_in_every_state() {
    let node = Node::new();
    let _driver = node.driver();
    let start = async || {
        let registrar = node.registrar(["--registration-failure-policy=retry"]);
        let socket = node.published_as(DRIVER).await;
        answering(&socket, DEADLINE).await;
        (registrar, Kubelet::dial(&socket).await, socket)
    };

    let (registrar, _kubelet, _) = start().await;
    stops(registrar, "connected").await;

    let (registrar, kubelet, _) = start().await;
    kubelet.get_info().await;
    stops(registrar, "asked").await;

    let (registrar, kubelet, _) = start().await;
    kubelet.get_info().await;
    kubelet.notify(Err("boom")).await;
    stops(registrar, "refused").await;

    // A notification that never ends, an unfinished header block, and an unfinished preface.
    let (registrar, _kubelet, socket) = start().await;
    let mut stuck = Client::connect(&socket).unwrap();
    stuck.greet(&[]).unwrap();
    stuck.announce(1, 1000).unwrap();
    stuck.flush().unwrap();
    let mut open = Client::connect(&socket).unwrap();
    open.greet(&[]).unwrap();
    open.open_block(100).unwrap();
    open.flush().unwrap();
    let _mute = Client::connect(&socket).unwrap();
    answering(&socket, DEADLINE).await;
    stops(registrar, "calls that never end").await;
    assert!(node.published().is_empty());
}

pub async fn term_while_the_path_is_not_ours() {
    let node = Node::new();
    let _driver = node.driver();
    let start = async || {
        let registrar = node.registrar(NOTHING);
        let socket = node.published_as(DRIVER).await;
        answering(&socket, DEADLINE).await;
        registrar
    };
    let socket = node.registration_socket(DRIVER);
    let stays = |registrar, what| {
        let before = identity(&socket);
        let path: &Path = &socket;
        async move {
            stops(registrar, what).await;
            assert!(before.is_some());
            assert_eq!(identity(path), before, "{what} was removed");
        }
    };

    // Lost: the directory is gone, and after TERM nothing is made again in a new one.
    let registrar = start().await;
    fs::remove_dir_all(node.registry()).unwrap();
    complaint(&registrar, DEADLINE, &["is gone"]).await;
    stops(registrar, "lost").await;
    fs::create_dir(node.registry()).unwrap();

    let registrar = start().await;
    fs::remove_file(&socket).unwrap();
    fs::create_dir(&socket).unwrap();
    complaint(&registrar, DEADLINE, &["no socket"]).await;
    stays(registrar, "a directory").await;
    fs::remove_dir(&socket).unwrap();

    let registrar = start().await;
    let other = node.registry().join("other");
    let _listener = UnixListener::bind(&other).unwrap();
    fs::rename(&other, &socket).unwrap();
    complaint(&registrar, DEADLINE, &["another registrar"]).await;
    stays(registrar, "another socket").await;
    fs::remove_file(&socket).unwrap();
}

pub async fn whole_life_as_process_1() {
    let node = Node::new();
    let _driver = node.driver();
    let shell = "exec unshare --pid --fork --kill-child \"$@\"";
    let mut registrar = crate::field::registrar_through(&node, shell, &[]);
    let socket = node.published_as(DRIVER).await;
    registered(&socket).await;
    let mut first = None;
    until("process 1", || {
        first = crate::process::child_of(registrar.pid());
        first.is_some()
    })
    .await;
    nix::sys::signal::kill(first.unwrap(), Signal::SIGTERM).unwrap();
    assert_eq!(registrar.exit_within(LIMIT).await.code(), Some(0));
    assert!(node.published().is_empty());
}
