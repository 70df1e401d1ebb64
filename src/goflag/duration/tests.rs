//! Tables of values that Go accepts and refuses, and laws.

use std::fmt::Write;

use proptest::prelude::*;

use super::*;

fn nanos(text: &str) -> Result<i64, ValueError> {
    text.parse::<GoDuration>().map(GoDuration::nanos)
}

#[test]
fn what_go_accepts() {
    let (us, ms, s) = (1_000, 1_000_000, 1_000_000_000);
    let (m, h) = (60 * s, 3_600 * s);
    let cases = [
        ("0", 0),
        ("-0", 0),
        ("+0", 0),
        ("0s", 0),
        ("5s", 5 * s),
        ("30s", 30 * s),
        ("1478s", 1478 * s),
        ("-5s", -5 * s),
        ("+5s", 5 * s),
        ("5.0s", 5 * s),
        ("5.6s", 5_600 * ms),
        ("5.s", 5 * s),
        (".5s", 500 * ms),
        ("1.00s", s),
        ("1.004s", 1_004 * ms),
        ("1.0040s", 1_004 * ms),
        ("100.00100s", 100_001 * ms),
        ("10ns", 10),
        ("11us", 11 * us),
        ("12\u{b5}s", 12 * us),
        ("12\u{3bc}s", 12 * us),
        ("13ms", 13 * ms),
        ("14s", 14 * s),
        ("15m", 15 * m),
        ("16h", 16 * h),
        ("3h30m", 3 * h + 30 * m),
        ("10.5s4m", 4 * m + 10_500 * ms),
        ("-2m3.4s", -(2 * m + 3_400 * ms)),
        ("1h2m3s4ms5us6ns", h + 2 * m + 3 * s + 4 * ms + 5 * us + 6),
        ("39h9m14.425s", 39 * h + 9 * m + 14_425 * ms),
        ("52763797000ns", 52_763_797_000),
        ("0.3333333333333333333h", 20 * m),
        ("9007199254740993ns", 9_007_199_254_740_993),
        ("9223372036854775807ns", i64::MAX),
        ("9223372036854775.807us", i64::MAX),
        ("9223372036s854ms775us807ns", i64::MAX),
        ("-9223372036854775808ns", i64::MIN),
        ("-9223372036854775.808us", i64::MIN),
        ("-9223372036s854ms775us808ns", i64::MIN),
        ("-2562047h47m16.854775808s", i64::MIN),
        ("0.100000000000000000000h", 6 * m),
        ("0.830103483285477580700h", 49 * m + 48 * s + 372_539_827),
        ("0.00000000000000000000000000000000000000000000000001h", 0),
        ("000000000000000000000000000000000001s", s),
        ("1.9ns", 1),
    ];
    for (text, expected) in cases {
        assert_eq!(nanos(text), Ok(expected), "{text}");
    }
}

#[test]
fn what_go_refuses() {
    for text in [
        "",
        "3",
        "-",
        "+",
        "s",
        ".",
        "-.",
        ".s",
        "+.s",
        "1d",
        "\u{fffd}",
        "\u{fffd} hello \u{fffd} world",
        "--5s",
        "+-5s",
        "5 s",
        " 5s",
        "5s ",
        "1_0s",
        "1e3s",
        "5S",
        "00",
        "0.0",
        "1h2",
        "1..5s",
        "1,5s",
        "\u{ff11}s",
        "5s-3s",
        // overflow
        "9223372036854775810ns",
        "9223372036854775808ns",
        "-9223372036854775809ns",
        "9223372036854776us",
        "3000000h",
        "9223372036854775.808us",
        "9223372036854ms775us808ns",
        "99999999999999999999999999999999999999999999h",
        "2562047h2562047h",
    ] {
        assert_eq!(nanos(text), Err(ValueError::Syntax), "{text}");
    }
}

#[test]
fn displays_as_go_does() {
    for (value, text) in [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1\u{b5}s"),
        (2_200_000, "2.2ms"),
        (3_300_000_000, "3.3s"),
        (5_000_000_000, "5s"),
        (60_000_000_000, "1m0s"),
        (245_001_000_000, "4m5.001s"),
        (3_600_000_000_000, "1h0m0s"),
        (18_367_001_000_000, "5h6m7.001s"),
        (480_000_000_001, "8m0.000000001s"),
        (i64::MAX, "2562047h47m16.854775807s"),
        (-1_500_000_000, "-1.5s"),
        (i64::MIN, "-2562047h47m16.854775808s"),
    ] {
        assert_eq!(GoDuration::from_nanos(value).to_string(), text);
    }
}

#[test]
fn only_what_has_a_sign_is_no_std_duration() {
    assert_eq!(
        GoDuration::from_nanos(1_500).to_std(),
        Some(Duration::from_nanos(1_500))
    );
    assert_eq!(GoDuration::from_nanos(-1).to_std(), None);
}

/// `whole.fraction` of a unit in exact arithmetic, where the numbers are small enough for it to be plain.
fn oracle(terms: &[(u32, Option<u32>, &str)]) -> i64 {
    let nanos: u128 = terms
        .iter()
        .map(|(whole, millionths, unit)| {
            let unit: u128 = match *unit {
                "ns" => 1,
                "us" => 1_000,
                "ms" => 1_000_000,
                "s" => 1_000_000_000,
                "m" => 60_000_000_000,
                _ => 3_600_000_000_000,
            };
            u128::from(*whole) * unit + u128::from(millionths.unwrap_or(0)) * unit / 1_000_000
        })
        .sum();
    i64::try_from(nanos).expect("three terms of at most 100,000 hours")
}

prop_compose! {
    fn term()(whole in 0..100_000_u32, millionths in proptest::option::of(0..1_000_000_u32),
              unit in prop::sample::select(vec!["ns", "us", "ms", "s", "m", "h"])) -> (u32, Option<u32>, &'static str) {
        (whole, millionths, unit)
    }
}

proptest! {
    #[test]
    fn every_duration_is_read_back(value: i64) {
        let text = GoDuration::from_nanos(value).to_string();
        prop_assert_eq!(nanos(&text), Ok(value), "{}", text);
    }

    #[test]
    fn any_text_is_answered(text in "\\PC*|[-+.0-9]{0,60}[a-zµμ]{0,3}[.0-9]{0,60}[a-z]{0,2}") {
        let _ = nanos(&text);
    }

    #[test]
    fn agrees_with_exact_arithmetic(terms in prop::collection::vec(term(), 1..4), negative: bool, zeros in 0..60_usize) {
        let mut text = String::from(if negative { "-" } else { "" });
        for (whole, millionths, unit) in &terms {
            text += &whole.to_string();
            if let Some(millionths) = millionths {
                let zeros = "0".repeat(zeros);
                let _ = write!(text, ".{millionths:06}{zeros}");
            }
            text += unit;
        }
        let expected = if negative { -oracle(&terms) } else { oracle(&terms) };
        prop_assert_eq!(nanos(&text), Ok(expected), "{}", text);
    }
}
