//! A hyper server with the adapter judges malformed input as one without it, and takes what that one refuses.

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::Empty;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::super::Accepted;
use super::super::oracle::{Decoder, Frame, frames};
use super::encoder::{Encoder, Form, integer};
use super::{
    CONTINUATION, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PERCENT_ENCODED, PING, PREFACE,
    PRIORITY, RAW, RST_STREAM, SETTINGS, frame,
};

const DEADLINE: Duration = Duration::from_secs(20);

/// What a server says: the kind of a frame, its stream, and an error code or an HTTP status.
type Answer = (u8, u32, u32);

// Error codes (RFC 9113 section 7).
const PROTOCOL_ERROR: u32 = 1;
const FRAME_SIZE_ERROR: u32 = 6;
const ENHANCE_YOUR_CALM: u32 = 11;

/// What a stock server, or one with the adapter, says to these frames: `count` things, or fewer if it closes the
/// connection.
async fn answers(adapter: bool, octets: &[u8], count: usize) -> Vec<Answer> {
    let (client, server) = tokio::io::duplex(1 << 20);
    let server = if adapter {
        tokio::spawn(serve(Accepted::new(server)))
    } else {
        tokio::spawn(serve(server))
    };
    let answers = tokio::time::timeout(DEADLINE, talk(client, octets, count));
    let mut answers = answers.await.expect("fewer answers");
    server.abort();
    // Calls are answered in any order.
    answers.sort_unstable();
    answers
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin) {
    let service = service_fn(async |_| {
        Ok::<_, Infallible>(http::Response::new(Empty::<bytes::Bytes>::new()))
    });
    // What it ends with is told to the client.
    let _ = http2::Builder::new(TokioExecutor::new())
        .max_header_list_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// Says all this, and listens to `count` answers and to what the server has said when it has come to its end.
async fn talk(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    octets: &[u8],
    count: usize,
) -> Vec<Answer> {
    let settings = frame(SETTINGS, 0, 0, b"");
    // The server may be gone before it has read all of it.
    let _ = stream
        .write_all(&[PREFACE, &settings, octets].concat())
        .await;
    let mut heard = Vec::new();
    listen(&mut stream, &mut heard, |heard| parse(heard).len() >= count).await;
    let ping = frame(PING, 0, 0, b"the end.");
    let _ = stream.write_all(&ping).await;
    listen(&mut stream, &mut heard, |heard| {
        heard.ends_with(b"the end.")
    })
    .await;
    parse(&heard)
}

/// Reads until `done`, or to the end.
async fn listen(
    stream: &mut (impl AsyncRead + Unpin),
    heard: &mut Vec<u8>,
    done: impl Fn(&[u8]) -> bool,
) {
    while !done(heard) && stream.read_buf(heard).await.unwrap() > 0 {}
}

fn parse(heard: &[u8]) -> Vec<Answer> {
    let mut decoder = Decoder::new(4096);
    let code = |payload: &[u8]| u32::from_be_bytes(payload.try_into().unwrap());
    let whole = |frame: &Frame<'_>| frame.payload.len() == frame.length;
    frames(heard)
        .0
        .into_iter()
        .filter(whole)
        .filter_map(|frame| match frame.kind {
            HEADERS => {
                let fields = decoder.decode(frame.payload).unwrap();
                let status = std::str::from_utf8(&fields[0].1).unwrap().parse();
                Some((HEADERS, frame.stream, status.unwrap()))
            }
            RST_STREAM => Some((RST_STREAM, frame.stream, code(frame.payload))),
            GOAWAY => Some((GOAWAY, frame.stream, code(&frame.payload[4..8]))),
            _ => None,
        })
        .collect()
}

/// Input that no server may take, and what h2 says to it.
struct Malformed {
    what: &'static str,
    octets: Vec<u8>,
    answer: Answer,
}

fn malformed(authority: &[u8]) -> Vec<Malformed> {
    let mut all = Vec::new();
    let mut add = |what, answer, octets: Vec<u8>| {
        all.push(Malformed {
            what,
            octets,
            answer,
        });
    };
    let block = || Encoder::new().request_block(authority, Form::USUAL);
    let with = |before: &[u8], after: &[u8]| {
        let block = [before, &block(), after].concat();
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)
    };
    let go_away = (GOAWAY, 0, PROTOCOL_ERROR);
    let reset = (RST_STREAM, 1, PROTOCOL_ERROR);
    let calm = (GOAWAY, 0, ENHANCE_YOUR_CALM);

    let open = || frame(HEADERS, END_STREAM, 1, &block());
    let ping = frame(PING, 0, 0, &[0; 8]);
    add("a PING in a block", go_away, [open(), ping].concat());
    let other = frame(CONTINUATION, END_HEADERS, 3, b"");
    add("a wrong stream", go_away, [open(), other].concat());
    let flood = frame(CONTINUATION, 0, 1, b"").repeat(1000);
    add("many CONTINUATIONs", calm, [open(), flood].concat());

    add("an unknown index", go_away, with(b"", b"\xff\x7f"));
    add("a late table size", go_away, with(b"", b"\x20"));
    let mut too_large = Vec::new();
    integer(4097, 5, 0x20, &mut too_large);
    add("a large table size", go_away, with(&too_large, b""));

    let mut bomb = Encoder::new();
    let mut bomb_block = bomb.request_block(authority, Form::USUAL);
    for _ in 0..300 {
        bomb.field(b"x-bomb", &[b'b'; 3000], Form::USUAL);
    }
    bomb_block.extend(bomb.finish());
    let bomb = frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb_block);
    add("a header bomb", calm, bomb);

    let large = (GOAWAY, 0, FRAME_SIZE_ERROR);
    add("a large frame", large, with(b"", &vec![0x82; 20_000]));
    let padded = frame(
        HEADERS,
        END_HEADERS | PADDED,
        1,
        &[&[255], &block()[..]].concat(),
    );
    add("long padding", go_away, padded);
    let short = frame(HEADERS, END_HEADERS | PRIORITY, 1, &[0; 4]);
    add("a short priority", go_away, short);
    let on_itself = [&[0, 0, 0, 1, 16], &block()[..]].concat();
    let on_itself = frame(HEADERS, END_HEADERS | PRIORITY, 1, &on_itself);
    add("a stream on itself", reset, on_itself);
    let stream_0 = frame(HEADERS, END_HEADERS | END_STREAM, 0, &block());
    add("stream 0", go_away, stream_0);

    let mut twice = Encoder::new();
    twice
        .field(b":authority", authority, Form::USUAL)
        .field(b":authority", authority, Form::USUAL);
    let twice = twice.request(1, b"localhost", Form::USUAL);
    add("a second authority", reset, twice);
    let empty = Encoder::new().request(1, b"", Form::USUAL);
    add("an empty authority", reset, empty);
    all
}

