//! `check`.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use csi_node_driver_registrar::testing::csi_driver::{Behaviour, CsiDriver, Fault};
use nix::sys::signal::Signal;
use serde_json::Value;
use tonic::Code;

use crate::fake_registrar::{Process, Service};
use crate::support::{DRIVER, Node, registrar_binary, until};
use crate::tool::{Tool, command, on_a_terminal, outcome};

/// All steps, as reports name them.
const STEPS: [&str; 14] = [
    "start",
    "socket",
    "dial",
    "get-info",
    "validation",
    "node-get-info",
    "node",
    "csi-node",
    "api-server",
    "notification",
    "socket-removal",
    "deregistration",
    "exit",
    "leftovers",
];

/// `check` with these options on our registrar, whose driver is at `csi_address`.
fn ours(options: &[&str], csi_address: &str) -> Vec<String> {
    let registrar = registrar_binary();
    let mut arguments = vec!["check"];
    arguments.extend(options);
    arguments.extend(["--", registrar.to_str().unwrap()]);
    let mut arguments: Vec<_> = arguments.into_iter().map(str::to_owned).collect();
    arguments.extend([
        format!("--csi-address={csi_address}"),
        format!("--kubelet-registration-path={csi_address}"),
        "--plugin-registration-path={registration-dir}".to_owned(),
    ]);
    arguments
}

/// `check` of any command, as JSON.
fn of(options: &[&str], registrar: &[impl AsRef<str>]) -> Vec<String> {
    let mut arguments = vec!["check".to_owned(), "--output=json".to_owned()];
    arguments.extend(options.iter().map(|&option| option.to_owned()));
    arguments.push("--".to_owned());
    arguments.extend(registrar.iter().map(|word| word.as_ref().to_owned()));
    arguments
}

/// A JSON report and what it says.
struct Report(Value);

impl Report {
    async fn of(arguments: Vec<String>) -> Self {
        let (code, out, err) = outcome(&arguments).await;
        let report: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}\n{err}"));
        assert_eq!(code, i32::from(report["passed"] != true), "{report:#}");
        Self(report)
    }

    fn outcomes(&self) -> Vec<(&str, &str)> {
        let steps = self.0["steps"].as_array().unwrap().iter();
        steps
            .map(|step| {
                (
                    step["name"].as_str().unwrap(),
                    step["outcome"].as_str().unwrap(),
                )
            })
            .collect()
    }

    /// Checks that `step` is the first that failed, for this reason.
    fn assert_failed(&self, step: &str, reason: &str) {
        let outcomes = self.outcomes();
        let failed = outcomes.iter().find(|(_, outcome)| *outcome == "failed");
        assert_eq!(failed, Some(&(step, "failed")), "{:#}", self.0);
        let given = self.0["reason"].as_str().unwrap();
        assert!(given.starts_with(&format!("{step}: ")), "{given}");
        assert!(given.contains(reason), "{given}");
    }

    fn warnings(&self) -> Vec<&str> {
        let warnings = self.0["warnings"].as_array().unwrap().iter();
        warnings.map(|warning| warning.as_str().unwrap()).collect()
    }
}

#[tokio::test]
async fn our_registrar_passes_for_every_kind_of_kubelet() {
    for profile in ["1.17", "1.28", "1.35", "1.37"] {
        let profile_option = format!("--profile={profile}");
        let options = ["--output=json", "--embedded-driver", &profile_option];
        let report = Report::of(ours(&options, "{csi-address}")).await;
        assert_eq!(report.0["passed"], true, "{:#}", report.0);
        assert_eq!(report.0["profile"], profile);
        assert_eq!(report.0["reason"], Value::Null);
        let expected = STEPS.map(|step| {
            let is_out = profile == "1.17" && step == "deregistration";
            (step, if is_out { "skipped" } else { "passed" })
        });
        assert_eq!(report.outcomes(), expected, "{profile}");
        let expected = usize::from(profile == "1.17");
        assert_eq!(report.warnings().len(), expected, "{:#}", report.0);
        let objects = &report.0["objects"];
        assert_eq!(objects[0]["kind"], "Node");
        assert_eq!(objects[1]["kind"], "CSINode");
        let driver = &objects[1]["spec"]["drivers"][0];
        assert_eq!(driver["name"], DRIVER);
        assert_eq!(driver["nodeID"], "node1-id");
        assert_eq!(driver["allocatable"]["count"], 16);
        let log = report.0["log"].as_array().unwrap();
        let log: Vec<_> = log.iter().filter_map(Value::as_str).collect();
        assert!(log.join("\n").contains("Running node-driver-registrar"));
    }
}

