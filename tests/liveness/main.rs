//! The liveness probe's job on the real binary, in both ways of use: as the drop-in for the Go sidecar `livenessprobe`, and
//! beside the registrar (`--liveness-endpoint`).

#![allow(
    unreachable_pub,
    reason = "the modules of a test binary have no users outside it"
)]
#![allow(clippy::unwrap_used, reason = "test code")]

mod answers;
mod driver;
mod endurance;
mod flags;
mod life;
mod merged;
mod metrics;
#[path = "../support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use support::{DEADLINE, HttpAnswer, Node, Registrar, get, registrar_command, until, within};

/// What a busy machine may add to a time that is measured from outside.
const SLACK: Duration = Duration::from_millis(400);

/// The binary under the name by which it takes the sidecar's place.
fn drop_in() -> Command {
    let mut command = registrar_command();
    command.arg0("livenessprobe");
    command
}

/// How the probe is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    DropIn,
    Merged,
}

const WAYS: [Way; 2] = [Way::DropIn, Way::Merged];

/// A process that serves the probe of a node's driver.
struct Probed {
    process: Registrar,
    http: SocketAddr,
}

impl Way {
    /// Starts one, with these arguments besides. It has a port of its own.
    async fn start(self, node: &Node, more: &[&str]) -> Probed {
        let process = match self {
            Self::DropIn => {
                let mut command = drop_in();
                command
                    .arg(format!("--csi-address={}", node.csi_socket().display()))
                    .arg("--http-endpoint=127.0.0.1:0")
                    .args(more);
                Registrar::spawn(command)
            }
            Self::Merged => node.registrar([&["--liveness-endpoint=127.0.0.1:0"], more].concat()),
        };
        let http = process.address_of("liveness").await;
        Probed { process, http }
    }
}

impl Probed {
    async fn probe(&self) -> HttpAnswer {
        get(self.http, "/healthz").await
    }

    /// A probe's answer, and how long it took.
    async fn timed(&self) -> (HttpAnswer, Duration) {
        let begin = Instant::now();
        let answer = self.probe().await;
        (answer, begin.elapsed())
    }

    async fn assert_alive(&self) {
        let answer = self.probe().await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "ok"));
    }

    /// Checks that a probe fails with all of these texts in one line, and returns the line.
    async fn assert_fails(&self, texts: &[impl AsRef<str>]) -> String {
        let answer = self.probe().await;
        assert_fails(&answer, texts);
        answer.body
    }

    /// Asks until the driver is alive.
    async fn until_alive(&self) {
        within(DEADLINE, "the driver to be alive", async {
            while self.probe().await.status != 200 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    /// Checks how many failures the log tells. An answer may be here before its line is.
    async fn assert_failures_logged(&self, expected: usize) {
        let log = self.process.log();
        let count = || log.count("Health check failed");
        until("the failures in the log", || count() >= expected).await;
        assert_eq!(count(), expected, "{}", log.text());
    }
}

fn assert_fails(answer: &HttpAnswer, texts: &[impl AsRef<str>]) {
    assert_eq!(answer.status, 500, "{answer:?}");
    for text in texts.iter().map(AsRef::as_ref) {
        assert!(answer.body.contains(text), "no {text:?} in {answer:?}");
    }
    assert_eq!(answer.body.lines().count(), 1, "{answer:?}");
}
