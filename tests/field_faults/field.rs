//! What rows need beyond the harness: questions that may fail, a process seen from outside, ways to start one that a shell or
//! util-linux offers.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use csi_node_driver_registrar::registrar::service;

pub use crate::support::http::{http_endpoint, listening, loopback_address};
pub use crate::support::usage::Usage;
use crate::support::{self, DEADLINE, DRIVER, Kubelet, Node, Registrar};

/// How long a whole registration may take while the registrar is under attack.
pub const UNDER_ATTACK: Duration = Duration::from_secs(10);

/// What the socket at `path` calls itself, if it answers within a second.
pub async fn name_at(path: &Path) -> Option<String> {
    let answer = service::ask(path, Duration::from_secs(1)).await;
    answer.ok().map(|info| info.name)
}

/// Waits until the socket at `path` answers with the name of the usual driver.
pub async fn answering(path: &Path, limit: Duration) {
    answering_as(DRIVER, path, limit).await;
}

pub async fn answering_as(name: &str, path: &Path, limit: Duration) {
    let what = format!("{} to answer", path.display());
    support::within(limit, &what, async {
        while name_at(path).await.as_deref() != Some(name) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// A first registration. Somebody else's socket may be there a moment before it answers.
pub async fn registered(path: &Path) -> Kubelet {
    answering(path, DEADLINE).await;
    Kubelet::register(path).await
}

/// A registration in tries, as a kubelet makes them, since under attack one may be cut off.
pub async fn registering(path: &Path) {
    support::within(UNDER_ATTACK, "a registration under attack", async {
        while registration(path).await.is_none() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
}

async fn registration(path: &Path) -> Option<()> {
    let attempt = async {
        let kubelet = Kubelet::try_dial(path).await.ok()?;
        kubelet.try_get_info().await.ok()?;
        kubelet.try_notify(Ok(())).await.ok()
    };
    tokio::time::timeout(Duration::from_secs(3), attempt)
        .await
        .ok()
        .flatten()
}

/// Device and inode of what is at `path`.
pub fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = path.symlink_metadata().ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Everything below `directory` and what it is, for "nothing was touched".
pub fn inventory(directory: &Path) -> Vec<(PathBuf, fs::FileType, u64)> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.path().symlink_metadata().unwrap();
            if metadata.is_dir() {
                open.push(entry.path());
            }
            found.push((entry.path(), metadata.file_type(), metadata.ino()));
        }
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

/// Runs the registrar behind `shell`, which ends in `exec "$@"`: in the end it is the process that was started.
pub fn through_shell(node: &Node, shell: &str, more: &[String]) -> Command {
    let mut command = Command::new("sh");
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("TZ", "UTC")
        .stdin(std::process::Stdio::null())
        .args(["-c", shell, "sh"])
        .arg(support::registrar_binary())
        .args(node.arguments())
        .args(more);
    command
}

/// A registrar behind a shell command.
pub fn registrar_through(node: &Node, shell: &str, more: &[String]) -> Registrar {
    Registrar::spawn(through_shell(node, shell, more))
}

/// Waits for exit code 1 and returns the log.
pub async fn failed(mut registrar: Registrar, limit: Duration) -> String {
    let status = registrar.exit_within(limit).await;
    assert_eq!(status.code(), Some(1), "{status:?}");
    registrar.log().complete().await
}

/// The lines of a log that are warnings or errors.
pub fn complaints(log: &str) -> Vec<&str> {
    let is_complaint = |line: &&str| line.starts_with(['W', 'E', 'F']);
    log.lines().filter(is_complaint).collect()
}

/// Waits for a warning or an error that contains all of `parts`, in any letter case.
pub async fn complaint(registrar: &Registrar, limit: Duration, parts: &[&str]) -> String {
    let end = Instant::now() + limit;
    loop {
        let log = registrar.log().text();
        let found = complaints(&log).into_iter().find(|line| {
            let line = line.to_lowercase();
            parts.iter().all(|part| line.contains(&part.to_lowercase()))
        });
        if let Some(line) = found {
            return line.to_owned();
        }
        assert!(
            Instant::now() < end,
            "no warning with {parts:?} within {limit:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub fn assert_memory_is_bounded(usage: Usage) {
    let (peak, limit) = (usage.peak_memory(), usage.memory_limit());
    assert!(
        peak < limit,
        "{peak} KiB resident at most, {limit} are allowed"
    );
}

/// Waits until no more than `limit` descriptors are open.
pub async fn descriptors_at_most(usage: Usage, limit: usize) {
    let end = Instant::now() + DEADLINE;
    while usage.descriptors() > limit {
        assert!(
            Instant::now() < end,
            "{} descriptors are open, {limit} are allowed",
            usage.descriptors()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