#[tokio::test]
async fn the_text_has_steps_with_times_objects_and_a_verdict() {
    let arguments = ours(&["--embedded-driver=csi.example.org"], "{csi-address}");
    let (code, out, err) = outcome(&arguments).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    for step in STEPS {
        let line = out
            .lines()
            .find(|line| line.split_whitespace().nth(3) == Some(step));
        let line = line.unwrap_or_else(|| panic!("{step} in\n{out}"));
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!((words[0], words[2]), ("ok", "s"), "{line}");
        words[1].parse::<f64>().unwrap();
    }
    assert!(out.contains("mode 0700"), "{out}");
    assert!(out.contains("\n    name: csi.example.org\n"), "{out}");
    assert!(
        out.contains("topology.csi.example.org/zone: zone-a"),
        "{out}"
    );
    assert!(out.lines().last().unwrap().starts_with("PASSED"), "{out}");
    assert!(!out.contains('\x1b'), "{out}");
}

#[tokio::test]
async fn junit_reports_can_be_parsed() {
    let arguments = ours(&["--output=junit", "--embedded-driver"], "{csi-address}");
    let (code, out, _) = outcome(&arguments).await;
    assert_eq!(code, 0, "{out}");
    let document = roxmltree::Document::parse(&out).unwrap();
    let named = |name: &'static str| {
        document
            .descendants()
            .filter(move |it| it.has_tag_name(name))
    };
    let cases: Vec<_> = named("testcase")
        .map(|it| it.attribute("name").unwrap())
        .collect();
    assert_eq!(cases, STEPS);
    assert!(named("testcase").all(|it| it.attribute("time").unwrap().parse::<f64>().is_ok()));
    assert_eq!(named("failure").count() + named("skipped").count(), 0);
    let suite = named("testsuite").next().unwrap();
    assert_eq!(suite.attribute("tests"), Some("14"));
    assert_eq!(suite.attribute("failures"), Some("0"));
    let out = suite.children().find(|it| it.has_tag_name("system-out"));
    assert!(out.unwrap().text().unwrap().contains("kind: CSINode"));

    let arguments = ["check", "--output=junit", "--timeout=1s", "--"];
    let registrar = ["sh", "-c", "printf 'no <&\"\\033 disk' >&2; exec sleep 60"];
    let (code, out, _) = outcome(arguments.iter().chain(&registrar)).await;
    assert_eq!(code, 1, "{out}");
    let document = roxmltree::Document::parse(&out).unwrap();
    let failures: Vec<_> = document
        .descendants()
        .filter(|it| it.has_tag_name("failure"))
        .map(|it| {
            (
                it.parent().unwrap().attribute("name").unwrap(),
                it.attribute("message").unwrap(),
            )
        })
        .collect();
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].0, "socket");
    assert!(failures[0].1.contains("within 1s"), "{failures:?}");
    let suite = document.root_element().first_element_child().unwrap();
    assert_eq!(suite.attribute("failures"), Some("1"));
    assert_eq!(suite.attribute("skipped"), Some("12"));
    let err = suite.children().find(|it| it.has_tag_name("system-err"));
    assert_eq!(err.unwrap().text(), Some("no <&\"\u{fffd} disk"));
}

#[tokio::test]
async fn a_registrar_that_cannot_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("registrar");
    fs::write(&file, "not a program").unwrap();
    let report = Report::of(of(&[], &[file.to_str().unwrap()])).await;
    report.assert_failed("start", "no executable file");
    assert_eq!(
        report.outcomes()[1..],
        STEPS.map(|step| (step, "skipped"))[1..]
    );
    let report = Report::of(of(&[], &["no-such-registrar"])).await;
    report.assert_failed("start", "No such file or directory");
}

#[tokio::test]
async fn a_registrar_that_makes_a_plain_file() {
    let script = "touch $1/x-reg.sock; exec sleep 60";
    let registrar = ["sh", "-c", script, "sh", "{registration-dir}"];
    let report = Report::of(of(&["--timeout=1s"], &registrar)).await;
    report.assert_failed("socket", "x-reg.sock is a plain file");
}

