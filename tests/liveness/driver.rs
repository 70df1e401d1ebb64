//! Drivers that are gone, hang, are slow, lie, die and come back.

use std::fs;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::time::{Duration, Instant};

use csi_node_driver_registrar::testing::csi_driver::{Behaviour, CsiDriver, Fault};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::support::raw_driver::{Answer, RawDriver};
use crate::support::{DEADLINE, DRIVER, Node, get, until, within};
use crate::{Probed, SLACK, WAYS, assert_fails};

/// How long a socket that is gone or refuses is tried again.
const GONE: Duration = Duration::from_millis(250);

/// The shortest of a few failing probes, each of which must take at least `least`: the bound that a probe keeps is that of
/// the program, without what a busy machine adds now and then.
async fn shortest(probed: &Probed, least: Duration, texts: &[&str]) -> Duration {
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let (answer, took) = probed.timed().await;
        assert_fails(&answer, texts);
        assert!(took >= least, "{took:?}: {answer:?}");
        shortest = shortest.min(took);
    }
    shortest
}

#[tokio::test]
async fn a_socket_that_is_gone_or_refuses_fails_the_probe_soon() {
    for way in WAYS {
        let node = Node::new();
        let path = node.csi_socket();
        let path = path.to_str().unwrap();
        let probed = way.start(&node, &[]).await;
        let brief = way.start(&node, &["--probe-timeout=100ms"]).await;
        let driver = node.driver();
        probed.until_alive().await;
        brief.until_alive().await;
        driver.kill().await;
        for (make, text) in [
            (None, "Connection refused (os error 111)"),
            (
                Some(""),
                "Connection refused (os error 111); what is there is no socket",
            ),
            (None, "No such file or directory (os error 2)"),
        ] {
            if let Some(content) = make {
                fs::remove_file(node.csi_socket()).unwrap();
                fs::write(node.csi_socket(), content).unwrap();
            } else if text.starts_with("No such") {
                fs::remove_file(node.csi_socket()).unwrap();
            }
            let texts = ["cannot connect to", path, text];
            let took = shortest(&probed, Duration::from_millis(200), &texts).await;
            assert!(took <= GONE, "{way:?} {text}: {took:?}");
            let took = shortest(&brief, Duration::from_millis(50), &texts).await;
            assert!(
                took <= Duration::from_millis(100),
                "{way:?} {text}: {took:?}"
            );
        }
        // Neither exits because of that.
        let _driver = node.driver();
        probed.until_alive().await;
        brief.until_alive().await;
    }
}

#[tokio::test]
async fn a_probe_that_falls_into_the_gap_of_a_restart_finds_the_new_driver() {
    for way in WAYS {
        let node = Node::new();
        let mut driver = node.driver();
        let probed = way.start(&node, &[]).await;
        probed.until_alive().await;
        let mut judged = 0;
        for round in 0..20 {
            if round % 2 == 0 {
                driver.kill().await;
            } else {
                driver.stop().await.unwrap();
            }
            let http = probed.http;
            let asked = Instant::now();
            let probe = tokio::spawn(async move { get(http, "/healthz").await });
            sleep(Duration::from_millis(160)).await;
            driver = node.driver();
            // The machine may have slept longer than the probe has patience.
            let in_time = asked.elapsed() < Duration::from_millis(210);
            let answer = probe.await.unwrap();
            if in_time {
                judged += 1;
                assert_eq!(answer.status, 200, "{way:?}: {answer:?}");
            }
            if judged == 4 {
                break;
            }
        }
        assert_eq!(judged, 4, "the machine is too busy");
        probed.assert_failures_logged(0).await;
    }
}

#[tokio::test]
async fn a_driver_that_hangs_fails_the_probe_after_its_timeout_and_not_later() {
    const LIMIT: Duration = Duration::from_millis(400);
    for way in WAYS {
        let node = Node::new();
        let driver = node.driver();
        let probed = way.start(&node, &["--probe-timeout=400ms"]).await;
        probed.until_alive().await;
        let told = ["DeadlineExceeded: the CSI driver did not answer Probe within 400ms"];

        driver.change(|behaviour| behaviour.probe = Fault::Hangs);
        let took = shortest(&probed, LIMIT * 9 / 10, &told).await;
        assert!(took <= LIMIT, "{way:?}: {took:?}");
        driver.stop().await.unwrap();

        // Nobody accepts: the system does.
        let silent = StdListener::bind(node.csi_socket()).unwrap();
        let took = shortest(&probed, LIMIT * 9 / 10, &told).await;
        assert!(took <= LIMIT, "{way:?}, silent: {took:?}");
        drop(silent);
        let log = probed.process.log();
        assert!(log.count("Health check failed") <= 2, "{}", log.text());
    }
}

