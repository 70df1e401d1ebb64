//! Faults around the registration socket and its directory.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use csi_node_driver_registrar::testing::csi_driver::Behaviour;
use inotify::{EventMask, Inotify, WatchMask};
use nix::sys::signal::Signal;

use crate::field::{
    self, answering, complaints, failed, identity, inventory, listening, registered,
    registrar_through,
};
use crate::support::{self, DEADLINE, DRIVER, Kubelet, Node, until};

const NOTHING: [&str; 0] = [];

pub async fn f01_socket_deleted() {
    let node = Node::new();
    let _driver = node.driver();
    let registrar = node.registrar(NOTHING);
    let socket = node.published_as(DRIVER).await;
    registered(&socket).await;
    for _ in 0..2 {
        fs::remove_file(&socket).unwrap();
        answering(&socket, Duration::from_secs(5)).await;
        Kubelet::register(&socket).await;
    }
    registrar.stop().await;
    assert!(node.published().is_empty());
}

pub async fn f02_directory_made_anew() {
    let node = Node::new();
    let _driver = node.driver();
    let mut registrar = node.registrar(NOTHING);
    let socket = node.published_as(DRIVER).await;
    registered(&socket).await;
    fs::remove_dir_all(node.registry()).unwrap();
    // Long enough for every attempt in between to fail.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(registrar.is_running());
    fs::create_dir(node.registry()).unwrap();
    answering(&socket, Duration::from_secs(10)).await;
    Kubelet::register(&socket).await;
    registrar.stop().await;
    assert!(node.published().is_empty());

    // A bind mount whose source was removed never comes back.
    let mount = node.root().join("mount");
    fs::create_dir(&mount).unwrap();
    let shell = format!(
        "mount --bind {} {} && exec \"$@\"",
        node.registry().display(),
        mount.display()
    );
    let shell = format!("exec unshare -m --propagation private sh -c '{shell}' sh \"$@\"");
    let argument = format!("--plugin-registration-path={}", mount.display());
    let registrar = registrar_through(&node, &shell, &[argument]);
    registered(&socket).await;
    fs::remove_dir_all(node.registry()).unwrap();
    let log = failed(registrar, Duration::from_secs(10)).await;
    let reason = complaints(&log).last().copied().unwrap_or_default();
    assert!(reason.contains(&mount.display().to_string()), "{reason}");
}

pub async fn f03_overlap_of_two_pods() {
    let node = Node::new();
    let _driver = node.driver();
    let older = node.registrar(NOTHING);
    let socket = node.published_as(DRIVER).await;
    registered(&socket).await;
    let before = identity(&socket);
    let newer = node.registrar(NOTHING);
    until("the newer registrar's socket", || {
        identity(&socket).is_some_and(|now| Some(now) != before)
    })
    .await;
    registered(&socket).await;
    let successor = identity(&socket);
    older.stop().await;
    assert_eq!(
        identity(&socket),
        successor,
        "the successor's socket is gone"
    );
    Kubelet::register(&socket).await;
    newer.stop().await;
    assert!(node.published().is_empty());
}

pub async fn f05_killed_and_restarted() {
    let node = Node::new();
    let _driver = node.driver();
    let first = node.registrar(NOTHING);
    let socket = node.published_as(DRIVER).await;
    registered(&socket).await;
    let mut changes = Changes::of(&node.registry());
    first.signal(Signal::SIGKILL);
    drop(first);
    let before = identity(&socket);
    let second = node.registrar(NOTHING);
    until("the second registrar's socket", || {
        identity(&socket) != before
    })
    .await;
    registered(&socket).await;
    let vanished = changes.names(EventMask::DELETE | EventMask::MOVED_FROM);
    let name = format!("{DRIVER}-reg.sock");
    assert!(!vanished.contains(&name), "the socket's path vanished");
    second.stop().await;
    assert!(node.published().is_empty());
}

/// The names that appear in a directory, and those that go.
pub struct Changes(Inotify);

impl Changes {
    pub fn of(directory: &Path) -> Self {
        let inotify = Inotify::init().unwrap();
        let mask = WatchMask::CREATE | WatchMask::MOVE | WatchMask::DELETE;
        inotify.watches().add(directory, mask).unwrap();
        Self(inotify)
    }

    /// Of everything that happened so far.
    pub fn names(&mut self, mask: EventMask) -> HashSet<String> {
        let mut names = HashSet::new();
        let mut buffer = [0; 4096];
        // Fails with EWOULDBLOCK when there is nothing more.
        while let Ok(events) = self.0.read_events(&mut buffer) {
            for event in events.filter(|event| event.mask.intersects(mask)) {
                names.extend(event.name.and_then(|name| name.to_str()).map(str::to_owned));
            }
        }
        names
    }
}

