//! Streams in memory in place of sockets.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio::io::DuplexStream;

use crate::manager::connector::{Connector, Stream};
use crate::manager::{BoxFuture, lock};

type Serve = Arc<dyn Fn(DuplexStream) + Send + Sync>;

/// Who listens where. A path without listener refuses, an unknown path does not exist.
#[derive(Default)]
pub(crate) struct Network {
    listeners: Mutex<HashMap<PathBuf, Option<Serve>>>,
    connections: Mutex<Vec<PathBuf>>,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Network")
    }
}

impl Network {
    pub(crate) fn listen(&self, path: &str, serve: impl Fn(DuplexStream) + Send + Sync + 'static) {
        lock(&self.listeners).insert(path.into(), Some(Arc::new(serve)));
    }

    pub(crate) fn refuse(&self, path: &str) {
        lock(&self.listeners).insert(path.into(), None);
    }

    pub(crate) fn remove(&self, path: &str) {
        lock(&self.listeners).remove(Path::new(path));
    }

    /// Attempts to reach `path`, successful or not.
    pub(crate) fn attempts(&self, path: &str) -> usize {
        let connections = lock(&self.connections);
        connections
            .iter()
            .filter(|reached| *reached == Path::new(path))
            .count()
    }
}

impl Connector for Network {
    fn connect<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            lock(&self.connections).push(path.to_owned());
            let listener = lock(&self.listeners).get(path).cloned();
            match listener {
                None => Err(io::Error::from_raw_os_error(2)),
                Some(None) => Err(io::Error::from_raw_os_error(111)),
                Some(Some(serve)) => {
                    let (client, server) = tokio::io::duplex(64 * 1024);
                    serve(server);
                    Ok(Box::new(client) as Box<dyn Stream>)
                }
            }
        })
    }
}
