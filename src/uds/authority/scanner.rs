//! Finds the header blocks in what a client says on an HTTP/2 connection (RFC 9113 section 4). It has no input or output
//! of its own, and remembers of what passed only where it is in the current frame.

use super::{Rule, header_block};

/// What a client says first (RFC 9113 section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Octets in the head of a frame.
const FRAME_HEAD: usize = 9;

/// Longest HEADERS payload that is looked at, in octets: the largest that a peer may send unasked.
const MAX_HEADERS: usize = 16 * 1024;

/// Most octets that are held back: one HEADERS frame.
pub(super) const MAX_HELD: usize = FRAME_HEAD + MAX_HEADERS;

/// Type of a HEADERS frame, and its flags (RFC 9113 section 6.2).
const HEADERS: u8 = 0x1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Where a connection is, from its first octet on.
#[derive(Debug)]
pub struct Scanner(State);

#[derive(Debug)]
enum State {
    /// This many octets of the preface have matched.
    Preface(usize),
    /// At the head of a frame.
    Frame,
    /// This many octets of a payload, not looked at, are to come.
    Payload(usize),
    /// Not HTTP/2.
    Foreign,
}

/// What [`Scanner::scan`] made of the octets it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// So many of them, from the first on, can go their way.
    pub released: usize,
    /// The others are the beginning of something that has to be seen whole, and so many octets of it are missing:
    /// give them again in front of the next. 0 when all were released.
    pub missing: usize,
}

impl Default for Scanner {
    fn default() -> Self {
        Self(State::Preface(0))
    }
}

impl Scanner {
    /// Looks at the octets that follow those released so far, and replaces in place what `rule` wants replaced.
    ///
    /// What comes out does not depend on how the connection is cut into calls.
    pub fn scan(&mut self, octets: &mut [u8], rule: &dyn Rule) -> Scanned {
        let mut released = 0;
        while released < octets.len() {
            let rest = &mut octets[released..];
            match self.0 {
                State::Foreign => released += rest.len(),
                State::Preface(matched) => {
                    let n = rest.len().min(PREFACE.len() - matched);
                    self.0 = if rest[..n] != PREFACE[matched..matched + n] {
                        State::Foreign
                    } else if matched + n == PREFACE.len() {
                        State::Frame
                    } else {
                        State::Preface(matched + n)
                    };
                    released += n;
                }
                State::Payload(left) => {
                    let n = rest.len().min(left);
                    self.0 = if n == left {
                        State::Frame
                    } else {
                        State::Payload(left - n)
                    };
                    released += n;
                }
                State::Frame => {
                    let Some(&[a, b, c, kind, flags, ..]) = rest.first_chunk::<FRAME_HEAD>() else {
                        let missing = FRAME_HEAD - rest.len();
                        return Scanned { released, missing };
                    };
                    let length = u32::from_be_bytes([0, a, b, c]) as usize;
                    if kind == HEADERS && length <= MAX_HEADERS {
                        let Some(payload) = rest.get_mut(FRAME_HEAD..FRAME_HEAD + length) else {
                            let missing = FRAME_HEAD + length - rest.len();
                            return Scanned { released, missing };
                        };
                        if let Some(block) = fragment(payload, flags) {
                            header_block::patch(block, rule);
                        }
                        released += FRAME_HEAD + length;
                    } else {
                        self.0 = State::Payload(length);
                        released += FRAME_HEAD;
                    }
                }
            }
        }
        Scanned {
            released,
            missing: 0,
        }
    }
}

/// The header block (fragment) in the payload of a HEADERS frame; `None` if padding and priority do not fit in.
fn fragment(payload: &mut [u8], flags: u8) -> Option<&mut [u8]> {
    let mut start = 0;
    let mut padding = 0;
    if flags & PADDED != 0 {
        padding = usize::from(*payload.first()?);
        start += 1;
    }
    if flags & PRIORITY != 0 {
        start += 5;
    }
    let end = payload.len().checked_sub(padding)?;
    payload.get_mut(start..end)
}
