//! Follows one registration through the manager's events, and says where it stands. Decides, does nothing.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tokio::time::Instant;

use super::attempt::{Attempt, End};
use super::step::{Outcome, Step};
use crate::manager::csi::objects::{CsiNodeDriver, NODE_ID_ANNOTATION, Node};
use crate::manager::event::{Event, What};

/// Sockets that are followed at once. A registrar makes one.
const MAX_SOCKETS: usize = 32;

/// Every socket's attempt.
#[derive(Debug)]
pub(super) struct Follower {
    start: Instant,
    attempts: BTreeMap<PathBuf, Attempt>,
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
