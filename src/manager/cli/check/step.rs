//! The steps that a registration and a stop consist of, and what became of each.

use std::time::Duration;

use serde::Serialize;

use crate::manager::json;

/// In the order of a registration that goes well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Step {
    /// The registrar's process started.
    Start,
    /// A registration socket appeared.
    Socket,
    /// The kubelet reached somebody there who speaks HTTP/2.
    Dial,
    /// The plugin said what it is.
    GetInfo,
    /// The kubelet knows the type, the versions, and no other plugin of that name.
    Validation,
    /// The driver said what it knows of the node.
    NodeGetInfo,
    /// Annotation and labels of the Node.
    Node,
    /// The CSINode's entry.
    CsiNode,
    /// An API server would take both objects.
    ApiServer,
    /// The plugin took the kubelet's word that it is registered.
    Notification,
    /// After a SIGTERM the registration socket went away.
    SocketRemoval,
    /// The kubelet took back what it had registered.
    Deregistration,
    /// The registrar's process ended.
    Exit,
    /// Nothing is left in the registration directory.
    Leftovers,
}

impl Step {
    /// All, in order.
    pub(super) const ALL: [Self; 14] = [
        Self::Start,
        Self::Socket,
        Self::Dial,
        Self::GetInfo,
        Self::Validation,
        Self::NodeGetInfo,
        Self::Node,
        Self::CsiNode,
        Self::ApiServer,
        Self::Notification,
        Self::SocketRemoval,
        Self::Deregistration,
        Self::Exit,
        Self::Leftovers,
    ];

    /// As reports write it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Socket => "socket",
            Self::Dial => "dial",
            Self::GetInfo => "get-info",
            Self::Validation => "validation",
            Self::NodeGetInfo => "node-get-info",
            Self::Node => "node",
            Self::CsiNode => "csi-node",
            Self::ApiServer => "api-server",
            Self::Notification => "notification",
            Self::SocketRemoval => "socket-removal",
            Self::Deregistration => "deregistration",
            Self::Exit => "exit",
            Self::Leftovers => "leftovers",
        }
    }
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Passed,
    Failed,
    /// It did not come to that.
    Skipped,
}

/// A step with its outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Record {
    #[serde(rename = "name")]
    pub(super) step: Step,
    pub(super) outcome: Outcome,
    /// Since the check's begin.
    #[serde(rename = "at_seconds", serialize_with = "json::seconds")]
    pub(super) at: Duration,
    /// Since the step before.
    #[serde(rename = "took_seconds", serialize_with = "json::seconds")]
    pub(super) took: Duration,
    /// For people.
    pub(super) detail: String,
}

impl Record {
    pub(super) const fn skipped(step: Step) -> Self {
        Self {
            step,
            outcome: Outcome::Skipped,
            at: Duration::ZERO,
            took: Duration::ZERO,
            detail: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_steps_are_listed_in_order_under_one_name() {
        assert!(Step::ALL.is_sorted());
        assert_eq!(Step::ALL.len(), Step::Leftovers as usize + 1);
        for step in Step::ALL {
            assert_eq!(serde_json::to_value(step).unwrap(), step.name());
        }
    }
}
