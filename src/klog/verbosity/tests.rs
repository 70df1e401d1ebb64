//! Levels, `--vmodule` lists, and what they show.

use proptest::prelude::*;

use super::*;

fn level(level: u32) -> Level {
    Level(level)
}

#[test]
fn levels_are_decimal_digits() {
    for (text, value) in [
        ("0", 0),
        ("5", 5),
        ("007", 7),
        ("2147483647", 2_147_483_647),
    ] {
        assert_eq!(text.parse(), Ok(level(value)));
    }
    for (text, words) in [
        ("", r#"strconv.ParseUint: parsing "": invalid syntax"#),
        ("x\"", r#"strconv.ParseUint: parsing "x\"": invalid syntax"#),
        ("-1", r#"strconv.ParseUint: parsing "-1": invalid syntax"#),
        ("+1", r#"strconv.ParseUint: parsing "+1": invalid syntax"#),
        ("0x1", r#"strconv.ParseUint: parsing "0x1": invalid syntax"#),
        ("1_0", r#"strconv.ParseUint: parsing "1_0": invalid syntax"#),
        ("１", r#"strconv.ParseUint: parsing "１": invalid syntax"#),
        (
            "2147483648",
            r#"strconv.ParseUint: parsing "2147483648": value out of range"#,
        ),
        (
            "4294967296",
            r#"strconv.ParseUint: parsing "4294967296": value out of range"#,
        ),
        (
            "99999999999x",
            r#"strconv.ParseUint: parsing "99999999999x": value out of range"#,
        ),
    ] {
        assert_eq!(
            text.parse::<Level>().expect_err("no level").to_string(),
            words
        );
    }
}

#[test]
fn vmodule_is_a_list() {
    let pattern = |glob: &str, of| Pattern {
        glob: glob.to_owned(),
        level: level(of),
    };
    for (text, patterns) in [
        ("", vec![]),
        (",", vec![]),
        ("a=1", vec![pattern("a", 1)]),
        (",a=1,,b*=02,", vec![pattern("a", 1), pattern("b*", 2)]),
    ] {
        assert_eq!(text.parse(), Ok(VModule(patterns)), "{text}");
    }
    for (text, words) in [
        ("a", r#""a" does not have the pattern=N format"#),
        ("=1", r#""=1" does not have the pattern=N format"#),
        ("a=", r#""a=" does not have the pattern=N format"#),
        ("b=1,a=1=2", r#""a=1=2" does not have the pattern=N format"#),
        (
            "a=b",
            r#"parsing verbosity in "a=b": strconv.ParseUint: parsing "b": invalid syntax"#,
        ),
        (
            "a=-1",
            r#"parsing verbosity in "a=-1": strconv.ParseUint: parsing "-1": invalid syntax"#,
        ),
        (
            "a=2147483648",
            r#"parsing verbosity in "a=2147483648": strconv.ParseUint: parsing "2147483648": value out of range"#,
        ),
    ] {
        assert_eq!(
            text.parse::<VModule>().expect_err("no list").to_string(),
            words
        );
    }
}

fn verbosity(level: u16, modules: &[&str]) -> Verbosity {
    let modules = modules
        .iter()
        .map(|text| text.parse::<VModule>().expect("a list"));
    Verbosity::new(Level::new(level), modules)
}

#[test]
fn a_file_may_show_more_and_never_less() {
    let verbosity = verbosity(2, &["driver=0,driver=4,heal*=1", "driver=5,http=3"]);
    for (path, highest) in [
        (Some("src/driver.rs"), 4),
        (Some("driver.rs"), 4),
        (Some("src/driver/mod.rs"), 2),
        (Some("src/registrar/health.rs"), 2),
        (Some("src/http.rs"), 3),
        (Some("src/http.go"), 2),
        (None, 2),
    ] {
        for of in 0..6 {
            assert_eq!(
                verbosity.shows(level(of), path),
                of <= highest,
                "{path:?} {of}"
            );
        }
    }
}

#[test]
fn patterns_are_gos() {
    for (pattern, name, expected) in [
        ("", "", true),
        ("", "a", false),
        ("a", "", false),
        ("*", "", true),
        ("*", "abc", true),
        ("a*", "a", true),
        ("a*", "ab", true),
        ("*c", "abc", true),
        ("*c", "abcd", false),
        ("a*b", "ab", true),
        ("a*b*", "axbxcx", true),
        ("a*b?c*x", "abxbbxdbxebxczzx", true),
        ("a*b?c*x", "abxbbxdbxebxczzy", false),
        ("a**b", "ab", true),
        ("?", "", false),
        ("?", "é", true),
        ("a?c", "abc", true),
        ("[abc]b", "ab", true),
        ("[a-c]", "b", true),
        ("[a-c]", "d", false),
        ("[^a-c]", "d", true),
        ("[^a-c]", "a", false),
        ("[^ab]", "", false),
        ("[a-ζ]*", "α", true),
        ("*[a-ζ]", "A", false),
        ("[\\]a]", "]", true),
        ("[x\\-]", "-", true),
        ("[\\-x]", "z", false),
        ("a\\*b", "a*b", true),
        ("a\\*b", "axb", false),
        ("a[", "a", false),
        ("a[", "ab", false),
        ("[]a]", "]", false),
        ("[-]", "-", false),
        ("[x-]", "x", false),
        ("[a-b-c]", "a", false),
        ("[]", "a", false),
        ("[a", "a", false),
        ("a\\", "a", false),
        ("*\\", "a", false),
    ] {
        assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
    }
}

#[test]
fn many_stars_take_no_time() {
    assert!(!matches(
        &"a*".repeat(2_000),
        &format!("{}b", "a".repeat(200))
    ));
}

proptest! {
    #[test]
    fn any_text_is_answered(text in "[a-c*?\\[\\]^\\-\\\\=,0-9]{0,12}|\\PC*", name in "[a-c]{0,6}") {
        let _ = matches(&text, &name);
        let _ = text.parse::<VModule>();
        let _ = text.parse::<Level>();
    }

    #[test]
    fn a_name_matches_itself_and_any_part_as_a_star(name in "[a-zé_]{0,8}", from in 0..9_usize, to in 0..9_usize) {
        prop_assert!(matches(&name, &name));
        let letters: Vec<char> = name.chars().collect();
        let (from, to) = (from.min(to).min(letters.len()), from.max(to).min(letters.len()));
        let starred: String = letters[..from].iter().chain(&['*']).chain(&letters[to..]).collect();
        prop_assert!(matches(&starred, &name), "{}", starred);
    }
}
