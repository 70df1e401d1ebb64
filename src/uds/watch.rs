//! Directories that are watched for names that come and go, as one stream of "look again".
//!
//! A process has one inotify instance (all sidecars of a node share root's 128). Where inotify is used up, or a directory
//! does not exist yet, the watcher asks for a look once a second instead: nothing depends on events alone.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask};
use tokio_stream::StreamExt;

use super::socket_file::FileId;

/// How often to look where no event can be had.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Room for a few events with long names; what does not fit is read in the next round.
const BUFFER_SIZE: usize = 1024;

/// Watches directories for names that appear, vanish or are replaced.
#[derive(Debug)]
pub struct Watcher {
    events: Option<EventStream<[u8; BUFFER_SIZE]>>,
    directories: Vec<Directory>,
}

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    /// The watch, and the directory that it was placed on; another one may take the path.
    watched: Option<(WatchDescriptor, FileId)>,
}

impl Watcher {
    /// A watcher of `directories`, which need not exist. Logs one warning if it has to poll for want of inotify instances.
    pub fn new(directories: impl IntoIterator<Item = PathBuf>) -> Self {
        let events = Inotify::init()
            .and_then(|inotify| inotify.into_event_stream([0; BUFFER_SIZE]))
            .inspect_err(|error| warn_polling(error, "fs.inotify.max_user_instances"))
            .ok();
        let directories = directories
            .into_iter()
            .map(|path| Directory {
                path,
                watched: None,
            })
            .collect();
        let mut watcher = Self {
            events,
            directories,
        };
        watcher.place();
        watcher
    }

    /// Returns when something may have changed: after an event, and every [`POLL_INTERVAL`] while some directory is not
    /// watched. Cancel safe. Whoever is woken looks at the files themselves.
    pub async fn changed(&mut self) {
        let all_watched = self
            .directories
            .iter()
            .all(|directory| directory.watched.is_some());
        let event = match &mut self.events {
            Some(events) if all_watched => events.next().await,
            Some(events) => tokio::time::timeout(POLL_INTERVAL, events.next())
                .await
                .unwrap_or(None),
            None => {
                tokio::time::sleep(POLL_INTERVAL).await;
                None
            }
        };
        match event {
            Some(Ok(event)) => self.forget_lost_watch(&event),
            Some(Err(error)) => self.poll_instead(&error, "fs.inotify.max_queued_events"),
            None => {}
        }
        self.place();
    }

    /// A watch ends with its directory, and follows one that is renamed away.
    fn forget_lost_watch(&mut self, event: &EventOwned) {
        let lost = EventMask::IGNORED | EventMask::DELETE_SELF | EventMask::MOVE_SELF;
        if !event.mask.intersects(lost) {
            return;
        }
        for directory in &mut self.directories {
            if directory
                .watched
                .as_ref()
                .is_some_and(|(watch, _)| *watch == event.wd)
            {
                directory.watched = None;
            }
        }
    }

    /// Puts a watch on every directory that has none, or that is not the one watched before.
    fn place(&mut self) {
        let Some(events) = &self.events else { return };
        let mask = WatchMask::CREATE
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        let mut used_up = None;
        for directory in &mut self.directories {
            let current = fs::metadata(&directory.path).map(|metadata| FileId::from(&metadata));
            let watched = directory.watched.as_ref().map(|(_, id)| *id);
            directory.watched = match (current, watched) {
                (Ok(current), Some(watched)) if current == watched => continue,
                // Gone, or out of reach: the poll goes on, and the looks say what they find.
                (Err(_), _) => None,
                (Ok(current), _) => match events.watches().add(&directory.path, mask) {
                    Ok(watch) => Some((watch, current)),
                    Err(error) => {
                        if error.raw_os_error() == Some(nix::errno::Errno::ENOSPC as i32) {
                            used_up = Some(error);
                        }
                        None
                    }
                },
            };
        }
        if let Some(error) = used_up {
            self.poll_instead(&error, "fs.inotify.max_user_watches");
        }
    }

    fn poll_instead(&mut self, error: &io::Error, sysctl: &'static str) {
        warn_polling(error, sysctl);
        self.events = None;
    }
}

fn warn_polling(error: &io::Error, sysctl: &'static str) {
    tracing::warn!(
        err = %error,
        sysctl,
        "inotify is used up on this node, looking once a second instead; raise the sysctl"
    );
}

#[cfg(test)]
mod tests;
