//! The follower on made-up events, without any clock.

use std::time::Duration;

use super::*;
use crate::manager::Identity;
use crate::manager::OperationKind::{Register, Unregister};
use crate::manager::csi::objects::{CsiNode, ObjectMeta};
use crate::manager::plugin_handler::Plugin;

const SOCKET: &str = "/r/d-reg.sock";

struct Story {
    follower: Follower,
    start: Instant,
    seconds: u64,
}

impl Story {
    fn new() -> Self {
        let start = Instant::now();
        Self {
            follower: Follower::new(start),
            start,
            seconds: 0,
        }
    }

    /// Each event a second after the one before.
    fn happens(&mut self, socket: Option<&str>, whats: impl IntoIterator<Item = What>) {
        for what in whats {
            self.seconds += 1;
            self.follower.on(&Event {
                at: self.start + Duration::from_secs(self.seconds),
                socket: socket.map(PathBuf::from),
                what,
            });
        }
    }

    fn steps(&self) -> Vec<(Step, Outcome)> {
        let attempt = self.follower.attempt().unwrap();
        let records = attempt.records.iter();
        records
            .map(|record| (record.step, record.outcome))
            .collect()
    }

    fn failure(&self) -> (Step, &str) {
        let attempt = self.follower.attempt().unwrap();
        let mut failed = attempt
            .records
            .iter()
            .filter(|it| it.outcome == Outcome::Failed);
        let record = failed.next().expect("a step failed");
        assert!(failed.next().is_none(), "one failure explains all");
        (record.step, &record.detail)
    }
}

fn appeared() -> What {
    What::Desired {
        identity: Identity::nth(1),
        replaced: false,
    }
}

fn began() -> What {
    let operation = Register;
    What::OperationStarted { operation }
}

fn failed(error: &str) -> What {
    What::OperationFailed {
        operation: Register,
        error: error.into(),
        backoff: Duration::from_millis(500),
    }
}

fn info() -> What {
    What::InfoReceived {
        plugin: Plugin {
            socket_path: SOCKET.into(),
            plugin_type: "CSIPlugin".into(),
            name: "d".into(),
            endpoint: "/d.sock".into(),
            supported_versions: vec!["1.0.0".into()],
        },
    }
}

fn node_info(node_id: &str) -> What {
    What::NodeInfoReceived {
        driver: "d".into(),
        node_id: node_id.into(),
        max_volumes_per_node: 0,
        topology: None,
    }
}

fn notified(registered: bool, text: &str, failure: Option<&str>) -> What {
    What::Notified {
        registered,
        text: text.into(),
        failure: failure.map(str::to_owned),
    }
}

fn written() -> [What; 3] {
    let csi_node = |drivers: &[&str]| {
        let mut csi_node = CsiNode::new(ObjectMeta::default());
        let drivers = drivers.iter().map(|&name| CsiNodeDriver {
            name: name.into(),
            node_id: "id".into(),
            topology_keys: Vec::new(),
            allocatable: None,
        });
        csi_node.spec.drivers = drivers.collect();
        What::CsiNodeWritten {
            csi_node: Box::new(csi_node),
        }
    };
    let node = Box::new(Node::new("n", "u"));
    [
        What::NodeWritten { node },
        csi_node(&["other"]),
        csi_node(&["other", "d"]),
    ]
}

#[test]
fn a_registration_that_goes_well_passes_each_step_once() {
    let mut story = Story::new();
    assert_eq!(story.follower.waits_for(), Step::Socket);
    story.happens(Some(SOCKET), [appeared(), began(), What::Dialed, info()]);
    assert_eq!(story.follower.waits_for(), Step::Validation);
    story.happens(Some(SOCKET), [What::Validated, node_info("id")]);
    story.happens(None, written());
    assert_eq!(story.follower.waits_for(), Step::Notification);
    assert_eq!(story.follower.end(), None);
    let told = notified(true, "", None);
    let succeeded = What::OperationSucceeded {
        operation: Register,
    };
    story.happens(Some(SOCKET), [What::HandlerRegistered, told, succeeded]);
    assert_eq!(story.follower.end(), Some(End::Registered));
    let steps = story.steps();
    assert!(steps.iter().all(|(_, outcome)| *outcome == Outcome::Passed));
    let steps: Vec<_> = steps.into_iter().map(|(step, _)| step).collect();
    let told: Vec<_> = Step::ALL[1..10]
        .iter()
        .copied()
        .filter(|step| *step != Step::ApiServer)
        .collect();
    assert_eq!(steps, told);
    let attempt = story.follower.attempt().unwrap();
    let took: Vec<_> = attempt.records.iter().map(|it| it.took.as_secs()).collect();
    assert_eq!(
        took,
        [1, 1, 1, 1, 1, 1, 2, 2],
        "the dial counts from the operation's begin"
    );
}

