//! A listening Unix socket at a path that other processes watch: published by rename, known by device and inode,
//! withdrawn only while it is still ours.
//!
//! The socket is bound under a dot name, which the kubelet's plugin watcher ignores (`handleCreateEvent` in
//! `pkg/kubelet/pluginmanager/pluginwatcher`), and renamed over the final name once it listens. So a watcher sees one
//! create event for a socket that already answers; there is no moment in which the path is absent or refuses.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::stat::{Mode, umask};

/// Longest path that a Unix socket can be bound to or dialled at, in bytes: `sun_path` less its final NUL.
pub const MAX_SOCKET_PATH: usize = 107;

/// How old a temporary socket that refuses connections must be before it counts as left by a crash.
const STALE_AFTER: Duration = Duration::from_mins(1);

/// Characters in the changing part of a temporary name; with the two dots as long as the final name's `-reg.sock`.
const UNIQUE_LEN: usize = 7;

/// Names tried when a temporary name is taken already.
const NAME_ATTEMPTS: u32 = 16;

/// What identifies a file. Device and inode number alone do not: ext4 and xfs give the number of a file that was just
/// removed to the next one made, so a driver that re-creates its socket would go unseen. The time of birth tells them
/// apart, where the file system keeps one, and no chmod changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
    born: Option<SystemTime>,
}

impl From<&Metadata> for FileId {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            born: metadata.created().ok(),
        }
    }
}

/// What lies at a path that should hold our socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// The socket that was published.
    Ours,
    /// Another process's socket.
    AnotherSocket,
    /// Something that is no socket; what it is, for people.
    NotASocket(&'static str),
    /// Nothing, or the directory is gone too.
    Missing,
}

/// Why a socket could not be published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The path does not fit into a socket address.
    #[error(
        "socket path {path} is {length} bytes long, the limit is {MAX_SOCKET_PATH}: shorten the directory or the driver's name"
    )]
    TooLong {
        /// The final path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// Something that is no socket has the name already. It is left untouched.
    #[error(
        "{path} is {what}, not a socket: remove it, then the registration socket is published there"
    )]
    NotASocket {
        /// The final path.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
    /// The file system refused.
    #[error("cannot {action} {path}: {source}{}", hint(.source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl PublishError {
    /// Whether the system has nothing left to give at the moment: descriptors or memory. That passes.
    pub fn is_exhaustion(&self) -> bool {
        let Self::Io { source, .. } = self else {
            return false;
        };
        crate::connections::is_out_of_descriptors(source)
            || source.raw_os_error() == Some(nix::errno::Errno::ENOMEM as i32)
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(nix::errno::Errno::from_raw) {
        Some(nix::errno::Errno::EROFS) => {
            "; the registration directory must be mounted read-write (hostPath of the kubelet's plugins_registry)"
        }
        Some(nix::errno::Errno::ENOSPC) => "; free space or inodes on that file system",
        Some(nix::errno::Errno::ENOENT) => {
            "; does the directory exist, and is the kubelet's plugins_registry mounted there?"
        }
        Some(nix::errno::Errno::EACCES | nix::errno::Errno::EPERM) => {
            "; run as root, and on SELinux hosts with a context that may write there (privileged: true)"
        }
        _ => "",
    }
}

/// A published socket. Keep the listener open for as long as this value is used: a closed socket's inode number may be
/// given to a stranger's file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    id: FileId,
}

impl SocketFile {
    /// Publishes a listening socket at `dir/NAME-reg.sock` with mode `srwx------`, replacing any socket there.
    ///
    /// The process's umask is 0077 for the length of one `bind` and then what it was.
    pub fn publish(dir: &Path, name: &str) -> Result<(UnixListener, Self), PublishError> {
        let path = registration_socket_path(dir, name)?;
        refuse_foreign(&path)?;
        remove_stale(dir, name);
        let (temporary, listener) = bind_temporary(dir, name)?;
        let published = prepare_and_rename(&temporary, &path);
        if published.is_err() {
            // Ours, made a moment ago under a name that nobody else takes.
            let _ = fs::remove_file(&temporary);
        }
        Ok((
            listener,
            Self {
                id: published?,
                path,
            },
        ))
    }

    /// Where the socket was published.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What lies at the path now.
    pub fn occupant(&self) -> Occupant {
        match fs::symlink_metadata(&self.path) {
            Err(_) => Occupant::Missing,
            Ok(metadata) if FileId::from(&metadata) == self.id => Occupant::Ours,
            Ok(metadata) => match foreign_kind(&metadata) {
                Some(what) => Occupant::NotASocket(what),
                None => Occupant::AnotherSocket,
            },
        }
    }