/// A socket whose backlog is full: the system refuses further connections for a while, and its owner lives.
struct Full {
    _listener: UnixListener,
    _waiting: Vec<UnixStream>,
}

impl Full {
    async fn at(path: &Path) -> Self {
        let socket = UnixSocket::new_stream().unwrap();
        socket.bind(path).unwrap();
        let listener = socket.listen(1).unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = UnixStream::connect(path).await {
            waiting.push(stream);
        }
        assert!(waiting.len() < 10, "{}", waiting.len());
        Self {
            _listener: listener,
            _waiting: waiting,
        }
    }
}

#[tokio::test]
async fn a_driver_whose_backlog_is_full_has_the_whole_timeout() {
    for way in WAYS {
        let node = Node::new();
        let driver = node.driver();
        let brief = way.start(&node, &["--probe-timeout=600ms"]).await;
        let patient = way.start(&node, &["--probe-timeout=20s"]).await;
        brief.until_alive().await;
        patient.until_alive().await;
        driver.stop().await.unwrap();
        let full = Full::at(&node.csi_socket()).await;
        let told = ["(os error 11)", "does not accept the connections"];
        let took = shortest(&brief, Duration::from_millis(500), &told).await;
        assert!(took <= Duration::from_millis(600), "{way:?}: {took:?}");

        let http = patient.http;
        let mut probe = tokio::spawn(async move { get(http, "/healthz").await });
        let early = timeout(Duration::from_millis(500), &mut probe).await;
        assert!(early.is_err(), "{way:?}: {early:?}");
        drop(full);
        let _driver = node.driver();
        let answer = probe.await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[tokio::test]
async fn a_slow_driver_is_alive_just_below_the_timeout_and_not_above() {
    for way in WAYS {
        let node = Node::new();
        let driver = node.driver();
        let probed = way.start(&node, &["--probe-timeout=2s"]).await;
        probed.until_alive().await;
        driver.change(|behaviour| behaviour.probe = Fault::SlowOnce(Duration::from_millis(1700)));
        let (answer, took) = probed.timed().await;
        assert_eq!(answer.status, 200, "{way:?}, {took:?}: {answer:?}");
        assert!(took >= Duration::from_millis(1700), "{took:?}");
        driver.change(|behaviour| behaviour.probe = Fault::SlowOnce(Duration::from_millis(2050)));
        let (answer, took) = probed.timed().await;
        assert_fails(&answer, &["DeadlineExceeded", "within 2s"]);
        assert!(took < Duration::from_secs(2) + SLACK, "{way:?}: {took:?}");
        probed.assert_alive().await;
    }
}

#[tokio::test]
async fn a_storm_of_probes_on_a_hanging_driver_makes_one_call() {
    for way in WAYS {
        let node = Node::new();
        let driver = node.driver();
        let probed = way.start(&node, &["--probe-timeout=3s"]).await;
        probed.until_alive().await;
        driver.change(|behaviour| behaviour.probe = Fault::Hangs);
        let before = driver.calls().borrow().probe;
        let mut storm = JoinSet::new();
        for _ in 0..100 {
            let http = probed.http;
            storm.spawn(async move { get(http, "/healthz").await });
        }
        let begin = Instant::now();
        while let Some(answer) = storm.join_next().await {
            assert_fails(&answer.unwrap(), &["DeadlineExceeded"]);
        }
        assert!(
            begin.elapsed() < Duration::from_secs(3) + SLACK,
            "{way:?}: {:?}",
            begin.elapsed()
        );
        assert_eq!(driver.calls().borrow().probe, before + 1, "{way:?}");
        probed.assert_failures_logged(1).await;
        // The next one is a new call.
        driver.change(|behaviour| behaviour.probe = Fault::None);
        probed.assert_alive().await;
        assert_eq!(driver.calls().borrow().probe, before + 2, "{way:?}");
    }
}

/// Answers each connection with these octets once it has said something, then hangs up.
fn talker(path: &Path, octets: &'static [u8]) -> JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut said = [0; 1024];
            let _ = stream.read(&mut said).await;
            let _ = stream.write_all(octets).await;
        }
    })
}

