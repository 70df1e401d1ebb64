//! The client's end of the adapter.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::header_block::MAX_VALUE;
use super::scanner::MAX_HELD;
use super::{Rule, Scanner, huffman, placeholder};

/// An `:authority` that no Rust client sends, and the legal one that it has to send for it.
#[derive(Clone, Debug)]
pub struct Disguise {
    placeholder: Vec<u8>,
    value: Vec<u8>,
}

impl Disguise {
    /// A disguise of `value`, whatever its octets are; `None` if it is empty or longer than 1,024 octets.
    ///
    /// The placeholder's Huffman form, which is what h2's client sends, is as long as the shorter form of `value`, which
    /// is what grpc-go's would send.
    pub fn new(value: Vec<u8>) -> Option<Self> {
        let octets = huffman::encoded_len(&value).min(value.len());
        if octets > MAX_VALUE {
            return None;
        }
        Some(Self {
            placeholder: placeholder(value.len(), octets)?,
            value,
        })
    }

    /// What the requests on a [`Dialled`] stream have as authority, so that the disguised one is sent.
    pub fn placeholder(&self) -> &[u8] {
        &self.placeholder
    }
}

impl Rule for Disguise {
    fn replacement(&self, value: &[u8], _octets: usize) -> Option<Vec<u8>> {
        (value == self.placeholder).then(|| self.value.clone())
    }
}

/// A dialled stream, on which a placeholder becomes the `:authority` that it stands for. What is read passes as it is,
/// and without a disguise what is written does.
///
/// With one, what is written is copied, and sent by a flush or when 16,393 octets have gathered.
#[derive(Debug)]
pub struct Dialled<S> {
    pub(super) stream: S,
    scanner: Scanner,
    disguise: Option<Disguise>,
    /// Octets not yet sent: at most [`MAX_HELD`].
    pub(super) pending: Vec<u8>,
    /// How many of them the scanner has released.
    released: usize,
    /// How many of those have been sent.
    sent: usize,
}

impl<S> Dialled<S> {
    /// `stream`, to which nothing has been written yet.
    pub fn new(stream: S, disguise: Option<Disguise>) -> Self {
        Self {
            stream,
            scanner: Scanner::default(),
            disguise,
            pending: Vec::new(),
            released: 0,
            sent: 0,
        }
    }
}

impl<S: AsyncWrite + Unpin> Dialled<S> {
    /// Sends all that is released.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.released {
            let octets = &self.pending[self.sent..self.released];
            let n = ready!(Pin::new(&mut self.stream).poll_write(cx, octets))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += n;
        }
        self.pending.drain(..self.released);
        self.released = 0;
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Dialled<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.pending.len() == MAX_HELD {
            ready!(this.poll_send(cx))?;
        }
        let Some(disguise) = &this.disguise else {
            return Pin::new(&mut this.stream).poll_write(cx, octets);
        };
        let room = MAX_HELD - this.pending.len();
        let n = octets.len().min(room);
        this.pending.extend_from_slice(&octets[..n]);
        let unseen = &mut this.pending[this.released..];
        this.released += this.scanner.scan(unseen, disguise).released;
        Poll::Ready(Ok(n))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.disguise.is_none() {
            return Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        }
        let first = slices.iter().find(|slice| !slice.is_empty());
        self.poll_write(cx, first.map_or(&[], |slice| slice))
    }

    fn is_write_vectored(&self) -> bool {
        self.disguise.is_none() && self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // An incomplete frame will never be whole.
        self.released = self.pending.len();
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Dialled<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}