#[tokio::test]
async fn a_registrar_that_does_nothing() {
    let registrar = ["sh", "-c", "exec sleep 60", "{registration-dir}"];
    let report = Report::of(of(&["--timeout=1s"], &registrar)).await;
    report.assert_failed("socket", "no registration socket appeared within 1s");
    let report = Report::of(of(&["--timeout=1s"], &["sleep", "60"])).await;
    report.assert_failed(
        "socket",
        "none of its arguments contains {registration-dir}",
    );
    let registrar = ["sh", "-c", "echo no disk; exit 3", "{registration-dir}"];
    let report = Report::of(of(&[], &registrar)).await;
    report.assert_failed("socket", "exited with code 3 before");
    assert_eq!(report.0["log"][0], "no disk");
}

#[tokio::test]
async fn a_registrar_that_never_answers() {
    let process = Process::new();
    let arguments = of(&["--timeout=4s"], &process.command());
    let serve = async {
        let socket = process.registration_directory().await.join("x-reg.sock");
        Service {
            delay: Duration::from_hours(1),
            ..Service::at(Path::new("/nowhere"))
        }
        .serve(&socket)
    };
    let (report, _service) = tokio::join!(Report::of(arguments), serve);
    report.assert_failed("get-info", "DeadlineExceeded");

    let process = Process::new();
    let arguments = of(&["--timeout=2s"], &process.command());
    let listen = async {
        let socket = process.registration_directory().await.join("x-reg.sock");
        UnixListener::bind(socket).unwrap()
    };
    let (report, _listener) = tokio::join!(Report::of(arguments), listen);
    report.assert_failed("dial", "not within 2s");
}

/// The report on a process whose socket this service serves.
async fn report_on(service: Service) -> Report {
    let process = Process::new();
    let arguments = of(&["--timeout=10s"], &process.command());
    let serve = async {
        let directory = process.registration_directory().await;
        service.serve(&directory.join("fake.example.com-reg.sock"))
    };
    let (report, _service) = tokio::join!(Report::of(arguments), serve);
    report
}

#[tokio::test]
async fn a_registrar_of_version_0_3_0() {
    let node = Node::new();
    let _driver = node.driver();
    let versions = vec!["0.3.0".to_owned()];
    let service = Service::at(&node.csi_socket());
    let report = report_on(Service {
        versions,
        ..service
    })
    .await;
    report.assert_failed("validation", "highest supported version reported is 0.3.0");
}

#[tokio::test]
async fn a_registrar_that_leaves_its_socket_behind() {
    let node = Node::new();
    let _driver = node.driver();
    let service = Service {
        delay: Duration::from_millis(400),
        ..Service::at(&node.csi_socket())
    };
    let report = report_on(service).await;
    report.assert_failed("socket-removal", "left its socket");
    let outcomes = report.outcomes();
    assert!(outcomes.contains(&("notification", "passed")));
    assert!(outcomes.contains(&("exit", "passed")));
    let warnings = report.warnings().join("\n");
    assert!(warnings.contains("get-info took 0.4"), "{warnings}");
    assert!(warnings.contains("mode 0755"), "{warnings}");
    assert!(warnings.contains("ended by signal 15"), "{warnings}");
}

#[tokio::test]
async fn a_driver_whose_node_get_info_fails() {
    let node = Node::new();
    let driver = node.driver();
    driver.change(|behaviour| {
        behaviour.node_info = Fault::Fails {
            code: Code::Internal,
            message: "no such disk".to_owned(),
            times: u32::MAX,
        };
    });
    let socket = node.csi_socket().display().to_string();
    let report = Report::of(ours(&["--output=json"], &socket)).await;
    report.assert_failed(
        "node-get-info",
        "rpc error: code = Internal desc = no such disk",
    );
    assert_eq!(
        report.outcomes()[6..],
        STEPS.map(|step| (step, "skipped"))[6..]
    );
    driver.change(|behaviour| behaviour.node_info = Fault::Hangs);
    let report = Report::of(ours(&["--output=json", "--timeout=3s"], &socket)).await;
    report.assert_failed("node-get-info", "not answered NodeGetInfo within 3s");
}

