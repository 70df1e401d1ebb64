//! Every form in which an `:authority` may come.

use super::super::Rule;
use super::super::oracle::{compare, header_blocks};
use super::encoder::{Encoder, Form, Mode, Name, integer, string};
use super::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PADDED, PERCENT_ENCODED, PING, PREFACE,
    PRIORITY, RAW, SETTINGS, frame, legal, make_legal, scan,
};

/// Makes a connection legal, compares it with what it was, and returns how many values were replaced and all that the
/// server sees.
fn replaced(octets: &[u8]) -> (usize, Vec<Vec<u8>>) {
    let after = make_legal(octets);
    let replaced = compare(octets, &after, legal).unwrap();
    assert_eq!(make_legal(&after), after, "a second time");
    let (blocks, error) = header_blocks(&after);
    assert_eq!(error, None);
    let authorities = blocks
        .into_iter()
        .flatten()
        .filter(|(name, _)| name == b":authority")
        .map(|(_, value)| value)
        .collect();
    (replaced, authorities)
}

#[test]
fn a_socket_path_in_every_form() {
    for value in [PERCENT_ENCODED, RAW] {
        for form in Form::all() {
            let mut encoder = Encoder::new();
            // Twice: a literal, then by index where the mode allows it.
            let octets = [1, 3].map(|stream| encoder.request(stream, value, form));
            let (replaced, authorities) = replaced(&octets.concat());
            assert_eq!(replaced, 2, "{form:?}");
            for authority in authorities {
                assert_eq!(authority.len(), value.len());
                assert!(legal(&authority));
            }
        }
    }
}

#[test]
fn a_legal_value_is_left_alone() {
    for value in ["localhost", "a", "[::1]:80", "user:%41@host", "a-b_c~d:1"] {
        for form in Form::all() {
            let octets = Encoder::new().request(1, value.as_bytes(), form);
            assert_eq!(make_legal(&octets), octets, "{value} {form:?}");
        }
    }
}

#[test]
fn whatever_else_h2_refuses() {
    // Structure and not only characters, and characters without a legal one of the same code length.
    for value in [
        "/a:b:c:d",
        "/a[b",
        "/a@",
        "%",
        "a?b",
        "/var/lib/kubelet/plugins_registry/<#\">-reg.sock",
        "/var/lib/kubelet/\u{fc}/x",
    ] {
        for huffman in [false, true] {
            let form = Form {
                huffman,
                ..Form::USUAL
            };
            let octets = Encoder::new().request(1, value.as_bytes(), form);
            assert_eq!(replaced(&octets).0, 1, "{value} {huffman}");
        }
    }
}

#[test]
fn what_is_known_to_stay() {
    let raw = Form {
        huffman: false,
        ..Form::USUAL
    };
    let huffman = Form::USUAL;
    // By a name from the dynamic table: the second literal has it from the first.
    let mut dynamic_name = Encoder::new()
        .field(b":authority", b"localhost", raw)
        .finish();
    integer(62, 6, 0x40, &mut dynamic_name);
    string(RAW, false, &mut dynamic_name);

    for block in [
        dynamic_name,
        Encoder::new().request_block(b"", raw),
        Encoder::new().request_block(&[b'/'; 1025], raw),
        Encoder::new().request_block("/\u{fc}".as_bytes(), huffman),
    ] {
        let octets = frame(HEADERS, END_HEADERS, 1, &block);
        assert_eq!(make_legal(&octets), octets);
    }
    for block in [
        Encoder::new().request_block(&[b'/'; 1024], raw),
        Encoder::new().request_block("/\u{fc}".as_bytes(), raw),
    ] {
        assert_eq!(replaced(&frame(HEADERS, END_HEADERS, 1, &block)).0, 1);
    }
}

#[test]
fn only_an_authority() {
    let value = b"%2Fvar";
    for name in [
        "x-authority",
        "authority",
        ":authorit",
        ":authority2",
        ":path",
    ] {
        for form in Form::all() {
            let block = Encoder::new().field(name.as_bytes(), value, form).finish();
            let octets = frame(HEADERS, END_HEADERS, 1, &block);
            assert_eq!(make_legal(&octets), octets);
        }
    }
}

