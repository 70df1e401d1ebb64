//! Memory after a registration and after many calls, and what a call costs.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::arguments::Arguments;
use crate::rounds::rounds;
use crate::samples::Samples;
use crate::subject::{Subject, driver};
use crate::support::usage::Usage;
use crate::support::{DRIVER, Kubelet, Node, get};
use crate::table::{Budget, Row};

/// Calls of each kind.
const CALLS: u32 = 10_000;

/// For what a process does after a call was answered.
const SETTLE: Duration = Duration::from_millis(500);

/// Moments at which memory is measured.
const MOMENTS: [&str; 3] = [
    "after a registration",
    "after 10,000 health checks",
    "after 10,000 `GetInfo`",
];

const KINDS: [&str; 3] = ["Resident", "Anonymous", "Peak"];

pub async fn rows(subjects: &[Subject], arguments: &Arguments) -> Vec<Row> {
    let delay = arguments.driver_delay();
    let measure = async |subject: &Subject| load(subject, delay).await;
    let measured: [Vec<Samples>; 13] = rounds("loads", subjects, arguments.loads, measure).await;
    let mut measured = measured.into_iter();
    let mut next = |what: String, unit| Row::new(what, unit, measured.next().unwrap());
    let mut rows = Vec::new();
    for moment in MOMENTS {
        for kind in KINDS {
            let row = next(format!("{kind} {moment}"), "MiB");
            rows.push(if (kind, moment) == (KINDS[0], MOMENTS[0]) {
                row.within(Budget::AtMost(2.5))
            } else {
                row
            });
        }
    }
    let threads = next("Threads".to_owned(), "");
    rows.push(threads.within(Budget::AtMost(1.0)));
    rows.push(next("CPU time of a health check".to_owned(), "µs"));
    let calls = "`GetInfo` calls a second, one after the other on a connection";
    rows.push(next(calls.to_owned(), ""));
    rows.push(next("CPU time of a `GetInfo`".to_owned(), "µs"));
    rows
}

async fn load(subject: &Subject, delay: Duration) -> [f64; 13] {
    let node = Node::new();
    let _driver = driver(&node, delay);
    let (registrar, http) = subject.register(&node, &[]).await;
    let usage = registrar.usage();
    let [resident, anonymous, peak] = memory(usage).await;
    let health_check = health_checks(usage, http, CALLS).await;
    let [checked, checked_anonymous, checked_peak] = memory(usage).await;
    let (rate, call) = get_infos(usage, &node).await;
    let [called, called_anonymous, called_peak] = memory(usage).await;
    #[allow(clippy::cast_precision_loss, reason = "a handful")]
    let threads = usage.threads() as f64;
    [
        resident,
        anonymous,
        peak,
        checked,
        checked_anonymous,
        checked_peak,
        called,
        called_anonymous,
        called_peak,
        threads,
        health_check,
        rate,
        call,
    ]
}

/// Resident, anonymous and peak memory in MiB, once it has settled.
pub async fn memory(usage: Usage) -> [f64; 3] {
    sleep(SETTLE).await;
    [usage.resident(), usage.anonymous(), usage.peak_memory()].map(mebibytes)
}

#[allow(clippy::cast_precision_loss, reason = "below 2^52")]
fn mebibytes(kibibytes: u64) -> f64 {
    kibibytes as f64 / 1024.0
}

/// Asks `/healthz` so often, on a connection for each as the kubelet's prober does. Returns µs of processor time for one.
pub async fn health_checks(usage: Usage, http: SocketAddr, times: u32) -> f64 {
    let before = usage.processor_time();
    for _ in 0..times {
        let answer = get(http, "/healthz").await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    micros(before, usage, times)
}

/// Calls on one connection. Returns calls a second, and µs of processor time for one.
async fn get_infos(usage: Usage, node: &Node) -> (f64, f64) {
    let kubelet = Kubelet::dial(&node.registration_socket(DRIVER)).await;
    let (begin, before) = (Instant::now(), usage.processor_time());
    for _ in 0..CALLS {
        kubelet.get_info().await;
    }
    let rate = f64::from(CALLS) / begin.elapsed().as_secs_f64();
    (rate, micros(before, usage, CALLS))
}

/// What each of so many calls took since `before`.
fn micros(before: Duration, usage: Usage, calls: u32) -> f64 {
    let time = usage.processor_time().saturating_sub(before);
    time.as_secs_f64() * 1e6 / f64::from(calls)
}
