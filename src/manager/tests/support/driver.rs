//! A CSI driver with scripted answers.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::server::{Answer, HttpLog, Script, serve};
use crate::manager::lock;
use crate::proto;
use crate::proto::csi::node_server::{Node as NodeService, NodeServer};

/// A driver's Node service with scripted answers.
#[derive(Debug)]
pub(crate) struct FakeDriver {
    pub(crate) http: Arc<HttpLog>,
    info: Mutex<proto::csi::NodeGetInfoResponse>,
    answers: Mutex<Script>,
}

impl FakeDriver {
    pub(crate) fn new(node_id: &str) -> Arc<Self> {
        Arc::new(Self {
            http: Arc::default(),
            info: Mutex::new(proto::csi::NodeGetInfoResponse {
                node_id: node_id.into(),
                max_volumes_per_node: 0,
                accessible_topology: None,
            }),
            answers: Mutex::default(),
        })
    }

    pub(crate) fn set_topology(&self, segments: &[(&str, &str)]) {
        let segments = segments
            .iter()
            .map(|&(key, value)| (key.into(), value.into()))
            .collect();
        lock(&self.info).accessible_topology = Some(proto::csi::Topology { segments });
    }

    pub(crate) fn set_limit(&self, volumes: i64) {
        lock(&self.info).max_volumes_per_node = volumes;
    }

    pub(crate) fn next_answer(&self, answer: Answer) {
        lock(&self.answers).next.push_back(answer);
    }

    pub(crate) fn accept<I>(self: &Arc<Self>, stream: I)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let service = NodeServer::from_arc(self.clone());
        serve(stream, service, self.http.clone(), CancellationToken::new());
    }
}

#[tonic::async_trait]
impl NodeService for FakeDriver {
    async fn node_get_info(
        &self,
        _: Request<proto::csi::NodeGetInfoRequest>,
    ) -> Result<Response<proto::csi::NodeGetInfoResponse>, Status> {
        let answer = lock(&self.answers).pop();
        let info = lock(&self.info).clone();
        answer.give(info).await
    }
}
