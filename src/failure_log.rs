//! Failing checks, logged calmly: a probe that fails every second must not bury the reason under itself.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// Every how many failures in a row one is logged, after the first.
const EVERY: u32 = 10;

/// A run of failures: the first, every tenth and the recovery are logged.
#[derive(Debug)]
pub struct FailureLog {
    check: &'static str,
    failing: Mutex<Option<(Instant, u32)>>,
}

impl FailureLog {
    /// For the check of that name.
    pub fn new(check: &'static str) -> Self {
        Self {
            check,
            failing: Mutex::default(),
        }
    }

    /// The check failed.
    pub fn failed(&self, error: &dyn Display) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, failures) = failing.get_or_insert_with(|| (Instant::now(), 0));
        if failures.is_multiple_of(EVERY) {
            let failures = *failures + 1;
            tracing::error!(check = self.check, err = %error, failures, "Health check failed");
        }
        *failures = failures.saturating_add(1);
    }

    /// The check succeeded.
    pub fn succeeded(&self) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, failures)) = failing.take() {
            let lasted = since.elapsed().as_secs_f64();
            tracing::info!(
                check = self.check,
                failures,
                lasted,
                "Health check succeeds again"
            );
        }
    }
}
