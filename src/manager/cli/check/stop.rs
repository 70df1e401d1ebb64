//! The second half of a check: a graceful stop, as a pod's end is one.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};

use super::process::Process;
use super::session::{Session, TICK};
use super::shown;
use super::step::{Outcome, Step};
use super::words::{ended, lost};
use crate::manager::OperationKind::Unregister;
use crate::manager::event::{Event, What};

/// Names of left files that are told, at most.
const MAX_NAMES: usize = 20;

impl Session {
    /// Stops a registrar that is registered, and looks at what it leaves behind.
    pub(super) async fn stop_registrar(&mut self) {
        if !self.is_registered() {
            return;
        }
        let Some(attempt) = self.follower.attempt() else {
            return;
        };
        let socket = attempt.socket.clone();
        let driver = attempt.plugin.as_ref().map(|plugin| plugin.name.clone());
        let driver = driver.unwrap_or_default();
        let begin = Instant::now();
        let ended_before = self.process.as_mut().and_then(Process::ended);
        match ended_before {
            Some(status) => {
                let text = format!(
                    "the registrar {} by itself, once it was registered",
                    ended(Ok(status))
                );
                self.record(Step::Exit, Outcome::Failed, begin, text);
            }
            None => self.process.iter().for_each(Process::terminate),
        }
        self.until_stopped(begin, &socket, &driver).await;
        self.progress.clear();
        if let Some(process) = &mut self.process {
            process.kill();
        }
        self.look_for_leftovers(begin, &socket);
    }

    /// Waits until the process has ended and the kubelet has done what follows from what it left.
    async fn until_stopped(&mut self, begin: Instant, socket: &Path, driver: &str) {
        let deadline = begin + self.plan.timeout;
        let mut ticks = tokio::time::interval(TICK);
        loop {
            let has_exited = self.has_record(Step::Exit);
            if has_exited && !self.has_record(Step::SocketRemoval) && is_there(socket) {
                let text = format!(
                    "the registrar ended and left its socket {} behind: a kubelet keeps the driver registered, and after its \
                     own restart dials the dead socket with growing delays",
                    socket.display()
                );
                self.record(Step::SocketRemoval, Outcome::Failed, begin, text);
            }
            if has_exited && self.is_settled() {
                return;
            }
            let exited = async {
                match &mut self.process {
                    Some(process) if !has_exited => process.exited().await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                event = self.events.recv() => match event {
                    Ok(event) => self.on_stop_event(&event, begin, socket, driver),
                    Err(RecvError::Lagged(count)) => self.warnings.push(lost(count)),
                    Err(RecvError::Closed) => return,
                },
                status = exited => self.exited(status, begin),
                () = sleep_until(deadline) => return self.stop_timed_out(begin, socket),
                _ = ticks.tick() => {
                    let seconds = begin.elapsed().as_secs();
                    let limit = shown(self.plan.timeout);
                    self.progress.show(&format!("waiting for the stop: {seconds} s of {limit}"));
                }
            }
        }
    }

    /// Whether the kubelet has nothing more to do.
    fn is_settled(&self) -> bool {
        let mut removals = self.records.iter();
        let removal = removals.find(|record| record.step == Step::SocketRemoval);
        match removal.map(|record| record.outcome) {
            None => false,
            Some(Outcome::Passed) => {
                self.has_record(Step::Deregistration)
                    || !self.cluster.forgets_plugins_that_are_gone()
            }
            Some(_) => true,
        }
    }

    fn on_stop_event(&mut self, event: &Event, begin: Instant, socket: &Path, driver: &str) {
        if event.socket.as_deref() != Some(socket) {
            return;
        }
        match &event.what {
            What::Undesired if !self.has_record(Step::SocketRemoval) => {
                let text = "the registrar took its socket away".to_owned();
                self.record(Step::SocketRemoval, Outcome::Passed, begin, text);
            }
            What::OperationSucceeded {
                operation: Unregister,
            } if !self.has_record(Step::Deregistration) => {
                let (outcome, text) = if self.cluster.has_forgotten(driver) {
                    (
                        Outcome::Passed,
                        format!("{driver} is gone from Node and CSINode"),
                    )
                } else {
                    (
                        Outcome::Failed,
                        format!("{driver} is still in Node or CSINode"),
                    )
                };
                self.record(Step::Deregistration, outcome, begin, text);
            }
            _ => {}
        }
    }

    fn exited(&mut self, status: io::Result<ExitStatus>, begin: Instant) {
        let is_success = status.as_ref().is_ok_and(ExitStatus::success);
        let how = ended(status);
        if !is_success {
            self.warnings.push(format!(
                "the registrar {how} at a graceful stop: its pod will be shown as failed"
            ));
        }
        self.record(
            Step::Exit,
            Outcome::Passed,
            begin,
            format!("the registrar {how}"),
        );
    }

    fn stop_timed_out(&mut self, begin: Instant, socket: &Path) {
        let limit = shown(self.plan.timeout);
        if !self.has_record(Step::Exit) {
            let text =
                format!("the registrar still runs {limit} after SIGTERM: a kubelet would kill it");
            self.record(Step::Exit, Outcome::Failed, begin, text);
        }
        if !self.has_record(Step::SocketRemoval) {
            let text = if is_there(socket) {
                format!("{} is still there {limit} after SIGTERM", socket.display())
            } else {
                format!("the kubelet has not noticed within {limit} that the socket is gone")
            };
            self.record(Step::SocketRemoval, Outcome::Failed, begin, text);
        } else if !self.has_record(Step::Deregistration)
            && self.cluster.forgets_plugins_that_are_gone()
        {
            let text = format!("not within {limit} of SIGTERM");
            self.record(Step::Deregistration, Outcome::Failed, begin, text);
        }
    }

    fn look_for_leftovers(&mut self, begin: Instant, socket: &Path) {
        if !self.cluster.forgets_plugins_that_are_gone() {
            self.warnings.push(
                "kubelets before 1.19 keep a driver registered whose socket is gone, until another registers under its name"
                    .to_owned(),
            );
        }
        let mut names = Vec::new();
        collect(&self.plan.registry, &mut names);
        // Its removal is a step of its own.
        names.retain(|path| path != socket);
        if names.is_empty() {
            let text = "nothing else is in the registration directory".to_owned();
            self.record(Step::Leftovers, Outcome::Passed, begin, text);
            return;
        }
        let count = names.len();
        let registry = &self.plan.registry;
        let names: Vec<_> = names
            .iter()
            .take(MAX_NAMES)
            .map(|path| {
                path.strip_prefix(registry)
                    .unwrap_or(path)
                    .display()
                    .to_string()
            })
            .collect();
        let text = format!(
            "{count} left in the registration directory: {}",
            names.join(", ")
        );
        self.record(Step::Leftovers, Outcome::Failed, begin, text);
    }
}

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Adds what is below `directory`; directories only where they are empty.
fn collect(directory: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let before = paths.len();
        if is_directory {
            collect(&entry.path(), paths);
        }
        if paths.len() == before {
            paths.push(entry.path());
        }
    }
}
