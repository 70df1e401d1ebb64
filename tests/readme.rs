//! The README's troubleshooting table quotes log lines: each must stand in the program's text.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::fs;
use std::path::Path;

/// All texts of the sources, with the line breaks that Rust's string literals skip taken out.
fn sources(directory: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &sources(&path);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            text += &fs::read_to_string(path).unwrap();
        }
    }
    text
}

fn joined(text: &str) -> String {
    let mut lines = text.lines();
    let mut joined = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        if let Some(before) = joined.strip_suffix('\\') {
            joined = format!("{before}{}", line.trim_start());
        } else {
            joined.push('\n');
            joined.push_str(line);
        }
    }
    joined
}

#[test]
fn every_quoted_log_line_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let (_, section) = readme.split_once("## When it does not work").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| "));
    let quoted: Vec<_> = rows
        .filter_map(|row| {
            row.split(" | ")
                .nth(1)?
                .strip_prefix('`')?
                .strip_suffix('`')
        })
        .collect();
    assert!(quoted.len() >= 16, "{quoted:#?}");
    let sources = joined(&sources(&root.join("src")));
    for line in quoted {
        assert!(
            sources.contains(line),
            "README.md quotes {line:?}, which no source says"
        );
    }
}
