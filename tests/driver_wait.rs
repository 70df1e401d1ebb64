//! From the start to a published socket, on the real binary: which drivers are waited for, which are not, and what is said of it.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "clippy takes only what is marked as a test for one; a test may block, and fails by a panic"
)]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use csi_node_driver_registrar::testing::csi_driver::{Behaviour, Fault};
use support::command::{Ended, run, run_command};
use support::raw_driver::{Answer, RawDriver};
use support::tree::tree;
use support::{DRIVER, Kubelet, Node, Registrar, registrar_binary, until};
use tonic::Code;

/// Runs a registrar that must give up: exit 1 for one reason, with every text in it, and nothing touched.
async fn assert_gives_up(node: &Node, more: &[&str], texts: &[&str]) -> Ended {
    let before = tree(node.root());
    let mut arguments = node.arguments();
    arguments.extend(more.iter().map(ToString::to_string));
    let ended = run(&arguments).await;
    assert_is_one_failure(&ended, texts);
    assert_eq!(tree(node.root()), before);
    ended
}

fn assert_is_one_failure(ended: &Ended, texts: &[&str]) {
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let [error] = ended.errors()[..] else {
        panic!("not one error: {}", ended.stderr)
    };
    for text in texts {
        assert!(error.contains(text), "no {text:?} in {error}");
    }
    assert!(ended.stderr.ends_with(error), "{}", ended.stderr);
}

/// A registrar that has tried at least once.
async fn waiting(node: &Node, more: &[&str]) -> Registrar {
    let registrar = node.registrar([&["--v=1"], more].concat());
    registrar.log().line("Connecting to the CSI driver").await;
    registrar
}

#[tokio::test]
async fn a_late_driver_is_registered() {
    let node = Node::new();
    let registrar = waiting(&node, &[]).await;
    registrar.log().line("No such file or directory").await;
    assert!(node.published().is_empty());
    let _driver = node.driver();
    Kubelet::register(&node.published_as(DRIVER).await).await;
    registrar.stop().await;
}

#[tokio::test]
async fn the_drivers_directory_may_come_late_and_be_made_anew() {
    let node = Node::new();
    let directory = node.csi_socket().parent().unwrap().to_owned();
    let plugins = directory.parent().unwrap();
    fs::remove_dir_all(plugins).unwrap();
    let registrar = waiting(&node, &[]).await;
    for _ in 0..3 {
        fs::create_dir_all(&directory).unwrap();
        fs::remove_dir_all(plugins).unwrap();
    }
    fs::create_dir_all(&directory).unwrap();
    let _driver = node.driver();
    node.published_as(DRIVER).await;
    registrar.stop().await;
}

#[tokio::test]
async fn a_driver_in_a_directory_made_anew_is_watched_while_the_one_before_lives() {
    let node = Node::new();
    let directory = node.csi_socket().parent().unwrap().to_owned();
    let _before = node.driver();
    let registrar = waiting(&node, &[]).await;
    node.published_as(DRIVER).await;

    // Its listener keeps the directory, so no event tells the end of it.
    fs::remove_file(node.csi_socket()).unwrap();
    registrar.log().line("No such file or directory").await;
    fs::remove_dir(&directory).unwrap();
    fs::create_dir(&directory).unwrap();
    let same = node.driver();
    registrar.log().line("The CSI driver was restarted").await;
    drop(same);
    let _other = node.driver_with(Behaviour::named("other.example.com"));
    node.published_as("other.example.com").await;
    registrar.stop().await;
}

#[tokio::test]
async fn a_closed_and_a_silent_socket_are_outlived() {
    let node = Node::new();
    let path = node.csi_socket();
    drop(UnixListener::bind(&path).unwrap());
    let registrar = waiting(&node, &[]).await;
    registrar.log().line("nobody listens").await;

    fs::remove_file(&path).unwrap();
    let silent = UnixListener::bind(&path).unwrap();
    registrar.log().line("no answer within 1s").await;

    fs::remove_file(&path).unwrap();
    let live = Instant::now();
    let _driver = node.driver();
    node.published_as(DRIVER).await;
    assert!(live.elapsed() < Duration::from_secs(5));
    drop(silent);
    registrar.stop().await;
}

