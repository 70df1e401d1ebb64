//! One registration socket: the steps that its registration has passed, and the one that failed.

use std::path::{Path, PathBuf};

use tokio::time::Instant;

use super::step::{Outcome, Record, Step};
use crate::manager::OperationKind::Register;
use crate::manager::cli::event_text;
use crate::manager::event::What;
use crate::manager::plugin_handler::Plugin;

/// How a registration ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The kubelet has the driver, and the plugin knows.
    Registered,
    /// The kubelet refused it, or the plugin did not take the news. A kubelet before 1.36 would not try again.
    Refused,
}

/// What became of one registration socket so far.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) socket: PathBuf,
    /// Of the last try, up to the first failed step.
    pub(super) records: Vec<Record>,
    /// The plugin's answer.
    pub(super) plugin: Option<Plugin>,
    pub(super) end: Option<End>,
    /// Tries that a kubelet repeats, and why the last one failed.
    pub(super) retries: Option<(u32, String)>,
    pub(super) is_under_way: bool,
    pub(super) is_gone: bool,
    last: Instant,
}

impl Attempt {
    pub(super) fn new(socket: &Path, at: Instant) -> Self {
        Self {
            socket: socket.to_owned(),
            records: Vec::new(),
            plugin: None,
            end: None,
            retries: None,
            is_under_way: false,
            is_gone: false,
            last: at,
        }
    }

    pub(super) fn record(
        &mut self,
        step: Step,
        outcome: Outcome,
        at: Instant,
        start: Instant,
        detail: String,
    ) {
        if self.outcome(step).is_some() || self.has_failed() {
            return;
        }
        self.records.push(Record {
            step,
            outcome,
            at: at - start,
            took: at.saturating_duration_since(self.last),
            detail,
        });
        self.last = at;
    }

    pub(super) fn outcome(&self, step: Step) -> Option<Outcome> {
        let mut records = self.records.iter();
        let record = records.find(|record| record.step == step);
        record.map(|record| record.outcome)
    }

    pub(super) fn has_failed(&self) -> bool {
        let mut records = self.records.iter();
        records.any(|record| record.outcome == Outcome::Failed)
    }

    /// The step that is waited for.
    pub(super) fn next_step(&self) -> Step {
        let last = self.records.last().map(|record| record.step);
        let mut steps = Step::ALL.into_iter();
        steps
            .find(|step| last.is_none_or(|last| *step > last) && is_told(*step))
            .unwrap_or(Step::Leftovers)
    }

    pub(super) fn on(&mut self, what: &What, at: Instant, start: Instant) {
        use Outcome::{Failed, Passed};
        let mut record = |step, outcome, detail| self.record(step, outcome, at, start, detail);
        match what {
            What::Undesired => self.is_gone = true,
            What::OperationStarted {
                operation: Register,
            } => {
                self.records.retain(|record| record.step <= Step::Socket);
                self.is_under_way = true;
                self.last = at;
            }
            What::Dialed => record(Step::Dial, Passed, "HTTP/2 connection is ready".into()),
            What::InfoReceived { plugin } => {
                record(Step::GetInfo, Passed, event_text::plugin_text(plugin));
                self.plugin = Some(plugin.clone());
            }
            What::Validated => record(Step::Validation, Passed, "type and versions fit".into()),
            What::NodeInfoReceived {
                node_id,
                max_volumes_per_node,
                topology,
                ..
            } => {
                let text = event_text::node_info(node_id, *max_volumes_per_node, topology.as_ref());
                if node_id.is_empty() {
                    record(Step::NodeGetInfo, Failed, "the node id is empty".into());
                } else {
                    record(Step::NodeGetInfo, Passed, text);
                }
            }
            What::NodeInfoFailed { error, .. } => {
                record(Step::NodeGetInfo, Failed, error.clone());
            }
            What::HandlerRefused { error } => {
                // Where the driver answered, what follows it failed.
                let step = self.next_step();
                self.record(step, Failed, at, start, error.clone());
            }
            What::Notified {
                registered,
                text,
                failure,
            } => self.notified(*registered, text, failure.as_deref(), at, start),
            What::OperationSucceeded {
                operation: Register,
            } => {
                self.is_under_way = false;
                self.end = Some(End::Registered);
            }
            What::OperationFailed {
                operation: Register,
                error,
                ..
            } => self.failed(error, at, start),
            _ => {}
        }
    }

    fn notified(
        &mut self,
        registered: bool,
        text: &str,
        failure: Option<&str>,
        at: Instant,
        start: Instant,
    ) {
        let (step, outcome, detail) = match (registered, failure) {
            (true, None) => (
                Step::Notification,
                Outcome::Passed,
                "the registrar was told that the driver is registered".to_owned(),
            ),
            (true, Some(failure)) => (
                Step::Notification,
                Outcome::Failed,
                format!("the registrar did not take it: {failure}"),
            ),
            (false, _) => {
                self.end = Some(End::Refused);
                // Validation is the only step whose failure nothing else tells.
                (self.next_step(), Outcome::Failed, text.to_owned())
            }
        };
        if outcome == Outcome::Failed {
            self.end = Some(End::Refused);
        }
        self.record(step, outcome, at, start, detail);
    }

    /// The registration failed; before a handler was asked, the kubelet repeats it.
    fn failed(&mut self, error: &str, at: Instant, start: Instant) {
        self.is_under_way = false;
        let step = self.next_step();
        self.record(step, Outcome::Failed, at, start, error.to_owned());
        if self.end.is_none() {
            let before = self.retries.as_ref().map_or(0, |(count, _)| *count);
            self.retries = Some((before + 1, format!("{}: {error}", step.name())));
        }
    }
}

/// Whether the manager's events tell of a step.
fn is_told(step: Step) -> bool {
    !matches!(step, Step::Start | Step::ApiServer)
}