#[test]
fn a_failed_dial_is_repeated_and_remembered() {
    let mut story = Story::new();
    story.happens(Some(SOCKET), [appeared(), began(), failed("dial"), began()]);
    assert_eq!(story.follower.end(), None);
    assert_eq!(story.follower.waits_for(), Step::Dial);
    story.happens(Some(SOCKET), [What::Dialed, failed("no answer")]);
    assert_eq!(story.failure(), (Step::GetInfo, "no answer"));
    let attempt = story.follower.attempt().unwrap();
    assert_eq!(attempt.retries, Some((2, "get-info: no answer".into())));
}

#[test]
fn what_the_kubelet_refuses_is_a_failure_of_the_step_that_it_was_about() {
    let before = || [appeared(), began(), What::Dialed, info()];
    let refused = |error: &str| What::HandlerRefused {
        error: error.into(),
    };
    let error = "node error".to_owned();
    let driver = "d".to_owned();
    for (events, expected) in [
        (
            vec![notified(false, "versions", None)],
            (Step::Validation, "versions"),
        ),
        (
            vec![
                What::Validated,
                What::NodeInfoFailed { driver, error },
                refused("node error"),
                notified(false, "failed: node error", None),
            ],
            (Step::NodeGetInfo, "node error"),
        ),
        (
            vec![What::Validated, node_info(""), refused("must not be empty")],
            (Step::NodeGetInfo, "the node id is empty"),
        ),
        (
            vec![What::Validated, node_info("id"), refused("collision")],
            (Step::Node, "collision"),
        ),
        (
            vec![What::Validated, notified(true, "", Some("Unavailable"))],
            (
                Step::Notification,
                "the registrar did not take it: Unavailable",
            ),
        ),
    ] {
        let mut story = Story::new();
        story.happens(Some(SOCKET), before());
        story.happens(Some(SOCKET), events);
        story.happens(
            Some(SOCKET),
            [notified(false, "later", None), failed("last")],
        );
        assert_eq!(story.failure(), expected);
        assert_eq!(story.follower.end(), Some(End::Refused));
    }
}

#[test]
fn of_several_sockets_the_one_that_came_furthest_counts() {
    let mut story = Story::new();
    story.happens(Some("/r/a.sock"), [appeared(), began()]);
    story.happens(Some(SOCKET), [appeared(), began(), What::Dialed, info()]);
    story.happens(Some("/r/z.sock"), [appeared(), began(), What::Undesired]);
    assert_eq!(story.follower.attempt().unwrap().socket, Path::new(SOCKET));
    assert_eq!(story.follower.others(), [Path::new("/r/a.sock")]);
    story.happens(Some("/r/a.sock"), [notified(false, "no", None)]);
    assert_eq!(
        story.follower.attempt().unwrap().socket,
        Path::new("/r/a.sock")
    );
}

#[test]
fn other_operations_and_too_many_sockets_change_nothing() {
    let mut story = Story::new();
    for number in 0..2 * MAX_SOCKETS {
        story.happens(Some(&format!("/r/{number}.sock")), [appeared()]);
    }
    assert_eq!(story.follower.others().len(), MAX_SOCKETS - 1);
    let operation = Unregister;
    story.happens(Some("/r/0.sock"), [What::OperationSucceeded { operation }]);
    assert_eq!(story.follower.end(), None);
}
