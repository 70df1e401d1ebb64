//! Where all sockets stand, in one line: what a person sees between two events.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use tokio::time::Instant;

use crate::manager::event::{Event, What};

/// Read from events alone, for display.
#[derive(Debug, Default)]
pub(super) struct Overview {
    sockets: BTreeMap<PathBuf, Stand>,
}

#[derive(Debug, Default)]
struct Stand {
    desired: bool,
    registered: bool,
    /// Since when.
    under_way: Option<Instant>,
    /// No attempt before.
    retry_at: Option<Instant>,
}

impl Overview {
    pub(super) fn note(&mut self, event: &Event) {
        let Some(socket) = &event.socket else {
            return;
        };
        let stand = self.sockets.entry(socket.clone()).or_default();
        match &event.what {
            What::OperationStarted { .. } => stand.under_way = Some(event.at),
            What::HandlerRegistered => stand.registered = true,
            What::Deregistered { .. } => stand.registered = false,
            What::OperationSucceeded { .. } => {
                stand.under_way = None;
                stand.retry_at = None;
            }
            What::OperationFailed { backoff, .. } => {
                stand.under_way = None;
                stand.retry_at = Some(event.at + *backoff);
            }
            What::Desired { .. } => stand.desired = true,
            What::Undesired => stand.desired = false,
            _ => {}
        }
        if !stand.desired && !stand.registered && stand.under_way.is_none() {
            self.sockets.remove(socket);
        }
    }

    /// The line at `now`.
    pub(super) fn line(&self, now: Instant) -> String {
        let stands = self.sockets.values();
        let registered = stands.clone().filter(|stand| stand.registered).count();
        let mut line = format!("sockets: {}, registered: {registered}", self.sockets.len());
        // Writing to a String cannot fail.
        let begun = stands.clone().filter_map(|stand| stand.under_way).min();
        if let Some(begun) = begun {
            let _ = write!(line, ", one under way for {} s", (now - begun).as_secs());
        }
        let retry_at = stands.filter_map(|stand| stand.retry_at).min();
        if let Some(retry_at) = retry_at.filter(|retry_at| *retry_at > now) {
            let seconds = (retry_at - now).as_secs() + 1;
            let _ = write!(line, ", next attempt in {seconds} s");
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::manager::Identity;
    use crate::manager::OperationKind::{Register, Unregister};

    const APPEARED: What = What::Desired {
        identity: Identity::nth(1),
        replaced: false,
    };

    fn began(operation: crate::manager::OperationKind) -> What {
        What::OperationStarted { operation }
    }

    #[test]
    fn sockets_come_fail_wait_and_go() {
        let start = Instant::now();
        let mut overview = Overview::default();
        let mut after = |seconds, socket: &str, whats: Vec<What>| {
            let at = start + Duration::from_secs(seconds);
            for what in whats {
                let socket = Some(socket.into());
                overview.note(&Event { at, socket, what });
            }
            overview.line(at)
        };
        assert_eq!(
            after(1, "a", vec![APPEARED, began(Register)]),
            "sockets: 1, registered: 0, one under way for 0 s"
        );
        let succeeded = |operation| What::OperationSucceeded { operation };
        let registered = vec![What::HandlerRegistered, succeeded(Register)];
        assert_eq!(after(2, "a", registered), "sockets: 1, registered: 1");
        let failed = What::OperationFailed {
            operation: Register,
            error: String::new(),
            backoff: Duration::from_secs(8),
        };
        assert_eq!(
            after(3, "b", vec![APPEARED, began(Register), failed]),
            "sockets: 2, registered: 1, next attempt in 9 s"
        );
        assert_eq!(
            after(4, "b", vec![What::Undesired]),
            "sockets: 1, registered: 1"
        );
        assert_eq!(
            after(5, "a", vec![What::Undesired, began(Unregister)]),
            "sockets: 1, registered: 1, one under way for 0 s"
        );
        let name = "d".to_owned();
        let gone = vec![What::Deregistered { name }, succeeded(Unregister)];
        assert_eq!(after(6, "a", gone), "sockets: 0, registered: 0");
    }
}
