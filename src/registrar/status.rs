//! The registration's one state machine. Health, readiness, logs and the exit code are readings of it.
//!
//! ```text
//!                       driver told its name
//!  WaitingForDriver ────────────────────────────► Published ◄───────────────┐
//!                                                  │  ▲  │                  │
//!                      kubelet confirmed           │  │  │ kubelet refused  │
//!            Registered ◄──────────────────────────┘  │  └────────► Refused │ policy `retry`:
//!                 │  ▲                                │              │  │   │ after a growing delay
//!                 │  └────── kubelet confirmed ───────┼──────────────┘  └───┤
//!                 │                                   │                     │
//!    Published, Registered, Refused                   │ published anew,     │
//!                 │                                   │ or ours is back     │
//!                 ├── socket gone ─────────► Lost ────┘                     │
//!                 │                           ▲ gone                        │
//!                 ├── another socket ────► StandBy ── three times no answer ┘
//!                 │                           │▲
//!                 └── no socket there ───► Blocked  (whatever lies at the path decides between these three)
//!
//!  any state ── stop, or a failure that ends the process ──► Stopped   (nothing leads out of it)
//! ```
//!
//! Where a fresh socket cannot be published over one that stands, the state stays what it is, and the attempt is repeated.
//!
//! The machine does no I/O and reads no clock: events and the time go in, at most one [`Action`] comes out. Whoever drives
//! it reports what lies at the path ([`Event::Looked`]) before every other event, so that no decision rests on an old view.

use std::time::Duration;

use tokio::time::Instant;

use super::{Error, FailurePolicy};
use crate::driver::DriverName;
use crate::uds::socket_file::Occupant;

/// How long our socket must be gone before it is published again: an operator's `rm -rf`, or a successor between unlink
/// and bind, should not race with us.
const LOST_FOR: Duration = Duration::from_millis(500);

/// Pause between two attempts to publish in a directory that refuses.
const PUBLISH_PAUSE: Duration = Duration::from_secs(1);

/// How often a stand-by asks the registrar that took over.
const ASK_INTERVAL: Duration = Duration::from_secs(10);

/// How many questions in a row the other registrar may leave unanswered.
const ASK_LIMIT: u8 = 3;

/// When a kubelet that never called is warned about.
const SILENCE: Duration = Duration::from_mins(1);

/// When a kubelet that called, but never told the outcome, is warned about. Its NodeGetInfo may take two minutes.
const NO_OUTCOME: Duration = Duration::from_mins(3);

/// First and longest delay before a refused registration is tried again.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(2));

/// Which publication of the socket a call came through: the kubelet may still hold a connection to an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicationId(pub u64);

/// Where the registration stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The driver's name is not known yet; nothing is published.
    WaitingForDriver,
    /// The socket is there, the kubelet has not told an outcome.
    Published {
        /// Since when.
        since: Instant,
        /// When a kubelet first called `GetInfo`.
        asked: Option<Instant>,
        /// Whether its silence has been logged.
        silence_reported: bool,
    },
    /// The kubelet confirmed the registration of the socket that is there.
    Registered,
    /// The kubelet refused; a fresh socket is published at `retry_at`.
    Refused {
        /// The kubelet's text.
        reason: String,
        /// When to try again.
        retry_at: Instant,
    },
    /// Our socket is gone; it is published again at `publish_at`.
    Lost {
        /// When to publish.
        publish_at: Instant,
    },
    /// Another registrar's socket is at our path.
    StandBy {
        /// When to ask it next.
        ask_at: Instant,
        /// How often in a row it did not answer with our name.
        unanswered: u8,
    },
    /// Something that is no socket is at our path.
    Blocked {
        /// What it is.
        what: &'static str,
    },
    /// The end has begun; nothing is published any more.
    Stopped,
}

impl Phase {
    /// One word for it, as `probe` and metrics use it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::WaitingForDriver => "waiting",
            Self::Published { .. } => "published",
            Self::Registered => "registered",
            Self::Refused { .. } => "refused",
            Self::Lost { .. } => "lost",
            Self::StandBy { .. } => "standby",
            Self::Blocked { .. } => "blocked",
            Self::Stopped => "stopped",
        }
    }
}

