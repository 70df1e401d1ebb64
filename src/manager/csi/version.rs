//! Which of a driver's versions counts (`HighestSupportedVersion` and `ParseGeneric` in
//! `k8s.io/apimachinery/pkg/util/version`; in `pkg/volume/csi` up to 1.30).

use std::cmp::Ordering;
use std::fmt;

use crate::manager::go_text;

/// Two or more numbers; what follows them is not kept.
#[derive(Clone, Debug)]
pub(super) struct Version(Vec<u64>);

/// An entry that is no version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ParseError {
    #[error("could not parse {} as version", go_text::quote(.0))]
    NoVersion(String),
    #[error("illegal version string {}", go_text::quote(.0))]
    OneNumber(String),
    #[error(
        "illegal zero-prefixed version component {} in {}",
        go_text::quote(component),
        go_text::quote(text)
    )]
    LeadingZero { component: String, text: String },
    #[error(
        "illegal non-numeric version component {} in {}: strconv.ParseUint: parsing {}: value out of range",
        go_text::quote(component),
        go_text::quote(text),
        go_text::quote(component)
    )]
    TooLarge { component: String, text: String },
}

/// None of the versions will do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum VersionError {
    #[error("empty array for supported versions")]
    Empty,
    #[error(
        "could not find a highest supported version from versions ({}) reported{}: {}",
        go_text::list(versions), if *names_driver { " by this driver" } else { "" },
        parse_error.as_ref().map_or("<nil>".into(), ToString::to_string)
    )]
    NoneKnown {
        versions: Vec<String>,
        /// Of the first entry that is no version.
        parse_error: Option<ParseError>,
        names_driver: bool,
    },
    #[error("highest supported version reported{} is {highest}, must be v1.x", if *names_driver { " by driver" } else { "" })]
    NotOne {
        highest: Version,
        names_driver: bool,
    },
}

impl Version {
    /// The highest of `versions` whose major is not above 1; it has to be 1. `names_driver` words the errors as the
    /// older kubelets do.
    pub(super) fn highest_supported(
        versions: &[String],
        names_driver: bool,
    ) -> Result<Self, VersionError> {
        if versions.is_empty() {
            return Err(VersionError::Empty);
        }
        let mut highest: Option<Self> = None;
        let mut parse_error = None;
        for text in versions {
            match Self::parse(text) {
                Err(error) => {
                    parse_error.get_or_insert(error);
                }
                Ok(version) if version.major() > 1 => {}
                Ok(version) => highest = highest.max(Some(version)),
            }
        }
        match highest {
            None => Err(VersionError::NoneKnown {
                versions: versions.to_vec(),
                parse_error,
                names_driver,
            }),
            Some(highest) if highest.major() != 1 => Err(VersionError::NotOne {
                highest,
                names_driver,
            }),
            Some(highest) => Ok(highest),
        }
    }

