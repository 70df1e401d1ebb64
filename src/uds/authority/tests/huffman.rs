//! The code, against RFC 7541 Appendix B and Appendix C.

use proptest::prelude::*;

use super::super::huffman::{decode, encode, encoded_len};
use super::super::oracle::{CODES, to_huffman};

#[test]
fn every_code_is_that_of_appendix_b() {
    for octet in 0..=255u8 {
        let (code, length) = CODES[usize::from(octet)];
        assert_eq!(encoded_len(&[octet; 8]), usize::from(length), "{octet}");
        // The code, left-aligned in 32 bits and followed by ones.
        let padded = u64::from(code) << (32 - length) | ((1 << (32 - length)) - 1);
        let octets = usize::from(length).div_ceil(8);
        assert_eq!(encode(&[octet]), padded.to_be_bytes()[4..4 + octets]);
        assert_eq!(decode(&encode(&[octet])).unwrap(), [octet]);
    }
}

#[test]
fn the_example_of_appendix_c() {
    let encoded = b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
    assert_eq!(encode(b"www.example.com"), encoded);
    assert_eq!(decode(encoded).unwrap(), b"www.example.com");
}

#[test]
fn padding_is_less_than_an_octet_of_ones() {
    assert_eq!(decode(b""), Some(vec![]));
    // "a" is 00011.
    assert_eq!(decode(&[0b0001_1111]), Some(b"a".to_vec()));
    assert_eq!(decode(&[0b0001_1110]), None);
    assert_eq!(decode(&[0b0001_1111, 0xff]), None);
    assert_eq!(decode(&[0xff]), None);
    // The end of the string, in full.
    assert_eq!(decode(&[0xff; 4]), None);
}

proptest! {
    #[test]
    fn both_ways_as_the_oracle(value: Vec<u8>) {
        let encoded = encode(&value);
        prop_assert_eq!(&encoded, &to_huffman(&value));
        prop_assert_eq!(encoded_len(&value), encoded.len());
        prop_assert_eq!(decode(&encoded), Some(value));
    }

    #[test]
    fn what_decodes_has_no_other_form(encoded: Vec<u8>) {
        if let Some(value) = decode(&encoded) {
            prop_assert_eq!(encode(&value), encoded);
        }
    }
}
