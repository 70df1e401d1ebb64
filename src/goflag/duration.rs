//! Go's durations, because no published crate reads exactly what `time.ParseDuration` reads.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

use super::ValueError;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// Magnitude of the smallest duration; the largest is one less.
const LIMIT: u128 = 1 << 63;

/// A signed number of nanoseconds: Go's `time.Duration`. Reads as `time.ParseDuration` does (`1h2m3s`, `-1.5s`, `300ms`,
/// `0`), displays as its `String` does (`1h2m3s`, `-1.5s`, `300ms`, `0s`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

impl GoDuration {
    /// From nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// In nanoseconds.
    pub const fn nanos(self) -> i64 {
        self.0
    }

    /// As the standard library's duration, which has no sign: `None` when negative.
    pub fn to_std(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }
}

impl FromStr for GoDuration {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (negative, unsigned) = match text.as_bytes() {
            [b'-', ..] => (true, &text[1..]),
            [b'+', ..] => (false, &text[1..]),
            _ => (false, text),
        };
        if unsigned == "0" {
            return Ok(Self(0));
        }
        if unsigned.is_empty() {
            return Err(ValueError::Syntax);
        }
        let mut rest = unsigned;
        let mut total = 0_u128;
        while !rest.is_empty() {
            let term;
            (term, rest) = term_of(rest).ok_or(ValueError::Syntax)?;
            total += term;
            if total > LIMIT {
                return Err(ValueError::Syntax);
            }
        }
        let total = i128::try_from(total).map_err(|_| ValueError::Syntax)?;
        i64::try_from(if negative { -total } else { total })
            .map(Self)
            .map_err(|_| ValueError::Syntax)
    }
}

/// The first number with its unit, in nanoseconds (at most a few times `LIMIT`), and what follows it.
fn term_of(text: &str) -> Option<(u128, &str)> {
    let (whole, rest) = split_digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => split_digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let end = rest
        .find(|c: char| c == '.' || c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(end);
    let unit = u128::from(nanos_of(unit)?);
    let mut value = 0_u128;
    for digit in whole.bytes() {
        value = value * 10 + u128::from(digit - b'0');
        if value > LIMIT {
            return None;
        }
    }
    // LIMIT times the hour's 42 bits fits in 128.
    Some((value * unit + fraction_of(fraction, unit), rest))
}

/// Whole nanoseconds in `0.<digits>` of a unit.
///
/// Go multiplies in `float64`, so that a value is as good as one that is larger by less than the last of 53 bits: a third of
/// an hour with nineteen digits is 20m.
fn fraction_of(digits: &str, unit: u128) -> u128 {
    let mut numerator = 0_u128;
    let mut scale = 1_u128;
    for digit in digits.bytes() {
        let longer = numerator * 10 + u128::from(digit - b'0');
        if longer > LIMIT {
            // As in Go, more digits only add precision that no unit has.
            break;
        }
        numerator = longer;
        // Saturated only after 38 digits, where even an hour's fraction is nothing.
        scale = scale.saturating_mul(10);
    }
    let exact = numerator * unit;
    (exact + (exact >> 53)) / scale
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    )
}

fn nanos_of(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // The micro sign and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    })
}

impl Display for GoDuration {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        match nanos {
            0 => f.write_str("0s"),
            1..MICROSECOND => write!(f, "{nanos}ns"),
            MICROSECOND..MILLISECOND => decimal(f, nanos, MICROSECOND, "\u{b5}s"),
            MILLISECOND..SECOND => decimal(f, nanos, MILLISECOND, "ms"),
            _ => {
                if nanos >= HOUR {
                    write!(f, "{}h", nanos / HOUR)?;
                }
                if nanos >= MINUTE {
                    write!(f, "{}m", nanos % HOUR / MINUTE)?;
                }
                decimal(f, nanos % MINUTE, SECOND, "s")
            }
        }
    }
}

/// `nanos` in `unit`s, without trailing zeros.
fn decimal(f: &mut Formatter<'_>, nanos: u64, unit: u64, name: &str) -> fmt::Result {
    write!(f, "{}", nanos / unit)?;
    let mut fraction = nanos % unit;
    let mut place = unit / 10;
    if fraction > 0 {
        f.write_str(".")?;
    }
    while fraction > 0 {
        write!(f, "{}", fraction / place)?;
        fraction %= place;
        place /= 10;
    }
    f.write_str(name)
}

#[cfg(test)]
mod tests;
