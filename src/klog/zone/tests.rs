//! Zone files of our own, so that no zone database is needed.

use super::*;

/// 2026-03-08 07:00:00 UTC, when New York's clocks go from 02:00 to 03:00.
const SPRING: i64 = 1_772_953_200;

/// 2026-11-01 06:00:00 UTC, when they go from 02:00 to 01:00.
const AUTUMN: i64 = 1_793_512_800;

/// A zone file (RFC 9636) of version 2 with one standard offset and a rule for the rest.
fn zone_file(offset: i32, abbreviation: [u8; 3], rule: &str) -> Vec<u8> {
    let mut block = b"TZif2".to_vec();
    block.extend([0; 15]);
    // Counts: UTC indicators, standard indicators, leap seconds, transitions, types, characters.
    for count in [0_u32, 0, 0, 0, 1, 4] {
        block.extend(count.to_be_bytes());
    }
    block.extend(offset.to_be_bytes());
    block.extend([0, 0]);
    block.extend(abbreviation);
    block.push(0);
    let mut file = block.repeat(2);
    file.extend(format!("\n{rule}\n").bytes());
    file
}

fn clock(zone: &Zone, seconds: i64) -> (u8, u8, u8, u8, u8) {
    let time = zone.date_time(seconds, 0);
    (
        time.month(),
        time.month_day(),
        time.hour(),
        time.minute(),
        time.second(),
    )
}

#[test]
fn the_offset_is_that_of_the_moment() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = zone_file(-5 * 3600, *b"EST", "EST5EDT,M3.2.0,M11.1.0");
    std::fs::write(directory.path().join("Here"), file).expect("a file");
    let zone = Zone::from_variable(Some(OsStr::new("Here")), &[directory.path()]);
    assert_eq!(clock(&zone, SPRING - 1), (3, 8, 1, 59, 59));
    assert_eq!(clock(&zone, SPRING), (3, 8, 3, 0, 0));
    assert_eq!(clock(&zone, AUTUMN - 1), (11, 1, 1, 59, 59));
    assert_eq!(clock(&zone, AUTUMN), (11, 1, 1, 0, 0));
    // New Year comes five hours later.
    assert_eq!(clock(&zone, 0), (12, 31, 19, 0, 0));
}

#[test]
fn names_are_looked_up_as_go_does() {
    let directory = tempfile::tempdir().expect("a directory");
    let absent = directory.path().join("absent");
    let area = directory.path().join("Area");
    std::fs::create_dir(&area).expect("a directory");
    let file = area.join("Place");
    std::fs::write(&file, zone_file(7200, *b"TST", "TST-2")).expect("a file");
    std::fs::write(directory.path().join("Garbage"), b"TZif nonsense").expect("a file");

    let path = file.to_str().expect("a temporary path is UTF-8");
    let (area_place, garbage) = ("Area/Place".to_owned(), "Garbage".to_owned());
    for (variable, hour) in [
        (area_place.clone(), 2),
        (format!(":{area_place}"), 2),
        (path.to_owned(), 2),
        (format!(":{path}"), 2),
        (String::new(), 0),
        (":".to_owned(), 0),
        ("UTC".to_owned(), 0),
        ("Area".to_owned(), 0),
        ("Nowhere".to_owned(), 0),
        (format!("{path}/nowhere"), 0),
        (garbage, 0),
        // POSIX rules are no names.
        ("TST-2".to_owned(), 0),
    ] {
        let zone = Zone::from_variable(Some(OsStr::new(&variable)), &[&absent, directory.path()]);
        assert_eq!(clock(&zone, 0), (1, 1, hour, 0, 0), "{variable}");
    }
}

#[test]
fn impossible_moments_are_no_panic() {
    for seconds in [i64::MIN, i64::MAX] {
        let _ = Zone::utc().date_time(seconds, 0);
    }
}
