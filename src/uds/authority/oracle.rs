//! What a client's octets mean, by a full HPACK decoder that shares nothing with the adapter. Test code, and of the
//! standard library alone, so that a fuzz target can include this file by its path.

use std::collections::{HashMap, VecDeque};
use std::sync::LazyLock;

/// A header field: name and value.
pub(super) type Field = (Vec<u8>, Vec<u8>);

/// Why a header block has no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Error {
    /// It ends inside a field.
    Short,
    /// An integer of more than five octets.
    Integer,
    /// A string that is not in Huffman code.
    Huffman,
    /// An index beyond the tables.
    Index,
    /// A table size that is too large, or not at the beginning of the block.
    TableSize,
    /// More than [`MAX_FIELDS`] octets of fields.
    TooLong,
}

/// Most octets of fields in a block, so that a header bomb costs a test nothing.
const MAX_FIELDS: usize = 1 << 20;

/// An HPACK decoder (RFC 7541).
#[derive(Debug)]
pub(super) struct Decoder {
    dynamic: VecDeque<Field>,
    max_size: usize,
    limit: usize,
}

impl Decoder {
    /// A decoder whose dynamic table may have `limit` octets (`SETTINGS_HEADER_TABLE_SIZE`).
    pub(super) fn new(limit: usize) -> Self {
        Self {
            dynamic: VecDeque::new(),
            max_size: limit,
            limit,
        }
    }

    /// The fields of one complete block.
    pub(super) fn decode(&mut self, block: &[u8]) -> Result<Vec<Field>, Error> {
        let mut fields: Vec<Field> = Vec::new();
        let mut total = 0;
        let mut rest = block;
        while let Some(&first) = rest.first() {
            let field = if first >= 0x80 {
                self.indexed(integer(&mut rest, 7)?)?
            } else if first >= 0x40 {
                let field = self.literal(&mut rest, 6)?;
                self.dynamic.push_front(field.clone());
                self.evict();
                field
            } else if first >= 0x20 {
                let size = integer(&mut rest, 5)?;
                if size > self.limit || !fields.is_empty() {
                    return Err(Error::TableSize);
                }
                self.max_size = size;
                self.evict();
                continue;
            } else {
                self.literal(&mut rest, 4)?
            };
            total += field.0.len() + field.1.len();
            if total > MAX_FIELDS {
                return Err(Error::TooLong);
            }
            fields.push(field);
        }
        Ok(fields)
    }

    fn literal(&self, rest: &mut &[u8], prefix: u32) -> Result<Field, Error> {
        let name = match integer(rest, prefix)? {
            0 => string(rest)?,
            index => self.indexed(index)?.0,
        };
        Ok((name, string(rest)?))
    }

