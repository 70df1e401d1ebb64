//! The registrar under test: a process in a group of its own, its output's end kept, gone with the value.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

use crate::manager::lock;

/// Octets of output that are kept, the last ones.
const MAX_LOG: usize = 64 * 1024;

/// Octets read at once.
const CHUNK: usize = 4096;

/// A process that is killed when it is dropped, and what it has started with it.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    group: Option<Pid>,
    log: Arc<Mutex<VecDeque<u8>>>,
}

impl Process {
    /// Starts `command`, its name first.
    pub(super) fn start(command: &[OsString]) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A terminal's interrupt is for the check, which then stops the registrar.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let log = Arc::default();
        if let Some(stdout) = child.stdout.take() {
            keep(stdout, Arc::clone(&log));
        }
        if let Some(stderr) = child.stderr.take() {
            keep(stderr, Arc::clone(&log));
        }
        Ok(Self {
            child,
            group: id.map(Pid::from_raw),
            log,
        })
    }

    /// Its process id, as long as it runs.
    pub(super) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for its end. Cancel safe.
    pub(super) async fn exited(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Asks it to stop, as a pod's end does; the first process alone. Nothing, where it has ended.
    pub(super) fn terminate(&self) {
        let id = self.id().and_then(|id| i32::try_from(id).ok());
        if let Some(id) = id {
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
    }

    /// Ends it at once, and all that it has started and left behind.
    pub(super) fn kill(&mut self) {
        if let Some(group) = self.group.take() {
            // An error says that there is nothing left.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }

    /// The last lines of what it wrote.
    pub(super) fn log(&self) -> Vec<String> {
        let octets: Vec<u8> = lock(&self.log).iter().copied().collect();
        let text = String::from_utf8_lossy(&octets);
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads until the end, so that the process never waits for its reader.
fn keep(mut stream: impl AsyncRead + Send + Unpin + 'static, log: Arc<Mutex<VecDeque<u8>>>) {
    tokio::spawn(async move {
        let mut chunk = vec![0; CHUNK];
        while let Ok(count @ 1..) = stream.read(&mut chunk).await {
            let mut log = lock(&log);
            log.extend(&chunk[..count]);
            let excess = log.len().saturating_sub(MAX_LOG);
            log.drain(..excess);
        }
    });
}
