//! Children that speak in lines, and what the kernel knows of them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::unistd::{SysconfVar, sysconf};

use super::{Failure, LIMIT};

/// A child that ends with this value.
pub(crate) struct Process {
    child: Child,
    /// Its end is the child's: kept open.
    _input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    /// This program in another role.
    pub(crate) fn role(arguments: &[&str]) -> Result<Self, Failure> {
        Self::start(&std::env::current_exe()?, arguments)
    }

    pub(crate) fn start(program: &Path, arguments: &[&str]) -> Result<Self, Failure> {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let output = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        let (sender, lines) = channel();
        // What a child says is read at once: it must not wait.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            _input: child.stdin.take(),
            child,
            lines,
        })
    }

    /// Waits for so many lines that are wanted.
    pub(crate) fn wait_for(
        &self,
        what: &str,
        count: usize,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<(), Failure> {
        let end = Instant::now() + LIMIT;
        let mut seen = 0;
        while seen < count {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if wanted(&line) => seen += 1,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("{what}: {seen} of {count} within {LIMIT:?}").into());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("{what}: the process ended").into());
                }
            }
        }
        Ok(())
    }

    /// User and system time so far.
    pub(crate) fn cpu(&self) -> Result<Duration, Failure> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name in parentheses may hold anything; the third field follows it.
        let fields = stat.rsplit(") ").next().ok_or("no fields")?;
        let ticks = fields.split(' ').skip(11).take(2);
        let ticks = ticks.map(str::parse::<u32>).sum::<Result<u32, _>>()?;
        let per_second = sysconf(SysconfVar::CLK_TCK)?.ok_or("no clock ticks")?;
        Ok(Duration::from_secs(ticks.into()) / u32::try_from(per_second)?)
    }

    /// Most memory that it had, in MiB.
    pub(crate) fn peak_memory(&self) -> Result<u64, Failure> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: u64 = line
            .and_then(|line| line.split_whitespace().next())
            .ok_or("no peak memory")?
            .parse()?;
        Ok(kib.div_ceil(1024))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
