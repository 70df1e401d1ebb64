//! The verdict, in three forms.

use serde::Serialize;
use serde_json::Value;

use super::step::{Outcome, Record, Step};
use crate::manager::cli::node::NodeArguments;
use std::ffi::OsString;

mod junit;
mod text;

/// Lines of the registrar's output in a report.
const MAX_LOG_LINES: usize = 200;

/// Who was checked, and by whose rules.
#[derive(Debug, Serialize)]
pub(super) struct Identity {
    registrar: Vec<String>,
    /// Kubernetes version.
    profile: String,
    node: String,
}

impl Identity {
    pub(super) fn new(arguments: &NodeArguments, command: &[OsString]) -> Self {
        let command = command.iter();
        Self {
            registrar: command
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect(),
            profile: arguments.profile.to_string(),
            node: arguments.node_name.clone(),
        }
    }
}

/// All that a check found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    passed: bool,
    /// The first failed step and its detail; none if it passed.
    reason: Option<String>,
    #[serde(flatten)]
    identity: Identity,
    /// All steps, in order.
    steps: Vec<Record>,
    warnings: Vec<String>,
    /// Node and CSINode as they were when the registration ended.
    objects: Vec<Value>,
    /// The end of the registrar's output.
    log: Vec<String>,
}

impl Report {
    pub(super) fn new(
        identity: Identity,
        records: &[Record],
        warnings: Vec<String>,
        objects: Vec<Value>,
        mut log: Vec<String>,
    ) -> Self {
        let steps: Vec<_> = Step::ALL
            .into_iter()
            .map(|step| {
                let mut records = records.iter();
                let record = records.find(|record| record.step == step);
                record.cloned().unwrap_or_else(|| Record::skipped(step))
            })
            .collect();
        let mut failed = steps.iter().filter(|step| step.outcome == Outcome::Failed);
        let reason = failed
            .next()
            .map(|record| format!("{}: {}", record.step.name(), record.detail));
        log.drain(..log.len().saturating_sub(MAX_LOG_LINES));
        Self {
            passed: reason.is_none(),
            reason,
            identity,
            steps,
            warnings,
            objects,
            log,
        }
    }

    /// Whether a kubelet would have the driver registered, and the stop left nothing behind.
    pub(super) fn passed(&self) -> bool {
        self.passed
    }

    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    pub(super) fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("a report has string keys and finite numbers") + "\n"
    }
}
