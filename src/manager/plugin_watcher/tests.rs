//! Rows D: which sockets are desired, on a real directory. Tests handle the events themselves: a plain file that is
//! created last ends them, since inotify keeps the order.

use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;
use tokio::sync::broadcast;

use super::*;
use crate::manager::desired_state_of_world::DesiredPlugin;
use crate::manager::event::Event;

/// Longest wait for an event that the kernel has queued already.
const PATIENCE: Duration = Duration::from_secs(10);

const OLDEST: Profile = Profile::OLDEST;
const NEWEST: Profile = Profile::NEWEST;

/// A registration directory that is not watched yet.
struct Registry {
    directory: TempDir,
    root: PathBuf,
    desired: Arc<DesiredStateOfWorld>,
    events: EventSink,
}

impl Registry {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("registry");
        fs::create_dir(&root).unwrap();
        Self {
            directory,
            root,
            desired: Arc::default(),
            events: EventSink::default(),
        }
    }

    fn watch(self, profile: Profile) -> Watched {
        let watcher = self.try_watch(profile).unwrap();
        Watched {
            receiver: self.events.subscribe(),
            registry: self,
            watcher,
            sentinels: 0,
        }
    }

    fn try_watch(&self, profile: Profile) -> Result<PluginWatcher, StartError> {
        PluginWatcher::start(
            &self.root,
            profile,
            self.desired.clone(),
            self.events.clone(),
        )
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Binds a socket; the file stays when the listener is dropped.
    fn bind(&self, name: &str) {
        UnixListener::bind(self.path(name)).unwrap();
    }

    fn mkdir(&self, name: &str) {
        fs::create_dir(self.path(name)).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    /// Desired paths below the root.
    fn desired(&self) -> Vec<String> {
        let plugins = self.desired.plugins().into_iter();
        let name = |plugin: DesiredPlugin| {
            plugin
                .socket_path
                .strip_prefix(&self.root)
                .unwrap()
                .display()
                .to_string()
        };
        plugins.map(name).collect()
    }
}

/// A registration directory with its watcher.
struct Watched {
    registry: Registry,
    watcher: PluginWatcher,
    receiver: broadcast::Receiver<Event>,
    sentinels: u32,
}

impl std::ops::Deref for Watched {
    type Target = Registry;

    fn deref(&self) -> &Registry {
        &self.registry
    }
}

impl Watched {
    /// Handles everything that has happened so far.
    async fn catch_up(&mut self) {
        self.sentinels += 1;
        let sentinel = OsString::from(format!("sentinel-{}", self.sentinels));
        File::create(self.root.join(&sentinel)).unwrap();
        while self.handle_next().await.as_ref() != Some(&sentinel) {}
    }

    /// Handles the next event; answers its name.
    async fn handle_next(&mut self) -> Option<OsString> {
        let next = tokio::time::timeout(PATIENCE, self.watcher.stream.next());
        let event = next.await.expect("the kernel has events").unwrap().unwrap();
        let name = event.name.clone();
        self.watcher.handle(event);
        name
    }

    async fn assert_desired(&mut self, expected: &[&str]) {
        self.catch_up().await;
        assert_eq!(self.desired(), expected);
    }

    fn errors(&mut self) -> Vec<String> {
        let events = std::iter::from_fn(|| self.receiver.try_recv().ok());
        let error = |event: Event| match event.what {
            What::WatchFailed { error } => Some(error),
            _ => None,
        };
        events.filter_map(error).collect()
    }
}

#[tokio::test]
async fn d01_a_new_socket_is_desired() {
    let mut watched = Registry::new().watch(NEWEST);
    watched.bind("plugin-0.sock");
    watched.assert_desired(&["plugin-0.sock"]).await;
}

#[tokio::test]
async fn d02_a_removed_socket_is_not() {
    let mut watched = Registry::new().watch(NEWEST);
    watched.bind("plugin-0.sock");
    watched.assert_desired(&["plugin-0.sock"]).await;
    watched.remove("plugin-0.sock");
    watched.assert_desired(&[]).await;
}

#[tokio::test]
async fn d03_ten_sockets_are_ten_entries() {
    let mut watched = Registry::new().watch(NEWEST);
    for number in 0..10 {
        watched.bind(&format!("plugin-{number}.sock"));
    }
    watched.catch_up().await;
    assert_eq!(watched.desired().len(), 10);
}

#[tokio::test]
async fn d04_a_socket_that_is_made_again_has_another_identity() {
    let mut watched = Registry::new().watch(NEWEST);
    let mut identities = Vec::new();
    for _ in 0..10 {
        watched.bind("plugin.sock");
        watched.assert_desired(&["plugin.sock"]).await;
        identities.push(watched.registry.desired.plugins()[0].identity);
        watched.remove("plugin.sock");
    }
    identities.dedup();
    assert_eq!(identities.len(), 10);
}

#[tokio::test]
async fn d04_unlink_and_bind_between_two_looks_is_seen_too() {
    let mut watched = Registry::new().watch(NEWEST);
    watched.bind("plugin.sock");
    watched.assert_desired(&["plugin.sock"]).await;
    let first = watched.registry.desired.plugins()[0].identity;
    watched.remove("plugin.sock");
    watched.bind("plugin.sock");
    watched.assert_desired(&["plugin.sock"]).await;
    assert_ne!(watched.registry.desired.plugins()[0].identity, first);
}

#[tokio::test]
async fn d05_sockets_that_are_there_at_the_start_are_desired() {
    for profile in [OLDEST, NEWEST] {
        let registry = Registry::new();
        for number in 0..8 {
            registry.bind(&format!("plugin-{number}.sock"));
        }
        registry.mkdir("one");
        registry.bind("one/plugin.sock");
        registry.mkdir("one/two");
        registry.bind("one/two/plugin.sock");
        let mut watched = registry.watch(profile);
        assert_eq!(watched.desired().len(), 10);
        watched.bind("one/two/late.sock");
        watched.catch_up().await;
        assert!(watched.desired().contains(&"one/two/late.sock".into()));
    }
}

#[tokio::test]
async fn d05_nothing_that_comes_during_the_start_is_lost() {
    let registry = Registry::new();
    // They make the listing slow enough for sockets to come before, during and after it.
    for number in 0..2000 {
        File::create(registry.path(&format!("file-{number}"))).unwrap();
    }
    let started = Arc::new(AtomicBool::new(false));
    let root = registry.root.clone();
    let binder = std::thread::spawn({
        let started = started.clone();
        move || {
            let mut count = 0;
            while count < 100 || (count < 5000 && !started.load(Ordering::SeqCst)) {
                UnixListener::bind(root.join(format!("plugin-{count}.sock"))).unwrap();
                count += 1;
            }
            count
        }
    });
    let mut watched = registry.watch(NEWEST);
    started.store(true, Ordering::SeqCst);
    let count = binder.join().unwrap();
    watched.catch_up().await;
    assert_eq!(watched.desired().len(), count);
}

#[tokio::test]
async fn d06_directories_that_come_later_are_watched() {
    let mut watched = Registry::new().watch(NEWEST);
    watched.bind("plugin.sock");
    watched.mkdir("one");
    watched.bind("one/listed.sock");
    watched.catch_up().await;
    watched.bind("one/seen.sock");
    watched.mkdir("one/two");
    watched.catch_up().await;
    watched.bind("one/two/plugin.sock");
    watched
        .assert_desired(&[
            "one/listed.sock",
            "one/seen.sock",
            "one/two/plugin.sock",
            "plugin.sock",
        ])
        .await;
}

#[tokio::test]
async fn d07_a_hidden_socket_is_ignored() {
    let registry = Registry::new();
    registry.bind(".early.sock");
    let mut watched = registry.watch(NEWEST);
    watched.bind(".hidden.sock");
    watched.assert_desired(&[]).await;
}

#[tokio::test]
async fn d08_what_is_no_socket_is_ignored() {
    let registry = Registry::new();
    File::create(registry.path("early.sock")).unwrap();
    let mut watched = registry.watch(NEWEST);
    File::create(watched.path("file.sock")).unwrap();
    nix::unistd::mkfifo(&watched.path("fifo.sock"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    watched.assert_desired(&[]).await;
    assert!(watched.errors().is_empty());
}

#[tokio::test]
async fn d09_a_hidden_directory_at_the_start_is_entered() {
    let registry = Registry::new();
    registry.mkdir(".d");
    registry.bind(".d/x.sock");
    let mut watched = registry.watch(NEWEST);
    watched.assert_desired(&[".d/x.sock"]).await;
}

#[tokio::test]
async fn d10_a_hidden_directory_that_comes_later_is_not() {
    let mut watched = Registry::new().watch(NEWEST);
    watched.mkdir(".d");
    watched.bind(".d/x.sock");
    watched.catch_up().await;
    watched.bind(".d/y.sock");
    watched.assert_desired(&[]).await;
}

#[tokio::test]
async fn d11_a_link_to_a_socket_counts_under_its_own_path() {
    let mut watched = Registry::new().watch(NEWEST);
    let target = watched.directory.path().join("elsewhere.sock");
    UnixListener::bind(&target).unwrap();
    symlink(&target, watched.path("l.sock")).unwrap();
    symlink(watched.path("nothing"), watched.path("dangling.sock")).unwrap();
    watched.assert_desired(&["l.sock"]).await;
    assert_eq!(
        watched.errors().len(),
        1,
        "the dangling link cannot be looked at"
    );
}

#[tokio::test]
async fn d11_links_at_the_start_count_since_1_26() {
    for (profile, expected) in [(OLDEST, &[][..]), (NEWEST, &["l.sock"])] {
        let registry = Registry::new();
        let target = registry.directory.path().join("elsewhere.sock");
        UnixListener::bind(&target).unwrap();
        symlink(&target, registry.path("l.sock")).unwrap();
        let mut watched = registry.watch(profile);
        watched.assert_desired(expected).await;
    }
}

#[tokio::test]
async fn d11_a_link_to_a_directory_is_watched_but_not_listed() {
    let registry = Registry::new();
    let target = registry.directory.path().join("elsewhere");
    fs::create_dir(&target).unwrap();
    UnixListener::bind(target.join("old.sock")).unwrap();
    symlink(&target, registry.path("early")).unwrap();
    let mut watched = registry.watch(NEWEST);
    UnixListener::bind(target.join("unseen.sock")).unwrap();
    symlink(&target, watched.path("late")).unwrap();
    watched.catch_up().await;
    UnixListener::bind(target.join("new.sock")).unwrap();
    watched.assert_desired(&["late/new.sock"]).await;
}

#[tokio::test]
async fn d11_a_directory_and_a_link_to_it_are_one_and_its_first_name_stays_since_1_34() {
    for (minor, seen) in [(33, "link/a.sock"), (34, "directory/a.sock")] {
        let mut watched = Registry::new().watch(Profile::from_minor(minor).unwrap());
        watched.mkdir("directory");
        watched.catch_up().await;
        symlink(watched.path("directory"), watched.path("link")).unwrap();
        watched.catch_up().await;
        watched.bind("directory/a.sock");
        watched.assert_desired(&[seen]).await;
    }
}

#[tokio::test]
async fn d13_a_missing_directory_is_made() {
    let mut registry = Registry::new();
    registry.root = registry.directory.path().join("new/registry");
    let mut watched = registry.watch(NEWEST);
    let mode = fs::metadata(&watched.root).unwrap().permissions().mode() & 0o777;
    // As far as the umask of the tests lets it.
    assert_eq!(mode & 0o700, 0o700);
    assert_eq!(mode & 0o022, 0);
    watched.bind("plugin.sock");
    watched.assert_desired(&["plugin.sock"]).await;
}

#[tokio::test]
async fn d13_a_directory_that_cannot_be_made_is_an_error() {
    let mut registry = Registry::new();
    let file = registry.path("file");
    File::create(&file).unwrap();
    registry.root = file.join("registry");
    let error = registry.try_watch(NEWEST).unwrap_err().to_string();
    assert!(error.starts_with("error (re-)creating root "), "{error}");
}

#[tokio::test]
async fn d14_a_renamed_socket_is_desired_under_both_names() {
    let mut watched = Registry::new().watch(NEWEST);
    watched.bind("a.sock");
    watched.catch_up().await;
    fs::rename(watched.path("a.sock"), watched.path("b.sock")).unwrap();
    watched.assert_desired(&["a.sock", "b.sock"]).await;
}

#[tokio::test]
async fn d15_a_hidden_socket_that_is_renamed_over_another_replaces_it() {
    let mut watched = Registry::new().watch(NEWEST);
    watched.bind("a.sock");
    watched.catch_up().await;
    let first = watched.registry.desired.plugins()[0].identity;
    watched.bind(".tmp");
    fs::rename(watched.path(".tmp"), watched.path("a.sock")).unwrap();
    watched.assert_desired(&["a.sock"]).await;
    assert_ne!(watched.registry.desired.plugins()[0].identity, first);
}

#[tokio::test]
async fn d17_a_changed_mode_is_no_event() {
    let mut watched = Registry::new().watch(NEWEST);
    watched.bind("a.sock");
    watched.catch_up().await;
    let first = watched.registry.desired.plugins()[0].identity;
    fs::set_permissions(watched.path("a.sock"), Permissions::from_mode(0o600)).unwrap();
    watched.assert_desired(&["a.sock"]).await;
    assert_eq!(watched.registry.desired.plugins()[0].identity, first);
}

#[tokio::test]
async fn d18_a_directory_that_is_made_again_is_watched_again() {
    let mut watched = Registry::new().watch(NEWEST);
    watched.mkdir("sub");
    watched.bind("sub/a.sock");
    watched.assert_desired(&["sub/a.sock"]).await;
    fs::remove_dir_all(watched.path("sub")).unwrap();
    watched.assert_desired(&[]).await;
    watched.mkdir("sub");
    watched.catch_up().await;
    watched.bind("sub/b.sock");
    watched.assert_desired(&["sub/b.sock"]).await;
}

#[tokio::test]
async fn d18_up_to_1_28_a_directory_is_not_seen_in_the_place_of_one_in_use() {
    for (minor, seen) in [(28, &[][..]), (29, &["sub/b.sock"])] {
        let mut watched = Registry::new().watch(Profile::from_minor(minor).unwrap());
        watched.mkdir("sub");
        let in_use = UnixListener::bind(watched.path("sub/a.sock")).unwrap();
        watched.assert_desired(&["sub/a.sock"]).await;
        fs::remove_dir_all(watched.path("sub")).unwrap();
        watched.mkdir("sub");
        watched.catch_up().await;
        watched.bind("sub/b.sock");
        watched.assert_desired(seen).await;
        // Its deletion is told now, which makes its name free.
        drop(in_use);
        fs::remove_dir_all(watched.path("sub")).unwrap();
        watched.assert_desired(&[]).await;
        watched.mkdir("sub");
        watched.catch_up().await;
        watched.bind("sub/c.sock");
        watched.assert_desired(&["sub/c.sock"]).await;
    }
}

#[tokio::test]
async fn d19_a_root_that_is_made_again_is_not_watched() {
    let mut watched = Registry::new().watch(NEWEST);
    watched.bind("a.sock");
    watched.catch_up().await;
    fs::remove_dir_all(&watched.root).unwrap();
    fs::create_dir(&watched.root).unwrap();
    watched.bind("b.sock");
    while !watched.watcher.directories.is_empty() {
        watched.handle_next().await;
    }
    assert_eq!(watched.desired(), [""; 0], "nothing is watched any more");
    let errors = watched.errors();
    assert!(
        errors
            .iter()
            .any(|error| error.contains("is gone or moved")),
        "{errors:?}"
    );
}

#[tokio::test]
async fn d19_a_root_that_is_moved_away_keeps_its_sockets_desired() {
    let mut watched = Registry::new().watch(NEWEST);
    watched.bind("a.sock");
    watched.catch_up().await;
    fs::rename(&watched.root, watched.directory.path().join("moved")).unwrap();
    while !watched.watcher.directories.is_empty() {
        watched.handle_next().await;
    }
    assert_eq!(watched.desired(), ["a.sock"]);
}

#[tokio::test]
async fn d21_an_overflow_is_logged_and_nothing_more() {
    let registry = Registry::new();
    let mut watched = registry.watch(NEWEST);
    watched.bind("lost.sock");
    let event = watched.watcher.stream.next().await.unwrap().unwrap();
    watched.watcher.handle(EventOwned {
        mask: EventMask::Q_OVERFLOW,
        name: None,
        ..event
    });
    let errors = watched.errors();
    assert!(errors[0].starts_with("event queue overflow"), "{errors:?}");
    watched.bind("plugin.sock");
    watched.assert_desired(&["plugin.sock"]).await;
}

/// Takes root's power over permissions from this thread, while it lives.
struct Unprivileged(nix::unistd::Uid);

impl Unprivileged {
    fn new() -> Self {
        Self(nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65_534)))
    }
}

impl Drop for Unprivileged {
    fn drop(&mut self) {
        nix::unistd::setfsuid(self.0);
    }
}

#[tokio::test]
async fn d23_an_unreadable_directory_is_skipped() {
    for profile in [OLDEST, NEWEST] {
        let registry = Registry::new();
        registry.mkdir("closed");
        registry.bind("closed/x.sock");
        registry.bind("open.sock");
        for (path, mode) in [(registry.directory.path(), 0o755), (&registry.root, 0o755)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(registry.path("closed"), Permissions::from_mode(0o000)).unwrap();
        let mut receiver = registry.events.subscribe();
        let watcher = {
            let _user = Unprivileged::new();
            registry.try_watch(profile).unwrap()
        };
        fs::set_permissions(registry.path("closed"), Permissions::from_mode(0o700)).unwrap();
        assert_eq!(registry.desired(), ["open.sock"]);
        assert_eq!(watcher.directories.len(), 1, "only the root");
        let failed = std::iter::from_fn(|| receiver.try_recv().ok()).filter(
            |event| matches!(&event.what, What::WatchFailed { error } if error.contains("closed")),
        );
        assert_eq!(failed.count(), 1);
    }
}

#[tokio::test]
async fn a_directory_that_is_moved_in_is_listed_and_one_that_is_moved_out_stays() {
    let mut watched = Registry::new().watch(NEWEST);
    let outside = watched.directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    UnixListener::bind(outside.join("a.sock")).unwrap();
    fs::rename(&outside, watched.path("inside")).unwrap();
    watched.assert_desired(&["inside/a.sock"]).await;
    fs::rename(watched.path("inside"), &outside).unwrap();
    UnixListener::bind(outside.join("b.sock")).unwrap();
    watched.assert_desired(&["inside/a.sock"]).await;
}

#[tokio::test]
async fn up_to_1_28_a_directory_that_is_renamed_stays_watched() {
    for (minor, seen) in [(28, &["new/a.sock"][..]), (29, &[])] {
        let mut watched = Registry::new().watch(Profile::from_minor(minor).unwrap());
        watched.mkdir("old");
        watched.catch_up().await;
        fs::rename(watched.path("old"), watched.path("new")).unwrap();
        watched.catch_up().await;
        watched.bind("new/a.sock");
        watched.assert_desired(seen).await;
    }
}

#[tokio::test]
async fn the_loop_ends_with_the_stop() {
    let registry = Registry::new();
    let watcher = registry.try_watch(NEWEST).unwrap();
    let mut receiver = registry.events.subscribe();
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { watcher.run(&stop).await }
    });
    registry.bind("a.sock");
    let seen = tokio::time::timeout(PATIENCE, receiver.recv())
        .await
        .unwrap()
        .unwrap();
    assert!(matches!(
        seen.what,
        What::Desired {
            replaced: false,
            ..
        }
    ));
    stop.cancel();
    tokio::time::timeout(PATIENCE, running)
        .await
        .unwrap()
        .unwrap();
}
