//! The shared flags on their own.

use std::ffi::{OsStr, OsString};

use clap::Parser;

use super::*;
use crate::goflag::{self, Error};

#[derive(Debug, Parser)]
struct Program {
    #[command(flatten)]
    klog: Flags,
}

fn parse(args: &[&str]) -> Result<Flags, Error> {
    goflag::parse::<Program>(OsStr::new("prog"), args.iter().map(OsString::from))
        .map(|program| program.klog)
}

fn validated(args: &[&str]) -> Validation {
    parse(args)
        .unwrap_or_else(|error| panic!("{args:?}: {error}"))
        .validate()
}

fn problems(args: &[&str]) -> Vec<String> {
    validated(args)
        .problems
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn reason(args: &[&str]) -> String {
    match parse(args) {
        Err(Error::Usage { reason, .. }) => reason,
        other => panic!("{args:?}: {other:?}"),
    }
}

#[test]
fn defaults() {
    let nothing = Validation {
        settings: Settings::default(),
        warnings: vec![],
        problems: vec![],
    };
    assert_eq!(validated(&[]), nothing);
    let harmless = [
        "-log-text-info-buffer-size=0Ki",
        "-log-json-split-stream=f",
        "-vmodule=",
        "-automaxprocs=",
    ];
    assert_eq!(validated(&harmless), nothing);
}

#[test]
fn settings() {
    let Validation {
        settings, problems, ..
    } = validated(&["-v=5", "--logging-format", "json", "-v", "4"]);
    assert_eq!(problems, []);
    assert_eq!(settings.format, Format::Json);
    assert_eq!(settings.verbosity, Verbosity::new(Level::new(4), None));
    // As in the original, lists add up.
    let settings = validated(&["-vmodule=a=1,b=2", "-vmodule=c=3"]).settings;
    let modules: VModule = "a=1,b=2,c=3".parse().expect("a list");
    assert_eq!(settings.verbosity, Verbosity::new(Level::new(0), [modules]));
}

#[test]
fn all_problems_at_once_in_the_originals_order() {
    let args = [
        "-log-flush-frequency=-1s",
        "-logging-format=xml",
        "-vmodule=a=1",
        "-log-json-split-stream",
        "-log-text-split-stream",
        "-log-json-info-buffer-size=5",
        "-log-text-info-buffer-size=1Ki",
    ];
    let starts = [
        r#"flushFrequency: Invalid value: "-1s": Must be greater than zero"#,
        r#"format: Invalid value: "xml": Unsupported log format"#,
        "vmodule: Forbidden: Only supported for text log format",
        "options.text.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled",
        "options.text.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled",
        "options.json.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled",
        "options.json.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled",
    ];
    let problems = problems(&args);
    assert_eq!(problems.len(), starts.len());
    for (problem, start) in problems.iter().zip(starts) {
        assert!(problem.starts_with(start), "{problem}");
    }
    assert!(
        problems[6].contains("--log-json-info-buffer-size"),
        "{}",
        problems[6]
    );
}

#[test]
fn problems_are_reported_in_the_format_that_was_asked_for() {
    for (args, format) in [
        (["-logging-format=json", "-vmodule=a=1"], Format::Json),
        (
            ["-logging-format=json", "-log-flush-frequency=0"],
            Format::Json,
        ),
        (["-logging-format=", "-vmodule=a=1"], Format::Text),
    ] {
        let validation = validated(&args);
        assert_eq!(validation.problems.len(), 1, "{args:?}");
        assert_eq!(validation.settings.format, format, "{args:?}");
    }
}

#[test]
fn bad_values_are_usage_errors_in_the_originals_words() {
    for (arg, expected) in [
        (
            "-v=x",
            r#"invalid value "x" for flag -v: strconv.ParseUint: parsing "x": invalid syntax"#,
        ),
        (
            "-vmodule=a",
            r#"invalid value "a" for flag -vmodule: "a" does not have the pattern=N format"#,
        ),
        (
            "-log-flush-frequency=5",
            r#"invalid value "5" for flag -log-flush-frequency: parse error"#,
        ),
        (
            "-automaxprocs=x",
            r#"invalid boolean value "x" for -automaxprocs: strconv.ParseBool: parsing "x": invalid syntax"#,
        ),
        (
            "-logtostderr=x",
            r#"invalid boolean value "x" for -logtostderr: parse error"#,
        ),
        (
            "-log-text-split-stream=2",
            r#"invalid boolean value "2" for -log-text-split-stream: parse error"#,
        ),
        (
            "-log-text-info-buffer-size=1KM",
            r#"invalid value "1KM" for flag -log-text-info-buffer-size: unable to parse quantity's suffix"#,
        ),
    ] {
        assert_eq!(reason(&[arg]), expected);
    }
}

#[test]
fn quantities() {
    for (text, given) in [
        ("0", false),
        ("-0.00", false),
        ("0Gi", false),
        (".", false),
        ("5", true),
        ("1Ki", true),
        ("1e3", true),
        ("2E-1", true),
        ("1E", true),
        ("100m", true),
        ("+1.5M", true),
    ] {
        assert_eq!(text.parse(), Ok(Quantity(given)), "{text}");
    }
    for text in [
        "", "x", "1x", "1KiB", "1 ", "--1", "1.2.3", "1e", "1e1e1", "1-", "1Ki3",
    ] {
        assert!(text.parse::<Quantity>().is_err(), "{text}");
    }
}

#[test]
fn klogs_old_flags_are_accepted_in_every_spelling_with_one_warning_each() {
    for (name, is_boolean) in IGNORED {
        let mut spellings = vec![
            vec![format!("-{name}=1")],
            vec![format!("--{name}=false"), format!("-{name}=T")],
        ];
        spellings.push(if is_boolean {
            vec![format!("--{name}")]
        } else {
            vec![format!("--{name}"), "INFO".to_owned()]
        });
        for args in spellings {
            let args: Vec<&str> = args.iter().map(String::as_str).chain(["-v=3"]).collect();
            let validation = validated(&args);
            assert_eq!(validation.warnings, [IgnoredFlag(name)], "{args:?}");
            assert_eq!(validation.warnings[0].to_string(), format!("--{name}"));
            assert_eq!(
                validation.settings.verbosity,
                Verbosity::new(Level::new(3), None)
            );
            assert_eq!(validation.problems, []);
        }
    }
}

#[test]
fn klogs_old_flags_are_not_in_the_usage() {
    let Err(usage @ Error::Help { .. }) = parse(&["-h"]) else {
        panic!("no usage")
    };
    let usage = usage.to_string();
    assert!(
        usage.contains("\n  -v value\n    \tnumber for the log level verbosity\n"),
        "{usage}"
    );
    assert!(usage.contains("\n  -automaxprocs\n"));
    assert!(usage.contains(" (default 5s)\n"));
    assert!(!usage.contains('_'), "{usage}");
}
