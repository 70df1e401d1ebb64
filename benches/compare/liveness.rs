//! The liveness probe's job: what it adds to the registrar, and what it costs alone.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::arguments::Arguments;
use crate::load::{health_checks, memory};
use crate::rounds::rounds;
use crate::subject::{Subject, driver};
use crate::support::http::{listening, loopback_address};
use crate::support::{DEADLINE, Node, within};
use crate::table::{Budget, Row};

/// Probes before anything is measured: everything that a probe needs is in memory then.
const FIRST_PROBES: u32 = 100;

/// Probes whose processor time is measured.
const PROBES: u32 = 2_000;

/// Connections that are held.
const IDLE_CONNECTIONS: usize = 200;

/// What the endpoint costs in a registrar.
pub async fn merged(registrar: &Subject, arguments: &Arguments) -> Vec<Row> {
    let delay = arguments.driver_delay();
    let subjects = std::slice::from_ref(registrar);
    let measure = async |subject: &Subject| {
        let without = with_endpoint(subject, delay, false).await;
        [with_endpoint(subject, delay, true).await - without]
    };
    let [more] = rounds("merged", subjects, arguments.loads, measure).await;
    let row = Row::new(
        "More resident in a registrar with `--liveness-endpoint`",
        "MiB",
        more,
    );
    vec![row.within(Budget::AtMost(0.3))]
}

/// The resident memory of a registrar that was registered and checked, and probed if it has the endpoint.
async fn with_endpoint(subject: &Subject, delay: Duration, endpoint: bool) -> f64 {
    let node = Node::new();
    let _driver = driver(&node, delay);
    let liveness = endpoint.then(loopback_address);
    let flag = liveness.map(|address| format!("--liveness-endpoint={address}"));
    let (registrar, http) = subject.register(&node, flag.as_slice()).await;
    health_checks(registrar.usage(), http, FIRST_PROBES).await;
    if let Some(address) = liveness {
        listening(address).await;
        health_checks(registrar.usage(), address, FIRST_PROBES).await;
    }
    let [resident, ..] = memory(registrar.usage()).await;
    resident
}

/// The probes alone.
pub async fn alone(subjects: &[Subject], arguments: &Arguments) -> Vec<Row> {
    let delay = arguments.driver_delay();
    let measure = async |subject: &Subject| {
        let node = Node::new();
        let _driver = driver(&node, delay);
        let (probe, http) = subject.start_probing(&node).await;
        let usage = probe.usage();
        health_checks(usage, http, FIRST_PROBES).await;
        let [resident, ..] = memory(usage).await;
        let time = health_checks(usage, http, PROBES).await;
        let [before, ..] = memory(usage).await;
        let held = hold(http).await;
        let [holding, ..] = memory(usage).await;
        drop(held);
        [resident, time, holding - before]
    };
    let [resident, time, held] = rounds("probes", subjects, arguments.loads, measure).await;
    vec![
        Row::new("Resident after 100 probes", "MiB", resident).within(Budget::AtMost(2.5)),
        Row::new("CPU time of a probe", "µs", time).within(Budget::OfOthers(0.5)),
        Row::new("More resident with 200 idle connections", "MiB", held)
            .within(Budget::AtMost(2.0)),
    ]
}

/// Connections that have asked once and stay. The server may close the oldest.
async fn hold(http: SocketAddr) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for _ in 0..IDLE_CONNECTIONS {
        let mut stream = TcpStream::connect(http).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        within(DEADLINE, "an answer", async {
            while !answer.ends_with(b"\r\n\r\nok") {
                assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
            }
        })
        .await;
        held.push(stream);
    }
    held
}
