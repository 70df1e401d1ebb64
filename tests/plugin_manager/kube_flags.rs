//! `run` with an API server, as far as that needs none; `tests/interop/apiserver` has one.

use std::fs;

use nix::sys::signal::Signal;

use crate::support::Node;
use crate::tool::{Tool, outcome};

/// A cluster where nobody listens, without TLS since nobody gets that far.
const NOBODY: &str = r#"{
    "apiVersion": "v1", "kind": "Config", "current-context": "nobody",
    "clusters": [{"name": "nobody", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "nobody", "user": {}}],
    "contexts": [{"name": "nobody", "context": {"cluster": "nobody", "user": "nobody"}}]
}"#;

#[tokio::test]
async fn an_api_server_that_cannot_be_used_is_named() {
    let run = ["run", "--registration-dir=/nowhere", "--node-name=worker"];
    let (code, _, error) = outcome(run.iter().chain(&["--kubeconfig=/nowhere/config"])).await;
    assert_eq!(code, 1, "{error}");
    assert!(
        error.contains(
            "no API server: failed to read kubeconfig from '\"/nowhere/config\"': No such file"
        ),
        "{error}"
    );
    let (code, _, error) = outcome(run.iter().chain(&["--in-cluster"])).await;
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("elsewhere use --kubeconfig"), "{error}");
}

#[tokio::test]
async fn an_api_server_needs_a_named_node_and_no_observer() {
    for (flags, part) in [
        (&["--kubeconfig=c"][..], "--node-name <NAME>"),
        (&["--in-cluster"], "--node-name <NAME>"),
        (&["--in-cluster", "--node-name=w", "--observe"], "--observe"),
        (
            &["--kubeconfig=c", "--node-name=w", "--observe"],
            "--observe",
        ),
        (
            &["--kubeconfig=c", "--node-name=w", "--in-cluster"],
            "--in-cluster",
        ),
    ] {
        let run = ["run", "--registration-dir=/nowhere"];
        let (code, _, error) = outcome(run.iter().chain(flags)).await;
        assert_eq!(code, 2, "{flags:?}: {error}");
        assert!(error.contains(part), "{flags:?}: {error}");
    }
}

#[tokio::test]
async fn an_api_server_that_is_away_is_waited_for_until_a_signal() {
    let node = Node::new();
    let kubeconfig = node.root().join("kubeconfig");
    fs::write(&kubeconfig, NOBODY).unwrap();
    let registry = node.registry();
    let mut tool = Tool::start([
        "run",
        "--node-name=worker",
        "--registration-dir",
        registry.to_str().unwrap(),
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
    ]);
    let line = tool
        .err
        .line("Failed to contact API server when waiting for CSINode publishing")
        .await;
    assert!(line.contains("Connection refused"), "{line}");
    tool.signal(Signal::SIGTERM);
    assert_eq!(tool.exit().await.code(), Some(1));
    assert!(
        tool.err.text().contains("interrupted by"),
        "{}",
        tool.err.text()
    );
    assert_eq!(tool.out.text(), "", "nothing was watched");
}
