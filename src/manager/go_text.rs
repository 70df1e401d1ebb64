//! Texts as Go writes them. Plugins are told the kubelet's errors verbatim, so theirs quote and list as Go does.

use std::fmt::{self, Write as _};
use std::io;

/// `%q` of a string (`strconv.Quote`).
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\x07' => quoted.push_str("\\a"),
            '\x08' => quoted.push_str("\\b"),
            '\x0c' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\x0b' => quoted.push_str("\\v"),
            printable if is_printable(printable) => quoted.push(printable),
            other => {
                let number = u32::from(other);
                let escape = match number {
                    0..0x80 => write!(quoted, "\\x{number:02x}"),
                    0x80..0x1_0000 => write!(quoted, "\\u{number:04x}"),
                    _ => write!(quoted, "\\U{number:08x}"),
                };
                escape.unwrap_or_default();
            }
        }
    }
    quoted.push('"');
    quoted
}

/// `unicode.IsPrint`. The standard library has the table for its own escapes, to which it adds the apostrophe, and combining
/// characters where a text begins with them.
fn is_printable(character: char) -> bool {
    let text: String = ['a', character].iter().collect();
    character == '\'' || text.escape_debug().nth(1) == Some(character)
}

/// `%q` of a slice of strings: `["a" "b"]`.
pub(super) fn quoted_list(texts: &[String]) -> String {
    let quoted: Vec<_> = texts.iter().map(|text| quote(text)).collect();
    format!("[{}]", quoted.join(" "))
}

/// `%v` of a slice of strings: `[a b]`.
pub(super) fn list(texts: &[String]) -> String {
    format!("[{}]", texts.join(" "))
}

/// An operating system's error as Go words it: lower case, without Rust's `(os error 2)`. What Rust refuses by itself, a
/// socket path that is too long, the kernel calls an invalid argument.
#[derive(Debug)]
pub(super) struct OsError<'a>(pub(super) &'a io::Error);

impl fmt::Display for OsError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.kind() == io::ErrorKind::InvalidInput {
            return f.write_str("invalid argument");
        }
        let text = self.0.to_string();
        let words = text.split(" (os error").next().unwrap_or(&text);
        f.write_str(&words.to_lowercase())
    }
}

/// Several errors as `k8s.io/apimachinery`'s `Aggregate` shows them: equal ones once, several as `[a, b]`.
pub(super) fn aggregate<E: fmt::Display>(errors: &[E]) -> String {
    let mut distinct: Vec<String> = Vec::new();
    for error in errors {
        let text = error.to_string();
        if !distinct.contains(&text) {
            distinct.push(text);
        }
    }
    match distinct.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_as_go_quotes_them() {
        assert_eq!(quote(r#"a "b" \c"#), r#""a \"b\" \\c""#);
        assert_eq!(quote("\t\n\x01\x7f\u{85}é"), "\"\\t\\n\\x01\\x7f\\u0085é\"");
        let invisible = "\u{a0}\u{200b}\u{2028}\u{e0001}";
        assert_eq!(quote(invisible), r#""\u00a0\u200b\u2028\U000e0001""#);
        assert_eq!(quote("e\u{301}😀'"), "\"e\u{301}😀'\"");
        assert_eq!(
            quoted_list(&["1.0".into(), "x y".into()]),
            r#"["1.0" "x y"]"#
        );
        assert_eq!(list(&["1.0".into(), "2.0".into()]), "[1.0 2.0]");
    }

    #[test]
    fn operating_system_errors_lose_their_number() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(OsError(&error).to_string(), "no such file or directory");
        let long = "/x".repeat(100);
        let error = std::os::unix::net::UnixStream::connect(long).unwrap_err();
        assert_eq!(OsError(&error).to_string(), "invalid argument");
    }

    #[test]
    fn equal_errors_are_named_once() {
        assert_eq!(aggregate(&["a", "a"]), "a");
        assert_eq!(aggregate(&["a", "b", "a"]), "[a, b]");
    }
}
