//! `probe`: an exec probe for an image without a shell. Asks the registration sockets of the node which of them is this
//! driver's, and whether it answers.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Parser;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::flags::Flags;
use super::service;
use super::status::Phase;

/// Sockets that are asked at once. A node has a few dozen drivers.
const MAX_SOCKETS: usize = 256;

/// The sub-command's flags: all of the registrar's, so that a manifest can repeat them, and one more.
#[derive(Debug, Parser)]
pub(crate) struct ProbeFlags {
    #[command(flatten)]
    registrar: Flags,

    #[arg(
        long,
        help = "Succeed only if the kubelet has confirmed the registration"
    )]
    registered: bool,
}

/// Why a probe fails: one line for the events of the pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// The flags cannot be used.
    #[error("{}", .0.join("; "))]
    Flags(Vec<String>),
    /// The registration directory cannot be read.
    #[error("cannot read the registration directory {directory}: {source}")]
    Directory {
        /// `--plugin-registration-path`.
        directory: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Nobody there is this driver's registrar.
    #[error("no registration socket in {} answers for {endpoint}{}", .directory.display(), list(.others))]
    NotFound {
        /// `--plugin-registration-path`.
        directory: PathBuf,
        /// `--kubelet-registration-path`.
        endpoint: String,
        /// What the sockets that are there said.
        others: Vec<String>,
    },
    /// It is there, and the kubelet has not confirmed it.
    #[error("{} answers, but the kubelet has not confirmed the registration: {status}", .socket.display())]
    NotRegistered {
        /// The socket.
        socket: PathBuf,
        /// What the registrar says of it.
        status: String,
    },
}

fn list(others: &[String]) -> String {
    others.iter().flat_map(|other| ["; ", other]).collect()
}

impl ProbeFlags {
    /// Asks; touches no file.
    pub(crate) async fn run(&self) -> Result<(), ProbeError> {
        let target = self.registrar.probe_target().map_err(ProbeError::Flags)?;
        let deadline = Instant::now() + target.timeout;
        let mut asking = JoinSet::new();
        for socket in sockets(&target.directory)? {
            asking.spawn(async move {
                let answer = service::ask(&socket, target.timeout).await;
                (socket, answer)
            });
        }
        let mut others = Vec::new();
        while let Ok(Some(Ok((socket, answer)))) = timeout_at(deadline, asking.join_next()).await {
            match answer {
                Ok(answer) if answer.endpoint == target.endpoint => {
                    return self.judge(socket, answer.status);
                }
                Ok(answer) => {
                    others.push(format!(
                        "{} answers for {}",
                        socket.display(),
                        answer.endpoint
                    ));
                }
                Err(error) => others.push(format!("{}: {error}", socket.display())),
            }
        }
        Err(ProbeError::NotFound {
            directory: target.directory,
            endpoint: target.endpoint,
            others,
        })
    }

    fn judge(&self, socket: PathBuf, status: Option<String>) -> Result<(), ProbeError> {
        if !self.registered || status.as_deref() == Some(Phase::Registered.name()) {
            return Ok(());
        }
        let status = status.unwrap_or_else(|| "its registrar does not tell".to_owned());
        Err(ProbeError::NotRegistered { socket, status })
    }
}

/// The sockets in the registration directory, dot names aside: those are not published yet.
fn sockets(directory: &Path) -> Result<Vec<PathBuf>, ProbeError> {
    let entries = fs::read_dir(directory).map_err(|source| ProbeError::Directory {
        directory: directory.to_owned(),
        source,
    })?;
    Ok(entries
        .flatten()
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()))
        .map(|entry| entry.path())
        .take(MAX_SOCKETS)
        .collect())
}