#[test]
fn only_in_a_headers_frame() {
    let block = Encoder::new().request_block(RAW, Form::USUAL);
    for kind in (0..=255).filter(|&kind| kind != HEADERS) {
        let octets = frame(kind, END_HEADERS, 1, &block);
        assert_eq!(make_legal(&octets), octets);
    }
}

#[test]
fn padding_and_priority() {
    let mut octets = Vec::new();
    let mut encoder = Encoder::new();
    let cases = [None, Some(0), Some(1), Some(255)]
        .into_iter()
        .flat_map(|padding| [(padding, false), (padding, true)]);
    let mut count = 0;
    for (padding, priority) in cases {
        let mut flags = END_HEADERS | END_STREAM;
        let mut payload = Vec::new();
        if let Some(padding) = padding {
            flags |= PADDED;
            payload.push(padding);
        }
        if priority {
            flags |= PRIORITY;
            payload.extend([0, 0, 0, 99, 16]);
        }
        // Each of another length, so that each is a literal.
        let authority = &PERCENT_ENCODED[..20 + count];
        payload.extend(encoder.request_block(authority, Form::USUAL));
        payload.extend(vec![0; usize::from(padding.unwrap_or(0))]);
        count += 1;
        octets.extend(frame(HEADERS, flags, 1, &payload));
    }
    assert_eq!(replaced(&octets).0, count);
}

#[test]
fn continuations() {
    let mut encoder = Encoder::new();
    let mut block = encoder
        .field(b":path", b"/x", Form::USUAL)
        .field(b":authority", PERCENT_ENCODED, Form::USUAL)
        .finish();
    let end_of_authority = block.len();
    block.extend(encoder.field(b"te", b"trailers", Form::USUAL).finish());
    for cut in end_of_authority..=block.len() {
        for empty in 0..3 {
            let mut octets = frame(HEADERS, 0, 1, &block[..cut]);
            for _ in 0..empty {
                octets.extend(frame(CONTINUATION, 0, 1, b""));
            }
            octets.extend(frame(CONTINUATION, END_HEADERS, 1, &block[cut..]));
            assert_eq!(replaced(&octets).0, 1);
        }
    }
    // A value that is cut is not seen: h2 refuses it, as it does without the adapter.
    let octets = [
        frame(HEADERS, 0, 1, &block[..end_of_authority - 1]),
        frame(CONTINUATION, END_HEADERS, 1, &block[end_of_authority - 1..]),
    ];
    assert_eq!(make_legal(&octets.concat()), octets.concat());
}

#[test]
fn table_sizes_with_evictions() {
    for size in [0, 60, 200, 4096] {
        let mut encoder = Encoder::new();
        encoder.resize(size);
        let mut octets = Vec::new();
        for call in 0..60u32 {
            let authority = [PERCENT_ENCODED, RAW, b"localhost"][call as usize % 3];
            encoder.field(b"x-call", call.to_string().as_bytes(), Form::USUAL);
            octets.extend(encoder.request(2 * call + 1, authority, Form::USUAL));
        }
        assert_eq!(replaced(&octets).0, 40, "size {size}");
    }
}

#[test]
fn among_other_frames() {
    let mut encoder = Encoder::new();
    let octets = [
        frame(SETTINGS, 0, 0, b""),
        encoder.request(1, RAW, Form::USUAL),
        // Payloads that look like what is looked for.
        frame(
            DATA,
            END_STREAM,
            1,
            &Encoder::new().request(3, RAW, Form::USUAL),
        ),
        frame(PING, 0, 0, b"PRI * HT"),
        frame(HEADERS, END_HEADERS, 1, b""),
        encoder.request(3, PERCENT_ENCODED, Form::USUAL),
    ];
    assert_eq!(replaced(&octets.concat()).0, 2);
}

