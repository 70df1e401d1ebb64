//! A registrar with scripted answers.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::server::{Answer, HttpLog, Script, serve};
use super::{DRIVER, ENDPOINT};
use crate::manager::lock;
use crate::proto;
use crate::proto::registration::registration_server::{Registration, RegistrationServer};

/// A notification as a plugin got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notification {
    pub(crate) registered: bool,
    pub(crate) error: String,
}

/// A registrar with scripted answers.
#[derive(Debug)]
pub(crate) struct FakePlugin {
    pub(crate) http: Arc<HttpLog>,
    /// Ends all its connections when cancelled.
    pub(crate) kill: CancellationToken,
    info: Mutex<proto::registration::PluginInfo>,
    get_info: Mutex<Script>,
    notify: Mutex<Script>,
    notifications: Mutex<Vec<Notification>>,
}

impl FakePlugin {
    pub(crate) fn new(
        plugin_type: &str,
        name: &str,
        endpoint: &str,
        versions: &[&str],
    ) -> Arc<Self> {
        let info = proto::registration::PluginInfo {
            r#type: plugin_type.into(),
            name: name.into(),
            endpoint: endpoint.into(),
            supported_versions: versions.iter().map(|&version| version.to_owned()).collect(),
        };
        Arc::new(Self {
            http: Arc::default(),
            kill: CancellationToken::new(),
            info: Mutex::new(info),
            get_info: Mutex::default(),
            notify: Mutex::default(),
            notifications: Mutex::default(),
        })
    }

    /// What the sidecar publishes for [`DRIVER`].
    pub(crate) fn csi() -> Arc<Self> {
        Self::new(proto::CSI_PLUGIN, DRIVER, ENDPOINT, &["1.0.0"])
    }

    pub(crate) fn info(&self) -> proto::registration::PluginInfo {
        lock(&self.info).clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut proto::registration::PluginInfo)) {
        change(&mut lock(&self.info));
    }

    pub(crate) fn next_get_info(&self, answer: Answer) {
        lock(&self.get_info).next.push_back(answer);
    }

    pub(crate) fn every_get_info(&self, answer: Answer) {
        lock(&self.get_info).last = answer;
    }

    pub(crate) fn next_notify(&self, answer: Answer) {
        lock(&self.notify).next.push_back(answer);
    }

    pub(crate) fn every_notify(&self, answer: Answer) {
        lock(&self.notify).last = answer;
    }

    pub(crate) fn notifications(&self) -> Vec<Notification> {
        lock(&self.notifications).clone()
    }

    /// Number of `GetInfo` calls.
    pub(crate) fn asked(&self) -> usize {
        let calls = self.http.calls();
        calls
            .iter()
            .filter(|call| call.path.ends_with("/GetInfo"))
            .count()
    }

    /// Serves one connection.
    pub(crate) fn accept<I>(self: &Arc<Self>, stream: I)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let service = RegistrationServer::from_arc(self.clone());
        serve(stream, service, self.http.clone(), self.kill.clone());
    }
}

#[tonic::async_trait]
impl Registration for FakePlugin {
    async fn get_info(
        &self,
        _: Request<proto::registration::InfoRequest>,
    ) -> Result<Response<proto::registration::PluginInfo>, Status> {
        let answer = lock(&self.get_info).pop();
        answer.give(self.info()).await
    }

    async fn notify_registration_status(
        &self,
        request: Request<proto::registration::RegistrationStatus>,
    ) -> Result<Response<proto::registration::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        lock(&self.notifications).push(Notification {
            registered: status.plugin_registered,
            error: status.error,
        });
        let answer = lock(&self.notify).pop();
        answer
            .give(proto::registration::RegistrationStatusResponse {})
            .await
    }
}
