//! The `tracing` subscriber, and the same as a layer: no spans, no registry, one formatted line for each event that is
//! shown.

use std::fmt;
use std::time::SystemTime;

use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record as SpanRecord};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::record::{Contents, Record, Severity};
use super::{Format, Level, Settings, Zone, json, text};

/// Where finished lines go.
pub trait Output: Send + Sync + 'static {
    /// Takes one line with its line break at once, or loses it. It must neither fail nor wait.
    fn write_line(&self, line: &str);
}

/// Turns events into klog's lines.
pub struct Subscriber<O> {
    settings: Settings,
    output: O,
    zone: Zone,
    pid: u32,
    now: fn() -> SystemTime,
}

impl<O: Output> Subscriber<O> {
    /// Logs to `output` as this process, by the system's clock; `zone` is for text lines.
    #[allow(
        clippy::disallowed_methods,
        reason = "a log line tells the time of day"
    )]
    pub fn new(settings: Settings, output: O, zone: Zone) -> Self {
        Self {
            settings,
            output,
            zone,
            pid: std::process::id(),
            #[allow(clippy::disallowed_methods, reason = "lines carry the wall time")]
            now: SystemTime::now,
        }
    }

    /// With another process id and clock.
    #[must_use]
    pub fn with_origin(self, pid: u32, now: fn() -> SystemTime) -> Self {
        Self { pid, now, ..self }
    }

    fn format(&self, record: &Record<'_>) -> Result<String, fmt::Error> {
        let mut line = String::with_capacity(256);
        match self.settings.format {
            Format::Text => text::write(&mut line, record, &self.zone)?,
            Format::Json => json::write(&mut line, record)?,
        }
        Ok(line)
    }
}

impl<O> fmt::Debug for Subscriber<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber")
            .field("settings", &self.settings)
            .field("zone", &self.zone)
            .finish_non_exhaustive()
    }
}

/// Whether the event is this package's own. What libraries have to say about a peer that misbehaves comes as often as the
/// peer likes.
fn is_own(metadata: &Metadata<'_>) -> bool {
    let (package, _) = module_path!().split_once("::").unwrap_or_default();
    metadata
        .target()
        .strip_prefix(package)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// `None` for what is never shown: see the room's documentation.
fn severity(metadata: &Metadata<'_>) -> Option<Severity> {
    Some(match (*metadata.level(), metadata.name()) {
        (tracing::Level::ERROR, _) => Severity::Error,
        (tracing::Level::WARN, _) => Severity::Warning,
        (tracing::Level::INFO, "v1") => Severity::Info(Level::new(1)),
        (tracing::Level::INFO, "v2") => Severity::Info(Level::new(2)),
        (tracing::Level::INFO, "v3") => Severity::Info(Level::new(3)),
        (tracing::Level::INFO, "v4") => Severity::Info(Level::new(4)),
        (tracing::Level::INFO, "v5") => Severity::Info(Level::new(5)),
        (tracing::Level::INFO, _) => Severity::Info(Level::new(0)),
        _ => return None,
    })
}

/// klog's lines beside whatever else a program that embeds the library does with its events.
impl<S: tracing::Subscriber, O: Output> Layer<S> for Subscriber<O> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // Not in `Layer::enabled`, which would decide for the other layers too.
        if tracing::Subscriber::enabled(self, event.metadata()) {
            tracing::Subscriber::event(self, event);
        }
    }
}

impl<O: Output> tracing::Subscriber for Subscriber<O> {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // Nothing about it can change later.
        if tracing::Subscriber::enabled(self, metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && is_own(metadata)
            && match severity(metadata) {
                Some(Severity::Info(level)) => {
                    self.settings.verbosity.shows(level, metadata.file())
                }
                Some(Severity::Warning | Severity::Error) => true,
                None => false,
            }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let Some(severity) = severity(metadata) else {
            return;
        };
        let mut contents = Contents::default();
        event.record(&mut contents);
        let record = Record {
            severity,
            time: (self.now)(),
            pid: self.pid,
            file: metadata.file().unwrap_or("???"),
            line: metadata.line().unwrap_or(1),
            contents,
        };
        // Writing to a `String` does not fail.
        if let Ok(line) = self.format(&record) {
            self.output.write_line(&line);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // Never reached while no span is enabled; every span would be the same.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &SpanRecord<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests;