    /// Unlinks the socket if it is still ours, and tells whether it was. By unlink, never by renaming away: the
    /// kubelet's watcher ignores rename events.
    pub fn withdraw(&self) -> io::Result<bool> {
        if self.occupant() != Occupant::Ours {
            return Ok(false);
        }
        match fs::remove_file(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// `dir/NAME-reg.sock`, if that fits into a socket address. The name must be checked before
/// ([`DriverName`](crate::driver::DriverName)): nothing here stops a slash.
pub fn registration_socket_path(dir: &Path, name: &str) -> Result<PathBuf, PublishError> {
    let path = dir.join(format!("{name}-reg.sock"));
    let length = path.as_os_str().len();
    if length > MAX_SOCKET_PATH {
        return Err(PublishError::TooLong { path, length });
    }
    Ok(path)
}

/// What a file that is no socket is called; `None` for a socket.
fn foreign_kind(metadata: &Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    if kind.is_socket() {
        None
    } else if kind.is_dir() {
        Some("a directory")
    } else if kind.is_symlink() {
        Some("a symbolic link")
    } else if kind.is_file() {
        Some("a regular file")
    } else {
        Some("a device or a pipe")
    }
}

fn refuse_foreign(path: &Path) -> Result<(), PublishError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => match foreign_kind(&metadata) {
            None => Ok(()),
            Some(what) => Err(PublishError::NotASocket {
                path: path.to_owned(),
                what,
            }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(PublishError::Io {
            action: "look at",
            path: path.to_owned(),
            source,
        }),
    }
}

fn bind_temporary(dir: &Path, name: &str) -> Result<(PathBuf, UnixListener), PublishError> {
    let mut attempt = 0;
    loop {
        let path = dir.join(temporary_name(name, attempt));
        let before = umask(Mode::from_bits_truncate(0o077));
        let bound = UnixListener::bind(&path);
        umask(before);
        attempt += 1;
        match bound {
            Ok(listener) => return Ok((path, listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempt < NAME_ATTEMPTS => {}
            Err(source) => {
                return Err(PublishError::Io {
                    action: "bind the registration socket's temporary name",
                    path,
                    source,
                });
            }
        }
    }
}

fn prepare_and_rename(temporary: &Path, path: &Path) -> Result<FileId, PublishError> {
    let io_error = |action, path: &Path| {
        let path = path.to_owned();
        move |source| PublishError::Io {
            action,
            path,
            source,
        }
    };
    fs::set_permissions(temporary, fs::Permissions::from_mode(0o700))
        .map_err(io_error("set the mode of", temporary))?;
    // Of the path: fstat of the listener gives a number of the socket file system.
    let metadata = fs::symlink_metadata(temporary).map_err(io_error("look at", temporary))?;
    fs::rename(temporary, path).map_err(io_error("publish the registration socket at", path))?;
    Ok(FileId::from(&metadata))
}

/// A dot name as long as `NAME-reg.sock`: `.NAME.xxxxxxx`. Unique among processes that share the directory but not the
/// pid namespace (there every registrar is process 1) by the time; a name that is taken is tried anew.
fn temporary_name(name: &str, attempt: u32) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let time = Instant::now();
    let seed = format!("{:?} {} {attempt}", time, std::process::id());
    // FNV-1a: spreads the bits that differ; nothing depends on it being unpredictable.
    let mut hash = seed.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut temporary = format!(".{name}.");
    for _ in 0..UNIQUE_LEN {
        temporary.push(char::from(DIGITS[(hash % 36) as usize]));
        hash /= 36;
    }
    temporary
}

fn is_temporary_name_of(name: &str, candidate: &str) -> bool {
    candidate
        .strip_prefix('.')
        .and_then(|rest| rest.strip_prefix(name))
        .and_then(|rest| rest.strip_prefix('.'))
        .is_some_and(|unique| {
            unique.len() == UNIQUE_LEN
                && unique
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        })
}

/// Removes temporary sockets that a crash between bind and rename left: named for this driver, refusing connections,
/// and old enough that no living registrar is about to rename them. Failures do not matter: they are only litter.
fn remove_stale(dir: &Path, name: &str) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let is_ours = entry
            .file_name()
            .to_str()
            .is_some_and(|candidate| is_temporary_name_of(name, candidate));
        if is_ours && is_dead_socket(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_dead_socket(path: &Path) -> bool {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return false;
    };
    let old = metadata
        .modified()
        .ok()
        .and_then(|time| time.elapsed().ok())
        .is_some_and(|age| age > STALE_AFTER);
    metadata.file_type().is_socket()
        && old
        && UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests;
