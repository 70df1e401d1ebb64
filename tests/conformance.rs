//! Holds the table of rules and tests against the sources, so that neither loses a line unnoticed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Rules of the table and the tests that it names for each.
fn table() -> BTreeMap<String, BTreeSet<String>> {
    let text = include_str!("conformance/README.md");
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" |");
        let rule = cells.next()?;
        let tests = cells.next()?;
        let is_rule = rule.len() == 3 && rule[1..].bytes().all(|octet| octet.is_ascii_digit());
        let names = tests
            .split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect();
        is_rule.then(|| (rule.to_owned(), (names, tests.contains("none: "))))
    });
    let mut table = BTreeMap::new();
    for (rule, (names, has_reason)) in rows {
        let names: BTreeSet<String> = names;
        // A reason may quote code.
        let names = if has_reason { BTreeSet::new() } else { names };
        assert!(
            has_reason || !names.is_empty(),
            "{rule} has neither test nor reason"
        );
        assert!(
            table.insert(rule.clone(), names).is_none(),
            "{rule} is there twice"
        );
    }
    table
}

/// Adds all tests below `directory` that carry a rule's number in their names.
fn collect_tests(directory: &Path, tests: &mut BTreeMap<String, BTreeSet<String>>) {
    for entry in fs::read_dir(directory).expect("the directory of sources is readable") {
        let path = entry.expect("its entries too").path();
        if path.is_dir() {
            collect_tests(&path, tests);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            for name in fs::read_to_string(&path)
                .expect("sources are UTF-8")
                .split("fn ")
                .skip(1)
            {
                let name = name.split('(').next().unwrap_or_default();
                if is_numbered(name) {
                    tests
                        .entry(name[..3].to_uppercase())
                        .or_default()
                        .insert(name.to_owned());
                }
            }
        }
    }
}

/// `w01_` and so on. F is the letter of the field faults, which have a table of their own.
fn is_numbered(name: &str) -> bool {
    let octets = name.as_bytes();
    octets.len() > 4
        && octets[0].is_ascii_lowercase()
        && octets[0] != b'f'
        && octets[1..3].iter().all(u8::is_ascii_digit)
        && octets[3] == b'_'
}

#[test]
fn table_and_tests_agree() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeMap::new();
    for directory in ["src", "tests"] {
        collect_tests(&root.join(directory), &mut tests);
    }
    let mut table = table();
    assert!(table.len() > 100, "the table is read");
    table.retain(|_, names| !names.is_empty());
    for (rule, names) in &table {
        assert_eq!(Some(names), tests.get(rule), "tests of {rule}");
    }
    let unlisted: Vec<_> = tests
        .keys()
        .filter(|rule| !table.contains_key(*rule))
        .collect();
    assert!(unlisted.is_empty(), "not in the table: {unlisted:?}");
}
