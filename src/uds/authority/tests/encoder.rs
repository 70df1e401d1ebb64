//! An HPACK encoder with every form that a field may take.

use std::collections::VecDeque;

use super::super::oracle::{Field, to_huffman};
use super::{END_HEADERS, END_STREAM, HEADERS, frame};

/// What a decoder does with a literal (RFC 7541 section 6.2).
#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    Indexed,
    NotIndexed,
    NeverIndexed,
}

/// How a literal gives its name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name {
    /// By its index in the static table, or raw if it has none.
    Static,
    Raw,
    Huffman,
}

/// How a field is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) mode: Mode,
    pub(super) name: Name,
    /// Whether the value is in Huffman code.
    pub(super) huffman: bool,
}

impl Form {
    /// As grpc-go writes a field.
    pub(super) const USUAL: Self = Self {
        mode: Mode::Indexed,
        name: Name::Static,
        huffman: true,
    };

    pub(super) fn all() -> impl Iterator<Item = Self> {
        let names = [Name::Static, Name::Raw, Name::Huffman];
        [Mode::Indexed, Mode::NotIndexed, Mode::NeverIndexed]
            .into_iter()
            .flat_map(move |mode| names.map(|name| (mode, name)))
            .flat_map(|(mode, name)| {
                [false, true].map(|huffman| Self {
                    mode,
                    name,
                    huffman,
                })
            })
    }
}

#[derive(Debug)]
pub(super) struct Encoder {
    table: VecDeque<Field>,
    max_size: usize,
    /// The octets of the block that is being written.
    block: Vec<u8>,
}

impl Encoder {
    pub(super) fn new() -> Self {
        Self {
            table: VecDeque::new(),
            max_size: 4096,
            block: Vec::new(),
        }
    }

    /// Starts a block with a new size of the dynamic table.
    pub(super) fn resize(&mut self, size: usize) {
        self.max_size = size;
        self.evict();
        integer(size, 5, 0x20, &mut self.block);
    }

    /// Adds a field to the block, by an index of the dynamic table if that has it.
    pub(super) fn field(&mut self, name: &[u8], value: &[u8], form: Form) -> &mut Self {
        let field = (name.to_vec(), value.to_vec());
        if let Some(at) = self.table.iter().position(|known| *known == field) {
            integer(62 + at, 7, 0x80, &mut self.block);
            return self;
        }
        self.literal(name, value, form);
        if let Mode::Indexed = form.mode {
            self.table.push_front(field);
            self.evict();
        }
        self
    }

    /// The block, which is complete.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.block)
    }

    /// A HEADERS frame with a request and this authority.
    pub(super) fn request(&mut self, stream: u32, authority: &[u8], form: Form) -> Vec<u8> {
        let block = self.request_block(authority, form);
        frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
    }

    pub(super) fn request_block(&mut self, authority: &[u8], form: Form) -> Vec<u8> {
        self.field(b":method", b"POST", Form::USUAL)
            .field(b":scheme", b"http", Form::USUAL)
            .field(b":path", b"/Registration/GetInfo", Form::USUAL)
            .field(b":authority", authority, form)
            .field(b"content-type", b"application/grpc", Form::USUAL)
            .field(b"te", b"trailers", Form::USUAL)
            .finish()
    }

    fn literal(&mut self, name: &[u8], value: &[u8], form: Form) {
        let (prefix, flags) = match form.mode {
            Mode::Indexed => (6, 0x40),
            Mode::NotIndexed => (4, 0),
            Mode::NeverIndexed => (4, 0x10),
        };
        let index = match (form.name, name) {
            (Name::Static, b":authority") => 1,
            (Name::Static, b":method") => 2,
            (Name::Static, b":path") => 4,
            (Name::Static, b":scheme") => 6,
            (Name::Static, b"content-type") => 31,
            _ => 0,
        };
        integer(index, prefix, flags, &mut self.block);
        if index == 0 {
            string(name, matches!(form.name, Name::Huffman), &mut self.block);
        }
        string(value, form.huffman, &mut self.block);
    }

    fn evict(&mut self) {
        let size = |(name, value): &Field| name.len() + value.len() + 32;
        while self.table.iter().map(size).sum::<usize>() > self.max_size {
            self.table.pop_back();
        }
    }
}

pub(super) fn integer(value: usize, prefix: u32, flags: u8, out: &mut Vec<u8>) {
    let max = (1 << prefix) - 1;
    if value < max {
        out.push(flags | u8::try_from(value).unwrap());
        return;
    }
    out.push(flags | u8::try_from(max).unwrap());
    let mut rest = value - max;
    while rest >= 128 {
        out.push(0x80 | u8::try_from(rest % 128).unwrap());
        rest /= 128;
    }
    out.push(u8::try_from(rest).unwrap());
}

pub(super) fn string(value: &[u8], huffman: bool, out: &mut Vec<u8>) {
    let encoded = if huffman {
        to_huffman(value)
    } else {
        value.to_vec()
    };
    integer(encoded.len(), 7, if huffman { 0x80 } else { 0 }, out);
    out.extend(encoded);
}
