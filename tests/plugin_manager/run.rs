//! `run`.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::AsyncReadExt;

use crate::fake_registrar::Service;
use crate::support::{DEADLINE, DRIVER, Node, get, until, within};
use crate::tool::{Tool, command, outcome};

/// `run` in a node's registry, with these arguments as well.
fn run(node: &Node, more: &[&str]) -> Tool {
    let registry = node.registry();
    let mut arguments = vec!["run", "--registration-dir", registry.to_str().unwrap()];
    arguments.extend(more);
    Tool::start(arguments)
}

async fn http_address(tool: &Tool) -> SocketAddr {
    let line = tool.err.line("HTTP server listening").await;
    let mut parts = line.split('"');
    let address = parts.find(|part| part.starts_with("127.0.0.1:"));
    address.unwrap().parse().unwrap()
}

async fn state(address: SocketAddr) -> Value {
    let answer = get(address, "/state").await;
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("application/json"), "{}", answer.head);
    serde_json::from_str(&answer.body).unwrap()
}

#[tokio::test]
async fn events_as_json_state_metrics_and_objects() {
    let node = Node::new();
    let _driver = node.driver();
    let objects = node.root().join("objects.yaml");
    let mut tool = run(
        &node,
        &[
            "--output=json",
            "--http-endpoint=127.0.0.1:0",
            "--node-name=worker",
            "--objects-file",
            objects.to_str().unwrap(),
        ],
    );
    let address = http_address(&tool).await;
    let registrar = node.registrar::<&str>([]);
    tool.out.line("\"operation_succeeded\"").await;
    let socket = node.registration_socket(DRIVER);
    let socket = socket.to_str().unwrap();

    let state = state(address).await;
    for cache in ["desired_state_of_world", "actual_state_of_world"] {
        assert_eq!(state[cache][0]["socket_path"], socket, "{state}");
    }
    assert_eq!(state["handlers"], serde_json::json!(["CSIPlugin"]));
    let metrics = get(address, "/metrics").await;
    assert!(metrics.body.contains(&format!(
        "plugin_manager_total_plugins{{socket_path=\"{socket}\",state=\"actual_state_of_world\"}} 1"
    )));
    assert!(
        metrics.body.contains(
            r#"plugin_manager_operations_total{operation="register",result="succeeded"} 1"#
        )
    );
    assert_eq!(get(address, "/").await.status, 404);
    let text = fs::read_to_string(&objects).unwrap();
    assert!(text.contains("kind: CSINode"), "{text}");
    assert!(text.contains(&format!("name: {DRIVER}")), "{text}");
    assert!(text.contains("name: worker"), "{text}");

    registrar.stop().await;
    tool.out.line("\"unregister\"}").await;
    let text = fs::read_to_string(&objects).unwrap();
    assert!(text.contains("drivers: []"), "{text}");
    tool.signal(Signal::SIGTERM);
    assert_eq!(tool.exit().await.code(), Some(0));
    tool.out.complete().await;
    let events: Vec<Value> = tool
        .out
        .lines()
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kinds: Vec<_> = events
        .iter()
        .filter(|event| event["socket"] == socket)
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "desired",
            "operation_started",
            "dialed",
            "info_received",
            "validated",
            "node_info_received",
            "handler_registered",
            "notified",
            "operation_succeeded",
            "undesired",
            "operation_started",
            "deregistered",
            "operation_succeeded",
        ]
    );
    let times: Vec<_> = events
        .iter()
        .map(|event| event["time"].as_f64().unwrap())
        .collect();
    assert!(times.is_sorted() && times[0] > 1.7e9, "{times:?}");
}

#[tokio::test]
async fn events_as_text_and_a_stop_by_each_signal() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let node = Node::new();
        let _driver = node.driver();
        let mut tool = run(&node, &[]);
        let registrar = node.registrar::<&str>([]);
        let line = tool.out.line("register succeeded").await;
        assert!(line.contains(&format!("  {DRIVER}-reg.sock  ")), "{line}");
        let time = line.split(' ').next().unwrap();
        assert_eq!(time.len(), "20:06:49.123".len(), "{line}");
        tool.out.line("NodeGetInfo: node id node1").await;
        tool.signal(signal);
        assert_eq!(tool.exit().await.code(), Some(0));
        let text = tool.out.complete().await;
        assert!(!text.contains('\x1b'), "{text}");
        registrar.stop().await;
    }
}