#[tokio::test]
async fn malformed_input_is_judged_as_ever() {
    let legal = malformed(b"localhost");
    for (legal, illegal) in legal.iter().zip(malformed(PERCENT_ENCODED)) {
        let Malformed {
            what,
            octets,
            answer,
        } = legal;
        let stock = answers(false, octets, 1).await;
        assert_eq!(stock, [*answer], "{what}");
        assert_eq!(answers(true, octets, 1).await, stock, "{what}");
        assert_eq!(answers(true, &illegal.octets, 1).await, stock, "{what}");
    }
}

#[tokio::test]
async fn a_stock_server_resets_what_the_adapter_makes_legal() {
    for authority in [PERCENT_ENCODED, RAW] {
        let mut encoder = Encoder::new();
        let calls: Vec<u8> = (1..8)
            .step_by(2)
            .flat_map(|stream| encoder.request(stream, authority, Form::USUAL))
            .collect();
        let stock = answers(false, &calls, 4).await;
        assert_eq!(stock, [1, 3, 5, 7].map(|s| (RST_STREAM, s, PROTOCOL_ERROR)));
        let ours = answers(true, &calls, 4).await;
        assert_eq!(ours, [1, 3, 5, 7].map(|s| (HEADERS, s, 200)));
    }
}

#[tokio::test]
async fn many_calls_with_every_table_size() {
    for size in [0, 60, 200, 4096] {
        let mut encoder = Encoder::new();
        encoder.resize(size);
        let calls: Vec<u8> = (0..60u32)
            .flat_map(|call| {
                let authority = [PERCENT_ENCODED, RAW, b"localhost"][call as usize % 3];
                encoder.field(b":path", format!("/{call}").as_bytes(), Form::USUAL);
                encoder
                    .field(b":method", b"POST", Form::USUAL)
                    .field(b":scheme", b"http", Form::USUAL)
                    .field(b":authority", authority, Form::USUAL);
                let block = encoder.finish();
                frame(HEADERS, END_HEADERS | END_STREAM, 2 * call + 1, &block)
            })
            .collect();
        let expected: Vec<Answer> = (0..60).map(|call| (HEADERS, 2 * call + 1, 200)).collect();
        assert_eq!(answers(true, &calls, 60).await, expected, "size {size}");
    }
}
