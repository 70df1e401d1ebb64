//! The server's end of the adapter.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::{MakeLegal, Scanner};
use crate::uds::write_through;

/// An accepted stream, whose reader meets no `:authority` that h2 refuses. What is written passes as it is.
///
/// Holds octets only while the head of a frame or a HEADERS frame has not come in whole: at most 16,393.
#[derive(Debug)]
pub struct Accepted<S> {
    pub(super) stream: S,
    scanner: Scanner,
    /// Octets that were read and not yet handed out.
    pub(super) held: Vec<u8>,
    /// How many of them have been handed out since.
    handed_out: usize,
    /// How many octets have to be added to `held` before it can be handed out.
    missing: usize,
}

impl<S> Accepted<S> {
    /// `stream`, from which nothing has been read yet.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            scanner: Scanner::default(),
            held: Vec::new(),
            handed_out: 0,
            missing: 0,
        }
    }
}

impl<S: AsyncRead + Unpin> Accepted<S> {
    /// Reads into `buf` what needs not be held.
    fn poll_read_through(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let start = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let octets = &mut buf.filled_mut()[start..];
        let scanned = self.scanner.scan(octets, &MakeLegal);
        let rest = &octets[scanned.released..];
        if scanned.missing > 0 {
            self.held.reserve_exact(rest.len() + scanned.missing);
            self.held.extend_from_slice(rest);
            self.missing = scanned.missing;
        }
        buf.set_filled(start + scanned.released);
        Poll::Ready(Ok(()))
    }

    /// Reads what is missing in `held`, by way of the unfilled part of `buf`.
    fn poll_read_missing(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut part = buf.take(self.missing);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
        let octets = part.filled();
        if octets.is_empty() {
            // The end of the stream: it will never be whole, and is handed out as it is.
            self.missing = 0;
        } else {
            self.held.extend_from_slice(octets);
            // Either nothing is released or everything is, since nothing beyond the missing part was read.
            self.missing = self.scanner.scan(&mut self.held, &MakeLegal).missing;
            self.held.reserve_exact(self.missing);
        }
        Poll::Ready(Ok(()))
    }

    fn hand_out(&mut self, buf: &mut ReadBuf<'_>) {
        let rest = &self.held[self.handed_out..];
        let n = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..n]);
        self.handed_out += n;
        if self.handed_out == self.held.len() {
            // With its memory: most connections never hold anything again.
            self.held = Vec::new();
            self.handed_out = 0;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Accepted<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        // An empty read means the end of the stream, so none is returned while something is held.
        let start = buf.filled().len();
        loop {
            if this.missing > 0 {
                ready!(this.poll_read_missing(cx, buf))?;
            } else if !this.held.is_empty() {
                this.hand_out(buf);
                return Poll::Ready(Ok(()));
            } else {
                ready!(this.poll_read_through(cx, buf))?;
                if buf.filled().len() > start || this.missing == 0 {
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

write_through!(Accepted);
