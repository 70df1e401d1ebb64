//! Every flag of the command line, on the real binary: how it may be spelled, which values it takes, what it does.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "clippy takes only what is marked as a test for one; a test may block, and fails by a panic"
)]

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use csi_node_driver_registrar::command::VERSION;
use csi_node_driver_registrar::testing::csi_driver::{Behaviour, Fault};
use support::command::{Ended, run, run_command};
use support::tree::tree;
use support::{DRIVER, Kubelet, Node, registrar_binary, registrar_command};

/// How a flag and its value are written.
#[derive(Clone, Copy, Debug)]
enum Spelling {
    DashEquals,
    DashesEquals,
    DashSpace,
    DashesSpace,
}

use Spelling::{DashEquals, DashSpace, DashesEquals, DashesSpace};

impl Spelling {
    const ALL: [Self; 4] = [DashEquals, DashesEquals, DashSpace, DashesSpace];
    /// Booleans take no value after a space.
    const BOOLEAN: [Self; 2] = [DashEquals, DashesEquals];

    fn arguments(self, flag: &str, value: &str) -> Vec<String> {
        match self {
            DashEquals => vec![format!("-{flag}={value}")],
            DashesEquals => vec![format!("--{flag}={value}")],
            DashSpace => vec![format!("-{flag}"), value.to_owned()],
            DashesSpace => vec![format!("--{flag}"), value.to_owned()],
        }
    }
}

const DURATIONS: &[&str] = &[
    "0",
    "1s",
    "1h2m3s",
    "1.5s",
    ".5s",
    "1.s",
    "300ms",
    "1us",
    "1µs",
    "1μs",
    "1ns",
    "-1s",
    "+5s",
    "2562047h47m16.854775807s",
];
const NO_DURATIONS: &[Bad] = &[
    ("", "parse error"),
    ("1", "parse error"),
    ("1d", "parse error"),
    ("1 s", "parse error"),
    ("s", "parse error"),
    (".s", "parse error"),
    ("1s1", "parse error"),
    ("1e3s", "parse error"),
    ("9223372036854775808ns", "parse error"),
];

const INTEGERS: &[&str] = &[
    "0",
    "9809",
    "0x2651",
    "0X2651",
    "0o23121",
    "023121",
    "0b10011001010001",
    "9_809",
    "-1",
    "-0x1F",
    "+80",
    "9223372036854775807",
];
const NO_INTEGERS: &[Bad] = &[
    ("", "parse error"),
    ("x", "parse error"),
    ("1.0", "parse error"),
    ("08", "parse error"),
    ("_1", "parse error"),
    ("1__0", "parse error"),
    ("9223372036854775808", "value out of range"),
];

