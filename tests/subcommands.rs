//! `probe` and `cleanup`, for images without a shell.

#![allow(clippy::unwrap_used, reason = "test code")]

mod support;

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Output;

use csi_node_driver_registrar::testing::csi_driver::{Behaviour, CsiDriver};
use support::{DEADLINE, DRIVER, Kubelet, Node, registrar_command, within};

/// Runs a sub-command to its end, beside whatever else the test has running.
async fn run(arguments: Vec<String>) -> Output {
    let mut command = tokio::process::Command::from(registrar_command());
    let output = command.args(arguments).kill_on_drop(true).output();
    within(DEADLINE, "the sub-command", output).await.unwrap()
}

async fn probe(node: &Node, more: &[&str]) -> (i32, String) {
    let mut arguments = vec!["probe".to_owned()];
    arguments.extend(node.arguments());
    arguments.extend(more.iter().map(|&argument| argument.to_owned()));
    let output = run(arguments).await;
    assert!(output.stdout.is_empty());
    let text = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), text)
}

async fn cleanup(node: &Node, name: &str) -> (i32, String) {
    let directory = node.registry().display().to_string();
    let output = run(vec![
        "cleanup".to_owned(),
        format!("--driver-name={name}"),
        "-plugin-registration-path".to_owned(),
        directory,
    ])
    .await;
    let text = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), text)
}

#[tokio::test]
async fn a_probe_follows_the_registration() {
    let node = Node::new();
    let (code, text) = probe(&node, &[]).await;
    assert_eq!(code, 1);
    assert!(text.contains("no registration socket"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");

    let _driver = node.driver();
    let registrar = node.registrar::<&str>([]);
    let socket = node.published_as(DRIVER).await;
    assert_eq!(probe(&node, &[]).await, (0, String::new()));
    let (code, text) = probe(&node, &["--registered"]).await;
    assert_eq!(code, 1);
    assert!(
        text.contains("not confirmed the registration: published"),
        "{text}"
    );

    Kubelet::register(&socket).await;
    assert_eq!(probe(&node, &["--registered"]).await, (0, String::new()));
    registrar.stop().await;
    assert_eq!(probe(&node, &[]).await.0, 1);
}

#[tokio::test]
async fn a_probe_finds_its_own_socket_among_others() {
    let node = Node::new();
    let _driver = node.driver();
    let registrar = node.registrar::<&str>([]);
    node.published_as(DRIVER).await;

    let other_path = node.root().join("plugins/other.sock");
    let _other_driver = CsiDriver::start(&other_path, Behaviour::named("another")).unwrap();
    let other = |more: &str| {
        vec![
            format!("--csi-address={}", other_path.display()),
            format!("--kubelet-registration-path={}{more}", other_path.display()),
            format!("--plugin-registration-path={}", node.registry().display()),
        ]
    };
    let mut command = registrar_command();
    command.args(other(""));
    let other_registrar = support::Registrar::spawn(command);
    node.published_as("another").await;
    // Somebody else's that never answers, and a dead one.
    let _silent = UnixListener::bind(node.registry().join("silent.sock")).unwrap();
    drop(UnixListener::bind(node.registry().join("dead.sock")).unwrap());

    assert_eq!(probe(&node, &[]).await.0, 0);
    let mut arguments = vec!["probe".to_owned()];
    arguments.extend(other("-elsewhere"));
    let output = run(arguments).await;
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains(&format!("answers for {}", other_path.display())),
        "{text}"
    );
    assert!(text.contains("dead.sock"), "{text}");
    registrar.stop().await;
    other_registrar.stop().await;
}

#[tokio::test]
async fn a_probe_without_its_endpoint_or_directory_says_so() {
    let output = run(vec!["probe".to_owned()]).await;
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("kubelet-registration-path is a required parameter"),
        "{text}"
    );

    let node = Node::new();
    fs::remove_dir(node.registry()).unwrap();
    let (code, text) = probe(&node, &[]).await;
    assert_eq!(code, 1);
    assert!(
        text.contains("cannot read the registration directory"),
        "{text}"
    );
}

#[tokio::test]
async fn a_cleanup_removes_the_socket_and_the_empty_directory_and_is_content_with_nothing() {
    let node = Node::new();
    drop(UnixListener::bind(node.registration_socket(DRIVER)).unwrap());
    fs::create_dir(node.registry().join(DRIVER)).unwrap();
    drop(UnixListener::bind(node.registration_socket("other")).unwrap());
    for _ in 0..2 {
        assert_eq!(cleanup(&node, DRIVER).await, (0, String::new()));
        assert_eq!(node.published(), ["other-reg.sock"]);
    }
}

#[tokio::test]
async fn a_cleanup_leaves_what_is_no_socket_or_not_empty() {
    let node = Node::new();
    let inside = node.registry().join(DRIVER).join("inside");
    fs::create_dir_all(&inside).unwrap();
    assert_eq!(cleanup(&node, DRIVER).await.0, 0);
    assert!(inside.exists());

    fs::write(node.registration_socket(DRIVER), "precious").unwrap();
    let (code, text) = cleanup(&node, DRIVER).await;
    assert_eq!(code, 1);
    assert!(text.contains("is not a socket"), "{text}");
    assert!(node.registration_socket(DRIVER).exists());
}

#[tokio::test]
async fn a_cleanup_refuses_names_that_leave_the_directory() {
    let node = Node::new();
    let outside = node.root().join("outside-reg.sock");
    drop(UnixListener::bind(&outside).unwrap());
    for name in ["", "../outside", ".hidden", "a\nb"] {
        let (code, text) = cleanup(&node, name).await;
        assert_eq!(code, 1, "{name:?}: {text}");
        assert!(text.starts_with("--driver-name:"), "{name:?}: {text}");
    }
    assert!(outside.exists());
}

#[tokio::test]
async fn only_the_first_word_makes_a_sub_command() {
    // After a flag the word is a positional, which ends the flags: the required one after it goes unseen.
    let output = run(["--v=0", "cleanup", "--driver-name=x"]
        .map(str::to_owned)
        .to_vec())
    .await;
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("kubelet-registration-path is a required parameter"),
        "{text}"
    );
    let output = run(["cleanup", "--no-such-flag"].map(str::to_owned).to_vec()).await;
    assert_eq!(output.status.code(), Some(2));
}
