//! Go's durations against exact arithmetic: what is read is right to the nanosecond, and what is written is read again.

#![no_main]

use csi_node_driver_registrar::goflag::GoDuration;
use libfuzzer_sys::fuzz_target;

/// What a text means as a sum of terms, by the grammar in the documentation of `time.ParseDuration`. `None` where that
/// refuses it; an upper bound where the value does not fit anyway.
fn exact(text: &str) -> Option<(bool, u128, u32)> {
    let (negative, mut rest) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    if rest == "0" {
        return Some((negative, 0, 0));
    }
    let (mut nanos, mut terms) = (0_u128, 0);
    while terms == 0 || !rest.is_empty() {
        let whole = digits(&mut rest);
        let fraction = match rest.strip_prefix('.') {
            Some(after) => {
                rest = after;
                digits(&mut rest)
            }
            None => "",
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let unit = unit(&mut rest)?;
        let whole = whole.bytes().fold(0_u128, |value, digit| {
            (value * 10 + u128::from(digit - b'0')).min(1 << 70)
        });
        // More digits than an hour's nanoseconds have make no difference.
        let (mut part, mut scale) = (0_u128, 1_u128);
        for digit in fraction.bytes().take(18) {
            part = part * 10 + u128::from(digit - b'0');
            scale *= 10;
        }
        nanos += whole * unit + part * unit / scale;
        terms += 1;
    }
    Some((negative, nanos, terms))
}

fn digits<'a>(rest: &mut &'a str) -> &'a str {
    let end = rest
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(rest.len());
    let (digits, after) = rest.split_at(end);
    *rest = after;
    digits
}

fn unit(rest: &mut &str) -> Option<u128> {
    let end = rest
        .find(|character: char| character == '.' || character.is_ascii_digit())
        .unwrap_or(rest.len());
    let (unit, after) = rest.split_at(end);
    *rest = after;
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

fuzz_target!(|text: &str| {
    let read = text.parse::<GoDuration>();
    let Some((negative, nanos, terms)) = exact(text) else {
        assert!(read.is_err(), "{text:?} is read as {read:?}");
        return;
    };
    let limit = i64::MAX.unsigned_abs() + u64::from(negative);
    match read {
        // Each term is cut, and Go's floating point may be off by one.
        Ok(duration) => {
            let off = u128::from(duration.nanos().unsigned_abs()).abs_diff(nanos);
            assert!(off <= u128::from(terms), "{text:?} is read as {duration}");
            assert!(nanos == 0 || duration.nanos() == 0 || negative == (duration.nanos() < 0));
            let written = duration.to_string();
            let again = written
                .parse::<GoDuration>()
                .expect("what Go writes, it reads");
            assert_eq!(again.nanos(), duration.nanos(), "{written}");
        }
        Err(error) => {
            let near = u128::from(limit).saturating_sub(u128::from(terms));
            assert!(nanos > near, "{text:?} is refused: {error:?}");
        }
    }
});
