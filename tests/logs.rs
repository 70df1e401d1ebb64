//! What the real binary writes on standard error: klog's two formats, how much of it, and what is left to read when it fails.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "clippy takes only what is marked as a test for one; a test may block, and fails by a panic"
)]

mod support;

use std::fs;
use std::os::unix::net::UnixListener;
use std::time::{SystemTime, UNIX_EPOCH};

use csi_node_driver_registrar::command::VERSION;
use csi_node_driver_registrar::testing::csi_driver::{Behaviour, Fault};
use serde_json::{Map, Value};
use support::command::run;
use support::{DRIVER, Kubelet, Node, get};
use tonic::Code;

/// From the start over a registration and a health check to TERM, with every line that there is.
async fn life(format: &str) -> String {
    let node = Node::new();
    let _driver = node.driver();
    let registrar = node.registrar([
        "--v=5",
        "--http-endpoint=127.0.0.1:0",
        format,
        "--mode=\"quoted\"\tü\u{7f}",
        // Its Probe is asked beside GetPluginInfo, and either may answer first.
        "--wait-for-ready=false",
    ]);
    let address = registrar.http_address().await;
    let socket = node.published_as(DRIVER).await;
    let kubelet = Kubelet::dial(&socket).await;
    kubelet.get_info().await;
    kubelet.notify(Ok(())).await;
    // The kubelet hangs up.
    drop(kubelet);
    assert_eq!(get(address, "/healthz").await.body, "ok");
    let log = registrar.log().clone();
    registrar.stop().await;
    log.complete()
        .await
        .replace(&node.root().display().to_string(), "NODE")
        .replace(&address.to_string(), "127.0.0.1:PORT")
        .replace(VERSION, "VERSION")
}

/// `I1130 15:35:31.481244   15962 file.rs:180] ...` without what differs from run to run; everything else must be there.
fn without_time_and_place(line: &str) -> String {
    let (severity, rest) = line.split_at(1);
    assert!("IWE".contains(severity), "{line}");
    let (header, message) = rest.split_once("] ").unwrap();
    let (time, rest) = header.split_at(20);
    let shape: String = time
        .chars()
        .map(|c| if c.is_ascii_digit() { '0' } else { c })
        .collect();
    assert_eq!(shape, "0000 00:00:00.000000", "{line}");
    let (pid, place) = rest.split_at(8);
    assert!(
        pid.starts_with(' ') && pid.trim().parse::<u32>().is_ok(),
        "{line}"
    );
    let (file, number) = place.strip_prefix(' ').unwrap().split_once(':').unwrap();
    assert!(
        number.parse::<u32>().is_ok_and(|number| number > 0),
        "{line}"
    );
    format!("{severity}TIME PID {file}:LINE] {message}")
}