#[test]
fn a_block_that_cannot_be_understood_passes() {
    let authority = {
        let mut literal = vec![0x41];
        string(RAW, false, &mut literal);
        literal
    };
    let mut too_long = vec![0xff, 0x80, 0x80, 0x80, 0x80, 0x00];
    too_long.extend(&authority);
    let mut long_name = vec![0x40];
    integer(1 << 27, 7, 0, &mut long_name);
    long_name.extend(&authority);
    let bad_huffman = [0x41, 0x82, 0xff, 0xff].to_vec();
    let cut = authority[..authority.len() - 1].to_vec();
    for block in [
        too_long,
        long_name,
        bad_huffman,
        cut,
        vec![0x41],
        vec![0x40],
    ] {
        let octets = frame(HEADERS, END_HEADERS, 1, &block);
        assert_eq!(make_legal(&octets), octets);
    }
    // Padding and priority that do not fit in.
    for (flags, payload) in [
        (PADDED, [&[255], &authority[..]].concat()),
        (PADDED, vec![]),
        (PRIORITY, vec![0; 4]),
        (PADDED | PRIORITY, vec![1, 0, 0, 0, 0, 0]),
    ] {
        let octets = frame(HEADERS, END_HEADERS | flags, 1, &payload);
        assert_eq!(make_legal(&octets), octets);
    }
}

#[test]
fn a_headers_frame_over_the_bound_passes_unseen() {
    let mut block = Encoder::new().request_block(RAW, Form::USUAL);
    block.resize(16 * 1024, 0x82);
    assert_eq!(replaced(&frame(HEADERS, END_HEADERS, 1, &block)).0, 1);
    block.push(0x82);
    let octets = frame(HEADERS, END_HEADERS, 1, &block);
    assert_eq!(make_legal(&octets), octets);
}

#[test]
fn only_the_first_authority_of_a_block() {
    let form = |mode| Form {
        mode,
        name: Name::Static,
        huffman: true,
    };
    let mut encoder = Encoder::new();
    let block = encoder
        .field(b":authority", RAW, form(Mode::NotIndexed))
        .field(b":authority", RAW, form(Mode::NotIndexed))
        .finish();
    assert_eq!(replaced(&frame(HEADERS, END_HEADERS, 1, &block)).0, 1);
}

/// One field alone, at the ends of what its prefix holds: a wrong width shows at once and cannot be made up for.
#[test]
fn behind_any_field() {
    let mut blocks = Vec::new();
    for size in [0, 30, 31, 32, 4096] {
        let mut block = Vec::new();
        integer(size, 5, 0x20, &mut block);
        blocks.push(block);
    }
    // Seventy entries of the dynamic table, for the far indexes.
    let entries = Encoder::new().field(b"x", b"y", Form::USUAL).finish();
    let entries = entries.repeat(70);
    for index in [2, 61, 62, 63, 126, 127, 128, 131] {
        let mut block = entries.clone();
        integer(index, 7, 0x80, &mut block);
        blocks.push(block);
    }
    for (prefix, flags) in [(6, 0x40), (4, 0), (4, 0x10)] {
        for index in [2, 14, 15, 16, 30, 31, 32, 61, 62, 63, 64, 131] {
            for huffman in [false, true] {
                let mut block = entries.clone();
                integer(index, prefix, flags, &mut block);
                string(b"a value", huffman, &mut block);
                blocks.push(block);
            }
        }
    }
    for mut block in blocks {
        integer(1, 6, 0x40, &mut block);
        string(RAW, true, &mut block);
        assert_eq!(replaced(&frame(HEADERS, END_HEADERS, 1, &block)).0, 1);
    }
}

#[test]
fn a_replacement_that_does_not_fit_is_ignored() {
    #[derive(Debug)]
    struct Always(&'static [u8]);

    impl Rule for Always {
        fn replacement(&self, _value: &[u8], _octets: usize) -> Option<Vec<u8>> {
            Some(self.0.to_vec())
        }
    }

    // Eight octets, of which h2 and grpc-go make six.
    let octets = Encoder::new().request(1, b"/var/lib", Form::USUAL);
    let octets = [PREFACE, &octets].concat();
    for other in [
        &b"/var/li"[..],
        b"/var/lib/",
        b"aaaaaaaa",
        b"XXXXXXXX",
        b"abcdef",
    ] {
        assert_eq!(scan(&octets, &Always(other), [usize::MAX]), octets);
    }
    assert_ne!(scan(&octets, &Always(b"/bin/lib"), [usize::MAX]), octets);
}
