//! The life of the process: before the driver is there, the first contact, and the end.

use std::fs;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use csi_node_driver_registrar::testing::csi_driver::{Behaviour, Fault};
use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tonic::Code;

use crate::support::command::run_command;
use crate::support::raw_driver::{Answer, RawDriver};
use crate::support::{DRIVER, Node, Registrar, get, registrar_command, until};
use crate::{Probed, SLACK, WAYS, Way, drop_in};

/// How long the end may take.
const END: Duration = Duration::from_secs(1);

#[tokio::test]
async fn it_listens_before_the_driver_is_there_and_says_what_it_waits_for() {
    for way in WAYS {
        let node = Node::new();
        let path = node.csi_socket();
        let begin = Instant::now();
        let probed = way.start(&node, &[]).await;
        for _ in 0..12 {
            let told = probed.assert_fails(&["waiting for the CSI driver: "]).await;
            assert!(told.contains(path.to_str().unwrap()), "{told}");
            assert!(told.contains("No such file or directory"), "{told}");
        }
        let log = probed.process.log();
        probed.assert_failures_logged(2).await;
        let errors = log
            .lines()
            .iter()
            .filter(|line| line.starts_with('E'))
            .count();
        assert_eq!(errors, 2, "{}", log.text());
        assert!(
            begin.elapsed() < Duration::from_secs(9),
            "the machine is too busy"
        );
        let driver = node.driver();
        probed.until_alive().await;
        driver.kill().await;
        // Now it was there.
        let told = probed.assert_fails(&["cannot connect to"]).await;
        assert!(!told.contains("waiting"), "{told}");
    }
}

#[tokio::test]
async fn the_first_contact_is_tried_again_until_the_driver_answers() {
    let node = Node::new();
    for code in [Code::Unavailable, Code::Internal, Code::DeadlineExceeded] {
        let mut behaviour = Behaviour::named(DRIVER);
        behaviour.plugin_info = Fault::Fails {
            code,
            message: "not yet".to_owned(),
            times: 3,
        };
        let driver = node.driver_with(behaviour);
        let probed = Way::DropIn.start(&node, &[]).await;
        // It is alive before it tells its name.
        probed.assert_alive().await;
        let line = probed.process.log().line("CSI driver name").await;
        assert!(line.contains(DRIVER), "{line}");
        assert_eq!(driver.calls().borrow().plugin_info, 4);
        probed.process.stop().await;
    }
}

#[tokio::test]
async fn the_timeout_of_a_probe_is_that_of_the_first_contact_too() {
    let node = Node::new();
    let mut behaviour = Behaviour::named(DRIVER);
    behaviour.plugin_info = Fault::SlowOnce(Duration::from_mins(1));
    let driver = node.driver_with(behaviour);
    let probed = Way::DropIn.start(&node, &["--probe-timeout=200ms"]).await;
    probed.process.log().line("CSI driver name").await;
    assert_eq!(driver.calls().borrow().plugin_info, 2);
}

#[tokio::test]
async fn a_first_contact_that_time_does_not_mend_is_the_end_of_the_drop_in() {
    let node = Node::new();
    let mut behaviour = Behaviour::named(DRIVER);
    behaviour.plugin_info = Fault::Fails {
        code: Code::Unimplemented,
        message: "no such method".to_owned(),
        times: u32::MAX,
    };
    let address = format!("--csi-address={}", node.csi_socket().display());
    let driver = node.driver_with(behaviour);
    let mut command = drop_in();
    command.args([&address, "--http-endpoint=127.0.0.1:0"]);
    let ended = run_command(command).await;
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let errors = ended.errors();
    assert_eq!(errors.len(), 1, "{}", ended.stderr);
    for text in ["GetPluginInfo", "Unimplemented", "no such method"] {
        assert!(errors[0].contains(text), "{}", ended.stderr);
    }
    driver.stop().await.unwrap();

    let _liar = RawDriver::start(&node.csi_socket(), Answer::message(b"\xff\xff"));
    let mut command = drop_in();
    command.args([&address, "--http-endpoint=127.0.0.1:0"]);
    let ended = run_command(command).await;
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(
        ended.errors()[0].contains("cannot be decoded"),
        "{}",
        ended.stderr
    );
}

#[tokio::test]
async fn any_name_will_do_for_a_label() {
    for name in [
        "",
        "a/b",
        ".hidden",
        "UPPER case",
        "a\"b\\c\nd",
        &"n".repeat(300),
    ] {
        let node = Node::new();
        let driver = node.driver_with(Behaviour::named(name));
        let mut probed = Way::DropIn.start(&node, &[]).await;
        until("the first contact", || {
            driver.calls().borrow().plugin_info > 0
        })
        .await;
        probed.process.log().line("CSI driver name").await;
        probed.assert_alive().await;
        assert!(probed.process.is_running(), "{name:?}");
        let label = match name {
            "" => "unknown-driver".to_owned(),
            name => name
                .replace('\\', r"\\")
                .replace('"', "\\\"")
                .replace('\n', r"\n"),
        };
        let metrics = get(probed.http, "/metrics").await.body;
        let sample = format!(
            "{{driver_name=\"{label}\",grpc_status_code=\"OK\",method_name=\"/csi.v1.Identity/Probe\""
        );
        assert!(metrics.contains(&sample), "{name:?}: {metrics}");
    }
}

