//! Fills the desired state from the registration directory: what is there at the start, and what inotify tells later
//! (`pluginmanager/pluginwatcher/plugin_watcher.go`; what fsnotify makes of inotify's events is part of it).

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask};
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;

use super::desired_state_of_world::{Added, CacheError, DesiredStateOfWorld};
use super::event::{EventSink, What};
use super::profile::Profile;
use crate::klog;

/// Octets of events that are read at once.
const EVENT_BUFFER: usize = 16 * 1024;

/// Wait after a failed read, so that a failure that stays does not keep a processor busy.
const READ_RETRY: Duration = Duration::from_secs(1);

/// Mode of a registration directory that has to be made.
const DIRECTORY_MODE: u32 = 0o755;

/// The watcher cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The registration directory is missing and cannot be made.
    #[error("error (re-)creating root {}: {source}; check the path and its permissions", directory.display())]
    Directory {
        /// The registration directory.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No inotify instance.
    #[error("failed to start plugin watcher: {0}; see fs.inotify.max_user_instances")]
    Inotify(io::Error),
}

/// A step on a path failed; logged, and the watcher goes on.
#[derive(Debug, thiserror::Error)]
enum PathError {
    #[error("failed to watch {}: {source}", path.display())]
    Watch { path: PathBuf, source: io::Error },
    #[error("error accessing path {}: {source}", path.display())]
    Access { path: PathBuf, source: io::Error },
    #[error("stat file {} failed: {source}", path.display())]
    Stat { path: PathBuf, source: io::Error },
    #[error("error adding socket path {} to desired state cache: {source}", path.display())]
    Cache { path: PathBuf, source: CacheError },
    #[error("event queue overflow: sockets that came or went meanwhile are not noticed")]
    Overflow,
    #[error("error reading inotify events: {0}")]
    Read(io::Error),
    #[error("{} is gone or moved; nothing below it is noticed any more before a restart", path.display())]
    RootGone { path: PathBuf },
}

/// A watcher whose directories are watched and listed, and whose events wait to be handled.
#[derive(Debug)]
pub(super) struct PluginWatcher {
    root: PathBuf,
    profile: Profile,
    desired: Arc<DesiredStateOfWorld>,
    events: EventSink,
    stream: EventStream<Vec<u8>>,
    /// Paths of the watched directories, one each.
    directories: HashMap<WatchDescriptor, PathBuf>,
    /// Paths that have a watch already, where watches are kept by path.
    taken: HashSet<PathBuf>,
}

impl PluginWatcher {
    /// Makes `root` if it is missing, watches it and takes in what is there.
    pub(super) fn start(
        root: &Path,
        profile: Profile,
        desired: Arc<DesiredStateOfWorld>,
        events: EventSink,
    ) -> Result<Self, StartError> {
        klog::verbose!(2, path = %root.display(), "Plugin Watcher Start");
        DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(root)
            .map_err(|source| StartError::Directory {
                directory: root.to_owned(),
                source,
            })?;
        let stream = Inotify::init()
            .and_then(|inotify| inotify.into_event_stream(vec![0; EVENT_BUFFER]))
            .map_err(StartError::Inotify)?;
        let mut watcher = Self {
            root: root.to_owned(),
            profile,
            desired,
            events,
            stream,
            directories: HashMap::new(),
            taken: HashSet::new(),
        };
        match watcher.traverse(root) {
            Ok(()) => watcher.events.emit(What::Watching {
                directory: root.to_owned(),
            }),
            Err(error) => watcher.failed(&error),
        }
        Ok(watcher)
    }

