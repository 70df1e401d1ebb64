//! In what the kubelet's minor versions differ. Each difference is one method here, with the files it was read in, and
//! nothing else in the manager knows a version number.
//!
//! "Read" means in Kubernetes 1.17.17, 1.19.16, 1.22.17, 1.24.17, 1.26.15, 1.28.15, 1.31.14, 1.34.1, 1.35.4, 1.36.3 and
//! 1.37.2, the versions of libraries also in 1.29.15, 1.32.0 and 1.33.0. Where two of these differ, the later one is taken for
//! the first with the change.
//!
//! Not modelled: 1.17 and 1.19 hand operations the live map of handlers instead of a copy; stopping the watcher takes 11
//! seconds in 1.17.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::retry::Steps;
use crate::uds::authority::Authority;

/// The kubelet of one Kubernetes minor version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Profile {
    minor: u16,
}

/// A version that is no Kubernetes version, or none that this manager knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no Kubernetes version from 1.{} to 1.{}; write it as 1.28 or v1.28.15", Profile::OLDEST.minor, Profile::NEWEST.minor)]
pub struct UnknownVersion {
    text: String,
}

impl Profile {
    /// The oldest version: the first without the deprecated plugin directory and CSI 0.x.
    pub const OLDEST: Self = Self { minor: 17 };
    /// The newest version that was read, and the default.
    pub const NEWEST: Self = Self { minor: 37 };

    /// The profile of Kubernetes 1.`minor`, if this manager knows it.
    pub const fn from_minor(minor: u16) -> Option<Self> {
        if minor < Self::OLDEST.minor || minor > Self::NEWEST.minor {
            return None;
        }
        Some(Self { minor })
    }

    /// Whether taking a plugin back needs the plugin's answer, so that removing its socket has no effect
    /// (`GenerateUnregisterPluginFunc`; kubernetes/kubernetes#88006 for 1.19).
    pub const fn unregister_needs_plugin(self) -> bool {
        self.minor < 19
    }

    /// Whether a failure in the handler's Register or in the last notification is undone and tried again; before, it
    /// lasts until the socket is re-created (`GenerateRegisterPluginFunc`; kubernetes/kubernetes#133335 for 1.36).
    pub const fn retries_failed_registration(self) -> bool {
        self.minor >= 36
    }

    /// Whether `DeRegisterPlugin` is told the endpoint (`cache.PluginHandler`; 1.33, not in 1.31, in 1.34).
    pub const fn deregister_gets_endpoint(self) -> bool {
        self.minor >= 33
    }

    /// Whether stopping cancels operations under way (`reconciler.Run`; not in 1.36, in 1.37).
    pub const fn stop_cancels_operations(self) -> bool {
        self.minor >= 37
    }

    /// Whether a watcher that cannot start ends the plugin manager; before, it runs on and sees nothing
    /// (`pluginManager.Run`; not in 1.24, in 1.26).
    pub const fn start_error_ends_run(self) -> bool {
        self.minor >= 26
    }

    /// Whether a directory is watched before it is listed, so that nothing is lost in between
    /// (`traversePluginDir`; not in 1.17, in 1.19).
    pub const fn watches_before_listing(self) -> bool {
        self.minor >= 19
    }

    /// Whether a symlink to a socket counts as a socket when a directory is listed
    /// (`traversePluginDir`; not in 1.24, in 1.26).
    pub const fn listing_follows_symlinks(self) -> bool {
        self.minor >= 26
    }

    /// Whether the watcher keeps its watches by path, as fsnotify does before 1.7: one whose directory is renamed goes on
    /// under the old name, and a directory in the place of one that is deleted but still in use goes unseen, since a socket
    /// keeps its directory as long as it is open (`inotify.Add`; fsnotify 1.6.0 in 1.28, 1.7.0 in 1.29).
    pub const fn watches_by_path(self) -> bool {
        self.minor < 29
    }

    /// Whether a directory that is watched under a second name, as that of a link, goes on under its first one; before, under
    /// the last (`inotify.register`; fsnotify 1.7.0 in 1.33, 1.9.0 in 1.34).
    pub const fn first_watched_name_stays(self) -> bool {
        self.minor >= 34
    }

    /// What registration calls carry: the kubelet sets nothing, and grpc-go percent-encodes its target from 1.57 on
    /// (`operation_generator.go`, `dial`; grpc-go 1.56.3 in 1.28, 1.58.3 in 1.29).
    pub const fn registration_authority(self) -> Authority {
        if self.minor >= 29 {
            Authority::PercentEncoded
        } else {
            Authority::Raw
        }
    }

    /// What CSI calls carry (`newGrpcConn` in `csi_client.go`; kubernetes/kubernetes#112597; not in 1.24, in 1.26).
    pub const fn csi_authority(self) -> Authority {
        if self.minor >= 26 {
            Authority::Localhost
        } else {
            Authority::Raw
        }
    }

    /// Whether a changed volume limit alone makes the CSINode be written
    /// (`installDriverToCSINode`; not in 1.26, in 1.28).
    pub const fn compares_volume_limit(self) -> bool {
        self.minor >= 28
    }

    /// Whether a CSINode that this node does not own, by the UID that the initialisation has seen, is deleted
    /// (`ensureNodeOwnsCSINode`; kubernetes/kubernetes#131098; not in 1.34.1, in 1.35).
    pub const fn checks_csi_node_owner(self) -> bool {
        self.minor >= 35
    }

