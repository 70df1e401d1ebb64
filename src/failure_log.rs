//! Failing checks, logged calmly: a probe that fails every second must not bury the reason under itself.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// Every how many failures in a row one is logged, after the first.
const EVERY: u32 = 10;

/// A run of failures: the first, every tenth, one of another kind and the recovery are logged.
#[derive(Debug)]
pub(crate) struct FailureLog {
    check: &'static str,
    failing: Mutex<Option<Failing>>,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    failures: u32,
    /// Since the last one that was logged.
    unlogged: u32,
    kind: String,
}

impl FailureLog {
    /// For the check of that name.
    pub(crate) fn new(check: &'static str) -> Self {
        Self {
            check,
            failing: Mutex::default(),
        }
    }

    /// The check failed. `kind` is the part of the reason that stays the same while the cause does: a reason that tells
    /// durations, or a driver's own words, is a new text each time and no news.
    pub(crate) fn failed(&self, kind: &str, reason: &str) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let run = failing.get_or_insert_with(|| Failing {
            since: Instant::now(),
            failures: 0,
            // The first one is due.
            unlogged: EVERY - 1,
            kind: String::new(),
        });
        run.failures = run.failures.saturating_add(1);
        if run.kind != kind || run.unlogged + 1 == EVERY {
            tracing::error!(
                check = self.check,
                err = reason,
                failures = run.failures,
                "Health check failed"
            );
            kind.clone_into(&mut run.kind);
            run.unlogged = 0;
        } else {
            run.unlogged += 1;
        }
    }

    /// The check succeeded.
    pub(crate) fn succeeded(&self) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(run) = failing.take() {
            tracing::info!(
                check = self.check,
                failures = run.failures,
                lasted = run.since.elapsed().as_secs_f64(),
                "Health check succeeds again"
            );
        }
    }
}