#[tokio::test]
async fn a_driver_that_is_not_where_the_registrar_says() {
    let node = Node::new();
    let _driver = node.driver();
    let mut arguments = ours(&["--output=json"], node.csi_socket().to_str().unwrap());
    arguments.push("--kubelet-registration-path=/nowhere/csi.sock".to_owned());
    let report = Report::of(arguments).await;
    report.assert_failed("node-get-info", "no such file or directory");
    let warnings = report.warnings().join("\n");
    assert!(warnings.contains("not reachable"), "{warnings}");
}

#[tokio::test]
async fn names_that_an_api_server_refuses() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    let name = format!("{}_1", "x".repeat(60));
    let _driver = CsiDriver::start(
        &socket,
        Behaviour {
            topology: [("a b".to_owned(), "c d".to_owned())].into(),
            ..Behaviour::named(&name)
        },
    )
    .unwrap();
    let report = Report::of(ours(&["--output=json"], socket.to_str().unwrap())).await;
    report.assert_failed("api-server", &name);
    let warnings = report.warnings();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    let warnings = warnings.join("\n");
    for part in [
        name.as_str(),
        "topology key \"a b\"",
        "topology value \"c d\"",
    ] {
        assert!(warnings.contains(part), "{warnings}");
    }
    assert!(report.outcomes().contains(&("leftovers", "passed")));
}

#[tokio::test]
async fn a_host_path_that_is_too_long() {
    // Fits into the check's directory, and not into a node's.
    let name = "x".repeat(66);
    let option = format!("--embedded-driver={name}");
    let report = Report::of(ours(&["--output=json", &option], "{csi-address}")).await;
    report.assert_failed("api-server", "at most 63 characters");
    let warnings = report.warnings().join("\n");
    let path = format!("/var/lib/kubelet/plugins_registry/{name}-reg.sock on a node, 109 bytes");
    assert!(warnings.contains(&path), "{warnings}");
}

#[tokio::test]
async fn arguments_that_make_no_sense() {
    for (arguments, reason) in [
        (
            vec!["check", "--", "x", "{csi-address}"],
            "--embedded-driver",
        ),
        (
            vec!["check", "--timeout=0s", "--", "x"],
            "greater than zero",
        ),
        (vec!["check", "--timeout=5", "--", "x"], "--timeout"),
        (
            vec!["check", "--output=html", "--", "x"],
            "text, json, junit",
        ),
        (vec!["check"], "REGISTRAR"),
    ] {
        let (code, out, err) = outcome(&arguments).await;
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}: {err}");
        assert!(err.contains(reason), "{arguments:?}: {err}");
    }
    let arguments = of(&["--embedded-driver"], &["true", "{registration-dir}"]);
    let report = Report::of(arguments).await;
    assert!(
        report.warnings()[0].contains("was not used"),
        "{:#}",
        report.0
    );
}

#[tokio::test]
async fn an_interrupt_leaves_nothing_behind() {
    let process = Process::new();
    let mut command = process.command();
    // Another process that the registrar has started.
    command[2] = format!(
        "sleep 61 & echo $! > {}; {}",
        pid_file(&process),
        command[2]
    );
    let mut tool = Tool::start(of(&[], &command));
    let registry = process.registration_directory().await;
    let child: i32 = fs::read_to_string(pid_file(&process))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(registry.exists());
    tool.signal(Signal::SIGINT);
    assert_eq!(tool.exit().await.code(), Some(1));
    assert!(tool.err.complete().await.contains("interrupted by SIGINT"));
    assert!(!registry.parent().unwrap().exists());
    // Init may take a moment to reap it; a zombie has no command line.
    until("the registrar's child to be gone", || {
        fs::read(format!("/proc/{child}/cmdline")).map_or(true, |line| line.is_empty())
    })
    .await;
}

fn pid_file(process: &Process) -> String {
    process.path().join("pid").display().to_string()
}

#[tokio::test]
async fn a_terminal_shows_what_is_waited_for() {
    let arguments = of(&["--timeout=2s"], &["sleep", "60"]);
    let (code, shown) = on_a_terminal(command(&arguments), false).await;
    assert_eq!(code, 1);
    assert!(
        shown.contains("\rwaiting for socket: 1 s of 2s")
            || shown.contains("\x1b[Kwaiting for socket: 1 s of 2s"),
        "{shown:?}"
    );
    assert!(shown.ends_with("\r\x1b[K"), "{shown:?}");
}
