//! What happened when, for the report of a failure: actions, ends of processes, and the kubelet's events in one order.

use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

/// Cheap to clone; all clones are one journal.
#[derive(Clone)]
pub struct Journal {
    begun: Instant,
    begun_at: SystemTime,
    entries: Arc<Mutex<Vec<(Instant, String)>>>,
}

impl Journal {
    pub fn new() -> Self {
        #[allow(
            clippy::disallowed_methods,
            reason = "holds the journal's times against those of the registrars' logs"
        )]
        let begun_at = SystemTime::now();
        Self {
            begun: Instant::now(),
            begun_at,
            entries: Arc::default(),
        }
    }

    pub fn note(&self, text: impl Into<String>) {
        self.note_at(Instant::now(), text);
    }

    pub fn note_at(&self, at: Instant, text: impl Into<String>) {
        self.entries.lock().unwrap().push((at, text.into()));
    }

    /// Everything, with seconds since the beginning and the UTC minute's seconds, which the registrars' logs show.
    pub fn text(&self) -> String {
        let mut entries = self.entries.lock().unwrap().clone();
        entries.sort_by_key(|(at, _)| *at);
        let begun_at = self
            .begun_at
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
        let mut text = String::new();
        for (at, entry) in entries {
            let at = at.saturating_duration_since(self.begun).as_secs_f64();
            let clock = (begun_at + at) % 3600.0;
            let (minute, second) = ((clock / 60.0).floor(), clock % 60.0);
            writeln!(text, "{at:8.3} {minute:02}:{second:06.3} {entry}").unwrap();
        }
        text
    }
}