/// What happened.
#[derive(Debug)]
pub(super) enum Event {
    /// The driver told its name, for the first time or again after a restart.
    Named(DriverName),
    /// [`Action::Publish`] was carried out.
    Published(PublicationId),
    /// [`Action::Publish`] failed for a reason that may pass.
    NotPublished,
    /// What lies at the path of the socket.
    Looked(Occupant),
    /// A kubelet called `GetInfo` and was answered.
    Asked(PublicationId),
    /// A kubelet called `NotifyRegistrationStatus`: its error text where it refused.
    Notified(PublicationId, Result<(), String>),
    /// Whether the registrar that took over answered with our name.
    OtherAnswered(bool),
    /// [`Status::deadline`] is over.
    Elapsed,
    /// A stop signal, or a failure elsewhere that ends the process.
    Stop,
}

/// What is to be done now.
#[derive(Debug)]
pub(super) enum Action {
    /// Publish a fresh socket under [`Status::name`]; withdraw the old one first if it has another name.
    Publish,
    /// Ask the socket at our path for its name.
    AskOther,
    /// Withdraw, finish the calls in flight, end.
    End(Result<(), Error>),
}

/// The state of one registration.
#[derive(Debug)]
pub struct Status {
    settings: Settings,
    name: Option<DriverName>,
    named_at: Option<Instant>,
    phase: Phase,
    publication: PublicationId,
    /// Whether the current publication has answered a kubelet's `GetInfo`.
    asked: bool,
    /// Why the registration before this one failed, until the driver told its name again.
    failure: Option<String>,
    /// When to publish again although ours stands: the last attempt to do so failed.
    republish_at: Option<Instant>,
    refusals: u32,
}

/// What the machine has to know beforehand.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// What follows a refusal.
    pub policy: FailurePolicy,
    /// Whether a restarted driver gets a fresh socket.
    pub reregister_on_driver_restart: bool,
    /// Spreads retries; any number will do.
    pub random: fn() -> u64,
}

