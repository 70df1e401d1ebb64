//! The argument lists of published manifests and charts, with the paths of a test's node: a registration and a TERM each.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "clippy takes only what is marked as a test for one; a test may block, and fails by a panic"
)]

mod support;

use std::net::SocketAddr;

use support::{DRIVER, Kubelet, Node, Registrar, get, registrar_command};

/// Names of directories in an argument, as a manifest has them, and where they are here.
fn arguments(node: &Node, manifest: &[&str]) -> Vec<String> {
    let socket_directory = node.csi_socket().parent().unwrap().display().to_string();
    let replacements = [
        ("/var/lib/kubelet/plugins/DRIVER", &*socket_directory),
        ("/registration", &node.registry().display().to_string()),
        ("/csi/", &format!("{socket_directory}/")),
    ];
    let place = |argument: &&str| {
        let mut argument = (*argument).to_owned();
        for (name, place) in &replacements {
            argument = argument.replace(name, place);
        }
        argument
    };
    manifest.iter().map(place).collect()
}

/// Starts what the manifest says, registers as a kubelet does, and stops it as a pod's end does.
async fn registers(node: &Node, manifest: &[&str]) {
    let (registrar, _kubelet) = registered(node, manifest).await;
    ends(node, registrar, manifest).await;
}

async fn registered(node: &Node, manifest: &[&str]) -> (Registrar, Kubelet) {
    let mut command = registrar_command();
    // Manifests set it; nothing needs it.
    command
        .env("KUBE_NODE_NAME", "node1")
        .args(arguments(node, manifest));
    let registrar = Registrar::spawn(command);
    let kubelet = Kubelet::dial(&node.published_as(DRIVER).await).await;
    let info = kubelet.get_info().await;
    assert_eq!(info.endpoint, node.csi_socket().display().to_string());
    kubelet.notify(Ok(())).await;
    (registrar, kubelet)
}

async fn ends(node: &Node, registrar: Registrar, manifest: &[&str]) {
    let log = registrar.log().clone();
    registrar.stop().await;
    assert!(node.published().is_empty(), "{manifest:?}");
    let log = log.complete().await;
    assert!(!log.lines().any(|line| line.starts_with('E')), "{log}");
}

#[tokio::test]
async fn the_manifest_of_version_1_3() {
    let node = Node::new();
    let _driver = node.driver();
    registers(
        &node,
        &[
            "--v=5",
            "--csi-address=/csi/csi.sock",
            "--kubelet-registration-path=/var/lib/kubelet/plugins/DRIVER/csi.sock",
            // Without it the directory is /registration, which this machine does not have.
            "--plugin-registration-path=/registration",
        ],
    )
    .await;
}

const PATH: &str = "--kubelet-registration-path=/var/lib/kubelet/plugins/DRIVER/csi.sock";
const REGISTRATION: &str = "--plugin-registration-path=/registration";

