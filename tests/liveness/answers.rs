//! What a probe is told by a driver that answers, and what the log says about it.

use std::time::Duration;

use csi_node_driver_registrar::testing::csi_driver::{Behaviour, Fault};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::support::{DRIVER, Node, get, request};
use crate::{WAYS, Way, assert_fails};

#[tokio::test]
async fn a_driver_that_is_ready_is_alive_whatever_the_method() {
    let node = Node::new();
    let _driver = node.driver();
    for way in WAYS {
        let probed = way.start(&node, &[]).await;
        for (asked, body) in [
            ("GET /healthz HTTP/1.1\r\nHost: localhost", "ok"),
            ("GET /healthz?verbose=1 HTTP/1.1\r\nHost: x", "ok"),
            ("HEAD /healthz HTTP/1.1\r\nHost: x", ""),
            (
                "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 0",
                "ok",
            ),
            ("DELETE /healthz HTTP/1.1\r\nHost: x", "ok"),
            ("GET /healthz HTTP/1.0", "ok"),
        ] {
            let octets = format!("{asked}\r\nConnection: close\r\n\r\n");
            let answer = request(probed.http, &octets).await;
            let told = (answer.status, answer.body.as_str());
            assert_eq!(told, (200, body), "{way:?} {asked}");
            let head = answer.head.to_lowercase();
            assert!(
                head.contains("content-type: text/plain; charset=utf-8"),
                "{head}"
            );
        }
    }
}

#[tokio::test]
async fn every_other_path_is_not_found() {
    let node = Node::new();
    let _driver = node.driver();
    let elsewhere = [
        "/",
        "/healthz/",
        "/healthz/driver",
        "/readyz",
        "/livez",
        "/debug/pprof/",
    ];
    for way in WAYS {
        let probed = way
            .start(
                &node,
                &["--enable-pprof"][usize::from(way == Way::DropIn)..],
            )
            .await;
        for path in elsewhere {
            assert_eq!(get(probed.http, path).await.status, 404, "{way:?} {path}");
        }
        let metrics = get(probed.http, "/metrics").await.status;
        assert_eq!(metrics, if way == Way::DropIn { 200 } else { 404 });
    }
}

#[tokio::test]
async fn readiness_is_what_the_driver_says_and_absent_means_ready() {
    let node = Node::new();
    let driver = node.driver();
    for way in WAYS {
        let probed = way.start(&node, &[]).await;
        for ready in [None, Some(false), Some(true), Some(false), None] {
            driver.change(|behaviour| behaviour.ready = ready);
            if ready == Some(false) {
                let text = "driver responded but is not ready";
                assert_eq!(probed.assert_fails(&[text]).await, text, "{way:?}");
            } else {
                probed.assert_alive().await;
            }
        }
        driver.change(|behaviour| behaviour.ready = Some(true));
    }
}

#[tokio::test]
async fn an_error_is_told_with_its_code_and_text_and_the_next_answer_is_a_new_one() {
    let node = Node::new();
    let driver = node.driver();
    for way in WAYS {
        let probed = way.start(&node, &[]).await;
        probed.until_alive().await;
        for (code, texts) in [
            (Code::Internal, ["Internal", "the disk is gone"]),
            (Code::Unavailable, ["Unavailable", "the disk is gone"]),
            (
                Code::FailedPrecondition,
                ["FailedPrecondition", "the disk is gone"],
            ),
            (
                Code::DeadlineExceeded,
                ["DeadlineExceeded", "the disk is gone"],
            ),
            (Code::Cancelled, ["Cancelled", "the disk is gone"]),
            (
                Code::Unimplemented,
                ["does not implement Probe", "the disk is gone"],
            ),
        ] {
            driver.change(|behaviour| {
                behaviour.probe = Fault::Fails {
                    code,
                    message: "the disk is gone".to_owned(),
                    times: 1,
                };
            });
            probed.assert_fails(&texts).await;
            probed.assert_alive().await;
        }
    }
}

