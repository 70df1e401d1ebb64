//! `/metrics` and `/state`.

use std::sync::Arc;
use tonic::async_trait;

use http::StatusCode;

use crate::http::{Answer, Handler, Question};
use crate::manager::PluginManager;

/// Answers from the manager's caches, at once.
#[derive(Clone, Debug)]
pub(super) struct Diagnostics(pub(super) Arc<PluginManager>);

#[async_trait]
impl Handler for Diagnostics {
    async fn handle(&self, request: Question) -> Answer {
        let (content_type, body) = match request.path.as_str() {
            "/metrics" => (
                "text/plain; version=0.0.4; charset=utf-8",
                self.0.metrics().into_bytes(),
            ),
            "/state" => {
                let mut body = serde_json::to_vec_pretty(&self.0.state())
                    .expect("the state has string keys and finite numbers");
                body.push(b'\n');
                ("application/json", body)
            }
            _ => return Answer::not_found(),
        };
        Answer {
            status: StatusCode::OK,
            content_type,
            body: body.into(),
        }
    }
}
