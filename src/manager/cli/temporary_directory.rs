//! A directory for one run of a command: private, with a name short enough for sockets, and gone afterwards.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Error;
use crate::uds::socket_file::MAX_SOCKET_PATH;

/// Octets that sockets need beyond the directory's path.
const ROOM: usize = 48;

/// Removed with all that is in it when it is dropped.
#[derive(Debug)]
pub(super) struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    /// In `TMPDIR`, or in `/tmp`. Its path has no symlinks: it is compared with paths from other processes.
    pub(super) fn new() -> Result<Self, Error> {
        let parent = std::env::temp_dir();
        let error = |source| Error::TemporaryDirectory {
            path: parent.clone(),
            source,
        };
        let real = fs::canonicalize(&parent).map_err(error)?;
        let template = real.join("kubelet-XXXXXX");
        if template.as_os_str().len() + ROOM > MAX_SOCKET_PATH {
            return Err(Error::LongTemporaryDirectory { path: parent });
        }
        nix::unistd::mkdtemp(&template)
            .map(Self)
            .map_err(|errno| error(io::Error::from(errno)))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // What cannot be removed is the system's to clean up, as anything in there.
        let _ = fs::remove_dir_all(&self.0);
    }
}
