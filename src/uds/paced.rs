//! A stream that gives its reader one piece at a time, and everybody else a turn before the next: however much a client has
//! sent, only as much of it is in memory as its server deals with.
//!
//! An HTTP/2 connection takes in whatever its socket has before the calls on it are looked at, and until the client
//! acknowledges our settings it may send 64 KiB.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::write_through;

/// Pauses for the length of one turn after each read. What is written passes as it is.
#[derive(Debug)]
pub struct Paced<S> {
    stream: S,
    has_read: bool,
}

impl<S> Paced<S> {
    /// `stream`, with a pace.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            has_read: false,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.has_read {
            self.has_read = false;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.has_read = true;
        Poll::Ready(Ok(()))
    }
}

write_through!(Paced);

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn others_have_a_turn_between_two_reads_and_nothing_is_lost() {
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(b"abcdefgh").await.unwrap();
        drop(client);
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = turns.clone();
        // Always ready to run, as a call whose message has come in.
        let other = tokio::spawn(poll_fn::<(), _>(move |cx| {
            counted.fetch_add(1, Ordering::Relaxed);
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        let reading = tokio::spawn(async move {
            let mut paced = Paced::new(server);
            let mut read = Vec::<u8>::new();
            let mut piece = [0; 2];
            loop {
                let before = turns.load(Ordering::Relaxed);
                match paced.read(&mut piece).await.unwrap() {
                    0 => return read,
                    n => read.extend(&piece[..n]),
                }
                assert!(read.len() <= 2 || turns.load(Ordering::Relaxed) > before);
            }
        });
        assert_eq!(reading.await.unwrap(), b"abcdefgh");
        other.abort();
    }
}
