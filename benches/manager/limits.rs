//! Open files: every plugin is a listening socket, and all of them are connected at once.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::Failure;

/// Twice the plugins. What else is open makes some of the last connections wait for their turn, not fail.
const NEEDED: u64 = 20_000;

/// Raises the limit for this process and its children, as far as it may.
pub(crate) fn raise() -> Result<(), Failure> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= NEEDED {
        return Ok(());
    }
    if setrlimit(Resource::RLIMIT_NOFILE, NEEDED, hard.max(NEEDED)).is_ok() {
        return Ok(());
    }
    Err(format!(
        "10,000 plugins need {NEEDED} open files, and this process may have {hard}; raise the hard limit first: ulimit -Hn {NEEDED}"
    )
    .into())
}
