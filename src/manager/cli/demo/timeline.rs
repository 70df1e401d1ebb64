//! The story as lines: when, who, what.

use std::io::{self, Write};
use std::time::Duration;

use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::StoryError;
use crate::manager::cli::Error;
use crate::manager::cli::event_text::describe;
use crate::manager::cli::terminal::{Progress, Style, Tone};
use crate::manager::event::{Event, What};
use crate::registrar::Status;

/// How long one thing may take on a machine that is busy; a second or two is usual.
const STAGE_LIMIT: Duration = Duration::from_secs(30);

/// Silence after which a person is told what is waited for.
const SILENCE: Duration = Duration::from_millis(300);

/// Who does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Party {
    Driver,
    Registrar,
    Kubelet,
    Cluster,
}

impl Party {
    const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Registrar => "registrar",
            Self::Kubelet => "kubelet",
            Self::Cluster => "cluster",
        }
    }

    /// Whose deed an event is.
    const fn of(what: &What) -> Self {
        match what {
            What::NodeInfoReceived { .. } | What::NodeInfoFailed { .. } => Self::Driver,
            What::NodeWritten { .. } | What::CsiNodeWritten { .. } | What::CsiNodeDeleted => {
                Self::Cluster
            }
            _ => Self::Kubelet,
        }
    }
}

/// Prints events as they come, and waits for some.
pub(super) struct Timeline {
    style: Style,
    start: Instant,
    events: broadcast::Receiver<Event>,
    registrar: Option<Followed>,
    stages: u32,
    progress: Progress,
}

impl Timeline {
    pub(super) fn new(style: Style, events: broadcast::Receiver<Event>) -> Self {
        Self {
            style,
            start: Instant::now(),
            events,
            registrar: None,
            stages: 0,
            progress: Progress::stderr(),
        }
    }

    /// Also tells what this registrar does, from now on.
    pub(super) fn follow(&mut self, registrar: watch::Receiver<Status>) {
        self.registrar = Some(Followed {
            status: registrar,
            told: "",
        });
    }

    /// Begins a stage.
    pub(super) fn heading(&mut self, text: &str) -> io::Result<()> {
        self.stages += 1;
        let heading = format!("{}. {text}", self.stages);
        self.progress.clear();
        writeln!(
            io::stdout(),
            "\n{}",
            self.style.paint(Tone::Heading, &heading)
        )
    }

    /// A line of a party's own.
    pub(super) fn say(&mut self, party: Party, text: &str) -> io::Result<()> {
        self.line(Instant::now(), party, text, None)
    }

    /// Prints what happens until `wanted` has.
    pub(super) async fn until(
        &mut self,
        what: &'static str,
        wanted: impl Fn(&What) -> bool,
    ) -> Result<(), Error> {
        let begin = Instant::now();
        let deadline = begin + STAGE_LIMIT;
        loop {
            tokio::select! {
                biased;
                event = self.events.recv() => match event {
                    Ok(event) => {
                        self.event(&event)?;
                        if wanted(&event.what) {
                            return Ok(());
                        }
                    }
                    // One slow line more; what was wanted may still come.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => {
                        return Err(StoryError::TimedOut { what, limit: begin.elapsed() }.into());
                    }
                },
                phase = next_phase(&mut self.registrar) => self.phase(phase)?,
                () = tokio::time::sleep(SILENCE) => {
                    let seconds = begin.elapsed().as_secs_f64();
                    self.progress.show(&format!("waiting for {what}, {seconds:.1} s"));
                    if Instant::now() >= deadline {
                        return Err(StoryError::TimedOut { what, limit: STAGE_LIMIT }.into());
                    }
                }
            }
        }
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        let tone = match event.what {
            // Said again by the step that follows.
            What::OperationStarted { .. }
            | What::Dialed
            | What::Validated
            | What::HandlerRegistered => return Ok(()),
            What::OperationSucceeded { .. } => Some(Tone::Good),
            What::OperationFailed { .. } | What::HandlerRefused { .. } => Some(Tone::Bad),
            _ => None,
        };
        let text = describe(&event.what);
        self.line(event.at, Party::of(&event.what), &text, tone)
    }

    fn phase(&mut self, phase: &'static str) -> io::Result<()> {
        let text = match phase {
            "waiting" => "waits for the driver",
            "published" => "publishes its socket",
            "registered" => "knows that the kubelet has the driver",
            "lost" => "has lost its socket",
            "stopped" => "stops, and takes its socket away",
            other => other,
        };
        self.say(Party::Registrar, text)
    }

    fn line(
        &mut self,
        at: Instant,
        party: Party,
        text: &str,
        tone: Option<Tone>,
    ) -> io::Result<()> {
        self.progress.clear();
        let seconds = at.saturating_duration_since(self.start).as_secs_f64();
        let time = self.style.paint(Tone::Quiet, &format!("{seconds:7.3} s"));
        let name = format!("{:9}", party.name());
        let name = self.style.paint(Tone::Party(party as u8), &name);
        let text = match tone {
            Some(tone) => self.style.paint(tone, text),
            None => text.to_owned(),
        };
        writeln!(io::stdout(), "{time}  {name}  {text}")
    }
}

/// What is known of the registrar.
struct Followed {
    status: watch::Receiver<Status>,
    told: &'static str,
}

impl Followed {
    /// Its phase, once it is not the one that was told last. Changes that come together are one.
    async fn next_phase(&mut self) -> &'static str {
        loop {
            let phase = self.status.borrow_and_update().phase().name();
            if phase != self.told {
                self.told = phase;
                return phase;
            }
            if self.status.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// The next phase of the registrar; never, without one.
async fn next_phase(registrar: &mut Option<Followed>) -> &'static str {
    match registrar {
        Some(registrar) => registrar.next_phase().await,
        None => std::future::pending().await,
    }
}