impl Status {
    /// The state before anything is known.
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            name: None,
            named_at: None,
            phase: Phase::WaitingForDriver,
            publication: PublicationId::default(),
            asked: false,
            failure: None,
            republish_at: None,
            refusals: 0,
        }
    }

    /// The state before anything is known again, after a registration that failed.
    pub(super) fn after_failure(settings: Settings, failure: String) -> Self {
        Self {
            failure: Some(failure),
            ..Self::new(settings)
        }
    }

    /// Why the last registration failed, while the next one has not come as far as a name.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The driver's name, once it is known.
    pub fn name(&self) -> Option<&DriverName> {
        self.name.as_ref()
    }

    /// When the driver first told its name.
    pub(super) fn named_at(&self) -> Option<Instant> {
        self.named_at
    }

    /// Whether the kubelet has confirmed the socket that is there now.
    pub fn is_registered(&self) -> bool {
        self.phase == Phase::Registered
    }

    /// Where the registration stands.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// When to report [`Event::Elapsed`], if nothing happens before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let of_phase = match self.phase {
            Phase::Published {
                since,
                asked,
                silence_reported: false,
            } => Some(asked.map_or(since + SILENCE, |asked| asked + NO_OUTCOME)),
            Phase::Refused { retry_at, .. } => Some(retry_at),
            Phase::Lost { publish_at } => Some(publish_at),
            Phase::StandBy { ask_at, .. } => Some(ask_at),
            _ => None,
        };
        of_phase.into_iter().chain(self.republish_at).min()
    }

    /// Takes an event, moves, and says what is to be done.
    pub(super) fn on(&mut self, event: Event, now: Instant) -> Option<Action> {
        if self.phase == Phase::Stopped {
            return None;
        }
        match event {
            Event::Named(name) => self.named(name, now),
            Event::Published(id) => {
                self.publication = id;
                self.asked = false;
                self.republish_at = None;
                self.published(now);
                None
            }
            Event::NotPublished => {
                self.not_published(now + PUBLISH_PAUSE);
                None
            }
            Event::Looked(occupant) => {
                self.looked(occupant, now);
                None
            }
            Event::Asked(id) => {
                self.was_asked(id, now);
                None
            }
            Event::Notified(id, outcome) => self.notified(id, outcome, now),
            Event::OtherAnswered(answered) => self.other_answered(answered),
            Event::Elapsed => self.elapsed(now),
            Event::Stop => Some(self.end(Ok(()))),
        }
    }

    fn named(&mut self, name: DriverName, now: Instant) -> Option<Action> {
        self.failure = None;
        let before = self.name.clone();
        match before {
            None => {
                self.name = Some(name);
                self.named_at = Some(now);
                Some(Action::Publish)
            }
            Some(before) if before != name => {
                tracing::warn!(
                    csiDriverName = %name,
                    before = %before,
                    "The CSI driver came back under another name, registering that one instead"
                );
                self.refusals = 0;
                self.name = Some(name);
                // The socket under the old name is withdrawn first, whatever becomes of the new one.
                self.lose(now + PUBLISH_PAUSE);
                Some(Action::Publish)
            }
            Some(_) => {
                tracing::info!(csiDriverName = %name, "The CSI driver was restarted");
                let is_ours = matches!(
                    self.phase,
                    Phase::Published { .. } | Phase::Registered | Phase::Refused { .. }
                );
                (self.settings.reregister_on_driver_restart && is_ours).then_some(Action::Publish)
            }
        }
    }

    fn lose(&mut self, publish_at: Instant) {
        self.republish_at = None;
        self.phase = Phase::Lost { publish_at };
    }

    fn not_published(&mut self, again_at: Instant) {
        match &mut self.phase {
            // The socket that was to be replaced still stands, and so does what the kubelet said about it.
            Phase::Refused { retry_at, .. } => *retry_at = again_at,
            Phase::Published { .. } | Phase::Registered => self.republish_at = Some(again_at),
            _ => self.lose(again_at),
        }
    }

    fn published(&mut self, now: Instant) {
        self.phase = Phase::Published {
            since: now,
            asked: None,
            silence_reported: false,
        };
    }

    fn looked(&mut self, occupant: Occupant, now: Instant) {
        if occupant != Occupant::Ours {
            self.republish_at = None;
        }
        match (occupant, &self.phase) {
            // Nothing is expected at the path.
            (_, Phase::WaitingForDriver | Phase::Stopped)
            // Nothing new.
            | (Occupant::Ours, Phase::Published { .. } | Phase::Registered | Phase::Refused { .. })
            | (Occupant::Missing, Phase::Lost { .. })
            | (Occupant::AnotherSocket, Phase::StandBy { .. })
            | (Occupant::NotASocket(_), Phase::Blocked { .. }) => {}
            (Occupant::Ours, _) => {
                tracing::info!("The registration socket is back");
                self.published(now);
            }
            (Occupant::Missing, _) => {
                tracing::warn!(
                    "The registration socket is gone, publishing it again; if the kubelet's plugin registry itself was \
                     removed, the kubelet has lost its watch on it and must be restarted"
                );
                self.lose(now + LOST_FOR);
            }
            (Occupant::AnotherSocket, _) => {
                tracing::warn!(
                    "Another registrar took over the registration socket, standing by; expected during a surge upgrade, \
                     otherwise two pods on this node register the same driver"
                );
                self.phase = Phase::StandBy { ask_at: now + ASK_INTERVAL, unanswered: 0 };
            }
            (Occupant::NotASocket(what), _) => {
                tracing::error!(
                    what,
                    "Something that is no socket took the registration socket's place; remove it, then the socket is \
                     published again"
                );
                self.phase = Phase::Blocked { what };
            }
        }
    }

    fn was_asked(&mut self, id: PublicationId, now: Instant) {
        if id != self.publication {
            return;
        }
        self.asked = true;
        if let Phase::Published {
            asked: asked @ None,
            silence_reported,
            ..
        } = &mut self.phase
        {
            *asked = Some(now);
            *silence_reported = false;
        }
    }

    fn notified(
        &mut self,
        id: PublicationId,
        outcome: Result<(), String>,
        now: Instant,
    ) -> Option<Action> {
        let is_at_the_path = matches!(
            self.phase,
            Phase::Published { .. } | Phase::Registered | Phase::Refused { .. }
        );
        if id != self.publication || !self.asked || !is_at_the_path {
            tracing::info!(
                registered = outcome.is_ok(),
                err = outcome.err(),
                "This notification is about an earlier socket and decides nothing"
            );
            return None;
        }
        let Err(reason) = outcome else {
            self.phase = Phase::Registered;
            self.refusals = 0;
            return None;
        };
        if self.settings.policy == FailurePolicy::Exit {
            return Some(self.end(Err(Error::Refused { reason })));
        }
        // The kubelet tries again by itself (since 1.36); its repetitions do not put our own attempt off.
        let retry_at = if let Phase::Refused { retry_at, .. } = self.phase {
            retry_at
        } else {
            let delay = retry_delay(self.refusals, (self.settings.random)());
            self.refusals = self.refusals.saturating_add(1);
            now + delay
        };
        tracing::error!(
            err = %Error::Refused { reason: reason.clone() },
            retryIn = retry_at.saturating_duration_since(now).as_secs_f64(),
            "The registration was refused, trying again with a fresh socket"
        );
        self.phase = Phase::Refused { reason, retry_at };
        None
    }

    fn other_answered(&mut self, answered: bool) -> Option<Action> {
        let Phase::StandBy { unanswered, .. } = &mut self.phase else {
            return None;
        };
        if answered {
            *unanswered = 0;
            return None;
        }
        *unanswered += 1;
        if *unanswered < ASK_LIMIT {
            return None;
        }
        tracing::warn!(
            "The other registration socket does not answer with our driver's name, publishing ours over it"
        );
        Some(Action::Publish)
    }

    fn elapsed(&mut self, now: Instant) -> Option<Action> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        if let Some(republish_at) = &mut self.republish_at
            && *republish_at <= now
        {
            *republish_at = now + PUBLISH_PAUSE;
            return Some(Action::Publish);
        }
        match &mut self.phase {
            Phase::Published {
                asked,
                silence_reported,
                ..
            } => {
                *silence_reported = true;
                report_silence(asked.is_some());
                None
            }
            Phase::StandBy { ask_at, .. } => {
                *ask_at = now + ASK_INTERVAL;
                Some(Action::AskOther)
            }
            Phase::Refused { retry_at, .. } => {
                // Should publishing fail, its event says when to try again; this only keeps the deadline in the future.
                *retry_at = now + PUBLISH_PAUSE;
                Some(Action::Publish)
            }
            Phase::Lost { publish_at } => {
                *publish_at = now + PUBLISH_PAUSE;
                Some(Action::Publish)
            }
            _ => None,
        }
    }

    fn end(&mut self, result: Result<(), Error>) -> Action {
        self.republish_at = None;
        self.phase = Phase::Stopped;
        Action::End(result)
    }
}

fn report_silence(was_asked: bool) {
    if was_asked {
        tracing::warn!(
            after = NO_OUTCOME.as_secs(),
            "The kubelet asked for this driver but never told whether it is registered; its log says why (look for the \
             driver's name), often NodeGetInfo hangs or the API server is out of reach"
        );
    } else {
        tracing::warn!(
            after = SILENCE.as_secs(),
            "No kubelet has called; it watches <kubelet root>/plugins_registry, usually /var/lib/kubelet/plugins_registry: \
             is that the hostPath mounted here, and is the kubelet running?"
        );
    }
}

/// The delay before retry number `refusals` (from 0): doubling, and up to a fifth shorter so that the drivers of a node
/// do not all come back at once.
pub(super) fn retry_delay(refusals: u32, random: u64) -> Duration {
    let (first, longest) = RETRY_DELAY;
    let delay = first
        .saturating_mul(2_u32.saturating_pow(refusals))
        .min(longest);
    let random = u32::try_from(random % 1024).unwrap_or(0);
    delay * (5 * 1024 - random) / (5 * 1024)
}

#[cfg(test)]
mod tests;
