//! One check under way: a kubelet on a fresh directory, a registrar, and what they did.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Instant, sleep_until};

use super::attempt::{Attempt, End};
use super::follower::Follower;
use super::process::Process;
use super::report::{Identity, Report};
use super::step::{Outcome, Record, Step};
use super::{api_server, shown, warnings, words};
use crate::manager::cli::Error;
use crate::manager::cli::node::{AuthorityName, Cluster, Kubelet, NodeArguments, Settings};
use crate::manager::cli::terminal::Progress;
use crate::manager::event::Event;

/// How long the kubelet may take to see what a registrar did just before its end.
const EXIT_GRACE: Duration = Duration::from_secs(1);

/// Between two looks at the progress line.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// What is to be checked.
#[derive(Debug)]
pub(super) struct Plan {
    /// The registrar and its arguments, as the user wrote them.
    pub(super) given: Vec<OsString>,
    /// The same, filled in.
    pub(super) command: Vec<OsString>,
    /// Whether one of them is the registration directory.
    pub(super) is_told_the_directory: bool,
    pub(super) registry: PathBuf,
    /// For the registration, and again for the stop.
    pub(super) timeout: Duration,
}

/// A check and all that it has seen.
pub(super) struct Session {
    pub(super) plan: Plan,
    identity: Identity,
    pub(super) cluster: Cluster,
    kubelet: Kubelet,
    pub(super) events: broadcast::Receiver<Event>,
    pub(super) start: Instant,
    pub(super) process: Option<Process>,
    pub(super) follower: Follower,
    pub(super) records: Vec<Record>,
    pub(super) warnings: Vec<String>,
    objects: Vec<Value>,
    pub(super) progress: Progress,
}

/// Why the registration is not waited for any longer.
enum Cause {
    Exited(String),
    TimedOut,
}

impl Session {
    /// Starts the kubelet, and then the registrar.
    pub(super) async fn start(
        arguments: &NodeArguments,
        authority: Option<AuthorityName>,
        plan: Plan,
    ) -> Result<Self, Error> {
        let cluster = Cluster::new(arguments);
        let mut events = cluster.subscribe();
        let settings = Settings {
            registration_dir: &plan.registry,
            authority,
            observe: false,
        };
        let mut kubelet = cluster.kubelet(settings).await?;
        kubelet.watches(&mut events).await?;
        let start = Instant::now();
        let mut session = Self {
            identity: Identity::new(arguments, &plan.given),
            cluster,
            kubelet,
            events,
            start,
            process: None,
            follower: Follower::new(start),
            records: Vec::new(),
            warnings: Vec::new(),
            objects: Vec::new(),
            progress: Progress::stderr(),
            plan,
        };
        match Process::start(&session.plan.command) {
            Ok(process) => {
                let id = process.id().unwrap_or_default();
                session.record(Step::Start, Outcome::Passed, start, format!("process {id}"));
                session.process = Some(process);
            }
            Err(error) => {
                let program = session.plan.command.first().map(PathBuf::from);
                let program = program.unwrap_or_default();
                let text = format!(
                    "cannot start {}: {error}{}",
                    program.display(),
                    words::hint(&error)
                );
                session.record(Step::Start, Outcome::Failed, start, text);
            }
        }
        Ok(session)
    }

    /// A step that ends now; it took the time since `since`.
    pub(super) fn record(&mut self, step: Step, outcome: Outcome, since: Instant, detail: String) {
        let now = Instant::now();
        self.records.push(Record {
            step,
            outcome,
            at: now - self.start,
            took: now - since,
            detail,
        });
    }

    pub(super) fn has_record(&self, step: Step) -> bool {
        self.records.iter().any(|record| record.step == step)
    }

    /// Follows the registration to its end.
    pub(super) async fn register(&mut self) {
        if self.process.is_none() {
            return;
        }
        let cause = self.until_concluded().await;
        self.progress.clear();
        if let Some(cause) = cause {
            self.give_up(&cause);
        }
        if let Some(attempt) = self.follower.attempt() {
            self.records.extend(attempt.records.iter().cloned());
            self.warnings
                .extend(warnings::of_registration(attempt, &self.plan.registry));
        }
        if let Some(endpoint) = self.unproven_endpoint() {
            self.warnings.extend(warnings::unreachable(&endpoint).await);
        }
        self.warnings
            .extend(warnings::of_others(&self.follower.others()));
        self.objects = self.cluster.values();
        self.ask_api_server();
    }

