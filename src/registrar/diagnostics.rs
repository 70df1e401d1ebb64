//! The paths of the diagnostics server (`--http-endpoint`).

use std::sync::Arc;

use http::StatusCode;
use tonic::async_trait;

use super::health::Health;
use super::metrics::RegistrarMetrics;
use crate::command::Invocation;
use crate::http::{Answer, Handler, Question};

/// Health, readiness, metrics and, where asked for, Go's pprof paths.
#[derive(Clone, Debug)]
pub(super) struct Diagnostics {
    health: Health,
    metrics: RegistrarMetrics,
    /// The process's arguments, where `/debug/pprof/` is served.
    pprof: Option<Arc<[u8]>>,
}

impl Diagnostics {
    /// `invocation` is what `/debug/pprof/cmdline` shows; `None` serves nothing below `/debug/pprof/`.
    pub(super) fn new(
        health: Health,
        metrics: RegistrarMetrics,
        invocation: Option<Invocation>,
    ) -> Self {
        let pprof = invocation.map(|invocation| {
            let words = std::iter::once(&invocation.program).chain(&invocation.arguments);
            let words: Vec<_> = words.map(|word| word.as_encoded_bytes()).collect();
            words.join(&0).into()
        });
        Self {
            health,
            metrics,
            pprof,
        }
    }
}

#[async_trait]
impl Handler for Diagnostics {
    async fn handle(&self, question: Question) -> Answer {
        match (question.path.as_str(), &self.pprof) {
            ("/healthz", _) => self.health.healthz().await,
            ("/healthz/driver", _) => self.health.driver().await,
            ("/readyz", _) => self.health.readyz(),
            ("/metrics", _) => self.metrics.answer(),
            ("/debug/pprof/", Some(_)) => Answer {
                status: StatusCode::OK,
                content_type: "text/html; charset=utf-8",
                body: PPROF_INDEX.into(),
            },
            ("/debug/pprof/cmdline", Some(arguments)) => {
                Answer::text(StatusCode::OK, arguments.to_vec())
            }
            ("/debug/pprof/profile", Some(_)) => super::pprof::profile(&question.query).await,
            _ => Answer::not_found(),
        }
    }
}

const PPROF_INDEX: &str = "<html>
<head><title>/debug/pprof/</title></head>
<body>
<p>/debug/pprof/</p>
<table>
<tr><td><a href=\"cmdline\">cmdline</a></td><td>the arguments of this process, separated by NUL</td></tr>
<tr><td><a href=\"profile?seconds=30\">profile</a></td><td>a CPU profile for <code>go tool pprof</code>, in builds that \
have the profiler</td></tr>
</table>
</body>
</html>
";
