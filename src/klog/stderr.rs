//! Standard error, without ever waiting for whoever reads it: a log collector that hangs or is gone costs log lines, not the
//! registration.

use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Output;

/// Bytes of one `write`, Linux's `PIPE_BUF`: when `poll` calls a pipe writable, that much fits without waiting.
const PIECE: usize = 4096;

/// Writes what a descriptor takes at once and drops the rest of the line.
///
/// `O_NONBLOCK` is not set: the open file belongs to every process that inherited it.
#[derive(Debug)]
pub struct LossyWriter<F> {
    file: F,
    /// Whether the last line was cut, so that the next one starts with a line break.
    torn: AtomicBool,
}

impl LossyWriter<io::Stderr> {
    /// On the standard error of this process, also when that is closed.
    pub fn stderr() -> Self {
        Self::new(io::stderr())
    }
}

impl<F> LossyWriter<F>
where
    F: AsFd,
    for<'a> &'a F: Write,
{
    /// On any descriptor whose `Write` has no buffer.
    pub fn new(file: F) -> Self {
        Self {
            file,
            torn: AtomicBool::new(false),
        }
    }

    /// How much of `bytes` was taken.
    fn write(&self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() && self.is_writable() {
            let piece = &bytes[done..bytes.len().min(done + PIECE)];
            match (&self.file).write(piece) {
                Ok(0) => break,
                Ok(taken) => done += taken,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        done
    }

    fn is_writable(&self) -> bool {
        let mut descriptors = [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)];
        poll(&mut descriptors, PollTimeout::ZERO).is_ok()
            && descriptors[0]
                .revents()
                .is_some_and(|events| events.contains(PollFlags::POLLOUT))
    }
}

impl<F> Output for LossyWriter<F>
where
    F: AsFd + Send + Sync + 'static,
    for<'a> &'a F: Write,
{
    fn write_line(&self, line: &str) {
        if self.torn.load(Ordering::Relaxed) && self.write(b"\n") == 0 {
            return;
        }
        let taken = self.write(line.as_bytes());
        self.torn
            .store(taken > 0 && taken < line.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