    /// Handles events, strictly one after another, until `stop`.
    pub(super) async fn run(mut self, stop: &CancellationToken) {
        loop {
            let event = tokio::select! {
                event = self.stream.next() => event,
                () = stop.cancelled() => return,
            };
            let error = match event {
                Some(Ok(event)) => {
                    self.handle(event);
                    continue;
                }
                Some(Err(error)) => error,
                None => io::ErrorKind::UnexpectedEof.into(),
            };
            self.failed(&PathError::Read(error));
            tokio::select! {
                () = tokio::time::sleep(READ_RETRY) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    fn handle(&mut self, event: EventOwned) {
        let mask = event.mask;
        if mask.contains(EventMask::Q_OVERFLOW) {
            self.failed(&PathError::Overflow);
        } else if mask.intersects(EventMask::DELETE_SELF | EventMask::IGNORED) {
            self.forget(&event.wd);
        } else if mask.contains(EventMask::MOVE_SELF) {
            self.moved(event.wd);
        } else if let Some(path) = self.path(&event.wd, event.name) {
            if mask.intersects(EventMask::CREATE | EventMask::MOVED_TO) {
                match self.created(&path) {
                    Ok(()) => {}
                    // A registrar that binds under a dot name and renames was quicker than we. The kubelet logs it, too,
                    // but nothing was missed.
                    Err(err) if is_hidden(&path) => {
                        tracing::error!(%err, "Error handling create event");
                    }
                    Err(error) => self.failed(&error),
                }
            } else if mask.contains(EventMask::DELETE) {
                self.deleted(&path);
            }
        }
    }

    fn path(&self, directory: &WatchDescriptor, name: Option<OsString>) -> Option<PathBuf> {
        Some(self.directories.get(directory)?.join(name?))
    }

    fn forget(&mut self, directory: &WatchDescriptor) {
        let Some(path) = self.directories.remove(directory) else {
            return;
        };
        if self.taken.remove(&path) {
            self.deleted(&path);
        }
        if path == self.root {
            self.failed(&PathError::RootGone { path });
        }
    }

    /// The path of a moved directory is not known any more; fsnotify drops the watch since it knows. `IGNORED` follows.
    fn moved(&mut self, directory: WatchDescriptor) {
        if self.profile.watches_by_path() {
            return;
        }
        if let Err(err) = self.stream.watches().remove(directory) {
            klog::verbose!(4, %err, "Watch of a moved directory is gone already");
        }
    }

    /// A new entry: a socket is desired from now on, a directory is watched and listed. Dot names are left alone.
    fn created(&mut self, path: &Path) -> Result<(), PathError> {
        let metadata = fs::metadata(path).map_err(|source| PathError::Stat {
            path: path.to_owned(),
            source,
        })?;
        if is_hidden(path) {
            klog::verbose!(5, path = %path.display(), "Ignoring file (starts with '.')");
            Ok(())
        } else if metadata.is_dir() {
            self.traverse(path)
        } else if metadata.file_type().is_socket() {
            self.add(path)
        } else {
            klog::verbose!(5, path = %path.display(), "Ignoring non socket file");
            Ok(())
        }
    }

    fn add(&self, path: &Path) -> Result<(), PathError> {
        let added = self
            .desired
            .add_or_update(path)
            .map_err(|source| PathError::Cache {
                path: path.to_owned(),
                source,
            })?;
        klog::verbose!(2, path = %path.display(), "Adding socket path or updating identity to desired state cache");
        let Added { identity, replaced } = added;
        self.events
            .emit_for(path, What::Desired { identity, replaced });
        Ok(())
    }

    /// A removed entry leaves under exactly its own path; what was below a directory has its own events.
    fn deleted(&self, path: &Path) {
        klog::verbose!(2, path = %path.display(), "Removing socket path from desired state cache");
        if self.desired.remove(path) {
            self.events.emit_for(path, What::Undesired);
        }
    }

    /// Watches `directory` and takes in what is below it. A link to a directory is watched but has no content here.
    fn traverse(&mut self, directory: &Path) -> Result<(), PathError> {
        let watches_first = self.profile.watches_before_listing();
        if watches_first {
            self.watch(directory)?;
        }
        let access = |source| PathError::Access {
            path: directory.to_owned(),
            source,
        };
        if !fs::symlink_metadata(directory).map_err(access)?.is_dir() {
            return Ok(());
        }
        let names = list(directory).map_err(access)?;
        if !watches_first {
            self.watch(directory)?;
        }
        self.walk(directory, names)
    }

    /// Depth first, in lexical order. Only a watch that cannot be placed ends the whole walk.
    fn walk(&mut self, directory: &Path, names: Vec<OsString>) -> Result<(), PathError> {
        for name in names {
            let path = directory.join(name);
            let entry = fs::symlink_metadata(&path).and_then(|metadata| {
                let names = if metadata.is_dir() {
                    Some(list(&path)?)
                } else {
                    None
                };
                Ok((metadata, names))
            });
            match entry {
                Err(source) => self.failed(&PathError::Access { path, source }),
                // Listed before it is watched, unlike the directory that the walk began with.
                Ok((_, Some(names))) => {
                    self.watch(&path)?;
                    self.walk(&path, names)?;
                }
                Ok((metadata, None)) if self.is_socket(&path, &metadata) => {
                    if let Err(error) = self.created(&path) {
                        self.failed(&error);
                    }
                }
                Ok(_) => klog::verbose!(5, path = %path.display(), "Ignoring file"),
            }
        }
        Ok(())
    }

    fn is_socket(&self, path: &Path, metadata: &Metadata) -> bool {
        if !self.profile.listing_follows_symlinks() {
            return metadata.file_type().is_socket();
        }
        fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
    }

    fn watch(&mut self, directory: &Path) -> Result<(), PathError> {
        let mask = WatchMask::CREATE
            | WatchMask::MOVED_TO
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        let descriptor = self
            .stream
            .watches()
            .add(directory, mask)
            .map_err(|source| PathError::Watch {
                path: directory.to_owned(),
                source,
            })?;
        if self.profile.watches_by_path() && !self.taken.insert(directory.to_owned()) {
            return Ok(());
        }
        if !self.profile.first_watched_name_stays() {
            self.directories.remove(&descriptor);
        }
        self.directories
            .entry(descriptor)
            .or_insert_with(|| directory.to_owned());
        Ok(())
    }

    fn failed(&self, error: &PathError) {
        tracing::error!(err = %error, "Plugin watcher");
        let error = error.to_string();
        self.events.emit(What::WatchFailed { error });
    }
}

fn is_hidden(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn list(directory: &Path) -> io::Result<Vec<OsString>> {
    let entries = fs::read_dir(directory)?;
    let mut names = entries
        .map(|entry| Ok(entry?.file_name()))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests;