    fn indexed(&self, index: usize) -> Result<Field, Error> {
        if let Some((name, value)) = index.checked_sub(1).and_then(|i| STATIC.get(i)) {
            return Ok((name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        }
        index
            .checked_sub(STATIC.len() + 1)
            .and_then(|i| self.dynamic.get(i))
            .cloned()
            .ok_or(Error::Index)
    }

    fn evict(&mut self) {
        let size = |(name, value): &Field| name.len() + value.len() + 32;
        while self.dynamic.iter().map(size).sum::<usize>() > self.max_size {
            self.dynamic.pop_back();
        }
    }
}

fn octet(rest: &mut &[u8]) -> Result<u8, Error> {
    let (&first, others) = rest.split_first().ok_or(Error::Short)?;
    *rest = others;
    Ok(first)
}

fn integer(rest: &mut &[u8], prefix: u32) -> Result<usize, Error> {
    let max = (1usize << prefix) - 1;
    let mut value = usize::from(octet(rest)?) & max;
    if value < max {
        return Ok(value);
    }
    for shift in [0, 7, 14, 21] {
        let more = octet(rest)?;
        value += usize::from(more & 0x7f) << shift;
        if more < 0x80 {
            return Ok(value);
        }
    }
    Err(Error::Integer)
}

fn string(rest: &mut &[u8]) -> Result<Vec<u8>, Error> {
    let huffman = *rest.first().ok_or(Error::Short)? >= 0x80;
    let len = integer(rest, 7)?;
    let (string, others) = rest.split_at_checked(len).ok_or(Error::Short)?;
    *rest = others;
    if huffman {
        from_huffman(string)
    } else {
        Ok(string.to_vec())
    }
}

fn from_huffman(string: &[u8]) -> Result<Vec<u8>, Error> {
    static SYMBOLS: LazyLock<HashMap<(u32, u8), usize>> =
        LazyLock::new(|| CODES.into_iter().zip(0..).collect());
    let mut decoded = Vec::new();
    let (mut code, mut length) = (0u32, 0u8);
    for octet in string {
        for place in (0..8).rev() {
            code = code << 1 | u32::from(octet >> place & 1);
            length += 1;
            if length > 30 {
                return Err(Error::Huffman);
            }
            if let Some(&symbol) = SYMBOLS.get(&(code, length)) {
                // The end of a string has no octet, and may not appear.
                decoded.push(u8::try_from(symbol).map_err(|_| Error::Huffman)?);
                (code, length) = (0, 0);
            }
        }
    }
    if length > 7 || code != (1 << length) - 1 {
        return Err(Error::Huffman);
    }
    Ok(decoded)
}

/// The Huffman form of a string.
pub(super) fn to_huffman(string: &[u8]) -> Vec<u8> {
    let mut bits: Vec<bool> = Vec::new();
    for &octet in string {
        let (code, length) = CODES[usize::from(octet)];
        bits.extend((0..length).rev().map(|place| code >> place & 1 == 1));
    }
    bits.resize(bits.len().next_multiple_of(8), true);
    bits.chunks(8)
        .map(|octet| {
            octet
                .iter()
                .fold(0, |value, &bit| value << 1 | u8::from(bit))
        })
        .collect()
}

/// A frame of HTTP/2 (RFC 9113 section 4.1). The payload of the last one of a stream may be cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    /// Its type.
    pub(super) kind: u8,
    /// Its flags.
    pub(super) flags: u8,
    /// Its stream.
    pub(super) stream: u32,
    /// Its payload's length, as its head has it.
    pub(super) length: usize,
    /// As much of the payload as there is.
    pub(super) payload: &'a [u8],
}

/// The frames in `octets`, and what is too short to be the head of one.
pub(super) fn frames(mut octets: &[u8]) -> (Vec<Frame<'_>>, &[u8]) {
    let mut frames = Vec::new();
    while let Some((&[a, b, c, kind, flags, d, e, f, g], rest)) = octets.split_first_chunk() {
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let (payload, rest) = rest.split_at(length.min(rest.len()));
        frames.push(Frame {
            kind,
            flags,
            stream: u32::from_be_bytes([d & 0x7f, e, f, g]),
            length,
            payload,
        });
        octets = rest;
    }
    (frames, octets)
}

/// The header block fragment in a HEADERS or CONTINUATION frame; `None` if it makes none.
fn fragment<'a>(frame: &Frame<'a>) -> Option<&'a [u8]> {
    let mut block = frame.payload;
    let mut padding = 0;
    if frame.kind == 1 && frame.flags & 0x8 != 0 {
        padding = usize::from(*block.first()?);
        block = &block[1..];
    }
    if frame.kind == 1 && frame.flags & 0x20 != 0 {
        block = block.get(5..)?;
    }
    block.get(..block.len().checked_sub(padding)?)
}

/// The header blocks that a server reads from `octets`, which follow the preface, up to the first that ends the
/// connection, and whether one does.
pub(super) fn header_blocks(octets: &[u8]) -> (Vec<Vec<Field>>, Option<Error>) {
    let mut decoder = Decoder::new(4096);
    let mut blocks = Vec::new();
    let mut open: Option<(u32, Vec<u8>)> = None;
    for frame in frames(octets).0 {
        let (stream, mut block) = match (frame.kind, open.take()) {
            (1, None) => (frame.stream, Vec::new()),
            (9, Some((stream, block))) if stream == frame.stream => (stream, block),
            (9, _) | (_, Some(_)) => return (blocks, Some(Error::Short)),
            (_, None) => continue,
        };
        let whole = frame.payload.len() == frame.length;
        let Some(fragment) = fragment(&frame).filter(|_| whole) else {
            return (blocks, Some(Error::Short));
        };
        block.extend_from_slice(fragment);
        if frame.flags & 0x4 == 0 {
            open = Some((stream, block));
            continue;
        }
        match decoder.decode(&block) {
            Ok(fields) => blocks.push(fields),
            Err(error) => return (blocks, Some(error)),
        }
    }
    (blocks, None)
}