    /// Whether a driver's volume limit is asked for again where its CSIDriver object says how often
    /// (`MutableCSINodeAllocatableCount`; off by default in 1.33 and 1.34, on in 1.35, locked on from 1.36).
    pub const fn updates_volume_limits(self) -> bool {
        self.minor >= 35
    }

    /// Whether changes of the Node exclude each other (`nodeInfoManager.lock`; not in 1.19, in 1.22).
    pub const fn serialises_node_changes(self) -> bool {
        self.minor >= 22
    }

    /// Whether changes of the CSINode do too (not in 1.31, in 1.34).
    pub const fn serialises_csi_node_changes(self) -> bool {
        self.minor >= 34
    }

    /// Whether installing a driver drops its `attachable-volumes-csi-` keys from the Node
    /// (`InstallCSIDriver`; not in 1.31, in 1.34 and 1.35, not in 1.36).
    pub const fn install_drops_attach_limit(self) -> bool {
        self.minor == 34 || self.minor == 35
    }

    /// Whether uninstalling a driver drops them (`UninstallCSIDriver`; not in 1.36).
    pub const fn uninstall_drops_attach_limit(self) -> bool {
        self.minor < 36
    }

    /// How often, and at which distances, the CSINode's initialisation is tried
    /// (`initializeCSINode`; kubernetes' comment says 140 s in all, true from 1.35 on).
    pub(super) const fn initialise_backoff(self) -> Steps {
        let (first, factor) = if self.minor >= 35 { (30, 8) } else { (15, 6) };
        Steps {
            attempts: 6,
            first: Duration::from_millis(first),
            factor,
            jitter: 10,
        }
    }

    /// How often one registration asks a driver for its node, and at which distances, all within one deadline; the plugin is
    /// not told why it failed. Later, a driver is asked once (`csiDriverClient.NodeGetInfo`; in 1.17, not in 1.19).
    pub(super) const fn node_get_info_backoff(self) -> Option<Steps> {
        if self.minor >= 19 {
            return None;
        }
        Some(Steps {
            attempts: 5,
            first: Duration::from_secs(1),
            factor: 2,
            jitter: 0,
        })
    }

    /// Whether a driver without a node id makes the handler panic: it looks into the error of a call that had none
    /// (`csiDriverClient.NodeGetInfo`; in 1.17, not in 1.19).
    pub const fn empty_node_id_panics(self) -> bool {
        self.minor < 19
    }

    /// Whether version errors come from the CSI package and name the driver; later from apimachinery
    /// (`highestSupportedVersion`; in 1.28, not in 1.31).
    pub const fn version_errors_name_driver(self) -> bool {
        self.minor < 31
    }

    /// In-tree plugins that are migrated to CSI by default, sorted (`csiPlugin.Init` and `features/kube_features.go`).
    pub fn migrated_plugins(self) -> Vec<&'static str> {
        /// Name and the first minor version that migrates it.
        const MIGRATED: [(&str, u16); 7] = [
            ("kubernetes.io/aws-ebs", 23),
            ("kubernetes.io/azure-disk", 23),
            ("kubernetes.io/azure-file", 24),
            ("kubernetes.io/cinder", 21),
            ("kubernetes.io/gce-pd", 23),
            ("kubernetes.io/portworx-volume", 31),
            ("kubernetes.io/vsphere-volume", 25),
        ];
        MIGRATED
            .iter()
            .filter(|(_, first)| self.minor >= *first)
            .map(|(name, _)| *name)
            .collect()
    }
}

impl Default for Profile {
    fn default() -> Self {
        Self::NEWEST
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.minor)
    }
}

impl FromStr for Profile {
    type Err = UnknownVersion;

    /// `1.28`, `v1.28` or `v1.28.15`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut numbers = text.strip_prefix('v').unwrap_or(text).split('.');
            if numbers.next()? != "1" {
                return None;
            }
            let minor = numbers.next()?.parse().ok()?;
            if let Some(patch) = numbers.next() {
                patch.parse::<u16>().ok()?;
            }
            match numbers.next() {
                None => Self::from_minor(minor),
                Some(_) => None,
            }
        };
        parse().ok_or_else(|| UnknownVersion { text: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_people_write_them() {
        for text in ["1.28", "v1.28", "1.28.15", "v1.28.0"] {
            assert_eq!(text.parse(), Ok(Profile { minor: 28 }), "{text}");
        }
        assert_eq!(Profile::default().to_string(), "1.37");
    }

    #[test]
    fn unknown_versions_are_refused_with_the_range() {
        for text in [
            "", "28", "2.1", "1.16", "1.38", "1.x", "1.28.x", "1.28.1.1", "1.-28",
        ] {
            let error = text.parse::<Profile>().unwrap_err().to_string();
            assert!(error.contains("from 1.17 to 1.37"), "{text}: {error}");
        }
    }

    #[test]
    fn migrated_plugins_are_those_of_the_version() {
        let count = |minor| Profile { minor }.migrated_plugins().len();
        assert_eq!(
            [17, 19, 22, 24, 26, 28, 31, 37].map(count),
            [0, 0, 1, 5, 6, 6, 7, 7]
        );
        assert!(Profile::NEWEST.migrated_plugins().is_sorted());
    }
}
