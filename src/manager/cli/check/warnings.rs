//! What works here and may not on a node.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixStream;

use super::attempt::{Attempt, End};
use super::step::{Outcome, Record, Step};
use crate::manager::plugin_handler::Plugin;
use crate::uds::socket_file::MAX_SOCKET_PATH;

/// The registry on a node.
const REGISTRY: &str = "/var/lib/kubelet/plugins_registry";

/// Answers that come later than this are close to the kubelet's limit, or keep a node waiting.
const SLOW: [(Step, Duration, &str); 4] = [
    (Step::Dial, Duration::from_secs(1), "10 s"),
    (Step::GetInfo, Duration::from_millis(300), "1 s"),
    (Step::NodeGetInfo, Duration::from_secs(10), "2 min"),
    (Step::Notification, Duration::from_secs(1), "5 s"),
];

/// For connecting to an endpoint.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A stop that takes longer is near the end of a pod's usual 30 s.
const SLOW_EXIT: Duration = Duration::from_secs(10);

/// About what one registration showed. `registry` is the directory of this check.
pub(super) fn of_registration(attempt: &Attempt, registry: &Path) -> Vec<String> {
    let mut warnings = Vec::new();
    let records = &attempt.records;
    warnings.extend(slow(records));
    if let (Some(End::Registered), Some((count, error))) = (attempt.end, &attempt.retries) {
        warnings.push(format!(
            "{count} attempts failed before, which kubelets repeat with growing delays; the last: {error}"
        ));
    }
    let name = attempt.socket.strip_prefix(registry);
    if let Ok(name) = name {
        warnings.extend(too_long(
            "the registration socket",
            &Path::new(REGISTRY).join(name),
        ));
    }
    if let Ok(metadata) = attempt.socket.metadata() {
        let mode = metadata.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            warnings.push(format!(
                "the registration socket has mode {mode:04o}: other users may connect; set umask 0077 around bind"
            ));
        }
    }
    if let Some(plugin) = &attempt.plugin {
        warnings.extend(of_endpoint(plugin));
    }
    warnings
}

/// Too slow a stop.
pub(super) fn of_stop(records: &[Record]) -> Option<String> {
    let mut records = records.iter();
    let slow = |record: &&Record| record.step == Step::Exit && record.took > SLOW_EXIT;
    records.find(slow).map(|record| {
        format!(
            "the registrar took {:.1} s to end after SIGTERM; a pod has 30 s by default",
            record.took.as_secs_f64()
        )
    })
}

fn slow(records: &[Record]) -> impl Iterator<Item = String> {
    records.iter().filter_map(|record| {
        let (_, bearable, limit) = SLOW.iter().find(|(step, ..)| *step == record.step)?;
        let is_slow = record.outcome == Outcome::Passed && record.took > *bearable;
        is_slow.then(|| {
            format!(
                "{} took {:.3} s, and the kubelet waits for {limit}: on a busy node that may be too slow",
                record.step.name(),
                record.took.as_secs_f64()
            )
        })
    })
}

/// The endpoint's own faults.
fn of_endpoint(plugin: &Plugin) -> Vec<String> {
    let mut warnings = Vec::new();
    let endpoint = Path::new(&plugin.endpoint);
    if !endpoint.is_absolute() {
        warnings.push(format!(
            "the endpoint {} is not absolute: the kubelet dials it as it stands, from its own working directory",
            endpoint.display()
        ));
    }
    if endpoint == plugin.socket_path {
        warnings.push(
            "the endpoint is the registration socket itself: the driver's services must be served there, too".to_owned(),
        );
    }
    warnings.extend(too_long("the endpoint", endpoint));
    warnings
}

/// Whether nobody can be reached at the endpoint.
pub(super) async fn unreachable(endpoint: &Path) -> Option<String> {
    let connecting = UnixStream::connect(endpoint);
    let error = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(_)) => return None,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no connection within {CONNECT_TIMEOUT:?}"),
    };
    Some(format!(
        "the endpoint {} is not reachable: {error}; it must be the path of the driver's socket as the kubelet sees it, on \
         the host",
        endpoint.display()
    ))
}

fn too_long(what: &str, path: &Path) -> Option<String> {
    let length = path.as_os_str().len();
    (length > MAX_SOCKET_PATH).then(|| {
        format!(
            "{what} is {} on a node, {length} bytes, and a socket's path has at most {MAX_SOCKET_PATH}: shorten the driver's name",
            path.display()
        )
    })
}

/// Sockets beside the one that was followed.
pub(super) fn of_others(others: &[&Path]) -> Option<String> {
    let names: Vec<_> = others
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "the registrar made other sockets as well, which a kubelet tries for as long as it runs: {}; bind under a name \
             that begins with a dot, and rename",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin(endpoint: &str) -> Plugin {
        Plugin {
            socket_path: "/r/x.sock".into(),
            plugin_type: "CSIPlugin".into(),
            name: "x".into(),
            endpoint: endpoint.into(),
            supported_versions: vec!["1.0.0".into()],
        }
    }

    #[test]
    fn endpoints_that_a_kubelet_cannot_use() {
        assert!(of_endpoint(&plugin("/csi.sock")).is_empty());
        for (endpoint, expected) in [
            ("csi.sock", "not absolute"),
            ("/r/x.sock", "registration socket itself"),
            (&format!("/{}", "x".repeat(107)), "108 bytes"),
        ] {
            let warnings = of_endpoint(&plugin(endpoint));
            assert_eq!(warnings.len(), 1, "{endpoint}: {warnings:?}");
            assert!(warnings[0].contains(expected), "{endpoint}: {warnings:?}");
        }
    }

    #[tokio::test]
    async fn an_endpoint_without_listener_is_not_reachable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("csi.sock");
        let missing = unreachable(&path).await.unwrap();
        assert!(missing.contains("No such file"), "{missing}");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(unreachable(&path).await, None);
        drop(listener);
        let refusing = unreachable(&path).await.unwrap();
        assert!(refusing.contains("refused"), "{refusing}");
    }

    #[test]
    fn answers_near_the_kubelets_limit() {
        let record = |step, milliseconds| Record {
            outcome: Outcome::Passed,
            took: Duration::from_millis(milliseconds),
            ..Record::skipped(step)
        };
        let records = [
            record(Step::Dial, 900),
            record(Step::GetInfo, 301),
            record(Step::NodeGetInfo, 10_000),
            record(Step::Notification, 4_000),
        ];
        let warnings: Vec<_> = slow(&records).collect();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].starts_with("get-info took 0.301 s"));
        assert!(warnings[1].starts_with("notification took 4.000 s"));
    }
}