/// Checks that `after` is `before` but for values of `:authority` that were not `legal` and now are, and returns how
/// many of them a server sees replaced. Both follow the preface.
pub(super) fn compare(
    before: &[u8],
    after: &[u8],
    legal: impl Fn(&[u8]) -> bool,
) -> Result<usize, String> {
    let ((old_frames, old_rest), (new_frames, new_rest)) = (frames(before), frames(after));
    if old_frames.len() != new_frames.len() || old_rest != new_rest {
        return Err("other frames".into());
    }
    for (old, new) in old_frames.iter().zip(&new_frames) {
        let payload = if old.kind == 1 {
            new.payload
        } else {
            old.payload
        };
        if (Frame { payload, ..*old }) != *new || old.payload.len() != new.payload.len() {
            return Err(format!("not only HEADERS: {old:?} {new:?}"));
        }
    }
    let ((old_blocks, old_error), (new_blocks, new_error)) =
        (header_blocks(before), header_blocks(after));
    if old_error != new_error || old_blocks.len() != new_blocks.len() {
        return Err(format!("{old_error:?} became {new_error:?}"));
    }
    let mut replaced = 0;
    for (old, new) in old_blocks.iter().zip(&new_blocks) {
        if old.len() != new.len() {
            return Err(format!("other fields: {old:?} {new:?}"));
        }
        for (old, new) in old.iter().zip(new).filter(|(old, new)| old != new) {
            if old.0 != new.0
                || old.0 != b":authority"
                || old.1.len() != new.1.len()
                || legal(&old.1)
                || !legal(&new.1)
            {
                return Err(format!("{old:?} became {new:?}"));
            }
            replaced += 1;
        }
    }
    Ok(replaced)
}

