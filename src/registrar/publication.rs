//! The registration socket's life: published, served, looked after, withdrawn.

use std::io;
use std::path::Path;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::service::{self, Plugin};
use crate::uds::socket_file::{Occupant, PublishError, SocketFile};

/// One published socket and the server behind it.
#[derive(Debug)]
pub(super) struct Publication {
    name: String,
    file: SocketFile,
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

impl Publication {
    /// Publishes `plugin` in `directory` over whatever socket has its name there, and serves it.
    pub(super) fn new(directory: &Path, plugin: Plugin) -> Result<Self, PublishError> {
        let (listener, file) = SocketFile::publish(directory, &plugin.name)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let name = plugin.name.clone();
        let server = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            if let Err(error) = service::serve(listener, plugin, stopped).await {
                tracing::error!(err = %error, "Cannot serve the registration socket");
            }
        });
        Ok(Self {
            name,
            file,
            stop,
            server,
        })
    }

    /// The name that it was published under.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Where it was published.
    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// What lies at its path now.
    pub(super) fn occupant(&self) -> Occupant {
        self.file.occupant()
    }

    /// Unlinks the socket if it is still ours.
    pub(super) fn remove(&self) -> io::Result<()> {
        if self.file.withdraw()? {
            tracing::info!(socketPath = %self.path().display(), "Registration socket removed");
        }
        Ok(())
    }

    /// Lets calls in flight end: the handle ends with them. The path is somebody else's, or has been cleared.
    pub(super) fn retire(self) -> JoinHandle<()> {
        // Only after the unlink: a closed socket's inode number may be given to a stranger's file.
        drop(self.stop);
        self.server
    }
}