    /// None, where the kubelet has said yes or no.
    async fn until_concluded(&mut self) -> Option<Cause> {
        let mut deadline = self.start + self.plan.timeout;
        let mut exited = None;
        let mut ticks = tokio::time::interval(TICK);
        while self.follower.end().is_none() {
            let running = async {
                match &mut self.process {
                    Some(process) if exited.is_none() => process.exited().await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                event = self.events.recv() => match event {
                    Ok(event) => self.follower.on(&event),
                    Err(RecvError::Lagged(count)) => self.warnings.push(words::lost(count)),
                    Err(RecvError::Closed) => return Some(Cause::TimedOut),
                },
                status = running => {
                    exited = Some(words::ended(status));
                    deadline = deadline.min(Instant::now() + EXIT_GRACE);
                }
                () = sleep_until(deadline) => {
                    return Some(exited.map_or(Cause::TimedOut, Cause::Exited));
                }
                _ = ticks.tick() => {
                    let step = self.follower.waits_for().name();
                    let seconds = self.start.elapsed().as_secs();
                    let limit = shown(self.plan.timeout);
                    self.progress.show(&format!("waiting for {step}: {seconds} s of {limit}"));
                }
            }
        }
        None
    }

    /// Records why there was no end, unless a failed try says it.
    fn give_up(&mut self, cause: &Cause) {
        let limit = shown(self.plan.timeout);
        let step = self.follower.waits_for();
        let attempt = self.follower.attempt();
        if attempt.is_some_and(Attempt::has_failed) {
            return;
        }
        let since = self.start;
        let retries = attempt.and_then(|attempt| attempt.retries.as_ref());
        let before = retries.map_or_else(String::new, |(count, error)| {
            format!("; {count} tries failed before, the last one {error}")
        });
        let detail = match (step, cause) {
            (Step::Socket, Cause::Exited(how)) => {
                format!(
                    "the registrar {how} before a registration socket appeared{}",
                    words::clue(&self.plan)
                )
            }
            (Step::Socket, Cause::TimedOut) => {
                format!(
                    "no registration socket appeared within {limit}{}",
                    words::clue(&self.plan)
                )
            }
            (Step::NodeGetInfo, Cause::TimedOut) => format!(
                "the driver has not answered NodeGetInfo within {limit}; a kubelet waits for 2 minutes, and fails then"
            ),
            (_, Cause::Exited(how)) => format!("the registrar {how} before that{before}"),
            (_, Cause::TimedOut) => format!("not within {limit}{before}"),
        };
        self.record(step, Outcome::Failed, since, detail);
    }

    /// Where a driver should be that has not answered.
    fn unproven_endpoint(&self) -> Option<PathBuf> {
        let plugin = self.follower.attempt()?.plugin.as_ref()?;
        let has_answered =
            |record: &Record| record.step == Step::NodeGetInfo && record.outcome == Outcome::Passed;
        let is_proven = self.records.iter().any(has_answered);
        (!is_proven).then(|| PathBuf::from(&plugin.endpoint))
    }

    fn ask_api_server(&mut self) {
        let plugin = self
            .follower
            .attempt()
            .and_then(|attempt| attempt.plugin.clone());
        let (node, csi_node) = self.cluster.objects();
        let (Some(plugin), Some(csi_node)) = (plugin, csi_node) else {
            return;
        };
        let mut records = self.records.iter();
        let Some(written) = records.find(|record| record.step == Step::CsiNode) else {
            return;
        };
        let objections = api_server::objections(&plugin.name, &node, &csi_node);
        let (outcome, detail) = if objections.is_empty() {
            (Outcome::Passed, "would take both objects".to_owned())
        } else {
            (Outcome::Failed, objections.join("; "))
        };
        // It would have answered right then.
        self.records.push(Record {
            step: Step::ApiServer,
            outcome,
            at: written.at,
            took: Duration::ZERO,
            detail,
        });
        self.warnings.extend(objections);
    }

    pub(super) fn is_registered(&self) -> bool {
        self.follower.end() == Some(End::Registered)
    }

    /// Ends everything, and says how it went.
    pub(super) async fn report(mut self) -> Result<Report, Error> {
        self.progress.clear();
        let log = self.process.as_ref().map(Process::log);
        drop(self.process.take());
        self.kubelet.stop().await?;
        self.warnings.extend(warnings::of_stop(&self.records));
        Ok(Report::new(
            self.identity,
            &self.records,
            self.warnings,
            self.objects,
            log.unwrap_or_default(),
        ))
    }
}