/// The code of each octet and its bits, and of the end of a string (RFC 7541 Appendix B).
#[rustfmt::skip]
#[allow(clippy::unreadable_literal, reason = "written as in the RFC")]
pub(super) const CODES: [(u32, u8); 257] = [
    (0x1ff8, 13), (0x7fffd8, 23), (0xfffffe2, 28), (0xfffffe3, 28), (0xfffffe4, 28), (0xfffffe5, 28), (0xfffffe6, 28), (0xfffffe7, 28),
    (0xfffffe8, 28), (0xffffea, 24), (0x3ffffffc, 30), (0xfffffe9, 28), (0xfffffea, 28), (0x3ffffffd, 30), (0xfffffeb, 28), (0xfffffec, 28),
    (0xfffffed, 28), (0xfffffee, 28), (0xfffffef, 28), (0xffffff0, 28), (0xffffff1, 28), (0xffffff2, 28), (0x3ffffffe, 30), (0xffffff3, 28),
    (0xffffff4, 28), (0xffffff5, 28), (0xffffff6, 28), (0xffffff7, 28), (0xffffff8, 28), (0xffffff9, 28), (0xffffffa, 28), (0xffffffb, 28),
    (0x14, 6), (0x3f8, 10), (0x3f9, 10), (0xffa, 12), (0x1ff9, 13), (0x15, 6), (0xf8, 8), (0x7fa, 11),
    (0x3fa, 10), (0x3fb, 10), (0xf9, 8), (0x7fb, 11), (0xfa, 8), (0x16, 6), (0x17, 6), (0x18, 6),
    (0x0, 5), (0x1, 5), (0x2, 5), (0x19, 6), (0x1a, 6), (0x1b, 6), (0x1c, 6), (0x1d, 6),
    (0x1e, 6), (0x1f, 6), (0x5c, 7), (0xfb, 8), (0x7ffc, 15), (0x20, 6), (0xffb, 12), (0x3fc, 10),
    (0x1ffa, 13), (0x21, 6), (0x5d, 7), (0x5e, 7), (0x5f, 7), (0x60, 7), (0x61, 7), (0x62, 7),
    (0x63, 7), (0x64, 7), (0x65, 7), (0x66, 7), (0x67, 7), (0x68, 7), (0x69, 7), (0x6a, 7),
    (0x6b, 7), (0x6c, 7), (0x6d, 7), (0x6e, 7), (0x6f, 7), (0x70, 7), (0x71, 7), (0x72, 7),
    (0xfc, 8), (0x73, 7), (0xfd, 8), (0x1ffb, 13), (0x7fff0, 19), (0x1ffc, 13), (0x3ffc, 14), (0x22, 6),
    (0x7ffd, 15), (0x3, 5), (0x23, 6), (0x4, 5), (0x24, 6), (0x5, 5), (0x25, 6), (0x26, 6),
    (0x27, 6), (0x6, 5), (0x74, 7), (0x75, 7), (0x28, 6), (0x29, 6), (0x2a, 6), (0x7, 5),
    (0x2b, 6), (0x76, 7), (0x2c, 6), (0x8, 5), (0x9, 5), (0x2d, 6), (0x77, 7), (0x78, 7),
    (0x79, 7), (0x7a, 7), (0x7b, 7), (0x7ffe, 15), (0x7fc, 11), (0x3ffd, 14), (0x1ffd, 13), (0xffffffc, 28),
    (0xfffe6, 20), (0x3fffd2, 22), (0xfffe7, 20), (0xfffe8, 20), (0x3fffd3, 22), (0x3fffd4, 22), (0x3fffd5, 22), (0x7fffd9, 23),
    (0x3fffd6, 22), (0x7fffda, 23), (0x7fffdb, 23), (0x7fffdc, 23), (0x7fffdd, 23), (0x7fffde, 23), (0xffffeb, 24), (0x7fffdf, 23),
    (0xffffec, 24), (0xffffed, 24), (0x3fffd7, 22), (0x7fffe0, 23), (0xffffee, 24), (0x7fffe1, 23), (0x7fffe2, 23), (0x7fffe3, 23),
    (0x7fffe4, 23), (0x1fffdc, 21), (0x3fffd8, 22), (0x7fffe5, 23), (0x3fffd9, 22), (0x7fffe6, 23), (0x7fffe7, 23), (0xffffef, 24),
    (0x3fffda, 22), (0x1fffdd, 21), (0xfffe9, 20), (0x3fffdb, 22), (0x3fffdc, 22), (0x7fffe8, 23), (0x7fffe9, 23), (0x1fffde, 21),
    (0x7fffea, 23), (0x3fffdd, 22), (0x3fffde, 22), (0xfffff0, 24), (0x1fffdf, 21), (0x3fffdf, 22), (0x7fffeb, 23), (0x7fffec, 23),
    (0x1fffe0, 21), (0x1fffe1, 21), (0x3fffe0, 22), (0x1fffe2, 21), (0x7fffed, 23), (0x3fffe1, 22), (0x7fffee, 23), (0x7fffef, 23),
    (0xfffea, 20), (0x3fffe2, 22), (0x3fffe3, 22), (0x3fffe4, 22), (0x7ffff0, 23), (0x3fffe5, 22), (0x3fffe6, 22), (0x7ffff1, 23),
    (0x3ffffe0, 26), (0x3ffffe1, 26), (0xfffeb, 20), (0x7fff1, 19), (0x3fffe7, 22), (0x7ffff2, 23), (0x3fffe8, 22), (0x1ffffec, 25),
    (0x3ffffe2, 26), (0x3ffffe3, 26), (0x3ffffe4, 26), (0x7ffffde, 27), (0x7ffffdf, 27), (0x3ffffe5, 26), (0xfffff1, 24), (0x1ffffed, 25),
    (0x7fff2, 19), (0x1fffe3, 21), (0x3ffffe6, 26), (0x7ffffe0, 27), (0x7ffffe1, 27), (0x3ffffe7, 26), (0x7ffffe2, 27), (0xfffff2, 24),
    (0x1fffe4, 21), (0x1fffe5, 21), (0x3ffffe8, 26), (0x3ffffe9, 26), (0xffffffd, 28), (0x7ffffe3, 27), (0x7ffffe4, 27), (0x7ffffe5, 27),
    (0xfffec, 20), (0xfffff3, 24), (0xfffed, 20), (0x1fffe6, 21), (0x3fffe9, 22), (0x1fffe7, 21), (0x1fffe8, 21), (0x7ffff3, 23),
    (0x3fffea, 22), (0x3fffeb, 22), (0x1ffffee, 25), (0x1ffffef, 25), (0xfffff4, 24), (0xfffff5, 24), (0x3ffffea, 26), (0x7ffff4, 23),
    (0x3ffffeb, 26), (0x7ffffe6, 27), (0x3ffffec, 26), (0x3ffffed, 26), (0x7ffffe7, 27), (0x7ffffe8, 27), (0x7ffffe9, 27), (0x7ffffea, 27),
    (0x7ffffeb, 27), (0xffffffe, 28), (0x7ffffec, 27), (0x7ffffed, 27), (0x7ffffee, 27), (0x7ffffef, 27), (0x7fffff0, 27), (0x3ffffee, 26),
    (0x3fffffff, 30),
];

/// RFC 7541 Appendix A.
#[rustfmt::skip]
const STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""), ("cache-control", ""),
    ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""), ("etag", ""),
    ("expect", ""), ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""), ("if-modified-since", ""),
    ("if-none-match", ""), ("if-range", ""), ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""),
    ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""),
    ("www-authenticate", ""),
];
