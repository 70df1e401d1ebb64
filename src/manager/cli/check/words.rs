//! How a check says what it met.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

use super::REGISTRATION_DIR;
use super::session::Plan;

/// What in the directory, or in the command, may explain that there is no socket.
pub(super) fn clue(plan: &Plan) -> String {
    let ignored = ignored_files(&plan.registry);
    if !ignored.is_empty() {
        return format!("; a kubelet ignores what is there: {}", ignored.join(", "));
    }
    if !plan.is_told_the_directory {
        return format!("; none of its arguments contains {REGISTRATION_DIR}");
    }
    String::new()
}

/// Events that were not read in time.
pub(super) fn lost(count: u64) -> String {
    format!("{count} events came faster than they could be followed, and are missing here")
}

/// How a process ended, after "the registrar".
pub(super) fn ended(status: io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with code {code}"),
            (None, Some(signal)) => format!("was ended by signal {signal}"),
            (None, None) => "ended".to_owned(),
        },
        Err(error) => format!("was lost: {error}"),
    }
}

/// What to do about a process that does not start.
pub(super) fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; it is no executable file, or may not be reached",
        io::ErrorKind::NotFound => "; write its path, or the name of a command in PATH",
        _ if error.raw_os_error() == Some(nix::errno::Errno::ENOEXEC as i32) => {
            "; it is no program of this machine, and no script that begins with #!"
        }
        _ => "",
    }
}

/// Files that a kubelet does not look at, with the reason.
fn ignored_files(registry: &Path) -> Vec<String> {
    let entries = fs::read_dir(registry).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let what = match fs::metadata(entry.path()) {
                Ok(metadata) if metadata.is_dir() => return None,
                Ok(metadata) if metadata.file_type().is_socket() => {
                    if !name.starts_with('.') {
                        return None;
                    }
                    "a socket, but hidden by its dot"
                }
                Ok(metadata) if metadata.is_file() => "a plain file, no socket",
                Ok(_) => "no socket",
                Err(_) => "a link that leads nowhere",
            };
            Some(format!("{name} is {what}"))
        })
        .collect()
}
