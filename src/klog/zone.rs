//! Local time for text lines, found where Go finds it: whoever mounts the node's zone or sets `TZ` sees what they saw.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tz::{LocalTimeType, TimeZone, UtcDateTime};

/// Where zone files are, in Go's order.
const DIRECTORIES: [&str; 4] = [
    "/usr/share/zoneinfo",
    "/usr/share/lib/zoneinfo",
    "/usr/lib/locale/TZ",
    "/etc/zoneinfo",
];

/// The zone of a process without `TZ`.
const LOCALTIME: &str = "/etc/localtime";

/// Largest zone file that is read, in bytes; real ones have at most 4 KB.
const MAX_FILE: u64 = 64 * 1024;

/// A time zone with its changes of offset.
#[derive(Clone, Debug)]
pub struct Zone(TimeZone);

impl Zone {
    /// Coordinated universal time.
    pub fn utc() -> Self {
        Self(TimeZone::utc())
    }

    /// The zone of this process, as Go reads `TZ`: unset is `/etc/localtime`, empty is UTC, `/path` and `:/path` are a file,
    /// anything else is a name in the zone directories. UTC where that leads nowhere.
    pub fn local() -> Self {
        Self::from_variable(
            std::env::var_os("TZ").as_deref(),
            &DIRECTORIES.map(Path::new),
        )
    }

    fn from_variable(variable: Option<&OsStr>, directories: &[&Path]) -> Self {
        let name = variable.map_or(LOCALTIME.as_bytes(), OsStr::as_bytes);
        let name = Path::new(OsStr::from_bytes(name.strip_prefix(b":").unwrap_or(name)));
        // An absolute name replaces the directory that it is joined to.
        let mut files = directories.iter().map(|directory| directory.join(name));
        files.find_map(read).map_or_else(Self::utc, Self)
    }

    /// What clocks in this zone show `seconds` and `nanos` after the epoch.
    pub(crate) fn date_time(&self, seconds: i64, nanos: u32) -> UtcDateTime {
        let offset = self
            .0
            .find_local_time_type(seconds)
            .map_or(0, LocalTimeType::ut_offset);
        UtcDateTime::from_timespec(seconds.saturating_add(offset.into()), nanos).unwrap_or(EPOCH)
    }
}

/// For moments that no calendar holds.
const EPOCH: UtcDateTime = match UtcDateTime::from_timespec(0, 0) {
    Ok(epoch) => epoch,
    Err(_) => panic!("the epoch is a date"),
};

fn read(path: PathBuf) -> Option<TimeZone> {
    let data = contents(path).ok()?;
    TimeZone::from_tz_data(&data).ok()
}

fn contents(path: PathBuf) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    File::open(path)?.take(MAX_FILE).read_to_end(&mut data)?;
    Ok(data)
}

#[cfg(test)]
mod tests;