const LEVELS: &[&str] = &["0", "5", "05", "10", "2147483647"];
const NO_LEVELS: &[(&str, &str)] = &[
    ("", r#"strconv.ParseUint: parsing "": invalid syntax"#),
    ("-1", r#"strconv.ParseUint: parsing "-1": invalid syntax"#),
    ("0x5", r#"strconv.ParseUint: parsing "0x5": invalid syntax"#),
    (
        "2147483648",
        r#"strconv.ParseUint: parsing "2147483648": value out of range"#,
    ),
];

const MODULES: &[&str] = &["", "driver=5", "driver=5,service=4", "*=1", "driver=5,,"];
const NO_MODULES: &[(&str, &str)] = &[
    ("driver", r#""driver" does not have the pattern=N format"#),
    ("=5", r#""=5" does not have the pattern=N format"#),
    (
        "driver=x",
        r#"parsing verbosity in "driver=x": strconv.ParseUint: parsing "x": invalid syntax"#,
    ),
];

const TEXTS: &[&str] = &["", "x", "-v", "--", "a=b", "/tmp/ä b"];

const SIZES: &[&str] = &["0", "0Ki", "0.0"];
const NO_SIZES: &[(&str, &str)] = &[(
    "",
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
)];

/// A value that a flag does not take, and the reason that is given.
type Bad = (&'static str, &'static str);

/// Each flag that takes a value: values that it takes, and values that it does not take.
const VALUES: &[(&str, &[&str], &[Bad])] = &[
    ("csi-address", TEXTS, &[]),
    ("kubelet-registration-path", TEXTS, &[]),
    ("plugin-registration-path", TEXTS, &[]),
    ("timeout", DURATIONS, NO_DURATIONS),
    ("http-endpoint", TEXTS, &[]),
    ("health-port", INTEGERS, NO_INTEGERS),
    ("mode", TEXTS, &[]),
    ("connection-timeout", DURATIONS, NO_DURATIONS),
    ("v", LEVELS, NO_LEVELS),
    ("vmodule", MODULES, NO_MODULES),
    ("logging-format", &["text"], &[]),
    ("log-flush-frequency", &["1s", "5m"], NO_DURATIONS),
    ("log-text-info-buffer-size", SIZES, NO_SIZES),
    ("log-json-info-buffer-size", SIZES, NO_SIZES),
    ("driver-wait-timeout", DURATIONS, NO_DURATIONS),
    ("registration-failure-policy", TEXTS, &[]),
    ("liveness-endpoint", TEXTS, &[]),
    ("probe-timeout", DURATIONS, NO_DURATIONS),
    ("termination-log-path", TEXTS, &[]),
    ("alsologtostderrthreshold", TEXTS, &[]),
    ("stderrthreshold", TEXTS, &[]),
    ("log_dir", TEXTS, &[]),
    ("log_file", TEXTS, &[]),
    ("log_file_max_size", TEXTS, &[]),
    ("log_backtrace_at", TEXTS, &[]),
];

const BOOLEANS: &[&str] = &[
    "enable-pprof",
    "automaxprocs",
    "wait-for-ready",
    "reregister-on-driver-restart",
    "logtostderr",
    "alsologtostderr",
    "skip_headers",
    "skip_log_headers",
    "add_dir_header",
    "one_output",
    "legacy_stderr_threshold_behavior",
];

const TRUE: [&str; 6] = ["1", "t", "T", "true", "TRUE", "True"];
const FALSE: [&str; 6] = ["0", "f", "F", "false", "FALSE", "False"];

/// The flags of klog that have had no effect since v2.10 of the original.
const ONCE_ACCEPTED: &[(&str, &str)] = &[
    ("logtostderr", "true"),
    ("alsologtostderr", "true"),
    ("alsologtostderrthreshold", "2"),
    ("stderrthreshold", "INFO"),
    ("skip_headers", "false"),
    ("skip_log_headers", "true"),
    ("add_dir_header", "true"),
    ("one_output", "true"),
    ("log_dir", "/var/log"),
    ("log_file", "/var/log/x.log"),
    ("log_file_max_size", "1800"),
    ("log_backtrace_at", "main.go:100"),
    ("legacy_stderr_threshold_behavior", "true"),
];

fn assert_is_version(ended: &Ended, arguments: &[String]) {
    let line = format!("{} {VERSION}\n", registrar_binary().display());
    let expected = (Some(0), line.as_str(), "");
    let found = (ended.code, ended.stdout.as_str(), ended.stderr.as_str());
    assert_eq!(found, expected, "{arguments:?}");
}

fn assert_is_usage_error(ended: &Ended, reason: &str, arguments: &[String]) {
    let mut lines = ended.stderr.lines();
    assert_eq!(lines.next(), Some(reason), "{arguments:?}");
    let usage = format!("Usage of {}:", registrar_binary().display());
    assert_eq!(lines.next(), Some(usage.as_str()), "{arguments:?}");
    assert_eq!(ended.code, Some(2), "{arguments:?}");
    assert_eq!(ended.stdout, "", "{arguments:?}");
}

/// `--version` comes last: whatever a flag does not take as its value would be the first positional and end the flags.
#[tokio::test]
async fn every_flag_takes_its_values_in_every_spelling() {
    let longest = VALUES.iter().map(|(_, good, _)| good.len()).max().unwrap();
    for spelling in Spelling::ALL {
        for n in 0..longest {
            let mut arguments = Vec::new();
            for (flag, good, _) in VALUES {
                arguments.extend(spelling.arguments(flag, good[n % good.len()]));
            }
            arguments.push("--version".to_owned());
            let ended = run(&arguments).await;
            assert_is_version(&ended, &arguments);
        }
    }
}

#[tokio::test]
async fn every_flag_refuses_what_it_cannot_read() {
    for (flag, _, bad) in VALUES {
        for (n, (value, reason)) in bad.iter().enumerate() {
            let spelling = Spelling::ALL[n % 4];
            let mut arguments = spelling.arguments(flag, value);
            // What comes later is not looked at any more.
            arguments.push("--version".to_owned());
            let ended = run(&arguments).await;
            let reason = format!("invalid value {value:?} for flag -{flag}: {reason}");
            assert_is_usage_error(&ended, &reason, &arguments);
        }
    }
}

#[tokio::test]
async fn booleans_take_gos_words_and_only_behind_an_equals_sign() {
    for spelling in Spelling::BOOLEAN {
        for value in TRUE.into_iter().chain(FALSE) {
            let mut arguments = Vec::new();
            for flag in BOOLEANS {
                arguments.extend(spelling.arguments(flag, value));
            }
            arguments.push("-version".to_owned());
            assert_is_version(&run(&arguments).await, &arguments);
        }
    }
    let mut alone: Vec<_> = BOOLEANS.iter().map(|flag| format!("-{flag}")).collect();
    alone.push("--version".to_owned());
    assert_is_version(&run(&alone).await, &alone);
    for flag in BOOLEANS.iter().filter(|flag| **flag != "automaxprocs") {
        let arguments = [format!("--{flag}=yes")];
        let reason = format!(r#"invalid boolean value "yes" for -{flag}: parse error"#);
        assert_is_usage_error(&run(&arguments).await, &reason, &arguments);

        let arguments = [format!("--{flag}"), "false".into(), "--version".into()];
        let ended = run(&arguments).await;
        assert_eq!(ended.code, Some(1), "{flag} took the word behind it");
    }
    let arguments = ["--automaxprocs=yes".to_owned()];
    let reason = r#"invalid boolean value "yes" for -automaxprocs: strconv.ParseBool: parsing "yes": invalid syntax"#;
    assert_is_usage_error(&run(&arguments).await, reason, &arguments);
}

#[tokio::test]
async fn what_is_no_flag_or_no_value_is_refused_with_the_usage() {
    for (arguments, reason) in [
        (&["---v"][..], "bad flag syntax: ---v"),
        (&["---v=1"], "bad flag syntax: ---v=1"),
        (&["-=x"], "bad flag syntax: -=x"),
        (&["--=x"], "bad flag syntax: --=x"),
        (&["--bogus"], "flag provided but not defined: -bogus"),
        (&["-bogus=1"], "flag provided but not defined: -bogus"),
        (&["-v5"], "flag provided but not defined: -v5"),
        (&["--V=5"], "flag provided but not defined: -V"),
        (&["--timeout"], "flag needs an argument: -timeout"),
        (&["-v"], "flag needs an argument: -v"),
        (
            &["--version", "--bogus"],
            "flag provided but not defined: -bogus",
        ),
        // Judged in the order given.
        (
            &["--timeout=x", "-h"],
            r#"invalid value "x" for flag -timeout: parse error"#,
        ),
    ] {
        let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
        assert_is_usage_error(&run(&arguments).await, reason, &arguments);
    }
}

#[tokio::test]
async fn help_is_the_usage_with_every_flag_and_default() {
    let mut usages = Vec::new();
    for arguments in [&["-h"][..], &["-help"], &["--help"], &["--v=1", "-h", "-x"]] {
        let ended = run(arguments).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""));
        usages.push(ended.stderr);
    }
    usages.dedup();
    let [usage] = &usages[..] else {
        panic!("they differ: {usages:?}")
    };
    assert!(usage.starts_with(&format!("Usage of {}:\n", registrar_binary().display())));
    for line in [
        "  -csi-address string",
        "  -connection-timeout duration",
        "  -enable-pprof",
        "  -health-port int",
        "  -v value",
        "  -version",
    ] {
        assert!(usage.lines().any(|found| found == line), "no {line:?}");
    }
    for default in [
        r#"will connect to. (default "/run/csi/socket")"#,
        r#"registration directory. (default "/registration")"#,
        "communication with driver (default 1s)",
        r#""text". (default "text")"#,
        "between log flushes (default 5s)",
        "not ready (default true)",
        "its Probe, for --liveness-endpoint (default 3s)",
        "growing delays (default exit; with --liveness-endpoint retry)",
        "(default /dev/termination-log)",
    ] {
        assert!(
            usage.lines().any(|line| line.ends_with(default)),
            "no {default:?} in {usage}"
        );
    }
    // Old flags are taken, and not advertised.
    assert!(!usage.contains("logtostderr"), "{usage}");
}

#[tokio::test]
async fn the_version_comes_before_every_other_check() {
    for arguments in [
        &["--version"][..],
        &["-version=T"],
        &["--timeout=0", "--csi-address=tcp://x", "--version"],
        &["--health-port=1", "--http-endpoint=:1", "--version"],
        &["--version", "positional", "--bogus"],
        &["--version", "--", "--bogus"],
    ] {
        let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
        assert_is_version(&run(&arguments).await, &arguments);
    }
    // It is the name that was called, as it was called.
    let mut command = registrar_command();
    std::os::unix::process::CommandExt::arg0(&mut command, "./registrar");
    command.arg("--version");
    let ended = run_command(command).await;
    assert_eq!(ended.stdout, format!("./registrar {VERSION}\n"));
}

#[tokio::test]
async fn flags_end_at_two_dashes_and_at_the_first_positional() {
    for end in ["--", "-", "positional", "probe", ""] {
        let node = Node::new();
        let _driver = node.driver();
        let registrar = node.registrar([end, "--mode=late", "--bogus", "-="]);
        node.published_as(DRIVER).await;
        registrar.log().line("mode=\"\"").await;
        registrar.stop().await;
    }
}

#[tokio::test]
async fn of_a_repeated_flag_the_last_counts() {
    let node = Node::new();
    let _driver = node.driver();
    let registrar = node.registrar([
        "--kubelet-registration-path=/first",
        "-kubelet-registration-path",
        "/second",
        "--enable-pprof",
        "--enable-pprof=false",
        "--mode=kubelet-registration-probe",
        "--mode=",
    ]);
    let socket = node.published_as(DRIVER).await;
    let info = Kubelet::dial(&socket).await.get_info().await;
    assert_eq!(info.endpoint, "/second");
    registrar.stop().await;
}

#[tokio::test]
async fn the_path_on_the_host_is_required_and_told_verbatim() {
    let node = Node::new();
    let before = tree(node.root());
    for arguments in [
        &[][..],
        &["--kubelet-registration-path="],
        &["--mode=kubelet-registration-probe"],
    ] {
        let ended = run(arguments).await;
        assert_eq!(ended.code, Some(1), "{arguments:?}");
        let [error] = ended.errors()[..] else {
            panic!("{}", ended.stderr)
        };
        assert!(
            error.contains("kubelet-registration-path is a required parameter"),
            "{error}"
        );
    }
    assert_eq!(tree(node.root()), before);

    let _driver = node.driver();
    for (path, warning) in [
        ("/var/lib/kubelet//plugins/../plugins/d/csi.sock/", None),
        ("/var/lib/kubelet/plugins/ä b/csi.sock", None),
        ("csi.sock", Some("is not absolute")),
        (
            "/var/lib/kubelet/plugins_registry/d-reg.sock",
            Some("names a socket in the registration directory"),
        ),
        (
            "/012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567",
            Some("is 109 bytes long, the limit for a socket is 107"),
        ),
    ] {
        let registrar = node.registrar([format!("--kubelet-registration-path={path}")]);
        let socket = node.published_as(DRIVER).await;
        let info = Kubelet::dial(&socket).await.get_info().await;
        assert_eq!(info.endpoint, path);
        let log = registrar.log().clone();
        registrar.stop().await;
        let log = log.complete().await;
        let warnings: Vec<_> = log.lines().filter(|line| line.starts_with('W')).collect();
        assert_eq!(warnings.len(), usize::from(warning.is_some()), "{log}");
        if let Some(warning) = warning {
            assert!(warnings[0].contains(warning), "{log}");
        }
    }
}

#[tokio::test]
async fn the_drivers_address_is_a_unix_socket_in_four_spellings() {
    let node = Node::new();
    let _driver = node.driver();
    let path = node.csi_socket();
    for address in [
        path.display().to_string(),
        format!("unix://{}", path.display()),
        format!("unix:{}", path.display()),
        "unix:plugins/d/csi.sock".to_owned(),
        "unix:./plugins/../plugins/d/csi.sock".to_owned(),
    ] {
        let mut command = registrar_command();
        command
            .current_dir(node.root())
            .args(node.arguments())
            .arg("--csi-address")
            .arg(&address);
        let registrar = support::Registrar::spawn(command);
        node.published_as(DRIVER).await;
        registrar.stop().await;
    }
    let before = tree(node.root());
    let long = format!("/{}", "x".repeat(107));
    for (address, reason) in [
        ("", "the address is empty"),
        ("unix:", "the address is empty"),
        ("unix://", "is no Unix socket"),
        ("plugins/d/csi.sock", "is no Unix socket"),
        ("./csi.sock", "is no Unix socket"),
        ("unix://plugins/d/csi.sock", "is no Unix socket"),
        ("localhost:10000", "is no Unix socket"),
        ("tcp://127.0.0.1:10000", "is no Unix socket"),
        ("dns:///localhost:10000", "is no Unix socket"),
        ("unix-abstract:csi", "is no Unix socket"),
        (&long, "is 108 bytes long, the limit is 107"),
    ] {
        let mut arguments = node.arguments();
        arguments.push(format!("--csi-address={address}"));
        let ended = run(arguments).await;
        assert_eq!(ended.code, Some(1), "{address}");
        let [error] = ended.errors()[..] else {
            panic!("{}", ended.stderr)
        };
        assert!(
            error.contains("--csi-address") && error.contains(reason),
            "{error}"
        );
    }
    assert_eq!(tree(node.root()), before);
}

#[tokio::test]
async fn the_registration_directory_may_end_in_a_slash_and_be_relative() {
    let node = Node::new();
    let _driver = node.driver();
    for directory in [
        format!("{}/", node.registry().display()),
        format!("{}//", node.registry().display()),
        "plugins_registry".to_owned(),
        "./plugins_registry/".to_owned(),
    ] {
        let mut command = registrar_command();
        command
            .current_dir(node.root())
            .args(node.arguments())
            .arg(format!("--plugin-registration-path={directory}"));
        let registrar = support::Registrar::spawn(command);
        Kubelet::register(&node.published_as(DRIVER).await).await;
        registrar.stop().await;
        assert!(node.published().is_empty(), "{directory}");
    }
}

#[tokio::test]
async fn the_timeout_bounds_each_call_to_the_driver() {
    let node = Node::new();
    let driver = node.driver_with(Behaviour {
        plugin_info: Fault::Slow(Duration::from_millis(400)),
        ..Behaviour::named(DRIVER)
    });
    let registrar = node.registrar(["--timeout=50ms", "--v=1"]);
    let line = registrar.log().line("DeadlineExceeded").await;
    assert!(line.contains("no answer within 50ms"), "{line}");
    assert!(node.published().is_empty());
    registrar.stop().await;

    let registrar = node.registrar(["--timeout=1h"]);
    node.published_as(DRIVER).await;
    registrar.stop().await;
    drop(driver);
}

#[tokio::test]
async fn the_wait_for_the_driver_can_be_limited() {
    let node = Node::new();
    let before = tree(node.root());
    let mut arguments = node.arguments();
    arguments.push("-driver-wait-timeout=300ms".to_owned());
    let started = std::time::Instant::now();
    let ended = run(&arguments).await;
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!(ended.code, Some(1));
    let [error] = ended.errors()[..] else {
        panic!("{}", ended.stderr)
    };
    assert!(
        error.contains("did not tell its name within 300ms: cannot connect to")
            && error.contains("No such file or directory"),
        "{error}"
    );
    assert_eq!(tree(node.root()), before);

    // A driver that is there has nothing to fear from it.
    let _driver = node.driver();
    let registrar = node.registrar(["--driver-wait-timeout=1h"]);
    node.published_as(DRIVER).await;
    registrar.stop().await;
}

#[tokio::test]
async fn the_probe_mode_succeeds_silently_and_any_other_mode_registers() {
    let node = Node::new();
    let driver = node.driver();
    let mut arguments = node.arguments();
    arguments.push("--mode=kubelet-registration-probe".to_owned());
    // It checks nothing else.
    arguments.push("--timeout=0".to_owned());
    let ended = run(&arguments).await;
    let expected = (Some(0), "", "");
    assert_eq!(
        (ended.code, &*ended.stdout, &*ended.stderr),
        expected,
        "{ended:?}"
    );
    assert_eq!(driver.calls().borrow().plugin_info, 0);

    for mode in ["", "node-register", "Kubelet-Registration-Probe"] {
        let registrar = node.registrar([format!("--mode={mode}")]);
        node.published_as(DRIVER).await;
        let expected = format!("mode={mode:?}");
        registrar.log().line(&expected).await;
        registrar.stop().await;
    }
}

#[tokio::test]
async fn settings_without_effect_are_warned_about_once_each() {
    let node = Node::new();
    let _driver = node.driver();
    let mut arguments = vec!["--connection-timeout=15s".to_owned()];
    for (n, (flag, value)) in ONCE_ACCEPTED.iter().enumerate() {
        arguments.extend(Spelling::BOOLEAN[n % 2].arguments(flag, value));
        // The last one wins, and there is still one warning.
        arguments.extend(Spelling::BOOLEAN[n % 2].arguments(flag, value));
    }
    let registrar = node.registrar(&arguments);
    node.published_as(DRIVER).await;
    let log = registrar.log().clone();
    registrar.stop().await;
    let log = log.complete().await;
    let warnings: Vec<_> = log.lines().filter(|line| line.starts_with('W')).collect();
    for (flag, _) in ONCE_ACCEPTED {
        let about = warnings
            .iter()
            .filter(|line| line.ends_with(&format!(r#" flag="--{flag}""#)));
        assert_eq!(about.count(), 1, "{flag} in {log}");
    }
    let deprecated = "--connection-timeout is deprecated and will have no effect";
    assert_eq!(log.matches(deprecated).count(), 1, "{log}");
    assert_eq!(warnings.len(), ONCE_ACCEPTED.len() + 1, "{log}");
}

#[tokio::test]
async fn settings_with_no_effect_to_tell_of_are_silent() {
    let node = Node::new();
    let _driver = node.driver();
    let registrar = node.registrar([
        "--automaxprocs",
        "--log-flush-frequency=1ns",
        "--connection-timeout=0",
        "--log-text-split-stream=false",
        "--log-json-split-stream=false",
        "--log-text-info-buffer-size=0",
        "--log-json-info-buffer-size=0Ki",
        "--enable-pprof",
        "--health-port=0",
        "--health-port=-0x1F",
    ]);
    node.published_as(DRIVER).await;
    let log = registrar.log().clone();
    registrar.stop().await;
    let log = log.complete().await;
    assert!(log.lines().all(|line| line.starts_with('I')), "{log}");
    assert!(log.contains("Skipping HTTP server"), "{log}");
}

#[tokio::test]
async fn settings_that_cannot_be_had_fail_in_their_own_words() {
    let node = Node::new();
    let before = tree(node.root());
    let alpha = |option: &str| {
        format!("options.{option}: Forbidden: Feature LoggingAlphaOptions is disabled")
    };
    for (argument, reason) in [
        ("--log-text-split-stream", alpha("text.splitStream")),
        ("--log-json-split-stream=1", alpha("json.splitStream")),
        (
            "--log-text-info-buffer-size=1Ki",
            alpha("text.infoBufferSize"),
        ),
        (
            "--log-json-info-buffer-size=1",
            alpha("json.infoBufferSize"),
        ),
        (
            "--log-flush-frequency=0",
            r#"flushFrequency: Invalid value: \"0s\": Must be greater than zero"#.into(),
        ),
        (
            "--logging-format=yaml",
            r#"format: Invalid value: \"yaml\": Unsupported log format"#.into(),
        ),
        (
            "--timeout=0",
            "--timeout: it must be greater than zero".into(),
        ),
        (
            "--timeout=-1s",
            "--timeout: it must be greater than zero".into(),
        ),
        (
            "--driver-wait-timeout=-1ns",
            "--driver-wait-timeout: it must not be negative".into(),
        ),
        (
            "--registration-failure-policy=never",
            r#"--registration-failure-policy: \"never\" is neither exit nor retry"#.into(),
        ),
        (
            "--http-endpoint=9809",
            r#"--http-endpoint: \"9809\" is no address to listen on"#.into(),
        ),
        (
            "--health-port=65536",
            "--health-port: ports end at 65535".into(),
        ),
        (
            "--plugin-registration-path=",
            "--plugin-registration-path: it must name a directory".into(),
        ),
    ] {
        let mut arguments = node.arguments();
        arguments.push(argument.to_owned());
        let ended = run(&arguments).await;
        assert_eq!(ended.code, Some(1), "{argument}");
        let [error] = ended.errors()[..] else {
            panic!("{}", ended.stderr)
        };
        assert!(error.contains(&reason), "{argument}: {error}");
        // That is all there is to read.
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    assert_eq!(tree(node.root()), before);
}

#[tokio::test]
async fn all_problems_are_reported_together() {
    let node = Node::new();
    let _driver = node.driver();
    let log = node.termination_log();
    let mut arguments = node.arguments();
    arguments.push(format!("--termination-log-path={}", log.display()));
    let problems = [
        ("--kubelet-registration-path=", "kubelet-registration-path"),
        ("--timeout=0", "--timeout"),
        ("--driver-wait-timeout=-1s", "--driver-wait-timeout"),
        ("--csi-address=tcp://x:1", "--csi-address"),
        (
            "--registration-failure-policy=x",
            "--registration-failure-policy",
        ),
        (
            "--health-port=1",
            "Only one of `--health-port` and `--http-endpoint` can be set",
        ),
        ("--http-endpoint=localhost:1", ""),
        ("--plugin-registration-path=", "--plugin-registration-path"),
    ];
    arguments.extend(problems.map(|(argument, _)| argument.to_owned()));
    let ended = run(&arguments).await;
    assert_eq!(ended.code, Some(1));
    let message = fs::read_to_string(log).unwrap();
    assert_eq!(ended.errors().len(), 7, "{}", ended.stderr);
    assert_eq!(message.lines().count(), 7, "{message}");
    for (_, name) in problems {
        assert!(ended.stderr.contains(name), "{name}: {}", ended.stderr);
        assert!(message.contains(name), "{name}: {message}");
    }
    assert!(node.published().is_empty());
}

#[tokio::test]
async fn the_logging_problems_are_reported_together_too() {
    let node = Node::new();
    let mut arguments = node.arguments();
    let problems = [
        "--logging-format=json",
        "--vmodule=driver=5",
        "--log-flush-frequency=0",
        "--log-text-split-stream",
    ];
    arguments.extend(problems.map(str::to_owned));
    let ended = run(&arguments).await;
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.stderr.lines().count(), 3, "{}", ended.stderr);
}

#[tokio::test]
async fn the_termination_log_is_created_where_asked_for() {
    let node = Node::new();
    let explicit = node.termination_log();
    let default = std::path::Path::new("/dev/termination-log");
    let default_existed = default.exists();
    let failing = async |termination: &[String]| {
        let mut command = registrar_command();
        command
            .current_dir(node.root())
            .args(node.arguments())
            .arg("--timeout=0")
            .args(termination);
        let ended = run_command(command).await;
        assert_eq!(ended.code, Some(1));
        ended
    };
    let reason = "--timeout: it must be greater than zero";

    let before = tree(node.root());
    failing(&[]).await;
    failing(&["--termination-log-path=".into()]).await;
    failing(&["--termination-log-path".into(), String::new()]).await;
    assert_eq!(tree(node.root()), before);
    assert_eq!(default.exists(), default_existed);

    let flag = format!("--termination-log-path={}", explicit.display());
    failing(std::slice::from_ref(&flag)).await;
    assert_eq!(fs::read_to_string(&explicit).unwrap(), reason);
    let inode = explicit.metadata().unwrap().ino();
    fs::write(&explicit, "an older and longer reason ".repeat(9)).unwrap();
    failing(&[flag]).await;
    assert_eq!(fs::read_to_string(&explicit).unwrap(), reason);
    // The kubelet mounts that very file.
    assert_eq!(explicit.metadata().unwrap().ino(), inode);

    // A message that cannot be written hides nothing.
    let ended = failing(&["--termination-log-path=no/such/directory/log".into()]).await;
    let lines: Vec<_> = ended.stderr.lines().rev().take(2).collect();
    assert!(lines[0].contains(reason), "{}", ended.stderr);
    assert!(
        lines[1].contains("Cannot write the termination message")
            && lines[1].contains("no/such/directory/log"),
        "{}",
        ended.stderr
    );
}

#[tokio::test]
async fn a_graceful_end_writes_no_termination_message() {
    let node = Node::new();
    let _driver = node.driver();
    let path = node.termination_log();
    let registrar = node.registrar([format!("--termination-log-path={}", path.display())]);
    node.published_as(DRIVER).await;
    registrar.stop().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn each_verbosity_shows_its_own_lines_and_those_below() {
    const LINES: [(u8, &str); 5] = [
        (0, "Received NotifyRegistrationStatus call"),
        (1, "Connecting to the CSI driver"),
        (2, "CSI driver name"),
        (4, "Received GetInfo call"),
        (5, "GRPC response"),
    ];
    let node = Node::new();
    let _driver = node.driver();
    for (verbosity, argument) in [
        (0, "-v=0"),
        (1, "--v=1"),
        (2, "-v=2"),
        (3, "--v=3"),
        (4, "--v=4"),
        (5, "-v=5"),
        (10, "--v=2147483647"),
    ] {
        let registrar = node.registrar([argument]);
        Kubelet::register(&node.published_as(DRIVER).await).await;
        let log = registrar.log().clone();
        registrar.stop().await;
        let log = log.complete().await;
        for (level, text) in LINES {
            assert_eq!(
                log.contains(text),
                level <= verbosity,
                "{argument} and {text:?}:\n{log}"
            );
        }
    }
}

#[tokio::test]
async fn a_restarted_driver_gets_a_fresh_socket_only_where_asked_for() {
    for (arguments, is_fresh) in [
        (&[][..], false),
        (&["--reregister-on-driver-restart"], true),
    ] {
        let node = Node::new();
        let driver = node.driver();
        let registrar = node.registrar(arguments);
        let socket = node.published_as(DRIVER).await;
        // A hard link keeps the number from being given to the fresh socket.
        let kept = node.root().join("kept");
        fs::hard_link(&socket, &kept).unwrap();
        driver.kill().await;
        let _driver = node.driver();
        registrar.log().line("The CSI driver was restarted").await;
        if is_fresh {
            support::until("a fresh socket", || {
                socket.metadata().unwrap().ino() != kept.metadata().unwrap().ino()
            })
            .await;
        }
        registrar.stop().await;
        // What is not ours any more is not removed under another name.
        assert!(kept.exists());
    }
}

#[tokio::test]
async fn a_refused_registration_is_tried_again_where_asked_for() {
    let node = Node::new();
    let _driver = node.driver();
    let mut registrar = node.registrar(["--registration-failure-policy=retry"]);
    let socket = node.published_as(DRIVER).await;
    let kept = node.root().join("kept");
    fs::hard_link(&socket, &kept).unwrap();
    let kubelet = Kubelet::dial(&socket).await;
    kubelet.get_info().await;
    kubelet.notify(Err("boom")).await;
    support::until("a fresh socket", || {
        socket
            .metadata()
            .is_ok_and(|found| found.ino() != kept.metadata().unwrap().ino())
    })
    .await;
    assert!(registrar.is_running());
    Kubelet::register(&socket).await;
    registrar.stop().await;
}
