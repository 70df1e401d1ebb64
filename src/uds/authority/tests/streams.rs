//! The wrappers: every way to cut a connection into reads and writes, and its end at any place.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::super::{Accepted, Dialled, Disguise, MakeLegal, Rule};
use super::encoder::{Encoder, Form};
use super::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, MAX_HELD, PERCENT_ENCODED, PREFACE, RAW,
    SETTINGS, frame, scan,
};

/// A socket whose peer sends pieces of a given size, and whose own buffer takes as many octets at a time. It is not ready
/// every other time.
#[derive(Debug, Default)]
struct Socket {
    incoming: VecDeque<u8>,
    sent: Vec<u8>,
    size: usize,
    ready: bool,
    vectored: bool,
    shut_down: bool,
}

impl Socket {
    fn new(incoming: &[u8], size: usize) -> Self {
        Self {
            incoming: incoming.iter().copied().collect(),
            size,
            ..Self::default()
        }
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.ready = !self.ready;
        if self.ready {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_ready(cx));
        let n = self.size.min(buf.remaining()).min(self.incoming.len());
        buf.put_slice(&self.incoming.drain(..n).collect::<Vec<_>>());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_ready(cx));
        let n = self.size.min(octets.len());
        self.sent.extend_from_slice(&octets[..n]);
        Poll::Ready(Ok(n))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.vectored = true;
        let octets = slices.iter().flat_map(|slice| slice.to_vec());
        let before = self.sent.len();
        self.sent.extend(octets);
        Poll::Ready(Ok(self.sent.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shut_down = true;
        Poll::Ready(Ok(()))
    }
}

/// A connection with calls, large and small frames, and a block in two frames.
fn connection() -> Vec<u8> {
    let mut encoder = Encoder::new();
    let block = encoder.request_block(RAW, Form::USUAL);
    let (first, second) = block.split_at(block.len() - 5);
    [
        PREFACE.to_vec(),
        frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0x40, 0]),
        frame(HEADERS, 0, 1, first),
        frame(CONTINUATION, END_HEADERS, 1, second),
        frame(DATA, END_STREAM, 1, &[0; 300]),
        encoder.request(3, PERCENT_ENCODED, Form::USUAL),
        frame(DATA, END_STREAM, 3, b""),
        encoder.request(5, b"localhost", Form::USUAL),
    ]
    .concat()
}

/// Reads to the end, `size` octets at a time.
async fn read_all(mut stream: impl AsyncRead + Unpin, size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut buf = vec![0; size];
    loop {
        match stream.read(&mut buf).await.unwrap() {
            0 => return out,
            n => out.extend_from_slice(&buf[..n]),
        }
    }
}

#[tokio::test]
async fn however_it_is_read() {
    let octets = connection();
    let expected = scan(&octets, &MakeLegal, [usize::MAX]);
    assert_ne!(expected, octets);
    for pieces in [1, 2, 3, 8, 9, 10, 33, 100, 9000] {
        for reads in [1, 2, 5, 9, 64, 8192] {
            let stream = Accepted::new(Socket::new(&octets, pieces));
            assert_eq!(read_all(stream, reads).await, expected, "{pieces} {reads}");
        }
    }
}

#[tokio::test]
async fn an_end_at_any_place() {
    let octets = connection();
    for end in 0..octets.len() {
        let expected = scan(&octets[..end], &MakeLegal, [usize::MAX]);
        for size in [1, 4096] {
            let stream = Accepted::new(Socket::new(&octets[..end], size));
            assert_eq!(read_all(stream, 64).await, expected, "{end} {size}");
        }
    }
}

#[tokio::test]
async fn what_is_held_is_bounded_and_freed() {
    let mut block = Encoder::new().request_block(RAW, Form::USUAL);
    block.resize(16 * 1024, 0x82);
    let large = frame(HEADERS, END_HEADERS, 1, &block);
    let octets = [PREFACE, &large, &large, &large].concat();
    let mut stream = Accepted::new(Socket::new(&octets, 100));
    let mut buf = [0; 4096];
    let mut out = Vec::new();
    while out.len() < octets.len() {
        let n = stream.read(&mut buf).await.unwrap();
        out.extend_from_slice(&buf[..n]);
        assert!(stream.held.capacity() <= MAX_HELD);
    }
    assert_eq!(out, scan(&octets, &MakeLegal, [usize::MAX]));
    assert_eq!(stream.held.capacity(), 0);
}

#[tokio::test]
async fn an_empty_read_is_not_the_end() {
    let octets = connection();
    let mut stream = pin!(Accepted::new(Socket::new(&octets, 1)));
    let mut out = vec![0; octets.len()];
    let mut out = ReadBuf::new(&mut out);
    poll_fn(|cx| {
        while out.remaining() > 0 {
            let empty = stream.as_mut().poll_read(cx, &mut ReadBuf::new(&mut []));
            assert!(matches!(empty, Poll::Ready(Ok(()))));
            if let Poll::Ready(result) = stream.as_mut().poll_read(cx, &mut out) {
                result.unwrap();
            }
        }
        Poll::Ready(())
    })
    .await;
    assert_eq!(out.filled(), scan(&octets, &MakeLegal, [usize::MAX]));
}

