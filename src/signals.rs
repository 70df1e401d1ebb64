//! The signals that end a sidecar. As process 1 of a container a signal that is not caught does nothing, so they are caught
//! from the very start.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The stop signals, caught.
#[derive(Debug)]
pub(crate) struct Signals([(&'static str, Signal); 4]);

impl Signals {
    /// Catches TERM, INT, HUP and QUIT from now on. Needs a tokio runtime.
    pub(crate) fn catch() -> io::Result<Self> {
        Ok(Self([
            ("SIGTERM", signal(SignalKind::terminate())?),
            ("SIGINT", signal(SignalKind::interrupt())?),
            ("SIGHUP", signal(SignalKind::hangup())?),
            ("SIGQUIT", signal(SignalKind::quit())?),
        ]))
    }

    /// The name of the next one. Cancel safe.
    pub(crate) async fn next(&mut self) -> &'static str {
        poll_fn(|cx| {
            for (name, signal) in &mut self.0 {
                if signal.poll_recv(cx).is_ready() {
                    return Poll::Ready(*name);
                }
            }
            Poll::Pending
        })
        .await
    }
}