/// Accepts one connection and reads what a client says at once, so that a call is known to be under way.
async fn call_under_way(listener: UnixListener) -> std::os::unix::net::UnixStream {
    let accepting = tokio::task::spawn_blocking(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // The preface and the first frames.
        stream.read_exact(&mut [0; 64]).unwrap();
        stream
    });
    support::within(support::DEADLINE, "a call", accepting)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_long_call_is_given_up_when_the_socket_is_replaced() {
    for is_renamed in [false, true] {
        let node = Node::new();
        let silent = UnixListener::bind(node.csi_socket()).unwrap();
        let registrar = node.registrar(["--timeout=60s"]);
        let _open = call_under_way(silent).await;
        let _driver = if is_renamed {
            let new = node.root().join("new.sock");
            let driver = csi_node_driver_registrar::testing::csi_driver::CsiDriver::start(
                &new,
                Behaviour::named(DRIVER),
            );
            fs::rename(new, node.csi_socket()).unwrap();
            driver.unwrap()
        } else {
            node.driver()
        };
        node.published_as(DRIVER).await;
        registrar.stop().await;
    }
}

#[tokio::test]
async fn a_driver_that_drops_the_connection_is_asked_again() {
    let node = Node::new();
    let silent = UnixListener::bind(node.csi_socket()).unwrap();
    let again = silent.try_clone().unwrap();
    let registrar = node.registrar(["--timeout=60s", "--v=1"]);
    drop(call_under_way(silent).await);
    drop(call_under_way(again).await);
    registrar.log().line("Call failed").await;
    let _driver = node.driver();
    node.published_as(DRIVER).await;
    registrar.stop().await;
}

const ALL_CODES: [Code; 16] = [
    Code::Cancelled,
    Code::Unknown,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
    Code::NotFound,
    Code::AlreadyExists,
    Code::PermissionDenied,
    Code::ResourceExhausted,
    Code::FailedPrecondition,
    Code::Aborted,
    Code::OutOfRange,
    Code::Unimplemented,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
    Code::Unauthenticated,
];

const TRANSIENT: [Code; 7] = [
    Code::Unavailable,
    Code::DeadlineExceeded,
    Code::Unknown,
    Code::Internal,
    Code::Aborted,
    Code::ResourceExhausted,
    Code::Cancelled,
];

fn failing(code: Code, times: u32) -> Behaviour {
    Behaviour {
        plugin_info: Fault::Fails {
            code,
            message: "the reason of old".to_owned(),
            times,
        },
        ..Behaviour::named(DRIVER)
    }
}

#[tokio::test]
async fn a_driver_that_is_not_up_yet_is_asked_again() {
    for code in TRANSIENT {
        let node = Node::new();
        let driver = node.driver_with(failing(code, 3));
        let registrar = node.registrar(["--v=1", "--timeout=15s"]);
        node.published_as(DRIVER).await;
        assert_eq!(driver.calls().borrow().plugin_info, 4, "{code:?}");
        let log = registrar.log().clone();
        registrar.stop().await;
        let log = log.complete().await;
        let expected = format!("failed with {code:?}: the reason of old");
        assert_eq!(log.matches(&expected).count(), 3, "{log}");
    }
}

#[tokio::test]
async fn a_driver_that_is_slow_once_is_asked_again() {
    let node = Node::new();
    let driver = node.driver_with(Behaviour {
        plugin_info: Fault::SlowOnce(Duration::from_mins(1)),
        ..Behaviour::named(DRIVER)
    });
    let registrar = node.registrar(["--timeout=300ms"]);
    node.published_as(DRIVER).await;
    assert!(driver.calls().borrow().plugin_info > 1);
    registrar.stop().await;
}

#[tokio::test]
async fn an_answer_that_time_does_not_mend_is_the_end() {
    for code in ALL_CODES {
        if TRANSIENT.contains(&code) {
            continue;
        }
        let node = Node::new();
        let driver = node.driver_with(failing(code, 1));
        let socket = node.csi_socket().display().to_string();
        let answers = format!("GetPluginInfo with {code:?}: the reason of old");
        assert_gives_up(&node, &[], &[&socket, &answers]).await;
        assert_eq!(driver.calls().borrow().plugin_info, 1);
    }
}

/// `GetPluginInfoResponse` with these bytes as its name.
fn plugin_info(name: &[u8]) -> Vec<u8> {
    [&[0x0a, u8::try_from(name.len()).unwrap()], name].concat()
}