    /// Blanks, a `v`, numbers with dots, and anything but a line end.
    fn parse(text: &str) -> Result<Self, ParseError> {
        let start = text.trim_start_matches(['\t', '\n', '\x0c', '\r', ' ']);
        let start = start.strip_prefix('v').unwrap_or(start);
        let numbers = &start[..numbers_len(start)];
        if numbers.is_empty() || start[numbers.len()..].contains('\n') {
            return Err(ParseError::NoVersion(text.into()));
        }
        let components: Vec<_> = numbers.split('.').collect();
        if components.len() < 2 {
            return Err(ParseError::OneNumber(text.into()));
        }
        if components[0].len() > 1 && components[0].starts_with('0') {
            return Err(ParseError::LeadingZero {
                component: components[0].into(),
                text: text.into(),
            });
        }
        let parse = |component: &&str| {
            component.parse().map_err(|_| ParseError::TooLarge {
                component: (*component).into(),
                text: text.into(),
            })
        };
        components
            .iter()
            .map(parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    fn major(&self) -> u64 {
        self.0[0]
    }
}

/// Length of `[0-9]+(\.[0-9]+)*` at the start of `text`.
fn numbers_len(text: &str) -> usize {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut len = digits(text);
    while len > 0 && text[len..].starts_with('.') {
        let next = digits(&text[len + 1..]);
        if next == 0 {
            break;
        }
        len += 1 + next;
    }
    len
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

impl Ord for Version {
    /// Number by number; missing ones count as 0.
    fn cmp(&self, other: &Self) -> Ordering {
        let len = self.0.len().max(other.0.len());
        let number = |version: &Self, index| version.0.get(index).copied().unwrap_or(0);
        (0..len)
            .map(|index| number(self, index).cmp(&number(other, index)))
            .find(|ordering| ordering.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Version {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn highest(versions: &[&str]) -> Result<String, String> {
        let versions: Vec<_> = versions.iter().map(|&version| version.to_owned()).collect();
        Version::highest_supported(&versions, false)
            .map(|version| version.to_string())
            .map_err(|error| error.to_string())
    }

    fn assert_highest(versions: &[&str], expected: &str) {
        assert_eq!(highest(versions).as_deref(), Ok(expected), "{versions:?}");
    }

    #[test]
    fn v01_one_is_one() {
        assert_highest(&["v1.0.0"], "1.0.0");
        assert_highest(&["1.0.0"], "1.0.0");
    }

    #[test]
    fn v02_zero_alone_fails() {
        for version in ["0.3.0", "0.2.0", "v0.3.0", "v0.2.0"] {
            let error = highest(&[version]).unwrap_err();
            let number = version.trim_start_matches('v');
            assert_eq!(
                error,
                format!("highest supported version reported is {number}, must be v1.x")
            );
        }
    }

    #[test]
    fn v03_several_zeroes_fail() {
        let error = highest(&["0.2.0", "v0.3.0"]).unwrap_err();
        assert_eq!(
            error,
            "highest supported version reported is 0.3.0, must be v1.x"
        );
    }

    #[test]
    fn v04_one_beside_zero_counts() {
        assert_highest(&["0.2.0", "v1.0.0"], "1.0.0");
    }

    #[test]
    fn v05_order_does_not_matter() {
        assert_highest(&["0.2.0", "v1.2.3"], "1.2.3");
        assert_highest(&["v1.2.3", "v0.3.0"], "1.2.3");
    }

    #[test]
    fn v06_majors_above_one_are_skipped() {
        assert_highest(&["v1.2.3", "v0.3.0", "2.0.1"], "1.2.3");
        assert_highest(&["v1.2.3", "4.9.12", "v0.3.0", "2.0.1"], "1.2.3");
    }

    #[test]
    fn v07_majors_above_one_alone_fail() {
        assert_eq!(
            highest(&["4.9.12", "2.0.1"]).unwrap_err(),
            "could not find a highest supported version from versions ([4.9.12 2.0.1]) reported: <nil>"
        );
    }

    #[test]
    fn v08_what_is_no_version_is_skipped() {
        assert_highest(&["v1.2.3", "boo", "v0.3.0", "2.0.1"], "1.2.3");
    }

    #[test]
    fn v09_nothing_and_words_fail() {
        assert_eq!(
            highest(&[]).unwrap_err(),
            "empty array for supported versions"
        );
        assert_eq!(
            highest(&["var", "boo", "foo"]).unwrap_err(),
            "could not find a highest supported version from versions ([var boo foo]) reported: could not parse \"var\" as version"
        );
    }

    #[test]
    fn older_kubelets_name_the_driver() {
        let text = |version: &str| {
            Version::highest_supported(&[version.into()], true)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            text("0.3.0"),
            "highest supported version reported by driver is 0.3.0, must be v1.x"
        );
        assert_eq!(
            text("2.0"),
            "could not find a highest supported version from versions ([2.0]) reported by this driver: <nil>"
        );
    }

    #[test]
    fn the_generic_form_is_wide() {
        for (text, expected) in [
            (" \tv1.2.3", "1.2.3"),
            ("1.0", "1.0"),
            ("1.02.3", "1.2.3"),
            ("1.2.3-rc.1+build", "1.2.3"),
            ("1.2x", "1.2"),
            ("1.2.", "1.2"),
            ("1.2.3.4.5 ", "1.2.3.4.5"),
        ] {
            assert_highest(&[text], expected);
        }
        for text in [
            "",
            "v",
            "1",
            "1.",
            "1.x",
            "01.0",
            "V1.0",
            "vv1.0",
            "-1.0",
            "1.0\n2",
            "1.18446744073709551616",
        ] {
            assert!(highest(&[text]).is_err(), "{text:?}");
        }
        assert!(
            highest(&["01.0"])
                .unwrap_err()
                .ends_with(r#"component "01" in "01.0""#)
        );
        assert!(
            highest(&["1"])
                .unwrap_err()
                .ends_with(r#"illegal version string "1""#)
        );
    }

    #[test]
    fn missing_numbers_are_zero() {
        assert_eq!(
            Version::parse("1.0").unwrap(),
            Version::parse("1.0.0").unwrap()
        );
        assert!(Version::parse("1.0").unwrap() < Version::parse("1.0.1").unwrap());
        assert!(Version::parse("1.9").unwrap() < Version::parse("1.10").unwrap());
    }

    proptest! {
        #[test]
        fn any_text_is_judged_without_panic(versions in proptest::collection::vec("\\PC*|v?[0-9]{1,25}(\\.[0-9]{1,3}){0,4}.*", 0..5)) {
            if let Ok(version) = Version::highest_supported(&versions, false) {
                prop_assert_eq!(version.major(), 1);
            }
        }
    }
}
