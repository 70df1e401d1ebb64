//! The reason of a failing exit, where `kubectl describe pod` shows it.

use std::fs::OpenOptions;
use std::io::Write;

use super::flags::TerminationLog;

/// What the kubelet reads at most (`MaxContainerTerminationMessageLength` in `pkg/kubelet/container`).
const MAX_MESSAGE: usize = 4096;

impl TerminationLog {
    /// Writes `reason`, cut to what the kubelet reads. A failure is logged: it must not hide the reason itself.
    pub fn write(&self, reason: &str) {
        let (path, create) = match self {
            Self::Create(path) => (path, true),
            Self::Existing(path) if path.exists() => (path, false),
            Self::Existing(_) | Self::Off => return,
        };
        let written = OpenOptions::new()
            .write(true)
            .truncate(true)
            .create(create)
            .open(path)
            .and_then(|mut file| file.write_all(cut(reason).as_bytes()));
        if let Err(error) = written {
            tracing::warn!(
                path = %path.display(),
                err = %error,
                "Cannot write the termination message; see --termination-log-path"
            );
        }
    }
}

fn cut(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(MAX_MESSAGE)]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_explicit_file_is_made_and_the_default_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        TerminationLog::Off.write("reason");
        TerminationLog::Existing(path.clone()).write("reason");
        assert!(!path.exists());
        TerminationLog::Create(path.clone()).write("a long reason");
        TerminationLog::Existing(path.clone()).write("reason");
        assert_eq!(fs::read_to_string(&path).unwrap(), "reason");
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        TerminationLog::Create(path.clone()).write(&format!("x{}", "ü".repeat(4096)));
        assert_eq!(fs::read_to_string(&path).unwrap().len(), 4095);
    }
}
