//! Registrars with faults: a process that only says where it was told to publish, and a service in the test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_node_driver_registrar::proto::CSI_PLUGIN;
use csi_node_driver_registrar::proto::registration::registration_server::{
    Registration, RegistrationServer,
};
use csi_node_driver_registrar::proto::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use csi_node_driver_registrar::uds::authority::Accepted;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tonic::{Request, Response, Status, async_trait};

use crate::support::until;

/// The words of a process that writes its registration directory to a file and then does nothing until it is stopped.
pub(crate) struct Process {
    directory: tempfile::TempDir,
}

impl Process {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// A directory for the test's own files.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("told")
    }

    pub(crate) fn command(&self) -> Vec<String> {
        let file = self.file();
        let script = r#"echo "$1" > "$2.new" && mv "$2.new" "$2" && exec sleep 60"#;
        [
            "sh",
            "-c",
            script,
            "sh",
            "{registration-dir}",
            file.to_str().unwrap(),
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// Where the process was told to publish.
    pub(crate) async fn registration_directory(&self) -> PathBuf {
        let file = self.file();
        until("the process to be told its directory", || file.exists()).await;
        let text = std::fs::read_to_string(file).unwrap();
        PathBuf::from(text.trim_end())
    }
}

/// How a service answers.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) versions: Vec<String>,
    pub(crate) endpoint: PathBuf,
    /// Before each answer to `GetInfo`.
    pub(crate) delay: Duration,
}

/// A service at work.
pub(crate) struct Served(JoinHandle<()>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Service {
    /// One without faults.
    pub(crate) fn at(endpoint: &Path) -> Self {
        Self {
            versions: vec!["1.0.0".to_owned()],
            endpoint: endpoint.to_owned(),
            delay: Duration::ZERO,
        }
    }

    /// Serves at `path`, whose file stays at the end.
    pub(crate) fn serve(self, path: &Path) -> Served {
        let listener = UnixListener::bind(path).unwrap();
        Served(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(RegistrationServer::new(self.clone()));
                let connection = http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(Accepted::new(stream)), service);
                // How a connection ends is the client's business.
                tokio::spawn(async move {
                    let _ = connection.await;
                });
            }
        }))
    }
}

#[async_trait]
impl Registration for Service {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        tokio::time::sleep(self.delay).await;
        Ok(Response::new(PluginInfo {
            r#type: CSI_PLUGIN.to_owned(),
            name: "fake.example.com".to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: self.versions.clone(),
        }))
    }

    async fn notify_registration_status(
        &self,
        _: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
