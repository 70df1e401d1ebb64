//! Tells when an HTTP/2 server has spoken: grpc-go calls a connection ready only after the server's SETTINGS frame, so a
//! socket whose owner accepts and says nothing is never "dialled". hyper does not tell.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::oneshot;

use crate::uds::write_through;

/// Offset of the type in a frame's head (RFC 9113, section 4.1).
const TYPE_OFFSET: usize = 3;

/// Type of a SETTINGS frame (RFC 9113, section 6.5), the first that a server may send (section 3.4).
const SETTINGS: u8 = 0x4;

/// A stream that passes everything on and looks at the type of the first frame read.
#[derive(Debug)]
pub(super) struct ServerPreface<S> {
    stream: S,
    /// Octets read while the first frame's type is not known; none afterwards.
    waiting: Option<(usize, oneshot::Sender<bool>)>,
}

impl<S> ServerPreface<S> {
    /// The receiver gets whether the first frame is SETTINGS, or an error when the stream ends before.
    pub(super) fn new(stream: S) -> (Self, oneshot::Receiver<bool>) {
        let (sender, receiver) = oneshot::channel();
        let waiting = Some((0, sender));
        (Self { stream, waiting }, receiver)
    }

    fn look(&mut self, read: &[u8]) {
        let Some((seen, sender)) = self.waiting.take() else {
            return;
        };
        match read.get(TYPE_OFFSET - seen) {
            // Nobody may be waiting any more.
            Some(&kind) => drop(sender.send(kind == SETTINGS)),
            None => self.waiting = Some((seen + read.len(), sender)),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ServerPreface<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.look(&buf.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

write_through!(ServerPreface);

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    const SETTINGS_FRAME: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

    /// What is told after `octets` were read in pieces of `piece` octets.
    async fn told(octets: &[u8], piece: usize) -> Option<bool> {
        let (mut preface, receiver) = ServerPreface::new(octets);
        let mut read: Vec<u8> = Vec::new();
        let mut buffer = vec![0; piece];
        loop {
            match preface.read(&mut buffer).await.unwrap() {
                0 => break,
                count => read.extend(&buffer[..count]),
            }
        }
        assert_eq!(read, octets, "everything is passed on");
        drop(preface);
        receiver.await.ok()
    }

    #[tokio::test]
    async fn settings_are_recognised_however_they_are_cut() {
        for piece in [1, 2, 3, 4, 9, 64] {
            assert_eq!(told(SETTINGS_FRAME, piece).await, Some(true), "{piece}");
            assert_eq!(
                told(b"HTTP/1.1 400 Bad Request", piece).await,
                Some(false),
                "{piece}"
            );
        }
    }

    #[tokio::test]
    async fn an_early_end_is_an_error() {
        assert_eq!(told(&SETTINGS_FRAME[..3], 64).await, None);
        assert_eq!(told(b"", 64).await, None);
    }
}
