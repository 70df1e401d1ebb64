//! Laws, over arbitrary connections and socket paths.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::oracle::{compare, header_blocks, to_huffman};
use super::super::{Disguise, MakeLegal, placeholder};
use super::encoder::{Encoder, Form};
use super::{
    CONTINUATION, DATA, END_HEADERS, HEADERS, PADDED, PERCENT_ENCODED, PING, PREFACE, PRIORITY,
    RAW, frame, legal, make_legal, scan,
};

/// One request of a connection, and how it is framed.
#[derive(Clone, Debug)]
struct Call {
    authority: Vec<u8>,
    form: Form,
    metadata: Vec<(u8, Vec<u8>)>,
    resize: Option<usize>,
    padding: Option<u8>,
    priority: bool,
    /// How many octets of the block are left to CONTINUATION frames, and in how many frames they come.
    continued: (usize, usize),
    /// What comes after it.
    other: (u8, Vec<u8>),
}

/// An authority that a client may send: never longer in Huffman code than raw.
fn authority() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        select(vec![
            PERCENT_ENCODED.to_vec(),
            RAW.to_vec(),
            b"localhost".to_vec()
        ]),
        "/[a-z0-9:@\\[\\]%./_-]{0,100}".prop_map(String::into_bytes),
        "[ -~]{1,40}".prop_map(String::into_bytes),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    (
        authority(),
        select(Form::all().collect::<Vec<_>>()),
        vec((0..5u8, vec(any::<u8>(), 0..200)), 0..4),
        proptest::option::weighted(0.2, select(vec![0, 60, 300, 4096])),
        proptest::option::of(any::<u8>()),
        any::<bool>(),
        (0..60usize, 1..4usize),
        (select(vec![DATA, PING, 2, 8, 99]), vec(any::<u8>(), 0..100)),
    )
        .prop_map(
            |(authority, form, metadata, resize, padding, priority, continued, other)| Call {
                authority,
                form,
                metadata,
                resize,
                padding,
                priority,
                continued,
                other,
            },
        )
}

impl Call {
    /// The frames of this call.
    fn write(&self, stream: u32, encoder: &mut Encoder) -> Vec<u8> {
        if let Some(size) = self.resize {
            encoder.resize(size);
        }
        // A value that is longer in Huffman code stays, so a client that sends it is no part of this law.
        let huffman =
            self.form.huffman && to_huffman(&self.authority).len() <= self.authority.len();
        let form = Form {
            huffman,
            ..self.form
        };
        let mut block = encoder
            .field(b":method", b"POST", Form::USUAL)
            .field(b":authority", &self.authority, form)
            .finish();
        let whole = block.len();
        for (key, value) in &self.metadata {
            encoder.field(format!("x-{key}").as_bytes(), value, self.form);
        }
        block.extend(encoder.finish());

        let cut = block.len().saturating_sub(self.continued.0).max(whole);
        let (first, rest) = block.split_at(cut);
        let (mut flags, mut payload) = (0, Vec::new());
        if let Some(padding) = self.padding {
            flags |= PADDED;
            payload.push(padding);
        }
        if self.priority {
            flags |= PRIORITY;
            payload.extend([0; 5]);
        }
        payload.extend_from_slice(first);
        payload.extend(vec![0; usize::from(self.padding.unwrap_or(0))]);
        let mut octets = Vec::new();
        if rest.is_empty() {
            octets.extend(frame(HEADERS, flags | END_HEADERS, stream, &payload));
        } else {
            octets.extend(frame(HEADERS, flags, stream, &payload));
            let size = rest.len().div_ceil(self.continued.1);
            for piece in rest.chunks(size) {
                octets.extend(frame(CONTINUATION, 0, stream, piece));
            }
            octets.extend(frame(CONTINUATION, END_HEADERS, stream, b""));
        }
        octets.extend(frame(self.other.0, 0, 0, &self.other.1));
        octets
    }
}

fn connection(calls: &[Call]) -> Vec<u8> {
    let mut encoder = Encoder::new();
    calls
        .iter()
        .zip((1..).step_by(2))
        .flat_map(|(call, stream)| call.write(stream, &mut encoder))
        .collect()
}

