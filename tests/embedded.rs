//! The example of a driver that embeds the registrar does what its first line says.

#![allow(clippy::unwrap_used, reason = "test code")]

mod support;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{DEADLINE, Kubelet, Node, until, within};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

/// What the example's driver calls itself.
const NAME: &str = "embedded.example.com";

/// `cargo test` builds examples, `cargo test --test embedded` does not.
fn example() -> PathBuf {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_csi-node-driver-registrar"));
    let path = built.with_file_name("examples").join("embedded");
    assert!(path.exists(), "run `cargo build --example embedded` first");
    path
}

fn identity(socket: &Path) -> Option<u64> {
    socket.symlink_metadata().ok().map(|file| file.ino())
}

#[tokio::test]
async fn a_driver_registers_itself_and_outlives_a_refusal() {
    let node = Node::new();
    let mut child = Command::new(example())
        .args([node.csi_socket().parent().unwrap(), &node.registry()])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || {
        within(DEADLINE, "a line", lines.next_line())
            .await
            .unwrap()
            .unwrap()
    };

    let socket = node.published_as(NAME).await;
    let kubelet = Kubelet::dial(&socket).await;
    let info = kubelet.get_info().await;
    assert_eq!(info.name, NAME);
    assert_eq!(info.endpoint, node.csi_socket().to_str().unwrap());
    kubelet.notify(Ok(())).await;
    assert_eq!(next().await, "registered: true");

    let refused = identity(&socket);
    kubelet.notify(Err("boom")).await;
    assert_eq!(next().await, "registered: false");
    // It is published anew, which is when the kubelet comes again.
    until("a fresh socket", || identity(&socket) != refused).await;
    Kubelet::register(&socket).await;
    assert_eq!(next().await, "registered: true");

    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap());
    kill(pid, Signal::SIGTERM).unwrap();
    let status = within(DEADLINE, "the end", child.wait()).await.unwrap();
    assert!(status.success(), "{status:?}");
    assert_eq!(node.published(), Vec::<String>::new());
    assert!(!node.csi_socket().exists());
}
