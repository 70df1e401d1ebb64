//! The manager's binary as a process.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Log, until, within};

/// Longest time for a whole command; a check on a busy machine takes its time.
pub(crate) const COMMAND_DEADLINE: Duration = Duration::from_mins(1);

/// The binary with a clean environment and nobody to read from.
pub(crate) fn command<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubelet-plugin-manager"));
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("TZ", "UTC")
        .stdin(Stdio::null())
        .args(arguments);
    command
}

/// Runs a command to its end.
pub(crate) async fn output(command: Command) -> Output {
    let mut command = tokio::process::Command::from(command);
    let output = command.kill_on_drop(true).output();
    within(COMMAND_DEADLINE, "the command", output)
        .await
        .unwrap()
}

/// Its exit code, what it printed, and what it complained about.
pub(crate) async fn outcome<A: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = A>,
) -> (i32, String, String) {
    let output = output(command(arguments)).await;
    let text = |octets| String::from_utf8(octets).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// A running command, killed when the test ends.
pub(crate) struct Tool {
    child: Child,
    pub(crate) out: Log,
    pub(crate) err: Log,
}

impl Tool {
    pub(crate) fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Self {
        let mut command = command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = Log::of(child.stdout.take().unwrap());
        let err = Log::of(child.stderr.take().unwrap());
        Self { child, out, err }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).unwrap();
        kill(Pid::from_raw(id), signal).unwrap();
    }

    pub(crate) async fn exit(&mut self) -> ExitStatus {
        let mut status = None;
        let child = &mut self.child;
        until("the command to end", || {
            status = child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- printed\n{}", self.out.text());
            eprintln!("--- complained\n{}", self.err.text());
        }
    }
}

/// A terminal's screen side.
pub(crate) struct Terminal {
    master: File,
    slave: OwnedFd,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        let pty = nix::pty::openpty(None, None).unwrap();
        Self {
            master: File::from(pty.master),
            slave: pty.slave,
        }
    }

    pub(crate) fn stream(&self) -> Stdio {
        self.slave.try_clone().unwrap().into()
    }

    /// All that is shown until the other side is closed.
    pub(crate) fn read(self) -> JoinHandle<String> {
        drop(self.slave);
        let mut master = self.master;
        // A thread, since the command must never wait for its reader.
        std::thread::spawn(move || {
            let mut shown = Vec::new();
            // A terminal whose other side is closed fails with EIO; what came before stays.
            let _ = master.read_to_end(&mut shown);
            String::from_utf8_lossy(&shown).into_owned()
        })
    }
}

/// Runs a command to its end on a terminal: its exit code and what is on the screen.
pub(crate) async fn on_a_terminal(mut command: Command, stdout: bool) -> (i32, String) {
    let terminal = Terminal::new();
    command.stderr(terminal.stream());
    if stdout {
        command.stdout(terminal.stream());
    } else {
        command.stdout(Stdio::null());
    }
    let mut child = tokio::process::Command::from(command)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let shown = terminal.read();
    let status = within(COMMAND_DEADLINE, "the command", child.wait()).await;
    until("the screen to be complete", || shown.is_finished()).await;
    (status.unwrap().code().unwrap(), shown.join().unwrap())
}
