//! Follows one registration through the manager's events, and says where it stands. Decides, does nothing.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tokio::time::Instant;

use super::step::{Outcome, Record, Step};
use crate::manager::OperationKind::Register;
use crate::manager::cli::event_text;
use crate::manager::csi::objects::{CsiNodeDriver, NODE_ID_ANNOTATION, Node};
use crate::manager::event::{Event, What};
use crate::manager::plugin_handler::Plugin;

/// Sockets that are followed at once. A registrar makes one.
const MAX_SOCKETS: usize = 32;

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
    is_under_way: bool,
    is_gone: bool,
    last: Instant,
}

/// Every socket's attempt.
#[derive(Debug)]
pub(super) struct Follower {
    start: Instant,
    attempts: BTreeMap<PathBuf, Attempt>,
}

impl Attempt {
    fn new(socket: &Path, at: Instant) -> Self {
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

    fn record(
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

    fn outcome(&self, step: Step) -> Option<Outcome> {
        let mut records = self.records.iter();
        let record = records.find(|record| record.step == step);
        record.map(|record| record.outcome)
    }

    pub(super) fn has_failed(&self) -> bool {
        let mut records = self.records.iter();
        records.any(|record| record.outcome == Outcome::Failed)
    }

    /// The step that is waited for.
    fn next_step(&self) -> Step {
        let last = self.records.last().map(|record| record.step);
        let mut steps = Step::ALL.into_iter();
        steps
            .find(|step| last.is_none_or(|last| *step > last) && is_told(*step))
            .unwrap_or(Step::Leftovers)
    }

    fn on(&mut self, what: &What, at: Instant, start: Instant) {
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

impl Follower {
    /// `start` is the check's begin.
    pub(super) fn new(start: Instant) -> Self {
        Self {
            start,
            attempts: BTreeMap::new(),
        }
    }

    pub(super) fn on(&mut self, event: &Event) {
        let (at, start) = (event.at, self.start);
        let Some(socket) = &event.socket else {
            return self.written(&event.what, at);
        };
        match &event.what {
            What::Desired { .. } => {
                if self.attempts.len() == MAX_SOCKETS && !self.attempts.contains_key(socket) {
                    return;
                }
                let attempt = self.attempts.entry(socket.clone());
                let attempt = attempt.or_insert_with(|| Attempt::new(socket, start));
                attempt.is_gone = false;
                attempt.record(Step::Socket, Outcome::Passed, at, start, describe(socket));
            }
            what => {
                if let Some(attempt) = self.attempts.get_mut(socket) {
                    attempt.on(what, at, start);
                }
            }
        }
    }

    /// Writes of Node and CSINode name no socket: they are those of the plugin that is with its handler.
    fn written(&mut self, what: &What, at: Instant) {
        let mut attempts = self.attempts.values_mut();
        let with_handler = attempts.find(|attempt| {
            attempt.is_under_way && attempt.outcome(Step::NodeGetInfo) == Some(Outcome::Passed)
        });
        let Some(attempt) = with_handler else {
            return;
        };
        let (step, detail) = match what {
            What::NodeWritten { node } => (Step::Node, node_text(node)),
            What::CsiNodeWritten { csi_node } => {
                let name = attempt.plugin.as_ref().map(|plugin| &plugin.name);
                let mut entries = csi_node.spec.drivers.iter();
                let entry = entries.find(|entry| Some(&entry.name) == name);
                // A CSINode is created without drivers.
                let Some(entry) = entry else {
                    return;
                };
                (Step::CsiNode, entry_text(entry))
            }
            _ => return,
        };
        attempt.record(step, Outcome::Passed, at, self.start, detail);
    }

    /// The attempt that matters: the one that is registered, else refused, else the one that came furthest.
    pub(super) fn attempt(&self) -> Option<&Attempt> {
        self.attempts.values().max_by_key(|attempt| {
            let end = match attempt.end {
                Some(End::Registered) => 2,
                Some(End::Refused) => 1,
                None => 0,
            };
            (end, attempt.records.len())
        })
    }

    /// How the registration ended, if it has.
    pub(super) fn end(&self) -> Option<End> {
        self.attempt().and_then(|attempt| attempt.end)
    }

    /// The step that is waited for.
    pub(super) fn waits_for(&self) -> Step {
        self.attempt().map_or(Step::Socket, Attempt::next_step)
    }

    /// Sockets other than the attempt's.
    pub(super) fn others(&self) -> Vec<&Path> {
        let followed = self.attempt().map(|attempt| attempt.socket.as_path());
        let there = self.attempts.values().filter(|attempt| !attempt.is_gone);
        there
            .map(|attempt| attempt.socket.as_path())
            .filter(|socket| Some(*socket) != followed)
            .collect()
    }
}

fn node_text(node: &Node) -> String {
    let ids = node.metadata.annotations.get(NODE_ID_ANNOTATION);
    let labels = node.metadata.labels.iter();
    let labels: Vec<_> = labels
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    format!(
        "annotation {NODE_ID_ANNOTATION}: {}; labels: {}",
        ids.map_or("none", String::as_str),
        if labels.is_empty() {
            "none".to_owned()
        } else {
            labels.join(" ")
        }
    )
}

fn entry_text(entry: &CsiNodeDriver) -> String {
    let limit = match entry.allocatable {
        Some(allocatable) => format!("at most {} volumes", allocatable.count),
        None => "no volume limit".to_owned(),
    };
    format!(
        "entry {}: nodeID {}, topologyKeys [{}], {limit}",
        entry.name,
        entry.node_id,
        entry.topology_keys.join(", ")
    )
}

/// Whether the manager's events tell of a step.
fn is_told(step: Step) -> bool {
    !matches!(step, Step::Start | Step::ApiServer)
}

/// What is to be seen of a socket's file.
fn describe(socket: &Path) -> String {
    let name = socket.file_name().unwrap_or_default().to_string_lossy();
    let length = socket.as_os_str().len();
    match socket.metadata() {
        Ok(metadata) => format!(
            "{name}, mode {:04o}, path of {length} bytes",
            metadata.permissions().mode() & 0o7777
        ),
        Err(_) => format!("{name}, path of {length} bytes"),
    }
}

#[cfg(test)]
mod tests;