pub async fn f06_something_in_the_way() {
    let node = Node::new();
    let _driver = node.driver();
    let socket = node.registration_socket(DRIVER);
    // A stale socket is replaced.
    drop(UnixListener::bind(&socket).unwrap());
    let registrar = node.registrar(NOTHING);
    answering(&socket, DEADLINE).await;
    registrar.stop().await;
    assert!(node.published().is_empty());

    let elsewhere = node.root().join("elsewhere");
    let obstacles: [(&str, &dyn Fn()); 4] = [
        ("file", &|| fs::write(&socket, "text").unwrap()),
        ("directory", &|| fs::create_dir(&socket).unwrap()),
        ("link", &|| symlink("nowhere", &socket).unwrap()),
        ("link", &|| {
            drop(UnixListener::bind(&elsewhere).unwrap());
            symlink(&elsewhere, &socket).unwrap();
        }),
    ];
    for (what, put) in obstacles {
        put();
        let before = inventory(node.root());
        let log = failed(node.registrar(NOTHING), DEADLINE).await;
        let named = complaints(&log).iter().any(|line| {
            line.contains(&socket.display().to_string()) && line.to_lowercase().contains(what)
        });
        assert!(named, "no word of a {what} at {}", socket.display());
        assert_eq!(inventory(node.root()), before, "a {what} was touched");
        if what == "directory" {
            fs::remove_dir(&socket).unwrap();
        } else {
            fs::remove_file(&socket).unwrap();
        }
    }
}

pub async fn f07_path_of_108_bytes() {
    let node = Node::new();
    let directory = node.registry().as_os_str().len();
    let name = "d".repeat(108 - directory - "/-reg.sock".len());
    let _driver = node.driver_with(Behaviour::named(&name));
    let log = failed(node.registrar(NOTHING), DEADLINE).await;
    let says_both = complaints(&log)
        .iter()
        .any(|line| line.contains("108") && line.contains("107"));
    assert!(says_both, "no word of 108 bytes and a limit of 107");
    assert!(node.published().is_empty());

    // One byte less fits.
    let name = &name[1..];
    let node_below = Node::new();
    let _driver = node_below.driver_with(Behaviour::named(name));
    let registrar = node_below.registrar(NOTHING);
    let socket = node_below.published_as(name).await;
    assert_eq!(socket.as_os_str().len(), 107);
    field::answering_as(name, &socket, DEADLINE).await;
    registrar.stop().await;
}

pub async fn f08_hostile_names() {
    let endless = "n".repeat(300);
    for name in [
        "",
        "/",
        "..",
        "../x",
        "../../x",
        "a/b",
        ".hidden",
        "new\nline",
        "nul\0",
        "escape\u{1b}[2J",
        "delete\u{7f}",
        &endless,
    ] {
        let node = Node::new();
        let _driver = node.driver_with(Behaviour::named(name));
        let before = inventory(node.root());
        // Where `../../x` leads to.
        let outside = node.root().with_file_name("x-reg.sock");
        let log = failed(node.registrar(NOTHING), DEADLINE).await;
        assert!(!complaints(&log).is_empty(), "{name:?} is not explained");
        assert_eq!(inventory(node.root()), before, "{name:?}");
        assert!(outside.symlink_metadata().is_err(), "{name:?}");
    }
}

pub async fn f19_healthz_on_a_dead_or_silent_listener() {
    let node = Node::new();
    let _driver = node.driver();
    let address = field::loopback_address();
    let registrar = node.registrar([field::http_endpoint(address)]);
    let socket = node.published_as(DRIVER).await;
    listening(address).await;
    assert_eq!(support::get(address, "/healthz").await.status, 200);
    let other = node.registry().join("other");
    for is_silent in [false, true] {
        let listener = UnixListener::bind(&other).unwrap();
        let listener = is_silent.then_some(listener);
        fs::rename(&other, &socket).unwrap();
        // The default of --timeout is a second.
        let asked = support::within(
            Duration::from_secs(3),
            "/healthz",
            support::get(address, "/healthz"),
        );
        let answer = asked.await;
        assert_eq!(answer.status, 500, "{answer:?}");
        assert!(!answer.body.trim().is_empty());
        drop(listener);
    }
    fs::remove_file(&socket).unwrap();
    drop(registrar);
}

pub async fn f26_umask_of_the_parent() {
    for umask in ["000", "022", "777"] {
        let node = Node::new();
        let _driver = node.driver();
        let shell = format!("umask {umask}; exec \"$@\"");
        let registrar = registrar_through(&node, &shell, &[]);
        let socket = node.published_as(DRIVER).await;
        answering(&socket, DEADLINE).await;
        let mode = socket.symlink_metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700, "under umask {umask}");
        let after = field::Usage::of(registrar.pid()).status("Umask");
        assert_eq!(after.trim_start_matches('0'), umask.trim_start_matches('0'));
        registrar.stop().await;
        assert!(node.published().is_empty());
    }
}

pub async fn f27_directory_full_or_read_only() {
    // A file system with room for its root directory and no more; and one that takes no writes.
    for (options, errno) in [("nr_inodes=1", "no space left"), ("ro", "read-only")] {
        let node = Node::new();
        let _driver = node.driver();
        let registry = node.registry();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "none"])
            .arg(&registry)
            .status()
            .unwrap();
        assert!(mounted.success(), "mount: {mounted}");
        let log = failed(node.registrar(NOTHING), DEADLINE).await;
        let explained = complaints(&log).iter().any(|line| {
            line.contains(&registry.display().to_string()) && line.to_lowercase().contains(errno)
        });
        assert!(explained, "no word of {errno:?} at {}", registry.display());
        assert!(node.published().is_empty());
        let unmounted = Command::new("umount").arg(&registry).status().unwrap();
        assert!(unmounted.success(), "umount: {unmounted}");
    }
}
