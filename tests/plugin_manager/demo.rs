//! `demo`.

use std::time::{Duration, Instant};

use crate::tool::{command, on_a_terminal, outcome, output};

/// What the demonstration may take.
const LIMIT: Duration = Duration::from_secs(15);

#[tokio::test]
async fn the_whole_story_in_time() {
    let begin = Instant::now();
    let (code, out, err) = outcome(["demo"]).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
    let mut rest = out.as_str();
    for part in [
        "Kubernetes 1.37",
        "1. Registration",
        "socket appeared",
        "NodeGetInfo: node id node1-id, at most 16 volumes",
        "register succeeded",
        "2. Kubelet restart",
        "socket appeared",
        "register succeeded",
        "3. Driver restart",
        "socket was replaced",
        "driver.example.com is deregistered",
        "at most 32 volumes",
        "register succeeded",
        "4. Stop",
        "socket is gone",
        "driver.example.com is deregistered",
        "kind: Node\n",
        "kind: CSINode\n",
        "count: 32",
        "kind: Node\n",
        "topology.driver.example.com/zone: zone-a",
        "drivers: []",
        "all as it should be",
    ] {
        let at = rest
            .find(part)
            .unwrap_or_else(|| panic!("{part:?} in\n{out}"));
        rest = &rest[at + part.len()..];
    }
    assert!(!out.contains("failed"), "{out}");
    assert!(!out.contains('\x1b'), "{out}");
    let directory = out.lines().next().unwrap().rsplit(' ').next().unwrap();
    assert!(directory.contains("kubelet-"), "{directory}");
    assert!(!std::path::Path::new(directory).exists());
}

#[tokio::test]
async fn every_kind_of_kubelet() {
    for profile in ["1.17", "1.19", "1.28", "1.35"] {
        let (code, out, err) = outcome(["demo", "--profile", profile, "--node-name=worker"]).await;
        assert_eq!((code, err.as_str()), (0, ""), "{profile}: {out}");
        assert_eq!(
            out.matches("register succeeded").count() - out.matches("unregister succeeded").count(),
            3,
            "{out}"
        );
        assert!(out.contains("name: worker"), "{out}");
    }
}

#[tokio::test]
async fn colour_on_a_terminal_unless_it_is_not_wanted() {
    let (code, shown) = on_a_terminal(command(["demo"]), true).await;
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("\x1b[32m"), "{shown}");
    let mut quiet = command(["demo"]);
    quiet.env("NO_COLOR", "1");
    let (code, shown) = on_a_terminal(quiet, true).await;
    assert_eq!(code, 0, "{shown}");
    assert!(!shown.contains("\x1b[32m"), "{shown}");
    assert!(shown.contains("register succeeded"), "{shown}");
}

#[tokio::test]
async fn a_directory_without_room_for_sockets_is_explained() {
    let root = tempfile::tempdir().unwrap();
    let deep = root.path().join("x".repeat(100));
    std::fs::create_dir(&deep).unwrap();
    for directory in [deep, root.path().join("missing")] {
        let mut command = command(["demo"]);
        command.env("TMPDIR", &directory);
        let output = output(command).await;
        assert_eq!(output.status.code(), Some(1));
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(err.contains(directory.to_str().unwrap()), "{err}");
        assert!(err.contains("TMPDIR"), "{err}");
    }
}