#[tokio::test]
async fn an_observer_tells_and_asks_nobody() {
    let node = Node::new();
    let driver = node.driver();
    let tool = run(&node, &["--observe"]);
    let registrar = node.registrar::<&str>([]);
    tool.out.line("GetInfo: type CSIPlugin").await;
    tool.out.line("register succeeded").await;
    assert_eq!(driver.calls().borrow().node_info, 0);
    registrar.stop().await;
    tool.out.line("unregister succeeded").await;
    let text = tool.out.text();
    assert!(!text.contains("told the plugin"), "{text}");
}

#[tokio::test]
async fn a_real_registry_is_refused_however_it_is_written() {
    let root = tempfile::tempdir().unwrap();
    let registry = root.path().join("kubelet/plugins_registry");
    fs::create_dir_all(&registry).unwrap();
    symlink(&registry, root.path().join("link")).unwrap();
    let usual = Path::new("/var/lib/kubelet/plugins_registry");
    let existed = usual.exists();
    for directory in [
        usual.to_owned(),
        Path::new("/var/lib/kubelet/plugins_registry//").to_owned(),
        Path::new("/var/lib/../lib/kubelet/./plugins_registry").to_owned(),
        registry.clone(),
        root.path().join("link"),
        root.path().join("link/"),
    ] {
        let directory = directory.to_str().unwrap();
        let (code, out, err) = outcome(["run", "--registration-dir", directory]).await;
        assert_eq!(code, 1, "{directory}: {err}");
        assert_eq!(out, "");
        assert!(
            err.contains("--observe") && err.contains("--take-over"),
            "{err}"
        );
        assert!(err.contains(directory), "{err}");
    }
    assert_eq!(usual.exists(), existed, "nothing was made");

    for permission in ["--take-over", "--observe"] {
        let directory = registry.to_str().unwrap();
        let mut tool = Tool::start(["run", permission, "--registration-dir", directory]);
        tool.out.line("watching").await;
        tool.signal(Signal::SIGTERM);
        assert_eq!(tool.exit().await.code(), Some(0), "{permission}");
    }
    let (code, _, err) = outcome(["run", "--take-over", "--observe", "--registration-dir=x"]).await;
    assert_eq!(code, 2, "{err}");
}

#[tokio::test]
async fn bad_plugins_are_told_of_and_delay_nobody() {
    let node = Node::new();
    let _driver = node.driver();
    let tool = run(&node, &["--output=json", "--http-endpoint=127.0.0.1:0"]);
    let address = http_address(&tool).await;
    let hanging = Service {
        delay: Duration::from_hours(1),
        ..Service::at(Path::new("/nowhere"))
    };
    let _hanging = hanging.serve(&node.registry().join("hanging.sock"));
    let lying = Service {
        versions: vec!["0.3.0".to_owned()],
        ..Service::at(Path::new("/nowhere"))
    };
    let _lying = lying.serve(&node.registry().join("lying.sock"));
    let name = OsString::from_vec(b"not-utf8-\xff.sock".to_vec());
    drop(UnixListener::bind(node.registry().join(name)).unwrap());
    let registrar = node.registrar::<&str>([]);
    tool.out.line("\"handler_registered\"").await;
    for (socket, reason) in [
        ("hanging.sock", "RPC GetInfo"),
        ("lying.sock", "must be v1.x"),
    ] {
        let path = node.registry().join(socket);
        let line = tool
            .err
            .line(&format!("at socket {}, err", path.display()))
            .await;
        assert!(line.contains(reason), "{line}");
    }
    let state = state(address).await;
    let operations = state["operations"].as_array().unwrap();
    let failing = |name: &str| {
        let mut operations = operations.iter();
        let of = |operation: &&Value| operation["socket_path"].as_str().unwrap().contains(name);
        operations.find(of).unwrap().clone()
    };
    assert!(failing("lying").get("last_error").unwrap().is_string());
    assert_eq!(failing("not-utf8-\u{fffd}")["running"], "register");
    registrar.stop().await;
}