#[tokio::test]
async fn an_answer_that_cannot_be_decoded_is_the_end() {
    for (what, answer, text) in [
        (
            "no protobuf",
            Answer::message(&[0xff; 9]),
            "cannot be decoded",
        ),
        (
            "a name that is not UTF-8",
            Answer::message(&plugin_info(b"driver\xff")),
            "cannot be decoded",
        ),
        (
            "another type of field",
            Answer::message(&[0x08, 0x01]),
            "cannot be decoded",
        ),
        (
            "a field longer than its message",
            Answer::message(&[0x0a, 0x7f, b'x']),
            "cannot be decoded",
        ),
        (
            "a web server",
            Answer {
                status: 404,
                grpc_status: None,
                ..Answer::bytes("<html>")
            },
            "404 Not Found",
        ),
        (
            "a web server without a page",
            Answer {
                status: 404,
                grpc_status: None,
                ..Answer::bytes("")
            },
            "Unimplemented",
        ),
        (
            "text without a frame",
            Answer::bytes("<html><body>driver.example.com</body></html>"),
            "cannot be decoded",
        ),
        (
            "a compressed message, which nobody asked for",
            Answer::bytes(&[1, 0, 0, 0, 1, 0][..]),
            "cannot be decoded",
        ),
        (
            "half a message",
            Answer::bytes(&[0, 0, 0, 0, 9, 0x0a][..]),
            "cannot be decoded",
        ),
        ("no message at all", Answer::bytes(""), "cannot be decoded"),
        (
            "a name of a megabyte",
            Answer::message(&[&[0x0a, 0x80, 0x80, 0x40][..], &vec![b'x'; 1 << 20]].concat()),
            "OutOfRange",
        ),
        ("no name", Answer::message(&[]), "name is empty"),
    ] {
        let node = Node::new();
        let _driver = RawDriver::start(&node.csi_socket(), answer);
        let limit = "--driver-wait-timeout=10s";
        let ended = assert_gives_up(&node, &[limit, "--timeout=5s"], &[text]).await;
        assert!(
            !ended.stderr.contains("did not tell"),
            "{what}: {}",
            ended.stderr
        );
    }
}

#[tokio::test]
async fn an_answer_of_a_later_version_is_understood() {
    // Unknown fields, and a name that is told twice.
    let message = [
        &[0xfa, 0x01, 0x01, b'x'][..],
        &plugin_info(b"first"),
        &plugin_info(DRIVER.as_bytes()),
    ]
    .concat();
    let node = Node::new();
    let _driver = RawDriver::start(&node.csi_socket(), Answer::message(&message));
    let registrar = node.registrar::<&str>([]);
    node.published_as(DRIVER).await;
    registrar.stop().await;
}

#[tokio::test]
async fn what_speaks_no_grpc_is_waited_for_with_its_reason() {
    let node = Node::new();
    let listener = UnixListener::bind(node.csi_socket()).unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming().take(20) {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            open.push(stream);
        }
    });
    let limit = ["--driver-wait-timeout=1s"];
    assert_gives_up(
        &node,
        &limit,
        &["GetPluginInfo", "failed with", "connection error detected"],
    )
    .await;
}

#[tokio::test]
async fn a_name_that_cannot_be_a_file_name_is_refused() {
    for (name, text) in [
        ("", "the CSI driver's name is empty"),
        ("/", "contains '/'"),
        ("a/b", "contains '/'"),
        ("/etc/cron.d/x", "contains '/'"),
        ("../escaped", "contains '/'"),
        ("..", "starts with a dot"),
        (".", "starts with a dot"),
        (".hidden", "starts with a dot"),
        ("a\0b", r"contains '\\0'"),
        ("a\nb", r"contains '\\n'"),
        ("a\u{1b}[31mb", r"contains '\\u{1b}'"),
        ("a\u{7f}", r"contains '\\u{7f}'"),
        ("a\u{85}", r"contains '\\u{85}'"),
        (&"n".repeat(300), "bytes long, the limit is 107"),
    ] {
        let node = Node::new();
        let _driver = node.driver_with(Behaviour::named(name));
        assert_gives_up(&node, &[], &[text]).await;
    }
}

#[tokio::test]
async fn a_path_of_107_bytes_is_published_and_one_of_108_is_not() {
    let node = Node::new();
    let room = 107 - node.registration_socket("").as_os_str().len();
    for (length, fits) in [(room, true), (room + 1, false)] {
        let name = "n".repeat(length);
        let _driver = node.driver_with(Behaviour::named(&name));
        let path = node.registration_socket(&name).display().to_string();
        if fits {
            let registrar = node.registrar::<&str>([]);
            node.published_as(&name).await;
            registrar.stop().await;
        } else {
            let text = format!("{path} is 108 bytes long, the limit is 107: shorten");
            assert_gives_up(&node, &[], &[&text]).await;
        }
    }
}

