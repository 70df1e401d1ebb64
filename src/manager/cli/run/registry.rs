//! Keeps `run` out of the registry of a kubelet that lives.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// The registry of nearly every kubelet.
const REGISTRY: &str = "/var/lib/kubelet/plugins_registry";

/// The end of any kubelet's, whatever its root directory.
const REGISTRY_END: &str = "kubelet/plugins_registry";

/// A kubelet seems to own the directory.
#[derive(Debug, thiserror::Error)]
#[error(
    "--registration-dir={} is, holds or lies in {}, a kubelet's registry: acting there as a second kubelet would make \
     registrars exit. Use --observe to look only, --take-over if no kubelet runs on this node, or another directory",
    given.display(), registry.display()
)]
pub(in crate::manager::cli) struct RegistryError {
    given: PathBuf,
    registry: PathBuf,
}

/// Refuses `directory` if a kubelet may be watching there: under its own name, through links or a bind mount, or since
/// it is watched with all that is below it.
pub(super) fn refuse_real(directory: &Path) -> Result<(), RegistryError> {
    refuse(directory, Path::new(REGISTRY))
}

fn refuse(directory: &Path, registry: &Path) -> Result<(), RegistryError> {
    let resolved = resolve(directory);
    let real = resolve(registry);
    let refused = |registry: &Path| {
        Err(RegistryError {
            given: directory.to_owned(),
            registry: registry.to_owned(),
        })
    };
    let above = |path: &Path| path.starts_with(&resolved);
    if resolved.starts_with(&real) || is_same(&resolved, &real) || (above(&real) && real.exists()) {
        return refused(&real);
    }
    let mut ancestors = resolved.ancestors();
    match ancestors.find(|ancestor| ancestor.ends_with(REGISTRY_END)) {
        Some(registry) => refused(registry),
        None => Ok(()),
    }
}

/// `path` without links, `..` and `.`. What does not exist yet cannot be a link.
fn resolve(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut resolved = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => {
                resolved.pop();
            }
            component => resolved.push(component),
        }
        if let Ok(real) = fs::canonicalize(&resolved) {
            resolved = real;
        } else if let Ok(target) = fs::read_link(&resolved) {
            // A dangling link: the directory will be made where it leads.
            resolved.pop();
            resolved.push(target);
        }
    }
    resolved
}

fn is_same(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_way_to_the_registry_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let registry = root.join("data/registry");
        fs::create_dir_all(registry.join("below")).unwrap();
        symlink(&registry, root.join("link")).unwrap();
        symlink("data", root.join("relative")).unwrap();
        symlink(registry.join("later"), root.join("dangling")).unwrap();
        symlink(root.join("link"), root.join("chain")).unwrap();
        for way in [
            "data/registry",
            "data/registry//",
            "data/./registry/.",
            "data/../data/registry",
            "link",
            "link/",
            "relative/registry",
            "data/registry/below",
            "data/registry/not/yet",
            "link/../registry",
            "dangling",
            "chain/not/yet",
            "data",
            "",
        ] {
            assert!(refuse(&root.join(way), &registry).is_err(), "{way}");
        }
        for way in ["elsewhere", "data/registry2", "data/other", "not/yet/there"] {
            assert!(refuse(&root.join(way), &registry).is_ok(), "{way}");
        }
    }

    #[test]
    fn the_usual_name_is_refused_under_any_root_and_before_it_exists() {
        for path in [
            REGISTRY,
            "/var/lib/kubelet/plugins_registry/",
            "/var/snap/common/var/lib/kubelet/plugins_registry/x",
        ] {
            let error = refuse_real(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains("--observe"), "{error}");
        }
        for path in ["/tmp/plugins_registry", "/tmp/my-kubelet/plugins_registry"] {
            assert!(refuse_real(Path::new(path)).is_ok(), "{path}");
        }
    }
}
