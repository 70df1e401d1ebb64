//! The adapter held against the oracle, against a stock hyper server, and with real sockets.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod calls;
mod encoder;
mod forms;
mod huffman;
mod properties;
mod server;
mod streams;

use super::scanner::MAX_HELD;
use super::{MakeLegal, Rule, Scanned, Scanner};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

const PERCENT_ENCODED: &[u8] = b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fx-reg.sock";
const RAW: &[u8] = b"/var/lib/kubelet/plugins_registry/x-reg.sock";

fn legal(value: &[u8]) -> bool {
    http::uri::Authority::try_from(value).is_ok()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// What becomes of a connection whose octets come in pieces of these sizes, the last size for ever, if it ends there.
fn scan(octets: &[u8], rule: &dyn Rule, sizes: impl IntoIterator<Item = usize>) -> Vec<u8> {
    let mut sizes = sizes.into_iter();
    let mut size = 1;
    let mut scanner = Scanner::default();
    let (mut out, mut held) = (Vec::new(), Vec::new());
    let mut rest = octets;
    while !rest.is_empty() {
        size = sizes.next().unwrap_or(size).max(1);
        let (piece, others) = rest.split_at(size.min(rest.len()));
        rest = others;
        held.extend_from_slice(piece);
        let Scanned { released, missing } = scanner.scan(&mut held, rule);
        out.extend(held.drain(..released));
        assert_eq!(held.is_empty(), missing == 0);
        assert!(held.len() + missing <= MAX_HELD);
    }
    out.extend(held);
    assert_eq!(out.len(), octets.len());
    out
}

/// What follows the preface after it was made legal, all at once.
fn make_legal(octets: &[u8]) -> Vec<u8> {
    let out = scan(&[PREFACE, octets].concat(), &MakeLegal, [usize::MAX]);
    assert_eq!(&out[..PREFACE.len()], PREFACE);
    out[PREFACE.len()..].to_vec()
}
