//! Integers and booleans as Go's `flag` package reads them, and the error it words for every basic type.

/// Why a value of a basic type was not accepted: the words of Go's `flag` package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// The text is no value of the type. A duration that overflows is one of these too.
    #[error("parse error")]
    Syntax,
    /// An integer that does not fit.
    #[error("value out of range")]
    Range,
}

/// Go's `strconv.ParseBool`.
pub fn boolean(text: &str) -> Result<bool, ValueError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(ValueError::Syntax),
    }
}

/// Go's `strconv.ParseInt(text, 0, 64)`: the prefix (`0x`, `0o`, `0`, `0b`, none) tells the base, and an underscore may
/// stand between digits or after a prefix.
pub fn integer(text: &str) -> Result<i64, ValueError> {
    let (negative, unsigned) = match text.as_bytes() {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        all => (false, all),
    };
    let (base, prefixed, digits) = split_prefix(unsigned);
    if unsigned.is_empty() {
        return Err(ValueError::Syntax);
    }
    let mut magnitude = 0_u64;
    let mut previous = if prefixed { b'0' } else { b'_' };
    let mut misplaced = false;
    for &byte in digits {
        if byte == b'_' {
            misplaced |= previous == b'_';
        } else {
            let digit = char::from(byte).to_digit(36).ok_or(ValueError::Syntax)?;
            if digit >= base {
                return Err(ValueError::Syntax);
            }
            magnitude = magnitude
                .checked_mul(base.into())
                .and_then(|shifted| shifted.checked_add(digit.into()))
                .ok_or(ValueError::Range)?;
        }
        previous = byte;
    }
    if misplaced || previous == b'_' {
        return Err(ValueError::Syntax);
    }
    let signed = if negative {
        -i128::from(magnitude)
    } else {
        i128::from(magnitude)
    };
    i64::try_from(signed).map_err(|_| ValueError::Range)
}

/// The base, whether a prefix that counts as a digit precedes, and the digits. A prefix without digits is none.
fn split_prefix(number: &[u8]) -> (u32, bool, &[u8]) {
    match number {
        [b'0', b'b' | b'B', digits @ ..] if !digits.is_empty() => (2, true, digits),
        [b'0', b'o' | b'O', digits @ ..] if !digits.is_empty() => (8, true, digits),
        [b'0', b'x' | b'X', digits @ ..] if !digits.is_empty() => (16, true, digits),
        [b'0', digits @ ..] => (8, true, digits),
        digits => (10, false, digits),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn integers_in_every_base() {
        let valid = [
            ("0", 0),
            ("-0", 0),
            ("+1", 1),
            ("98765432100", 98_765_432_100),
            ("0377", 255),
            ("0o17", 15),
            ("0O17", 15),
            ("0b101", 5),
            ("-0B11", -3),
            ("0xFf", 255),
            ("0X10", 16),
            ("1_2_3", 123),
            ("0_17", 15),
            ("0x_1_f", 31),
            ("0b_1", 1),
            ("00", 0),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
            ("-0x8000000000000000", i64::MIN),
        ];
        for (text, value) in valid {
            assert_eq!(integer(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_is_no_integer() {
        for text in [
            "", "-", "+", "--1", "+-1", " 1", "1 ", "1.0", "1e3", "x", "0x", "0b", "0o", "0b2",
            "08", "0xg", "_1", "1_", "1__2", "0_", "0x1_", "0x__1", "-_1", "12a", "é", "１",
        ] {
            assert_eq!(integer(text), Err(ValueError::Syntax), "{text}");
        }
        for text in [
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999",
            "0x10000000000000000",
            // Go stops reading where the range is left.
            "99999999999999999999x",
        ] {
            assert_eq!(integer(text), Err(ValueError::Range), "{text}");
        }
    }

    #[test]
    fn booleans() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(boolean(text), Ok(true));
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(boolean(text), Ok(false));
        }
        for text in ["", "yes", "no", "tRUE", "2", " true", "on"] {
            assert_eq!(boolean(text), Err(ValueError::Syntax), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_integer_is_read_back(value: i64) {
            prop_assert_eq!(integer(&value.to_string()), Ok(value));
            let sign = if value < 0 { "-" } else { "" };
            let magnitude = value.unsigned_abs();
            prop_assert_eq!(integer(&format!("{sign}{magnitude:#x}")), Ok(value));
            prop_assert_eq!(integer(&format!("{sign}{magnitude:#o}")), Ok(value));
            prop_assert_eq!(integer(&format!("{sign}{magnitude:#b}")), Ok(value));
        }

        #[test]
        fn any_text_is_answered(text in "\\PC*|[-+0-9a-fxob_]{0,40}") {
            let _ = integer(&text);
            let _ = boolean(&text);
        }
    }
}
