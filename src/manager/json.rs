//! Values in JSON that serde would write otherwise, or not at all.

use std::path::Path;
use std::time::Duration;

use serde::Serializer;

/// A path as `Path::display` shows it. Whoever may write into the registration directory names the files there, also with
/// octets that are no UTF-8; serde would refuse the whole document.
pub(super) fn path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// A duration as a number of seconds.
pub(super) fn seconds<S: Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}