#[tokio::test]
async fn a_drivers_directory_that_is_gone_for_good_is_the_end() {
    for known in [false, true] {
        let node = Node::new();
        let directory = node.root().join("d");
        fs::create_dir(&directory).unwrap();
        let driver = known.then(|| {
            let behaviour = Behaviour::named(DRIVER);
            csi_node_driver_registrar::testing::csi_driver::CsiDriver::start(
                &directory.join("csi.sock"),
                behaviour,
            )
            .unwrap()
        });
        let mut command = drop_in();
        // As a bind mount does, the working directory keeps a directory that has no name any more.
        command
            .current_dir(&directory)
            .args(["--csi-address=unix:csi.sock", "--http-endpoint=127.0.0.1:0"]);
        let mut process = Registrar::spawn(command);
        let http = process.address_of("liveness").await;
        if let Some(driver) = driver {
            process.log().line("CSI driver name").await;
            assert_eq!(get(http, "/healthz").await.status, 200);
            driver.stop().await.unwrap();
        }
        fs::remove_dir(&directory).unwrap();
        assert_eq!(process.exit().await.code(), Some(1), "{known}");
        let log = process.log().complete().await;
        let last = log.lines().last().unwrap();
        assert!(last.contains("was removed and cannot come back"), "{log}");
    }
}

/// A probe under way, and nothing read of its answer.
async fn ask(http: std::net::SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(http).await.unwrap();
    let octets = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(octets.as_bytes()).await.unwrap();
    stream
}

async fn ends_with_success(mut probed: Probed, signal: Signal) {
    probed.process.signal(signal);
    let status = probed.process.exit_within(END + SLACK).await;
    assert_eq!(status.code(), Some(0), "{}", probed.process.log().text());
}

/// With a call in flight on each server that there is.
async fn ends_with_calls_in_flight(way: Way) {
    let node = Node::new();
    let driver = node.driver();
    let more: &[&str] = match way {
        Way::DropIn => &["--probe-timeout=20s"],
        Way::Merged => &[
            "--probe-timeout=20s",
            "--timeout=20s",
            "--http-endpoint=localhost:0",
        ],
    };
    let probed = way.start(&node, more).await;
    probed.until_alive().await;
    if way == Way::Merged {
        node.published_as(DRIVER).await;
    }
    driver.change(|behaviour| {
        behaviour.probe = Fault::Hangs;
        behaviour.plugin_info = Fault::Hangs;
    });
    let before = *driver.calls().borrow();
    let mut asked = vec![
        ask(probed.http, "/healthz").await,
        ask(probed.http, "/healthz").await,
    ];
    until("the probe", || driver.calls().borrow().probe > before.probe).await;
    if way == Way::Merged {
        let diagnostics = probed.process.address_of("diagnostics").await;
        asked.push(ask(diagnostics, "/healthz/driver").await);
        until("the other", || {
            driver.calls().borrow().plugin_info > before.plugin_info
        })
        .await;
    }
    ends_with_success(probed, Signal::SIGTERM).await;
}

#[tokio::test]
async fn a_stop_signal_is_success_within_a_second_with_probes_in_flight_too() {
    for way in WAYS {
        for signal in [
            Signal::SIGTERM,
            Signal::SIGINT,
            Signal::SIGHUP,
            Signal::SIGQUIT,
        ] {
            // Before the driver is there.
            let node = Node::new();
            ends_with_success(way.start(&node, &[]).await, signal).await;
        }
        ends_with_calls_in_flight(way).await;
    }
}

#[tokio::test]
async fn a_probe_in_flight_at_the_end_is_still_answered_if_it_is_quick() {
    for way in WAYS {
        let node = Node::new();
        let driver = node.driver();
        let mut probed = way.start(&node, &[]).await;
        probed.until_alive().await;
        driver.change(|behaviour| behaviour.probe = Fault::Slow(Duration::from_millis(200)));
        let before = driver.calls().borrow().probe;
        let http = probed.http;
        let probe = tokio::spawn(async move { get(http, "/healthz").await });
        until("the probe", || driver.calls().borrow().probe > before).await;
        probed.process.signal(Signal::SIGTERM);
        let answer = probe.await.unwrap();
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (200, "ok"),
            "{way:?}"
        );
        assert_eq!(probed.process.exit().await.code(), Some(0));
    }
}

#[tokio::test]
async fn it_is_found_by_its_name_or_by_the_first_word() {
    let node = Node::new();
    let _driver = node.driver();
    let link = node.root().join("livenessprobe");
    std::os::unix::fs::symlink(crate::support::registrar_binary(), &link).unwrap();
    let mut linked = std::process::Command::new(&link);
    linked.env_clear();
    let mut worded = registrar_command();
    worded.arg("livenessprobe");
    let mut nested = registrar_command();
    // Any directory before it; a sub-command's name behind it is a positional, which ends the flags.
    nested.arg0("/usr/bin/livenessprobe");
    for mut command in [linked, worded, nested] {
        command.args([
            &format!("--csi-address={}", node.csi_socket().display()),
            "--http-endpoint=127.0.0.1:0",
            "probe",
            "--no-flag-any-more",
        ]);
        let process = Registrar::spawn(command);
        let http = process.address_of("liveness").await;
        assert_eq!(get(http, "/healthz").await.status, 200);
        process.stop().await;
    }
    // It is the registrar under every other name.
    let mut command = registrar_command();
    command.arg0("livenessprobe2").arg("--probe-timeout=1s");
    let ended = run_command(command).await;
    assert!(
        ended.stderr.contains("kubelet-registration-path"),
        "{}",
        ended.stderr
    );
}