#[tokio::test]
async fn a_driver_that_lies_fails_the_probe_at_once_with_a_reason() {
    // A name where a flag should be: `ready` is a message.
    let name = [b"\x0a\x12".as_slice(), DRIVER.as_bytes()].concat();
    let raw = [
        ("Internal", Answer::message(&name)),
        ("Internal", Answer::bytes("no frame")),
        (
            "missing grpc-status",
            Answer {
                grpc_status: None,
                ..Answer::bytes("")
            },
        ),
        (
            "404 Not Found",
            Answer {
                status: 404,
                grpc_status: None,
                ..Answer::bytes("<html>")
            },
        ),
        ("OutOfRange", Answer::message(&vec![0; 65 * 1024])),
        // An answer as of a driver that is ready, and then an error or no end.
        (
            "Probe failed with DataLoss",
            Answer {
                grpc_status: Some("15"),
                ..Answer::message(b"")
            },
        ),
        (
            "missing grpc-status",
            Answer {
                grpc_status: None,
                ..Answer::message(b"")
            },
        ),
    ];
    for way in WAYS {
        let node = Node::new();
        let driver = node.driver();
        let probed = way.start(&node, &[]).await;
        probed.until_alive().await;
        driver.stop().await.unwrap();
        for (text, answer) in raw.clone() {
            let _liar = RawDriver::start(&node.csi_socket(), answer);
            let (told, took) = probed.timed().await;
            assert_fails(&told, &[text]);
            assert!(took < Duration::from_secs(2), "{way:?} {text}: {took:?}");
            fs::remove_file(node.csi_socket()).unwrap();
        }
        for octets in [
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".as_slice(),
            b"\x00\xff\x00\xff",
            b"",
        ] {
            let liar = talker(&node.csi_socket(), octets);
            let (told, took) = probed.timed().await;
            assert_fails(&told, &["Probe failed with"]);
            assert!(
                took < Duration::from_secs(2),
                "{way:?} {octets:?}: {took:?}"
            );
            liar.abort();
            fs::remove_file(node.csi_socket()).unwrap();
        }
        // It outlives all of them.
        let _driver = node.driver();
        probed.until_alive().await;
    }
}

#[tokio::test]
async fn a_driver_that_comes_back_later_is_alive_again() {
    for way in WAYS {
        let node = Node::new();
        let driver = node.driver();
        let probed = way.start(&node, &[]).await;
        probed.until_alive().await;
        driver.stop().await.unwrap();
        for _ in 0..3 {
            probed.assert_fails(&["No such file"]).await;
        }
        let _driver = node.driver();
        probed.assert_alive().await;
        let line = probed
            .process
            .log()
            .line("Health check succeeds again")
            .await;
        assert!(line.contains("failures=3"), "{line}");
    }
}

#[tokio::test]
async fn a_driver_that_comes_back_under_another_name_is_logged_and_counted_by_it() {
    let node = Node::new();
    let driver = node.driver();
    let probed = crate::Way::DropIn.start(&node, &[]).await;
    let log = probed.process.log();
    log.line("CSI driver name").await;
    probed.until_alive().await;
    driver.kill().await;
    let driver = node.driver();
    let line = log.line("The CSI driver was restarted").await;
    assert!(line.contains(DRIVER), "{line}");
    driver.kill().await;
    let _driver = CsiDriver::start(&node.csi_socket(), Behaviour::named("other.example.com"));
    let line = log.line("came back under another name").await;
    assert!(
        line.contains("other.example.com") && line.contains(DRIVER),
        "{line}"
    );
    probed.assert_alive().await;
    let metrics = get(probed.http, "/metrics").await.body;
    assert!(
        metrics.contains(r#"driver_name="other.example.com",grpc_status_code="OK",method_name="/csi.v1.Identity/Probe""#),
        "{metrics}"
    );
    assert!(!metrics.contains(DRIVER), "{metrics}");
}

#[tokio::test]
async fn a_driver_that_is_away_for_long_is_waited_for() {
    for way in WAYS {
        let node = Node::new();
        let probed = way.start(&node, &[]).await;
        let begin = Instant::now();
        let waiting = within(
            DEADLINE,
            "the log",
            probed
                .process
                .log()
                .line("Still waiting for the CSI driver"),
        );
        let line = waiting.await;
        assert!(begin.elapsed() > Duration::from_secs(9), "{line}");
        assert!(line.contains("No such file or directory"), "{line}");
        let driver = node.driver();
        probed.until_alive().await;
        until("the name", || driver.calls().borrow().plugin_info > 0).await;
    }
}
