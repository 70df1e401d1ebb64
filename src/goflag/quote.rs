//! Strings as Go's `strconv.Quote` writes them: in reasons of bad flags, in defaults of the usage, in text log lines.

use std::fmt::{self, Display, Formatter, Write};

/// Displays bytes as a double-quoted Go string literal. What is not printable, or not UTF-8, is escaped.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(&'a [u8]);

impl<'a> Quoted<'a> {
    /// Quotes a `str`, or the bytes of an `OsStr`.
    pub fn new<B: AsRef<[u8]> + ?Sized>(bytes: &'a B) -> Self {
        Self(bytes.as_ref())
    }
}

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                escape(f, c)?;
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        f.write_char('"')
    }
}

fn escape(f: &mut Formatter<'_>, c: char) -> fmt::Result {
    match c {
        '"' | '\\' => write!(f, "\\{c}"),
        c if is_printable(c) => f.write_char(c),
        '\x07' => f.write_str("\\a"),
        '\x08' => f.write_str("\\b"),
        '\x0c' => f.write_str("\\f"),
        '\n' => f.write_str("\\n"),
        '\r' => f.write_str("\\r"),
        '\t' => f.write_str("\\t"),
        '\x0b' => f.write_str("\\v"),
        c if c.is_ascii() => write!(f, "\\x{:02x}", u32::from(c)),
        c if u32::from(c) < 0x1_0000 => write!(f, "\\u{:04x}", u32::from(c)),
        c => write!(f, "\\U{:08x}", u32::from(c)),
    }
}

/// Go's `strconv.IsPrint`: letters, marks, numbers, punctuation, symbols, and the ASCII space.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return matches!(c, ' '..='~');
    }
    // The standard library has the same table, behind `escape_debug`. A combining mark is escaped only at the start of a
    // string, hence the letter before it.
    let mut text = [b'a', 0, 0, 0, 0];
    let end = 1 + c.encode_utf8(&mut text[1..]).len();
    str::from_utf8(&text[..end]).is_ok_and(|text| text.escape_debug().nth(1) == Some(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_as_go_does() {
        let cases: &[(&[u8], &str)] = &[
            (b"", r#""""#),
            (b"plain text", r#""plain text""#),
            (br#"a"b\c"#, r#""a\"b\\c""#),
            (b"\x07\x08\x0c\n\r\t\x0b", r#""\a\b\f\n\r\t\v""#),
            (b"\x00\x1b\x7f", r#""\x00\x1b\x7f""#),
            ("é日本".as_bytes(), r#""é日本""#),
            ("☺ e\u{301}".as_bytes(), "\"☺ e\u{301}\""),
            (
                "\u{a0}\u{2028}\u{feff}\u{e000}".as_bytes(),
                r#""\u00a0\u2028\ufeff\ue000""#,
            ),
            ("\u{fffd}".as_bytes(), "\"\u{fffd}\""),
            ("\u{10ffff}".as_bytes(), r#""\U0010ffff""#),
            ("\u{1f600}".as_bytes(), "\"\u{1f600}\""),
            (b"a\xff\xfeb", r#""a\xff\xfeb""#),
            (b"\xe2\x98", r#""\xe2\x98""#),
        ];
        for (bytes, quoted) in cases {
            assert_eq!(Quoted::new(*bytes).to_string(), *quoted);
        }
    }

    #[test]
    fn a_combining_mark_is_printable_anywhere() {
        assert_eq!(Quoted::new("\u{301}").to_string(), "\"\u{301}\"");
    }
}