#[tokio::test]
async fn success_is_silent_below_verbosity_five() {
    for way in WAYS {
        for (verbosity, logged) in [("--v=4", 0), ("--v=5", 20)] {
            let node = Node::new();
            let _driver = node.driver();
            let mut probed = way.start(&node, &[verbosity]).await;
            probed.until_alive().await;
            for _ in 0..19 {
                probed.assert_alive().await;
            }
            probed.process.signal(Signal::SIGTERM);
            probed.process.exit().await;
            let text = probed.process.log().complete().await;
            let log = probed.process.log();
            assert_eq!(
                log.count("Health check succeeded"),
                logged,
                "{way:?} {text}"
            );
            // The one of the first contact.
            assert_eq!(
                log.count("Connecting to the CSI driver"),
                1,
                "{way:?} {text}"
            );
        }
    }
}

#[tokio::test]
async fn failures_are_logged_calmly_and_the_recovery_with_how_long_it_lasted() {
    let node = Node::new();
    let driver = node.driver();
    for way in WAYS {
        let probed = way.start(&node, &[]).await;
        probed.until_alive().await;
        // Each answer takes another time, which is told and is no news.
        driver.change(|behaviour| behaviour.ready = Some(false));
        for _ in 0..25 {
            probed.assert_fails(&["not ready"]).await;
        }
        driver.change(|behaviour| behaviour.ready = Some(true));
        probed.assert_alive().await;
        probed.assert_alive().await;
        let log = probed.process.log();
        let recovery = log.line("Health check succeeds again").await;
        assert!(recovery.contains("failures=25 lasted="), "{recovery}");
        assert_eq!(log.count("succeeds again"), 1, "{}", log.text());
        // The first, the eleventh, the twenty-first.
        probed.assert_failures_logged(3).await;
        for failures in ["failures=1\n", "failures=11\n", "failures=21\n"] {
            assert!(log.text().contains(failures), "{failures}{}", log.text());
        }
    }
}

#[tokio::test]
async fn the_log_says_how_long_the_last_answers_took() {
    let node = Node::new();
    let driver = node.driver();
    for way in WAYS {
        let probed = way.start(&node, &["--probe-timeout=600ms"]).await;
        driver.change(|behaviour| behaviour.probe = Fault::Slow(Duration::from_millis(100)));
        for _ in 0..7 {
            probed.assert_alive().await;
        }
        driver.change(|behaviour| behaviour.probe = Fault::Hangs);
        let told = probed
            .assert_fails(&["DeadlineExceeded", "within 600ms"])
            .await;
        assert!(!told.contains("last answers"), "{told}");
        let line = probed.process.log().line("Health check failed").await;
        let (_, durations) = line.split_once("its last answers took ").unwrap();
        let (durations, _) = durations.split_once('"').unwrap();
        let durations: Vec<u64> = durations
            .split(", ")
            .map(|duration| duration.strip_suffix(" ms").unwrap().parse().unwrap())
            .collect();
        assert_eq!(durations.len(), 5, "{line}");
        assert!(durations.iter().all(|took| *took >= 100), "{line}");
        driver.change(|behaviour| behaviour.probe = Fault::None);
    }
}

#[tokio::test]
async fn nothing_is_answered_from_memory() {
    for way in WAYS {
        let node = Node::new();
        let probed = way.start(&node, &["--probe-timeout=500ms"]).await;
        for _ in 0..5 {
            let driver = node.driver_with(Behaviour::named(DRIVER));
            probed.until_alive().await;
            driver.change(|behaviour| behaviour.probe = Fault::Hangs);
            assert_fails(&probed.probe().await, &["DeadlineExceeded"]);
            driver.change(|behaviour| behaviour.probe = Fault::None);
            probed.assert_alive().await;
            driver.kill().await;
            assert_fails(&probed.probe().await, &["nobody listens"]);
        }
    }
}
