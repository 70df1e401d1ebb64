//! Finds the `:authority` in a header block (RFC 7541 section 6), and replaces it in place. What every field but this one
//! means is not needed, only where it ends.

use std::borrow::Cow;

use super::{Rule, huffman};

/// Longest string literal that is looked at, in encoded octets.
pub(super) const MAX_VALUE: usize = 1024;

/// Octets in an HPACK integer, as h2 has it: no more than 28 bits follow the prefix.
const MAX_INTEGER: usize = 5;

/// Index of `:authority` in the static table.
const AUTHORITY_INDEX: usize = 1;
const AUTHORITY_NAME: &[u8] = b":authority";
/// The same in Huffman code.
const AUTHORITY_HUFFMAN: &[u8] = b"\xb8\x3b\x53\x39\xec\x32\x7d\x7f";

/// Flag in the first octet of a string literal (RFC 7541 section 5.2).
const HUFFMAN: u8 = 0x80;

/// Replaces the first literal `:authority` of a block if `rule` wants it, and if the replacement fits.
pub(super) fn patch(block: &mut [u8], rule: &dyn Rule) {
    let Some(literal) = find_authority(block) else {
        return;
    };
    let encoded = &mut block[literal.start..literal.start + literal.len];
    let Some(new) = replacement(encoded, literal.huffman, rule) else {
        return;
    };
    // Raw where both forms are as long, as grpc-go's encoder has it. Then the Huffman flag goes, and the length stays.
    if new.len() == encoded.len() {
        encoded.copy_from_slice(&new);
        block[literal.head] &= !HUFFMAN;
    } else if huffman::encoded_len(&new) == encoded.len() {
        encoded.copy_from_slice(&huffman::encode(&new));
    }
}

/// What `rule` wants instead of a string literal: as many decoded octets.
fn replacement(encoded: &[u8], huffman: bool, rule: &dyn Rule) -> Option<Vec<u8>> {
    if encoded.len() > MAX_VALUE {
        return None;
    }
    let value = if huffman {
        Cow::Owned(huffman::decode(encoded)?)
    } else {
        Cow::Borrowed(encoded)
    };
    rule.replacement(&value, encoded.len())
        .filter(|new| new.len() == value.len())
}

/// Finds the value of the first `:authority` that a block gives as a literal.
fn find_authority(block: &[u8]) -> Option<Literal> {
    let mut block = Block {
        octets: block,
        at: 0,
    };
    loop {
        let first = *block.octets.get(block.at)?;
        let name = if first & 0x80 != 0 {
            // An indexed field.
            block.integer(7)?;
            continue;
        } else if first & 0x40 != 0 {
            block.integer(6)?
        } else if first & 0x20 != 0 {
            // A new size of the dynamic table.
            block.integer(5)?;
            continue;
        } else {
            // Without indexing, or never indexed.
            block.integer(4)?
        };
        let found = if name == 0 {
            let name = block.string()?;
            let octets = &block.octets[name.start..name.start + name.len];
            octets
                == if name.huffman {
                    AUTHORITY_HUFFMAN
                } else {
                    AUTHORITY_NAME
                }
        } else {
            name == AUTHORITY_INDEX
        };
        let value = block.string()?;
        if found {
            return Some(value);
        }
    }
}

/// A string literal in a header block.
struct Literal {
    /// Where the octet with the Huffman flag is.
    head: usize,
    huffman: bool,
    /// Where the string is, and its encoded octets.
    start: usize,
    len: usize,
}

/// A header block, read from its first octet on. `None` is the end of what can be understood.
struct Block<'a> {
    octets: &'a [u8],
    at: usize,
}

impl Block<'_> {
    /// An integer whose first octet has `prefix` bits of it (RFC 7541 section 5.1).
    fn integer(&mut self, prefix: u32) -> Option<usize> {
        let mask = (1 << prefix) - 1;
        let mut value = usize::from(*self.octets.get(self.at)? & mask);
        self.at += 1;
        if value < usize::from(mask) {
            return Some(value);
        }
        for place in 0..MAX_INTEGER - 1 {
            let octet = *self.octets.get(self.at)?;
            self.at += 1;
            value += usize::from(octet & 0x7f) << (7 * place);
            if octet & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A string literal, all of whose octets are here.
    fn string(&mut self) -> Option<Literal> {
        let head = self.at;
        let huffman = self.octets.get(head)? & HUFFMAN != 0;
        let len = self.integer(7)?;
        let start = self.at;
        if len > self.octets.len() - start {
            return None;
        }
        self.at += len;
        Some(Literal {
            head,
            huffman,
            start,
            len,
        })
    }
}
