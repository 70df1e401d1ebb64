//! What a registrar needs to know: plain values, checked before anything is touched.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::driver::Address;
use crate::uds::socket_file::MAX_SOCKET_PATH;

/// `--timeout`'s default.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

/// What follows when the kubelet refuses the registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// End with the reason, so that the pod restarts and the reason stands in its status.
    #[default]
    Exit,
    /// Stay, and publish a fresh socket after a growing delay.
    Retry,
}

/// A registrar's settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the driver listens, seen from here.
    pub driver_address: Address,
    /// Deadline of connecting to the driver or to a registration socket, and of each call there.
    pub timeout: Duration,
    /// Path of the driver's socket on the host. The kubelet is told it as it stands.
    pub kubelet_registration_path: String,
    /// Directory of the registration socket, seen from here.
    pub registration_directory: PathBuf,
    /// Whether a driver that says `ready = false` is waited for, up to a minute.
    pub wait_for_ready: bool,
    /// When to give up waiting for the driver's name; `None` waits for ever.
    pub driver_wait_timeout: Option<Duration>,
    /// Whether a restarted driver gets a fresh socket, so that the kubelet asks its `NodeGetInfo` again.
    pub reregister_on_driver_restart: bool,
    /// What follows a refusal.
    pub failure_policy: FailurePolicy,
    /// Whether a registration that fails is begun anew instead of being the end: something else in the process must live on.
    pub outlives_failures: bool,
}

impl Config {
    /// The flags' defaults, for a driver at `driver_address` that the kubelet finds at `kubelet_registration_path` on the host.
    /// Change the fields that should be otherwise.
    pub fn new(
        driver_address: Address,
        kubelet_registration_path: impl Into<String>,
        registration_directory: impl Into<PathBuf>,
    ) -> Self {
        Self {
            driver_address,
            timeout: DEFAULT_TIMEOUT,
            kubelet_registration_path: kubelet_registration_path.into(),
            registration_directory: registration_directory.into(),
            wait_for_ready: true,
            driver_wait_timeout: None,
            reregister_on_driver_restart: false,
            failure_policy: FailurePolicy::default(),
            outlives_failures: false,
        }
    }

    /// What will probably not work although it is allowed; one line each.
    pub fn warnings(&self) -> Vec<String> {
        let path = &self.kubelet_registration_path;
        let mut warnings = Vec::new();
        if !path.starts_with('/') {
            warnings.push(format!(
                "--kubelet-registration-path={path} is not absolute: the kubelet dials it as it stands, on the host"
            ));
        }
        if path.len() > MAX_SOCKET_PATH {
            warnings.push(format!(
                "--kubelet-registration-path={path} is {} bytes long, the limit for a socket is {MAX_SOCKET_PATH}: the \
                 kubelet will not be able to dial the driver",
                path.len()
            ));
        }
        let is_in_registry = Path::new(path).parent().is_some_and(|parent| {
            parent.ends_with("plugins_registry") || parent == self.registration_directory
        });
        if is_in_registry {
            warnings.push(format!(
                "--kubelet-registration-path={path} names a socket in the registration directory: it must be the path of \
                 the CSI driver's own socket on the host, usually /var/lib/kubelet/plugins/<driver>/csi.sock"
            ));
        }
        warnings
    }

    /// Where the kubelet dials the registration socket of `name`, and how long that path is, if it is too long
    /// there although it fits here. The kubelet's root is what precedes the last component `plugins` of the driver's path.
    pub fn host_path_too_long(&self, name: &str) -> Option<(PathBuf, usize)> {
        let path = Path::new(&self.kubelet_registration_path);
        let root = path
            .ancestors()
            .find(|ancestor| ancestor.file_name().is_some_and(|last| last == "plugins"))?
            .parent()?;
        let socket = root
            .join("plugins_registry")
            .join(format!("{name}-reg.sock"));
        let length = socket.as_os_str().len();
        (length > MAX_SOCKET_PATH).then_some((socket, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(path: &str) -> Config {
        Config::new("/csi/csi.sock".parse().unwrap(), path, "/registration")
    }

    #[test]
    fn a_usual_path_is_not_warned_about() {
        assert!(
            config("/var/lib/kubelet/plugins/driver.example.com/csi.sock")
                .warnings()
                .is_empty()
        );
    }

    #[test]
    fn paths_that_the_kubelet_cannot_use_are() {
        let one = |path: &str, text: &str| {
            let warnings = config(path).warnings();
            assert_eq!(warnings.len(), 1, "{path}: {warnings:?}");
            assert!(warnings[0].contains(text), "{path}: {warnings:?}");
        };
        one("csi.sock", "not absolute");
        one(&format!("/{}", "x".repeat(107)), "108 bytes long");
        one(
            "/var/lib/kubelet/plugins_registry/d-reg.sock",
            "registration directory",
        );
        one("/registration/d-reg.sock", "registration directory");
    }

    #[test]
    fn the_host_path_is_derived_from_the_last_component_plugins() {
        let name = "d".repeat(60);
        let too_long = |path: &str| config(path).host_path_too_long(&name);
        assert_eq!(too_long("/var/lib/kubelet/plugins/d/csi.sock"), None);
        let root = format!("/plugins/{}", "r".repeat(15));
        let (path, length) = too_long(&format!("{root}/plugins/d/csi.sock")).unwrap();
        assert_eq!(
            path,
            Path::new(&format!("{root}/plugins_registry/{name}-reg.sock"))
        );
        assert_eq!(length, path.as_os_str().len());
        assert_eq!(too_long(&format!("/{}/d/csi.sock", "r".repeat(90))), None);
        assert_eq!(
            too_long(&format!("/{}/myplugins/d/csi.sock", "r".repeat(90))),
            None
        );
    }
}
