//! Faults of limits: file descriptors, inotify instances, inotify watches.

use std::fs;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use csi_node_driver_registrar::testing::csi_driver::Behaviour;

use crate::field::{
    Usage, answering, answering_as, complaint, http_endpoint, listening, loopback_address,
    registered, registering, registrar_through,
};
use crate::support::{DEADLINE, DRIVER, Kubelet, Node, get};

pub async fn f24_descriptor_limit() {
    let node = Node::new();
    let _driver = node.driver();
    let address = loopback_address();
    let shell = "ulimit -n 48; exec \"$@\"";
    let mut registrar = registrar_through(&node, shell, &[http_endpoint(address)]);
    let usage = Usage::of(registrar.pid());
    let socket = node.published_as(DRIVER).await;
    registered(&socket).await;
    listening(address).await;

    let held: Vec<_> = (0..60)
        .map(|_| (UnixStream::connect(&socket), TcpStream::connect(address)))
        .collect();
    let before = usage.processor_time();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let spent = usage.processor_time().saturating_sub(before);
    assert!(spent < Duration::from_secs(1), "{spent:?} of 3 s: it spins");
    assert!(registrar.is_running());
    drop(held);
    registering(&socket).await;
    assert_eq!(get(address, "/healthz").await.status, 200);
    registrar.stop().await;
    assert!(node.published().is_empty());
}

pub async fn f29_inotify_used_up() {
    // A user namespace has limits of its own, so nobody else's are touched.
    for (limit, sysctl) in [
        ("max_inotify_instances", "max_user_instances"),
        ("max_inotify_watches", "max_user_watches"),
    ] {
        let node = Node::new();
        let driver = node.driver();
        let shell = format!("echo 0 > /proc/sys/user/{limit} && exec \"$@\"");
        let shell = format!("exec unshare --user --map-root-user sh -c '{shell}' sh \"$@\"");
        let registrar = registrar_through(&node, &shell, &[]);
        let socket = node.published_as(DRIVER).await;
        registered(&socket).await;
        let allowed = Duration::from_secs(6);

        fs::remove_file(&socket).unwrap();
        answering(&socket, allowed).await;
        Kubelet::register(&socket).await;

        fs::remove_dir_all(node.registry()).unwrap();
        fs::create_dir(node.registry()).unwrap();
        answering(&socket, Duration::from_secs(11)).await;

        driver.stop().await.unwrap();
        let _driver = node.driver_with(Behaviour::named("other.example.com"));
        let socket = node.registration_socket("other.example.com");
        answering_as("other.example.com", &socket, allowed).await;
        node.unpublished(DRIVER).await;
        Kubelet::register(&socket).await;
        complaint(&registrar, DEADLINE, &[sysctl]).await;
        assert_eq!(registrar.log().count(sysctl), 1, "one warning is enough");
        registrar.stop().await;
        assert!(node.published().is_empty());
    }
}