async fn warnings(node: &Node, name: &str, more: &[&str]) -> Vec<String> {
    let registrar = node.registrar(more);
    node.published_as(name).await;
    let log = registrar.log().clone();
    registrar.stop().await;
    let log = log.complete().await;
    let warnings = log.lines().filter(|line| line.starts_with('W'));
    warnings.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_name_that_the_api_server_refuses_is_warned_about() {
    let longest = format!("{}.{}", "a".repeat(31), "b".repeat(31));
    let longer = format!("{longest}b");
    for (name, objection) in [
        ("driver.example.com", None),
        // The API server puts it in lower case before it looks.
        ("Driver.Example.COM", None),
        ("1.2-3.x", None),
        (longest.as_str(), None),
        (longer.as_str(), Some("it is longer than 63 bytes")),
        ("under_score", Some("no DNS-1123 subdomain")),
        ("a..b", Some("no DNS-1123 subdomain")),
        ("a.", Some("no DNS-1123 subdomain")),
        ("-a", Some("no DNS-1123 subdomain")),
        ("a-", Some("no DNS-1123 subdomain")),
        ("a b", Some("no DNS-1123 subdomain")),
        ("ä", Some("no DNS-1123 subdomain")),
    ] {
        let node = Node::new();
        let _driver = node.driver_with(Behaviour::named(name));
        let warnings = warnings(&node, name, &[]).await;
        assert_eq!(
            warnings.len(),
            usize::from(objection.is_some()),
            "{warnings:?}"
        );
        if let Some(objection) = objection {
            assert!(warnings[0].contains(objection), "{}", warnings[0]);
            assert!(warnings[0].contains("API server"), "{}", warnings[0]);
        }
    }
}

#[tokio::test]
async fn a_path_that_is_too_long_on_the_host_alone_is_warned_about() {
    let node = Node::new();
    let _driver = node.driver();
    let root = format!("/var/lib/{}", "k".repeat(60));
    let host = format!("--kubelet-registration-path={root}/plugins/d/csi.sock");
    let [warning] = &warnings(&node, DRIVER, &[&host]).await[..] else {
        panic!("not one warning")
    };
    let path = format!("{root}/plugins_registry/{DRIVER}-reg.sock");
    for text in [
        path.as_str(),
        &format!("length={}", path.len()),
        "limit=107",
    ] {
        assert!(warning.contains(text), "no {text:?} in {warning}");
    }
    // Where no kubelet's root can be told from the path, there is nothing to say.
    let elsewhere = format!("--kubelet-registration-path={root}/csi/csi.sock");
    assert!(warnings(&node, DRIVER, &[&elsewhere]).await.is_empty());
}

/// The binary where another user can run it, in a place that this user may not enter or write to.
fn unprivileged(node: &Node) -> Command {
    let binary = node.root().join("registrar");
    fs::copy(registrar_binary(), &binary).unwrap();
    fs::set_permissions(node.root(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(binary);
    command.env_clear().args(node.arguments());
    // Root may do everything; anybody else is restricted by the modes that the test sets.
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(65534).gid(65534);
    }
    command
}

/// Takes all permissions away and gives them back at the end, so that the directory can be removed.
struct Locked(PathBuf);

impl Locked {
    fn new(path: &Path, mode: u32) -> Self {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        Self(path.to_owned())
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = fs::set_permissions(&self.0, fs::Permissions::from_mode(0o755));
    }
}

#[tokio::test]
async fn a_socket_out_of_reach_is_explained() {
    let node = Node::new();
    let _driver = node.driver();
    let _locked = Locked::new(node.csi_socket().parent().unwrap(), 0o000);
    let mut command = unprivileged(&node);
    command.arg("--driver-wait-timeout=300ms");
    let socket = node.csi_socket().display().to_string();
    let ended = run_command(command).await;
    assert_is_one_failure(
        &ended,
        &[
            &socket,
            "Permission denied (os error 13)",
            "SELinux",
            "a user other than root",
        ],
    );
    assert!(node.published().is_empty());
}

#[tokio::test]
async fn a_registration_directory_that_takes_nothing_is_explained() {
    let node = Node::new();
    let _driver = node.driver();
    let _locked = Locked::new(&node.registry(), 0o555);
    fs::set_permissions(node.csi_socket(), fs::Permissions::from_mode(0o777)).unwrap();
    let command = unprivileged(&node);
    let before = tree(node.root());
    let registry = node.registry().display().to_string();
    let ended = run_command(command).await;
    assert_is_one_failure(
        &ended,
        &[
            &registry,
            "cannot publish",
            "Permission denied (os error 13)",
            "run as root",
        ],
    );
    assert_eq!(tree(node.root()), before);
}

#[tokio::test]
async fn a_registration_directory_that_is_none_is_explained() {
    let node = Node::new();
    let _driver = node.driver();
    let file = node.root().join("file");
    fs::write(&file, "").unwrap();
    let not_there = node.root().join("nowhere");
    for (path, text) in [
        (&not_there, "No such file or directory (os error 2)"),
        (&file, "Not a directory (os error 20)"),
    ] {
        let flag = format!("--plugin-registration-path={}", path.display());
        let shown = path.display().to_string();
        assert_gives_up(&node, &[&flag], &["cannot publish", &shown, text]).await;
    }
}

#[tokio::test]
async fn what_is_in_the_sockets_place_is_named_and_left_alone() {
    let node = Node::new();
    let _driver = node.driver();
    let path = node.registration_socket(DRIVER);
    let shown = path.display().to_string();
    for (what, make) in [
        (
            "a regular file",
            &(|| fs::write(&path, "mine").unwrap()) as &dyn Fn(),
        ),
        ("a directory", &|| fs::create_dir(&path).unwrap()),
        ("a symbolic link", &|| symlink("/nowhere", &path).unwrap()),
        ("a symbolic link", &|| {
            symlink(node.csi_socket(), &path).unwrap();
        }),
        ("a device or a pipe", &|| {
            nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        }),
    ] {
        make();
        let is_what = format!("{shown} is {what}, not a socket: remove it");
        assert_gives_up(&node, &[], &[&is_what]).await;
        if what == "a directory" {
            fs::remove_dir(&path).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
    }
    // A socket is replaced, be it alive or not.
    let _live = UnixListener::bind(&path).unwrap();
    let inode = path.symlink_metadata().unwrap().ino();
    let registrar = node.registrar::<&str>([]);
    until("our socket", || {
        path.symlink_metadata().unwrap().ino() != inode
    })
    .await;
    assert!(path.symlink_metadata().unwrap().file_type().is_socket());
    Kubelet::register(&path).await;
    registrar.stop().await;
}

#[tokio::test]
async fn what_is_in_the_place_of_the_drivers_socket_is_told() {
    let node = Node::new();
    let path = node.csi_socket();
    let limit = ["--driver-wait-timeout=200ms"];
    for make in [&(|| fs::write(&path, "").unwrap()) as &dyn Fn(), &|| {
        fs::create_dir(&path).unwrap();
    }] {
        make();
        let shown = path.display().to_string();
        assert_gives_up(&node, &limit, &[&shown, "what is there is no socket"]).await;
        let _ = fs::remove_file(&path);
    }
}

/// The one long wait, of three registrars at once.
#[tokio::test]
async fn a_calm_line_every_ten_seconds_tells_the_reason() {
    let absent = Node::new();
    let silent = Node::new();
    let _listener = UnixListener::bind(silent.csi_socket()).unwrap();
    let locked = Node::new();
    let _driver = locked.driver();
    let _lock = Locked::new(locked.csi_socket().parent().unwrap(), 0o000);
    let registrars = [
        (
            absent.registrar::<&str>([]),
            "No such file or directory (os error 2)",
        ),
        (silent.registrar::<&str>([]), "no answer within 1s"),
        (
            Registrar::spawn(unprivileged(&locked)),
            "Permission denied (os error 13); usually SELinux",
        ),
    ];
    let started = Instant::now();
    for (registrar, reason) in registrars {
        let limit = Duration::from_secs(15);
        let line = registrar.log().line_within(limit, "Still waiting").await;
        assert!(started.elapsed() > Duration::from_secs(9), "{line}");
        for text in ["csiAddress=", "csi.sock", "waited=10", reason] {
            assert!(line.contains(text), "no {text:?} in {line}");
        }
        let log = registrar.log().clone();
        registrar.stop().await;
        let log = log.complete().await;
        // The version, the mode, no HTTP server, this one, and the signal.
        assert_eq!(log.lines().count(), 5, "{log}");
    }
}

#[tokio::test]
async fn a_stop_signal_ends_every_wait_with_success() {
    for more in [&[][..], &["--timeout=1h"], &["--driver-wait-timeout=1h"]] {
        let node = Node::new();
        let _silent = UnixListener::bind(node.csi_socket()).unwrap();
        let before = tree(node.root());
        let registrar = waiting(&node, more).await;
        registrar.stop().await;
        assert_eq!(tree(node.root()), before);
    }
}
