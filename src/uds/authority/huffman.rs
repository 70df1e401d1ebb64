//! HPACK's Huffman code (RFC 7541 section 5.2 and Appendix B), for strings as short as an `:authority`.
//!
//! The code is canonical (codes of one length are consecutive, in the order of their symbols), so the lengths are all
//! that has to be written down, and a decoder that goes bit by bit needs no tree.

/// Bits in the code of each octet. The end-of-string symbol, with the last of the 30-bit codes, never appears.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// Bits in the longest code.
const LONGEST: usize = 30;

/// How many octets have a code of each length.
const COUNTS: [u8; LONGEST + 1] = {
    let mut counts = [0; LONGEST + 1];
    let mut octet = 0;
    while octet < LENGTHS.len() {
        counts[LENGTHS[octet] as usize] += 1;
        octet += 1;
    }
    counts
};

/// All octets in the order of their codes.
const ORDER: [u8; 256] = {
    let mut order = [0; 256];
    let mut at = 0;
    let mut length = 1;
    while length <= LONGEST {
        let mut octet = 0u8;
        loop {
            if LENGTHS[octet as usize] as usize == length {
                order[at] = octet;
                at += 1;
            }
            if octet == u8::MAX {
                break;
            }
            octet += 1;
        }
        length += 1;
    }
    order
};

/// Octets that `value` takes in Huffman code.
pub(super) fn encoded_len(value: &[u8]) -> usize {
    let bits: usize = value.iter().map(|&octet| length(octet)).sum();
    bits.div_ceil(8)
}

/// The one Huffman form of `value`.
pub(super) fn encode(value: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(encoded_len(value));
    // The low `waiting` bits have not been written yet: at most 7 and one code.
    let mut bits: u64 = 0;
    let mut waiting = 0;
    for &octet in value {
        bits = bits << length(octet) | u64::from(code(octet));
        waiting += length(octet);
        while waiting >= 8 {
            waiting -= 8;
            encoded.push((bits >> waiting).to_be_bytes()[7]);
        }
    }
    if waiting > 0 {
        let padding = 8 - waiting;
        encoded.push((bits << padding | ((1 << padding) - 1)).to_be_bytes()[7]);
    }
    encoded
}

/// The string whose Huffman form this is; `None` if it is none (section 5.2: the padding is less than an octet, of ones).
pub(super) fn decode(encoded: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::with_capacity(encoded.len() * 8 / 5);
    // `code` holds the `length` bits read since the last whole code, `first` is the first code of that length, and
    // `rank` its place in `ORDER`.
    let (mut code, mut length, mut first, mut rank) = (0u32, 0usize, 0u32, 0usize);
    for bit in encoded
        .iter()
        .flat_map(|octet| (0..8).rev().map(move |place| octet >> place & 1))
    {
        code = code << 1 | u32::from(bit);
        first <<= 1;
        length += 1;
        let count = u32::from(*COUNTS.get(length)?);
        if code - first < count {
            value.push(ORDER[rank + (code - first) as usize]);
            (code, length, first, rank) = (0, 0, 0, 0);
        } else {
            first += count;
            rank += count as usize;
        }
    }
    (length < 8 && code == (1 << length) - 1).then_some(value)
}

fn length(octet: u8) -> usize {
    usize::from(LENGTHS[usize::from(octet)])
}

/// The code of `octet`, in the low bits.
fn code(octet: u8) -> u32 {
    let length = length(octet);
    let first = COUNTS[..length]
        .iter()
        .fold(0, |first, &count| (first + u32::from(count)) << 1);
    let rank = LENGTHS[..usize::from(octet)]
        .iter()
        .filter(|&&other| usize::from(other) == length)
        .count();
    first + u32::try_from(rank).expect("a rank is below 256")
}