#[tokio::test]
async fn what_is_not_http2_passes() {
    let request = Encoder::new().request(1, RAW, Form::USUAL);
    let mut wrong_preface = [PREFACE, &request].concat();
    wrong_preface[23] = b'\r';
    let http1 = b"GET / HTTP/1.1\r\nHost: %2Fvar\r\n\r\n".to_vec();
    for octets in [
        wrong_preface,
        http1,
        request,
        b"PRI * HT".to_vec(),
        vec![0; 70_000],
    ] {
        for size in [1, 7, 8192] {
            let stream = Accepted::new(Socket::new(&octets, size));
            assert_eq!(read_all(stream, 100).await, octets);
            let disguise = Disguise::new(RAW.to_vec());
            let mut stream = Dialled::new(Socket::new(b"", size), disguise);
            stream.write_all(&octets).await.unwrap();
            stream.flush().await.unwrap();
            assert_eq!(stream.stream.sent, octets);
        }
    }
}

/// What h2's client would write, were it asked for the placeholder of `value`.
fn disguised(value: &[u8]) -> (Disguise, Vec<u8>) {
    let disguise = Disguise::new(value.to_vec()).unwrap();
    let mut encoder = Encoder::new();
    let mut octets = PREFACE.to_vec();
    for stream in [1, 3, 5] {
        octets.extend(encoder.request(stream, disguise.placeholder(), Form::USUAL));
        octets.extend(frame(DATA, END_STREAM, stream, &vec![0; 16_000]));
    }
    (disguise, octets)
}

#[tokio::test]
async fn however_it_is_written() {
    for value in [RAW, PERCENT_ENCODED] {
        let (disguise, octets) = disguised(value);
        let expected = scan(&octets, &disguise, [usize::MAX]);
        assert_ne!(expected, octets);
        for writes in [1, 8, 9, 100, 9000, 100_000] {
            for size in [1, 100, 100_000] {
                let socket = Socket::new(b"", size);
                let mut stream = Dialled::new(socket, Some(disguise.clone()));
                for piece in octets.chunks(writes) {
                    stream.write_all(piece).await.unwrap();
                    assert!(stream.pending.len() <= MAX_HELD);
                }
                stream.flush().await.unwrap();
                assert_eq!(stream.stream.sent, expected, "{writes} {size}");
                assert!(stream.pending.is_empty());
            }
        }
    }
}

#[tokio::test]
async fn a_shutdown_sends_all_that_was_written() {
    let (disguise, octets) = disguised(RAW);
    for end in 0..300 {
        let expected = scan(&octets[..end], &disguise, [usize::MAX]);
        let mut stream = Dialled::new(Socket::new(b"", 7), Some(disguise.clone()));
        stream.write_all(&octets[..end]).await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(stream.stream.sent, expected);
        assert!(stream.stream.shut_down);
    }
}

#[tokio::test]
async fn the_other_direction_is_forwarded() {
    let (disguise, octets) = disguised(RAW);
    let slices = [IoSlice::new(b""), IoSlice::new(b"ab"), IoSlice::new(b"c")];

    let mut stream = Accepted::new(Socket::new(b"", 100_000));
    assert!(stream.is_write_vectored());
    assert_eq!(stream.write_vectored(&slices).await.unwrap(), 3);
    stream.write_all(&octets).await.unwrap();
    stream.shutdown().await.unwrap();
    assert!(stream.stream.vectored && stream.stream.shut_down);
    assert_eq!(stream.stream.sent, [b"abc", &octets[..]].concat());

    let mut stream = Dialled::new(Socket::new(&octets, 100), None);
    assert!(stream.is_write_vectored());
    assert_eq!(stream.write_vectored(&slices).await.unwrap(), 3);
    stream.write_all(b"d").await.unwrap();
    assert_eq!(stream.stream.sent, b"abcd");
    assert_eq!(read_all(stream, 100).await, octets);

    let mut stream = Dialled::new(Socket::new(b"", 100), Some(disguise));
    assert!(!stream.is_write_vectored());
    assert_eq!(stream.write_vectored(&slices).await.unwrap(), 2);
    stream.flush().await.unwrap();
    assert_eq!(stream.stream.sent, b"ab");
}

#[tokio::test]
async fn a_socket_that_takes_nothing_is_an_error() {
    let disguise = Disguise::new(RAW.to_vec());
    let mut stream = Dialled::new(Socket::new(b"", 0), disguise);
    stream.write_all(PREFACE).await.unwrap();
    let error = stream.flush().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WriteZero);
}

#[test]
fn a_disguise_is_put_on_once() {
    let (disguise, _) = disguised(RAW);
    let octets = disguise.placeholder().len();
    assert_eq!(
        disguise.replacement(disguise.placeholder(), octets),
        Some(RAW.to_vec())
    );
    assert_eq!(disguise.replacement(RAW, octets), None);
    assert_eq!(disguise.replacement(b"localhost", octets), None);
}