#[tokio::test]
async fn the_spellings_of_todays_charts() {
    let node = Node::new();
    let _driver = node.driver();
    for manifest in [
        &["--v=2", "--csi-address=/csi/csi.sock", PATH, REGISTRATION][..],
        &["-v=5", "--csi-address=/csi/csi.sock", PATH, REGISTRATION],
        // A single dash, with a space or an equals sign.
        &[
            "-csi-address",
            "/csi/csi.sock",
            "-kubelet-registration-path",
            "/var/lib/kubelet/plugins/DRIVER/csi.sock",
            "-plugin-registration-path",
            "/registration",
            "-v",
            "4",
        ],
        &[
            "-v=5",
            "-csi-address=/csi/csi.sock",
            "-kubelet-registration-path=/var/lib/kubelet/plugins/DRIVER/csi.sock",
            "-plugin-registration-path=/registration",
        ],
        // Schemes, and directories that end in a slash.
        &[
            "--csi-address=unix:/csi/csi.sock",
            PATH,
            REGISTRATION,
            "--v=2",
        ],
        &[
            "--csi-address=unix:///csi/csi.sock",
            PATH,
            "--plugin-registration-path=/registration/",
        ],
        &[
            "--csi-address=/csi//csi.sock",
            PATH,
            "--plugin-registration-path=/registration/",
        ],
        &[
            "--csi-address=/csi/csi.sock",
            PATH,
            REGISTRATION,
            "--timeout=60s",
        ],
        &[
            "--csi-address=/csi/csi.sock",
            PATH,
            REGISTRATION,
            "--timeout=10s",
            "--v=5",
        ],
        // What manifests have carried on since the days of klog's own flags.
        &[
            "--csi-address=/csi/csi.sock",
            PATH,
            REGISTRATION,
            "--v=5",
            "--logtostderr",
            "--stderrthreshold=INFO",
            "--skip_headers=false",
            "--connection-timeout=15s",
        ],
        &[
            "--csi-address=/csi/csi.sock",
            PATH,
            REGISTRATION,
            "--logging-format=json",
            "--automaxprocs",
        ],
        &[
            "--csi-address=/csi/csi.sock",
            PATH,
            REGISTRATION,
            "--mode=node-register",
        ],
    ] {
        registers(&node, manifest).await;
    }
}

#[tokio::test]
async fn no_address_of_the_driver_at_all() {
    let node = Node::new();
    let mut command = registrar_command();
    command.args(arguments(&node, &[PATH, REGISTRATION, "--v=1"]));
    let registrar = Registrar::spawn(command);
    let line = registrar.log().line("Connecting to the CSI driver").await;
    assert!(line.contains(r#"csiAddress="/run/csi/socket""#), "{line}");
    registrar.stop().await;
}

#[tokio::test]
async fn liveness_probes_over_http() {
    let node = Node::new();
    let _driver = node.driver();
    // Charts name a port of the host; a test lets one be chosen where that is possible, and holds one where it is not.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.set_reuseaddr(true).unwrap();
    held.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let port = held.local_addr().unwrap().port();
    for endpoint in [
        "--http-endpoint=localhost:0".to_owned(),
        "--http-endpoint=0.0.0.0:0".to_owned(),
        "--http-endpoint=:0".to_owned(),
        "--http-endpoint=127.0.0.1:0".to_owned(),
        format!("--health-port={port}"),
        format!("--http-endpoint=:{port}"),
        format!("--http-endpoint=localhost:{port}"),
    ] {
        let manifest = [
            "--csi-address=/csi/csi.sock",
            PATH,
            REGISTRATION,
            &endpoint,
            "--v=2",
        ];
        let (registrar, _kubelet) = registered(&node, &manifest).await;
        let chosen = registrar.http_address().await.port();
        let answer = get(SocketAddr::from(([127, 0, 0, 1], chosen)), "/healthz").await;
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (200, "ok"),
            "{endpoint}"
        );
        ends(&node, registrar, &manifest).await;
    }
}

#[tokio::test]
async fn exec_probes_of_old() {
    let node = Node::new();
    let _driver = node.driver();
    let manifest = ["--csi-address=/csi/csi.sock", PATH, REGISTRATION];
    let (registrar, _kubelet) = registered(&node, &manifest).await;
    for probe in [
        &[PATH, "--mode=kubelet-registration-probe"][..],
        &["-mode", "kubelet-registration-probe", PATH],
    ] {
        let ended = support::command::run(arguments(&node, probe)).await;
        assert_eq!(
            (ended.code, ended.stderr.as_str()),
            (Some(0), ""),
            "{probe:?}"
        );
    }
    ends(&node, registrar, &manifest).await;
}

/// A chart's variables that nobody defined stay as they are written, and are no Unix socket.
#[tokio::test]
async fn a_variable_that_was_not_expanded_is_told() {
    let node = Node::new();
    let manifest = ["--csi-address=$(ADDRESS)", PATH, REGISTRATION];
    let ended = support::command::run(arguments(&node, &manifest)).await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.errors()[0].contains("$(ADDRESS)"), "{}", ended.stderr);
}