/// One line as a log collector reads it, checked for what every line must have.
fn object(line: &str) -> Map<String, Value> {
    let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let Value::Object(object) = value else {
        panic!("no object: {line}")
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = now.as_secs_f64() * 1000.0;
    let age = now - object["ts"].as_f64().unwrap();
    assert!((0.0..600_000.0).contains(&age), "{line}");
    let (file, number) = object["caller"].as_str().unwrap().split_once(':').unwrap();
    assert_eq!(file.matches('/').count(), 1, "{line}");
    assert_eq!(file.rsplit('.').next(), Some("rs"), "{line}");
    assert!(number.parse::<u32>().is_ok(), "{line}");
    assert!(!object["msg"].as_str().unwrap().is_empty(), "{line}");
    // Info lines and warnings have it, errors do not.
    assert!(
        object.get("v").is_none_or(|level| level.as_u64().is_some()),
        "{line}"
    );
    assert!(line.starts_with(r#"{"ts":"#), "{line}");
    object
}

fn without_ts_and_line(line: &str) -> String {
    let object = object(line);
    let caller = object["caller"].as_str().unwrap();
    let (file, _) = caller.split_once(':').unwrap();
    let (_, rest) = line.split_once(r#","caller":"#).unwrap();
    let rest = rest.strip_prefix(&format!("{caller:?}")).unwrap();
    format!(r#"{{"ts":TS,"caller":"{file}:LINE"{rest}"#)
}

fn assert_is_golden(found: &[String], golden: &str) {
    let expected: Vec<_> = golden.lines().collect();
    assert_eq!(found, expected, "found:\n{}\n", found.join("\n"));
}

#[tokio::test]
async fn a_whole_life_in_text() {
    let log = life("--logging-format=text").await;
    let lines: Vec<_> = log.lines().map(without_time_and_place).collect();
    assert_is_golden(&lines, include_str!("golden/life.txt"));
}

#[tokio::test]
async fn a_whole_life_in_json() {
    let log = life("--logging-format=json").await;
    let lines: Vec<_> = log.lines().map(without_ts_and_line).collect();
    assert_is_golden(&lines, include_str!("golden/life.json"));
}

/// Failing exits of every kind, each with text in it that must be escaped.
#[tokio::test]
async fn every_line_in_json_is_one_object_whatever_goes_wrong() {
    let json = "--logging-format=json".to_owned();
    let node = Node::new();
    let mut logs = Vec::new();
    for arguments in [
        vec![
            "--timeout=0",
            "--csi-address=\"\n\u{1}\\ä\u{2028}",
            "--health-port=1",
        ],
        vec!["--http-endpoint=\t:\"", "--driver-wait-timeout=1ms"],
        vec!["--vmodule=a=1"],
        vec!["--log-text-split-stream", "--log-flush-frequency=-1s"],
        vec![
            "--driver-wait-timeout=1ms",
            "--kubelet-registration-path=\"x\ny\"",
        ],
        vec![
            "--termination-log-path=/no/such/\"directory\"/x",
            "--timeout=0",
        ],
    ] {
        let mut all = node.arguments();
        all.push(json.clone());
        all.extend(arguments.iter().map(ToString::to_string));
        let ended = run(&all).await;
        assert_eq!(ended.code, Some(1), "{arguments:?}");
        logs.push(ended.stderr);
    }

    for behaviour in [
        Behaviour::named("a\"b\\\n\u{0}"),
        Behaviour {
            plugin_info: Fault::Fails {
                code: Code::NotFound,
                message: "no \"driver\"\nhere: \u{1b}[31mred".to_owned(),
                times: 1,
            },
            ..Behaviour::named(DRIVER)
        },
    ] {
        let _driver = node.driver_with(behaviour);
        let mut all = node.arguments();
        all.push(json.clone());
        let ended = run(&all).await;
        assert_eq!(ended.code, Some(1));
        logs.push(ended.stderr);
    }

    let _driver = node.driver();
    let mut registrar =
        node.registrar([&json, "--v=5", "--skip_headers", "--connection-timeout=1s"]);
    let socket = node.published_as(DRIVER).await;
    let kubelet = Kubelet::dial(&socket).await;
    kubelet.get_info().await;
    kubelet
        .notify(Err("\"no\"\n\tsuch \\ thing\u{2029} \u{0}"))
        .await;
    assert_eq!(registrar.exit().await.code(), Some(1));
    logs.push(registrar.log().complete().await);

    for log in &logs {
        let objects: Vec<_> = log.lines().map(object).collect();
        // What is last explains it: an error has a reason and no verbosity.
        let errors: Vec<_> = objects
            .iter()
            .filter(|object| object["msg"] == "Exiting")
            .collect();
        assert!(!errors.is_empty(), "{log}");
        for error in errors {
            assert!(!error["err"].as_str().unwrap().is_empty(), "{log}");
            assert!(!error.contains_key("v"), "{log}");
        }
    }
    // Whatever was escaped is what was meant.
    let refusal = logs.last().unwrap();
    assert!(
        refusal.lines().map(object).any(|line| line
            .get("err")
            .is_some_and(|err| *err == "\"no\"\n\tsuch \\ thing\u{2029} \u{0}")),
        "{refusal}"
    );
    let warnings: Vec<_> = refusal
        .lines()
        .map(object)
        .filter(|line| line["msg"].as_str().unwrap().contains("no effect"))
        .collect();
    assert_eq!(warnings.len(), 2);
    assert!(warnings.iter().all(|warning| warning["v"] == 0));
}

#[tokio::test]
async fn three_hundred_health_checks_log_nothing() {
    for arguments in [
        ["--v=2", "--logging-format=text"],
        ["-v=2", "--logging-format=json"],
    ] {
        let node = Node::new();
        let _driver = node.driver();
        let registrar = node.registrar(arguments.iter().chain(&["--http-endpoint=127.0.0.1:0"]));
        let address = registrar.http_address().await;
        let socket = node.published_as(DRIVER).await;
        Kubelet::register(&socket).await;
        registrar
            .log()
            .line("Received NotifyRegistrationStatus")
            .await;
        let before = registrar.log().lines();
        for _ in 0..300 {
            assert_eq!(get(address, "/healthz").await.status, 200);
        }
        for _ in 0..10 {
            assert_eq!(get(address, "/readyz").await.status, 200);
        }
        let log = registrar.log().clone();
        registrar.stop().await;
        let log = log.complete().await;
        let after: Vec<_> = log.lines().skip(before.len()).collect();
        // The stop signal, and the socket's removal.
        assert_eq!(after.len(), 2, "{log}");
        assert!(after[0].contains("Stopping"), "{log}");
    }
}

#[tokio::test]
async fn one_file_can_be_made_to_tell_more() {
    let node = Node::new();
    let _driver = node.driver();
    for (modules, client, service) in [
        (&["--vmodule=client=5"][..], true, false),
        (&["--vmodule=service=4"], false, true),
        // Each one given counts.
        (&["--vmodule=client=5", "-vmodule", "service=4"], true, true),
        (&["--vmodule=cli*=5,ser?ice=4"], true, true),
        (&["--vmodule=client=0,service=1"], false, false),
        (&["--vmodule=other=5"], false, false),
        (&["--vmodule="], false, false),
    ] {
        let registrar = node.registrar(modules);
        let socket = node.published_as(DRIVER).await;
        Kubelet::register(&socket).await;
        let log = registrar.log().clone();
        registrar.stop().await;
        let log = log.complete().await;
        let found = (
            log.contains("GetPluginInfo"),
            log.contains("Received GetInfo call"),
        );
        assert_eq!(found, (client, service), "{modules:?}:\n{log}");
    }
}

/// A zone seven hours ahead of UTC, all the time (RFC 9636, section 3).
const ZONE: &[u8] = b"TZif\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x04\
    \0\0\x62\x70\0\0+07\0";

#[tokio::test]
async fn the_zone_is_that_of_the_process() {
    let node = Node::new();
    let file = node.root().join("zone");
    fs::write(&file, ZONE).unwrap();
    let file = file.display().to_string();
    for (zone, hours) in [(file.as_str(), 7), ("", 0), ("no/such/zone", 0)] {
        let mut command = support::registrar_command();
        command.env("TZ", zone);
        let ended = support::command::run_command(command).await;
        let line = ended.first_line();
        let hour: u64 = line[6..8].parse().unwrap();
        let minute: u64 = line[9..11].parse().unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let expected = (now.as_secs() / 60 + hours * 60) % (24 * 60);
        let found = hour * 60 + minute;
        let behind = (expected + 24 * 60 - found) % (24 * 60);
        assert!(behind <= 1, "{zone}: {line}");
    }
}

/// The container's last line is what `FallbackToLogsOnError` shows.
#[tokio::test]
async fn the_last_line_of_a_failure_explains_it_alone() {
    let node = Node::new();
    let last_line = async |arguments: &[&str]| {
        let mut all = node.arguments();
        all.extend(arguments.iter().map(ToString::to_string));
        let ended = run(&all).await;
        assert_eq!(ended.code, Some(1), "{arguments:?}");
        ended.stderr.lines().last().unwrap().to_owned()
    };
    let contains = |line: &str, texts: &[&str]| {
        for text in texts {
            assert!(line.contains(text), "no {text:?} in {line}");
        }
    };
    let socket = node.csi_socket().display().to_string();

    // Much was said before.
    let line = last_line(&["--v=5", "--driver-wait-timeout=100ms"]).await;
    contains(
        &line,
        &[&socket, "100ms", "No such file", "has the driver started"],
    );

    let silent = UnixListener::bind(&socket).unwrap();
    let line = last_line(&["--timeout=50ms", "--driver-wait-timeout=1s"]).await;
    contains(&line, &[&socket, "GetPluginInfo", "no answer within 50ms"]);
    drop(silent);

    let line = last_line(&["--driver-wait-timeout=100ms"]).await;
    contains(&line, &[&socket, "Connection refused", "nobody listens"]);
    fs::remove_file(&socket).unwrap();

    let driver = node.driver_with(Behaviour::named("a/b"));
    let line = last_line(&["--v=5"]).await;
    contains(&line, &["a/b", "must be a DNS name"]);
    drop(driver);

    let _driver = node.driver();
    let registry = node.registry().display().to_string();
    let missing = format!("--plugin-registration-path={registry}/none");
    let line = last_line(&["--v=5", &missing]).await;
    contains(
        &line,
        &["/none/", "No such file", "does the directory exist"],
    );
}
