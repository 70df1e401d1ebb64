//! Directories that are watched for names that come and go, as one stream of "look again".
//!
//! A process has one inotify instance (all sidecars of a node share root's 128). Where inotify is used up, or a directory
//! does not exist yet, the watcher asks for a look once a second instead: nothing depends on events alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask};
use nix::errno::Errno;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_stream::{Stream, StreamExt};

use super::socket_file::FileId;

/// How often to look where no event can be had.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Room for a few events with long names; what does not fit is read in the next round.
const BUFFER_SIZE: usize = 1024;

/// Events that are passed over at most before somebody looks: one look serves them all.
const MAX_BURST: usize = 1024;

/// Watches directories for names that appear, vanish or are replaced.
#[derive(Debug)]
pub struct Watcher {
    events: Option<EventStream<[u8; BUFFER_SIZE]>>,
    directories: Vec<Directory>,
    /// When to look, if no event can be had. Kept here: whoever waits may be called away more often than this comes.
    next_poll: Instant,
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
            next_poll: Instant::now() + POLL_INTERVAL,
        };
        watcher.place();
        watcher
    }

    /// Returns when something may have changed: after an event, and every [`POLL_INTERVAL`] while some directory is not
    /// watched. Cancel safe. Whoever is woken looks at the files themselves.
    ///
    /// A socket that is open keeps the directory it was bound in: if that is removed, no event says so, and another one may
    /// be at the path by the next call. So each call looks where its watches are before it waits.
    pub async fn changed(&mut self) {
        self.leave();
        let all_watched = self
            .directories
            .iter()
            .all(|directory| directory.watched.is_some());
        let event = match &mut self.events {
            Some(events) if all_watched => events.next().await,
            Some(events) => timeout_at(self.next_poll, events.next())
                .await
                .unwrap_or(None),
            None => {
                sleep_until(self.next_poll).await;
                None
            }
        };
        self.next_poll = Instant::now() + POLL_INTERVAL;
        match event {
            Some(Ok(event)) => self.take_burst(&event),
            Some(Err(error)) => self.poll_instead(&error, "fs.inotify.max_queued_events"),
            None => {}
        }
        self.place();
    }

    /// Takes an event and those that have come in with it.
    fn take_burst(&mut self, first: &EventOwned) {
        self.forget_lost_watches(first);
        for _ in 0..MAX_BURST {
            let Some(events) = &mut self.events else {
                return;
            };
            // Nobody is to be woken by this: an event that is not here yet wakes the next wait.
            let mut cx = Context::from_waker(Waker::noop());
            match Pin::new(events).poll_next(&mut cx) {
                Poll::Ready(Some(Ok(event))) => self.forget_lost_watches(&event),
                // An error comes again.
                _ => return,
            }
        }
    }

    /// The kernel ends a watch together with its directory. Where the queue overflowed, nobody knows which ones ended.
    fn forget_lost_watches(&mut self, event: &EventOwned) {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            for directory in &mut self.directories {
                end(self.events.as_ref(), directory.watched.take());
            }
        } else if event.mask.contains(EventMask::IGNORED) {
            for directory in &mut self.directories {
                directory.watched.take_if(|(watch, _)| *watch == event.wd);
            }
        }
    }

    /// Ends the watches of directories that are not at their paths any more: a watch follows one that is renamed away. The
    /// kernel confirms each end with an event, which wakes the wait and has the watch placed anew.
    fn leave(&mut self) {
        for directory in &mut self.directories {
            let Directory { path, watched } = directory;
            let left = watched.take_if(|(_, watched)| id(path) != Some(*watched));
            end(self.events.as_ref(), left);
        }
    }

    /// Puts a watch on every directory that has none.
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
            if directory.watched.is_some() {
                continue;
            }
            // Gone, or out of reach: the poll goes on, and the looks say what they find.
            let Some(current) = id(&directory.path) else {
                continue;
            };
            match events.watches().add(&directory.path, mask) {
                Ok(watch) => directory.watched = Some((watch, current)),
                Err(error) if error.raw_os_error() == Some(Errno::ENOSPC as i32) => {
                    used_up = Some(error);
                }
                Err(_) => {}
            }
        }
        if let Some(error) = used_up {
            self.poll_instead(&error, "fs.inotify.max_user_watches");
        }
    }

    fn poll_instead(&mut self, error: &io::Error, sysctl: &'static str) {
        warn_polling(error, sysctl);
        self.events = None;
        for directory in &mut self.directories {
            directory.watched = None;
        }
    }
}

fn id(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().as_ref().map(FileId::from)
}

/// Ends a watch. If another path leads to the same directory, that one's watch is told so and placed again.
fn end<T>(events: Option<&EventStream<T>>, watch: Option<(WatchDescriptor, FileId)>)
where
    T: AsMut<[u8]> + AsRef<[u8]>,
{
    if let (Some(events), Some((watch, _))) = (events, watch) {
        // It may have ended by itself.
        let _ = events.watches().remove(watch);
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