#[tokio::test]
async fn a_reader_that_stops_reading_delays_nobody_and_is_told() {
    const SOCKETS: usize = 1500;
    for reads_on in [true, false] {
        let node = Node::new();
        let _driver = node.driver();
        let mut command = command(["run", "--output=json", "--registration-dir"]);
        command.arg(node.registry()).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        let mut tool = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        for number in 0..SOCKETS {
            let path = node.registry().join(format!("{number}.sock"));
            drop(UnixListener::bind(path).unwrap());
        }
        let registrar = node.registrar::<&str>([]);
        registrar.log().line("status=\"registered\"").await;
        let mut stdout = tool.stdout.take().unwrap();
        if reads_on {
            let mut text = Vec::new();
            let told = async {
                while !String::from_utf8_lossy(&text).contains("\"event\":\"lost\"") {
                    assert_ne!(stdout.read_buf(&mut text).await.unwrap(), 0);
                }
            };
            within(DEADLINE, "word of the lost events", told).await;
        }
        let id = i32::try_from(tool.id().unwrap()).unwrap();
        kill(Pid::from_raw(id), Signal::SIGTERM).unwrap();
        let status = within(DEADLINE, "the end", tool.wait()).await.unwrap();
        assert_eq!(status.code(), Some(0), "reads on: {reads_on}");
        registrar.stop().await;
    }
}

#[tokio::test]
async fn a_reader_that_is_gone_ends_it_quietly() {
    let node = Node::new();
    let mut command = command(["run", "--registration-dir"]);
    command.arg(node.registry());
    command.stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let mut status = None;
    let mut number = 0;
    until("the end", || {
        // Something to print.
        number += 1;
        let path = node.registry().join(format!("{number}.sock"));
        drop(UnixListener::bind(path).unwrap());
        status = child.try_wait().unwrap();
        status.is_some()
    })
    .await;
    assert_eq!(status.unwrap().code(), Some(0));
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_refused_first() {
    let directory = tempfile::tempdir().unwrap();
    let registry = directory.path().join("registry");
    let registry_argument = format!("--registration-dir={}", registry.display());
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = format!("--http-endpoint={}", busy.local_addr().unwrap());
    for (argument, code, reason) in [
        ("--profile=1.16", 2, "from 1.17 to 1.37"),
        ("--profile=2", 2, "write it as 1.28"),
        ("--output=xml", 2, "possible values: text, json"),
        ("--obsrve", 2, "--observe"),
        ("--http-endpoint=9900", 2, "HOST:PORT"),
        (
            busy.as_str(),
            1,
            "another process on this host holds the port",
        ),
        (
            "--objects-file=/nowhere/x.yaml",
            1,
            "No such file or directory",
        ),
    ] {
        let (got, _, err) = outcome(["run", &registry_argument, argument]).await;
        assert_eq!(got, code, "{argument}: {err}");
        assert!(err.contains(reason), "{argument}: {err}");
        assert!(!registry.exists(), "{argument}");
    }
    assert_eq!(outcome(["run"]).await.0, 2);
    assert_eq!(outcome::<&str>([]).await.0, 2);
    for help in [vec!["--help"], vec!["run", "--help"], vec!["--version"]] {
        let (code, out, err) = outcome(&help).await;
        assert_eq!((code, err.as_str()), (0, ""), "{help:?}");
        assert!(out.contains("kubelet"), "{out}");
    }
}

#[tokio::test]
async fn a_directory_that_cannot_be_made_ends_it_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let registry = file.join("registry");
    let (code, _, err) = outcome(["run", "--registration-dir", registry.to_str().unwrap()]).await;
    assert_eq!(code, 1);
    assert!(err.contains(registry.to_str().unwrap()), "{err}");
}
