//! `cleanup`: a preStop hook for an image without a shell. Removes what a registrar that was killed leaves behind.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Parser;

use crate::driver::{DriverName, NameError};
use crate::uds::socket_file::{PublishError, registration_socket_path};

/// The sub-command's flags.
#[derive(Debug, Parser)]
pub(crate) struct CleanupFlags {
    #[arg(
        long,
        default_value = "",
        help = "Name of the CSI driver whose registration socket is removed."
    )]
    driver_name: String,

    #[arg(
        long,
        default_value = "/registration",
        help = "Path to Kubernetes plugin registration directory."
    )]
    plugin_registration_path: PathBuf,
}

/// Why nothing, or not everything, was removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CleanupError {
    /// The name cannot be a driver's.
    #[error("--driver-name: {0}")]
    Name(#[from] NameError),
    /// No socket can have that path.
    #[error(transparent)]
    Path(#[from] PublishError),
    /// Something else has the socket's name.
    #[error("{0} is not a socket and stays: remove it by hand if it is not needed")]
    NotASocket(PathBuf),
    /// The file system refused.
    #[error("cannot remove {path}: {source}")]
    Io {
        /// What was to go.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl CleanupFlags {
    /// Removes `DIRECTORY/NAME-reg.sock` if it is a socket, and the directory `DIRECTORY/NAME` if it is empty, as the hooks of
    /// old manifests do with `rm`. What is absent is no error.
    pub(crate) fn run(self) -> Result<(), CleanupError> {
        let name = DriverName::try_from(self.driver_name)?;
        let directory = self.plugin_registration_path;
        let socket = registration_socket_path(&directory, name.as_str())?;
        match fs::symlink_metadata(&socket) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(CleanupError::NotASocket(socket));
            }
            _ => ignore(&socket, fs::remove_file(&socket), &[])?,
        }
        let own = directory.join(name.as_str());
        let stays = [
            io::ErrorKind::DirectoryNotEmpty,
            io::ErrorKind::NotADirectory,
        ];
        ignore(&own, fs::remove_dir(&own), &stays)
    }
}

fn ignore(
    path: &Path,
    removed: io::Result<()>,
    besides: &[io::ErrorKind],
) -> Result<(), CleanupError> {
    match removed {
        Err(error)
            if error.kind() != io::ErrorKind::NotFound && !besides.contains(&error.kind()) =>
        {
            Err(CleanupError::Io {
                path: path.to_owned(),
                source: error,
            })
        }
        _ => Ok(()),
    }
}
