//! The `:authority` adapter against a full HPACK decoder: what a client says means the same before and after, but for
//! authorities that were not legal and now are.

#![no_main]

use csi_node_driver_registrar::uds::authority::{MakeLegal, Scanner};
use libfuzzer_sys::fuzz_target;

#[path = "../../src/uds/authority/oracle.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the tests of the adapter use the rest"
)]
mod oracle;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Most octets that may be held back: the head of a frame and a HEADERS payload.
const MAX_HELD: usize = 9 + 16 * 1024;

fn legal(value: &[u8]) -> bool {
    http::uri::Authority::try_from(value).is_ok()
}

/// What comes out of the adapter if it is given so many octets at a time.
fn scan(octets: &[u8], piece: usize) -> Vec<u8> {
    let mut scanner = Scanner::default();
    let (mut out, mut held) = (Vec::new(), Vec::new());
    for piece in octets.chunks(piece) {
        held.extend_from_slice(piece);
        let scanned = scanner.scan(&mut held, &MakeLegal);
        out.extend(held.drain(..scanned.released));
        assert!(held.len() <= MAX_HELD);
        assert_eq!(held.is_empty(), scanned.missing == 0);
    }
    out.extend(held);
    out
}

// The first octet says how the connection is cut; the preface is put in front of most, so that the fuzzer need not find it.
fuzz_target!(|input: &[u8]| {
    let Some((&choice, octets)) = input.split_first() else {
        return;
    };
    let piece = usize::from(choice >> 1) + 1;
    if choice & 1 == 1 {
        assert_eq!(scan(octets, piece).len(), octets.len());
        return;
    }
    let connection = [PREFACE, octets].concat();
    let after = scan(&connection, usize::MAX);
    assert_eq!(
        after,
        scan(&connection, piece),
        "cutting makes a difference"
    );
    assert_eq!(after, scan(&after, usize::MAX), "twice makes a difference");
    let heard = after.strip_prefix(PREFACE).expect("the preface is legal");
    if let Err(difference) = oracle::compare(octets, heard, legal) {
        panic!("{difference}");
    }
});
