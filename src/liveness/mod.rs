//! The liveness probe's job: an HTTP server that turns a kubelet's probe into a CSI `Identity/Probe` call. The kubelet's
//! `livenessProbe` stands at the *driver's* container, so a failing answer restarts the driver, never us.
//!
//! It is served beside the registrar (`--liveness-endpoint`), or alone as a drop-in for the Go sidecar (`command`).

pub(crate) mod command;
mod flags;
mod prober;

use std::time::Duration;

use tonic::async_trait;

pub(crate) use prober::Prober;

use crate::driver::Address;
use crate::http::{Answer, Handler, Question};
use crate::metrics::Metrics;

/// The path that kubelets ask, as the Go sidecar has it.
const HEALTHZ: &str = "/healthz";

/// Serves `/healthz`, and nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Liveness {
    prober: Prober,
}

impl Liveness {
    /// `limit` bounds connecting to the driver and its `Probe` together.
    pub(crate) fn new(address: Address, limit: Duration, metrics: Metrics) -> Self {
        Self {
            prober: Prober::new(address, limit, metrics),
        }
    }
}

#[async_trait]
impl Handler for Liveness {
    async fn handle(&self, question: Question) -> Answer {
        match question.path.as_str() {
            HEALTHZ => self.prober.answer().await,
            _ => Answer::not_found(),
        }
    }
}
