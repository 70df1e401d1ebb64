//! Events and their lines, with a clock and a process id that do not change.

use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use super::*;
use crate::klog::{self, VModule, Verbosity};

/// Keeps the lines.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<String>>>);

impl Output for Kept {
    fn write_line(&self, line: &str) {
        self.0.lock().expect("one thread").push(line.to_owned());
    }
}

/// 2026-11-30 15:35:31.481244999 UTC.
fn moment() -> SystemTime {
    UNIX_EPOCH + Duration::new(1_796_052_931, 481_244_999)
}

fn lines_with(settings: Settings, log: impl FnOnce()) -> Vec<String> {
    let kept = Kept::default();
    let subscriber =
        Subscriber::new(settings, kept.clone(), Zone::utc()).with_origin(15962, moment);
    tracing::subscriber::with_default(subscriber, log);
    let lines = kept.0.lock().expect("one thread");
    lines.clone()
}

fn lines(format: Format, level: u16, log: impl FnOnce()) -> Vec<String> {
    let verbosity = Verbosity::new(Level::new(level), None);
    lines_with(Settings { format, verbosity }, log)
}

/// The only line, as text and as JSON, without what comes before the source's line number.
fn both(log: impl Fn()) -> (String, String) {
    let mut text = lines(Format::Text, 5, &log);
    let mut json = lines(Format::Json, 5, &log);
    assert_eq!((text.len(), json.len()), (1, 1));
    let text = text.remove(0);
    let (_, text) = text.split_once("] ").expect("a header");
    let json = json.remove(0);
    let (_, json) = json.split_once(r#","msg":"#).expect("a header");
    (text.to_owned(), json.to_owned())
}

/// An event on the line that it returns.
fn message() -> u32 {
    tracing::info!(key = "value", n = 3, "Message");
    line!() - 1
}

#[test]
fn a_text_line() {
    let mut line = 0;
    let text = lines(Format::Text, 0, || line = message());
    let expected =
        format!("I1130 15:35:31.481244   15962 tests.rs:{line}] \"Message\" key=\"value\" n=3\n");
    assert_eq!(text, [expected]);
}

#[test]
fn a_json_line() {
    let mut line = 0;
    let json = lines(Format::Json, 0, || line = message());
    let header = format!(r#"{{"ts":1796052931481.2449,"caller":"subscriber/tests.rs:{line}","#);
    let contents = r#""msg":"Message","v":0,"key":"value","n":3}"#;
    assert_eq!(json, [format!("{header}{contents}\n")]);
}

#[test]
fn what_libraries_say_is_not_logged() {
    let log = || {
        tracing::error!(target: "h2::proto::streams::recv", "a peer misbehaves");
        tracing::error!(target: "csi_node_driver_registrar_not", "a stranger");
        tracing::error!(target: "csi_node_driver_registrar", "the program");
    };
    let lines = lines(Format::Text, 5, log);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("the program"));
}

#[test]
fn severities() {
    let log = || {
        tracing::error!("e");
        tracing::warn!("w");
        tracing::info!("i");
        klog::verbose!(1, "v1");
        klog::verbose!(5, n = 1, "v5");
    };
    let text = lines(Format::Text, 5, log);
    let letters: Vec<&str> = text.iter().map(|line| &line[..1]).collect();
    assert_eq!(letters, ["E", "W", "I", "I", "I"]);
    let json = lines(Format::Json, 5, log);
    let ends: Vec<&str> = json
        .iter()
        .map(|line| {
            line.split_once(r#","msg":"#)
                .expect("a message")
                .1
                .trim_end()
        })
        .collect();
    assert_eq!(
        ends,
        [
            r#""e"}"#,
            r#""w","v":0}"#,
            r#""i","v":0}"#,
            r#""v1","v":1}"#,
            r#""v5","v":5,"n":1}"#
        ]
    );
}

#[test]
fn the_verbosity_decides() {
    let log = || {
        tracing::info!("0");
        klog::verbose!(1, "1");
        klog::verbose!(2, "2");
        klog::verbose!(3, "3");
        klog::verbose!(4, "4");
        klog::verbose!(5, "5");
        tracing::debug!("another crate's");
        tracing::trace!("another crate's");
        assert!(tracing::error_span!("a span").is_disabled());
    };
    for (level, shown) in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (10, 6)] {
        let text = lines(Format::Text, level, log);
        assert_eq!(text.len(), shown, "{level}");
        assert!(
            text.iter()
                .zip('0'..)
                .all(|(line, level)| line.ends_with(&format!("\"{level}\"\n")))
        );
    }
}

#[test]
fn a_file_may_show_more() {
    let log = || klog::verbose!(4, "shown");
    for (modules, shown) in [("tests=4", 1), ("t*s=5", 1), ("tests=3", 0), ("other=5", 0)] {
        let modules: VModule = modules.parse().expect("a list");
        let verbosity = Verbosity::new(Level::new(0), [modules]);
        let settings = Settings {
            verbosity,
            ..Settings::default()
        };
        assert_eq!(lines_with(settings, log).len(), shown);
    }
}

#[test]
fn values() {
    let (text, json) = both(|| {
        tracing::info!(
            string = "a\"b\\c\td\u{1b}\u{7f}é\u{a0}",
            display = %"x y",
            debug = ?Some(1),
            yes = true,
            signed = -1_i64,
            unsigned = u64::MAX,
            half = 0.5,
            whole = 2.0,
            nan = f64::NAN,
            r#type = "t",
            empty = "",
            "Values"
        );
    });
    assert_eq!(
        text,
        "\"Values\" string=\"a\\\"b\\\\c\\td\\x1b\\x7fé\\u00a0\" display=\"x y\" debug=\"Some(1)\" yes=true signed=-1 \
         unsigned=18446744073709551615 half=0.5 whole=2 nan=\"NaN\" type=\"t\" empty=\"\"\n"
    );
    assert_eq!(
        json,
        "\"Values\",\"v\":0,\"string\":\"a\\\"b\\\\c\\td\\u001b\u{7f}é\u{a0}\",\"display\":\"x y\",\"debug\":\"Some(1)\",\
         \"yes\":true,\"signed\":-1,\"unsigned\":18446744073709551615,\"half\":0.5,\"whole\":2,\"nan\":\"NaN\",\
         \"type\":\"t\",\"empty\":\"\"}\n"
    );
}

#[test]
fn errors_come_first_in_text_and_last_in_json() {
    let error = std::io::Error::other("it \"broke\"");
    let (text, json) = both(|| tracing::error!(path = "/p", err = %error, "Failed"));
    assert_eq!(text, "\"Failed\" err=\"it \\\"broke\\\"\" path=\"/p\"\n");
    assert_eq!(
        json,
        "\"Failed\",\"path\":\"/p\",\"err\":\"it \\\"broke\\\"\"}\n"
    );
    let error: &(dyn std::error::Error + 'static) = &error;
    let (text, _) = both(|| tracing::error!(err = error, "Failed"));
    assert_eq!(text, "\"Failed\" err=\"it \\\"broke\\\"\"\n");
}

#[test]
fn several_lines_are_a_block_as_a_value_and_escaped_as_a_message() {
    let (text, json) =
        both(|| tracing::info!(a = "one\n\ntwo", b = "three\n", c = 1, "two\nlines"));
    assert_eq!(
        text,
        "\"two\\nlines\" a=<\n\tone\n\t\n\ttwo\n > b=<\n\tthree\n > c=1\n"
    );
    assert_eq!(
        json,
        "\"two\\nlines\",\"v\":0,\"a\":\"one\\n\\ntwo\",\"b\":\"three\\n\",\"c\":1}\n"
    );
}

#[test]
fn a_message_may_be_formatted_or_missing() {
    let (text, _) = both(|| tracing::info!("{} of {}", 1, 2));
    assert_eq!(text, "\"1 of 2\"\n");
    let (text, json) = both(|| tracing::info!(n = 1));
    assert_eq!((&*text, &*json), ("\"\" n=1\n", "\"\",\"v\":0,\"n\":1}\n"));
}

#[test]
fn text_lines_are_in_local_time_and_json_lines_are_not() {
    let record = Record {
        severity: Severity::Warning,
        time: UNIX_EPOCH + Duration::from_millis(1_500),
        pid: 7,
        file: "main.rs",
        line: 0,
        contents: Contents::default(),
    };
    let mut text = String::new();
    text::write(&mut text, &record, &Zone::utc()).expect("a line");
    assert_eq!(text, "W0101 00:00:01.500000       7 main.rs:0] \"\"\n");
    let mut json = String::new();
    json::write(&mut json, &record).expect("a line");
    assert_eq!(
        json,
        "{\"ts\":1500,\"caller\":\"main.rs:0\",\"msg\":\"\",\"v\":0}\n"
    );
}

#[test]
fn as_a_layer_it_decides_for_itself_alone() {
    use tracing_subscriber::layer::SubscriberExt;

    let subscriber = |level| {
        let kept = Kept::default();
        let verbosity = Verbosity::new(Level::new(level), None);
        let settings = Settings {
            format: Format::Text,
            verbosity,
        };
        (kept.clone(), Subscriber::new(settings, kept, Zone::utc()))
    };
    let (quiet, quiet_layer) = subscriber(0);
    let (loud, loud_layer) = subscriber(5);
    let both = tracing_subscriber::registry()
        .with(quiet_layer)
        .with(loud_layer);
    tracing::subscriber::with_default(both, || {
        message();
        klog::verbose!(5, "Detail");
    });
    let count = |kept: &Kept| kept.0.lock().expect("one thread").len();
    assert_eq!((count(&quiet), count(&loud)), (1, 2));
}