/// Whether cutting a connection and doing it twice make no difference.
fn is_stable(octets: &[u8], sizes: Vec<usize>) -> Result<(), TestCaseError> {
    let connection = [PREFACE, octets].concat();
    let after = scan(&connection, &MakeLegal, [usize::MAX]);
    prop_assert_eq!(&scan(&connection, &MakeLegal, sizes), &after);
    prop_assert_eq!(&scan(&connection, &MakeLegal, [1]), &after);
    prop_assert_eq!(scan(&after, &MakeLegal, [usize::MAX]), after);
    Ok(())
}

proptest! {
    #[test]
    fn every_call_becomes_legal(calls in vec(call(), 1..12), sizes in vec(1..400usize, 1..50)) {
        let octets = connection(&calls);
        let after = make_legal(&octets);
        let replaced = compare(&octets, &after, legal).map_err(TestCaseError::fail)?;
        let illegal = calls.iter().filter(|call| !legal(&call.authority)).count();
        prop_assert_eq!(replaced, illegal);
        let (blocks, error) = header_blocks(&after);
        prop_assert_eq!(error, None);
        prop_assert_eq!(blocks.len(), calls.len());
        is_stable(&octets, sizes)?;
    }

    #[test]
    fn damage_means_the_same_before_and_after(
        calls in vec(call(), 1..8),
        damage in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        sizes in vec(1..400usize, 1..50),
    ) {
        let mut octets = connection(&calls);
        for (at, octet) in damage {
            let at = at.index(octets.len());
            octets[at] = octet;
        }
        compare(&octets, &make_legal(&octets), legal).map_err(TestCaseError::fail)?;
        is_stable(&octets, sizes)?;
    }

    #[test]
    fn any_block_means_the_same(block in vec(any::<u8>(), 0..100), flags: u8) {
        let octets = frame(HEADERS, flags, 1, &block);
        compare(&octets, &make_legal(&octets), legal).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn any_octets_at_all(octets: Vec<u8>, sizes in vec(1..40usize, 1..20)) {
        is_stable(&octets, sizes.clone())?;
        scan(&octets, &MakeLegal, sizes);
    }

    /// Every literal of an encoder that takes the shorter form has a placeholder.
    #[test]
    fn a_placeholder_fits(value in vec(any::<u8>(), 1..400)) {
        let shorter = to_huffman(&value).len().min(value.len());
        for octets in [shorter, value.len()] {
            let placeholder = placeholder(value.len(), octets).unwrap();
            prop_assert_eq!(placeholder.len(), value.len());
            prop_assert_eq!(to_huffman(&placeholder).len(), octets);
            prop_assert!(legal(&placeholder));
        }
    }

    /// h2's client sends the placeholder in Huffman code, once as a literal and then by index. The server gets the
    /// value, in the form that grpc-go sends it in.
    #[test]
    fn a_disguise_becomes_its_value(value in vec(any::<u8>(), 1..=321), sizes in vec(1..400usize, 1..20)) {
        let disguise = Disguise::new(value.clone()).unwrap();
        let mut sent = Encoder::new();
        let mut expected = Encoder::new();
        let form = Form { huffman: to_huffman(&value).len() < value.len(), ..Form::USUAL };
        let (mut octets, mut wire) = (PREFACE.to_vec(), PREFACE.to_vec());
        for stream in [1, 3, 5] {
            octets.extend(sent.request(stream, disguise.placeholder(), Form::USUAL));
            wire.extend(expected.request(stream, &value, form));
        }
        prop_assert_eq!(scan(&octets, &disguise, sizes), wire);
    }
}

#[test]
fn no_placeholder_where_none_can_be() {
    assert_eq!(placeholder(0, 0), None);
    assert_eq!(placeholder(0, 1), None);
    // Huffman codes have 5 bits and more, and a value that is longer in Huffman code is sent raw.
    assert_eq!(placeholder(8, 4), None);
    assert_eq!(placeholder(8, 5).unwrap(), b"aaaaaaaa");
    assert_eq!(placeholder(8, 8).unwrap(), b"XXXXXXXX");
    assert_eq!(placeholder(8, 9), None);
}

#[test]
fn what_no_disguise_is_for() {
    assert!(Disguise::new(Vec::new()).is_none());
    assert!(Disguise::new(vec![0xff; 1024]).is_some());
    assert!(Disguise::new(vec![0xff; 1025]).is_none());
}
