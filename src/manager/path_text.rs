//! Paths in JSON. Whoever may write into the registration directory names the files there, also with octets that are no
//! UTF-8; serde would refuse the whole document.

use std::path::Path;

use serde::Serializer;

/// Replaces what is no UTF-8, as `Path::display` does.
pub(super) fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}
