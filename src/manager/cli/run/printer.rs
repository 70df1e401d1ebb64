//! Events on standard output, as they happen. Written apart from the manager: a reader that stops reading costs events
//! (which is told), not time.

use std::borrow::Cow;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::io::{AsyncWriteExt, Stdout};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::Output;
use super::overview::Overview;
use crate::klog::Zone;
use crate::manager::cli::event_text::describe;
use crate::manager::cli::terminal::{Progress, Style, Tone, printable};
use crate::manager::event::{Event, What};

/// Between two looks at the overview on a terminal.
const TICK: Duration = Duration::from_secs(1);

/// Prints what it receives.
pub(super) struct Printer {
    output: Output,
    receiver: broadcast::Receiver<Event>,
    stdout: Stdout,
    style: Style,
    clock: Clock,
    zone: Zone,
}

/// The wall time of the runtime's clock.
#[derive(Clone, Copy)]
struct Clock {
    wall: SystemTime,
    runtime: Instant,
}

impl Clock {
    #[allow(clippy::disallowed_methods, reason = "lines carry the wall time")]
    fn start() -> Self {
        Self {
            wall: SystemTime::now(),
            runtime: Instant::now(),
        }
    }

    /// Since 1970.
    fn at(self, instant: Instant) -> Duration {
        let wall = self.wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        // Events from before the clock's start differ by microseconds.
        wall + instant.saturating_duration_since(self.runtime)
    }
}

/// One line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since 1970.
    time: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<Cow<'a, str>>,
    #[serde(flatten)]
    what: &'a What,
}

/// Stands for events that were not read in time.
#[derive(Serialize)]
struct Lost {
    time: f64,
    event: &'static str,
    count: u64,
}

impl Printer {
    pub(super) fn new(output: Output, receiver: broadcast::Receiver<Event>) -> Self {
        Self {
            output,
            receiver,
            stdout: tokio::io::stdout(),
            style: Style::stdout(),
            clock: Clock::start(),
            zone: Zone::local(),
        }
    }

    /// Prints until `ended`, and then what is left.
    pub(super) async fn print(mut self, ended: &CancellationToken) -> io::Result<()> {
        let mut overview = Overview::default();
        // The overview stands between the lines: only where both are seen together.
        let together = io::stdout().is_terminal() && self.output == Output::Text;
        let mut progress = together.then(Progress::stderr);
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                event = self.receiver.recv() => {
                    let line = match event {
                        Ok(event) => {
                            overview.note(&event);
                            self.line(&event)
                        }
                        Err(RecvError::Lagged(count)) => self.lost(count),
                        Err(RecvError::Closed) => return Ok(()),
                    };
                    if let Some(progress) = &mut progress {
                        progress.clear();
                    }
                    self.stdout.write_all(line.as_bytes()).await?;
                    self.stdout.flush().await?;
                }
                () = ended.cancelled() => return Ok(()),
                _ = ticks.tick(), if progress.is_some() => {
                    if let Some(progress) = &mut progress {
                        progress.show(&overview.line(Instant::now()));
                    }
                }
            }
        }
    }

    fn line(&self, event: &Event) -> String {
        match self.output {
            Output::Text => self.text(
                event.at,
                event.socket.as_deref(),
                tone(&event.what),
                &describe(&event.what),
            ),
            Output::Json => json(&Line {
                time: self.clock.at(event.at).as_secs_f64(),
                socket: event.socket.as_deref().map(Path::to_string_lossy),
                what: &event.what,
            }),
        }
    }

    fn lost(&self, count: u64) -> String {
        let now = Instant::now();
        match self.output {
            Output::Text => {
                let text = format!("{count} events were lost: they were not read in time");
                self.text(now, None, Some(Tone::Bad), &text)
            }
            Output::Json => json(&Lost {
                time: self.clock.at(now).as_secs_f64(),
                event: "lost",
                count,
            }),
        }
    }

    fn text(&self, at: Instant, socket: Option<&Path>, tone: Option<Tone>, text: &str) -> String {
        let since_1970 = self.clock.at(at);
        let seconds = i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX);
        let time = self.zone.date_time(seconds, since_1970.subsec_nanos());
        let time = format!(
            "{:02}:{:02}:{:02}.{:03}",
            time.hour(),
            time.minute(),
            time.second(),
            since_1970.subsec_millis()
        );
        let time = self.style.paint(Tone::Quiet, &time);
        let name = socket.and_then(Path::file_name);
        let name = name.map_or_else(|| "-".to_owned(), |name| printable(&name.to_string_lossy()));
        let text = match tone {
            Some(tone) => self.style.paint(tone, text),
            None => text.to_owned(),
        };
        format!("{time}  {name}  {text}\n")
    }
}

fn json(line: &impl Serialize) -> String {
    let line = serde_json::to_string(line);
    line.expect("events have string keys and finite numbers") + "\n"
}

fn tone(what: &What) -> Option<Tone> {
    match what {
        What::WatchFailed { .. }
        | What::NodeInfoFailed { .. }
        | What::HandlerRefused { .. }
        | What::OperationFailed { .. }
        | What::Notified {
            registered: false, ..
        }
        | What::Notified {
            failure: Some(_), ..
        } => Some(Tone::Bad),
        What::OperationSucceeded { .. } => Some(Tone::Good),
        _ => None,
    }
}
