//! Lets a Rust server take the `:authority` that the kubelet sends, and a Rust client send it.
//!
//! The kubelet dials the registration socket without an authority override, so grpc-go sends the socket's path as
//! `:authority`, percent-encoded or raw (see [`Authority`]). `h2` takes neither and resets every such stream, and no
//! Rust client can send one, since `http::Uri` does not hold it.
//!
//! [`Accepted`] and [`Dialled`] sit between the socket and hyper and look at what the client says. They replace nothing
//! but the value of a literal `:authority`, in place, by one of **the same decoded and the same encoded length**. So
//! frame lengths, block lengths and the sizes of dynamic table entries stay what they were, later references to the
//! entry resolve to the replacement, and neither a dynamic table nor re-framing is needed. What is not understood passes
//! unchanged: h2 judges it as ever, with its own GOAWAY or reset.
//!
//! Not repaired, since no client is known to send it: an `:authority` in or reaching into a CONTINUATION frame, one
//! whose name is given by an index of the dynamic table, an empty one, one of more than 1,024 encoded octets, and one
//! whose Huffman form is longer than its raw form.

mod accepted;
mod dialled;
mod header_block;
mod huffman;
mod kubelet;
mod scanner;

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;

pub use accepted::Accepted;
pub use dialled::{Dialled, Disguise};
pub use kubelet::Authority;
pub use scanner::{Scanned, Scanner};

/// The `:authority` of every request in what a client said, from the preface on.
#[cfg(test)]
pub(crate) fn heard(octets: &[u8]) -> Vec<Vec<u8>> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let octets = octets.strip_prefix(PREFACE).expect("a client begins so");
    let (blocks, error) = oracle::header_blocks(octets);
    assert_eq!(error, None);
    let fields = blocks.into_iter().flatten();
    fields
        .filter(|(name, _)| name == b":authority")
        .map(|(_, value)| value)
        .collect()
}

/// Decides what becomes of an `:authority` on its way from the client to the server.
pub trait Rule {
    /// What takes the place of `value`, whose string literal has `octets` octets in the header block; `None` leaves it.
    ///
    /// The replacement has as many octets as `value`, and its raw or its Huffman form has `octets`. Any other is ignored.
    fn replacement(&self, value: &[u8], octets: usize) -> Option<Vec<u8>>;
}

/// The server's rule: what h2 would refuse becomes legal; what it takes is left alone.
#[derive(Clone, Copy, Debug)]
pub struct MakeLegal;

impl Rule for MakeLegal {
    fn replacement(&self, value: &[u8], octets: usize) -> Option<Vec<u8>> {
        // h2's own judge (`Peer::convert_poll_message` in its server).
        match http::uri::Authority::try_from(value) {
            Ok(_) => None,
            Err(_) => placeholder(value.len(), octets),
        }
    }
}

/// A legal authority of `len` octets whose string literal has `octets` octets, whether raw (where both are the same) or
/// in Huffman code, which it fills without padding.
///
/// There is one for every literal that an encoder makes which takes the shorter of both forms.
fn placeholder(len: usize, octets: usize) -> Option<Vec<u8>> {
    /// Letters with codes of 5, 6, 7 and 8 bits.
    const LETTERS: [u8; 4] = *b"abkX";
    let bits = 8 * octets;
    let short = bits.checked_div(len)?.checked_sub(5)?;
    let long = bits % len;
    (0..len)
        .map(|i| LETTERS.get(short + usize::from(i < long)).copied())
        .collect()
}
