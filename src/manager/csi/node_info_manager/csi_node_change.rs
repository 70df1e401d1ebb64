//! What a driver, and the migration of in-tree plugins, change on the CSINode. Each change answers whether there is
//! anything to write.

use std::collections::BTreeSet;

use crate::manager::csi::node_client::NodeInfo;
use crate::manager::csi::objects::{CsiNode, CsiNodeDriver, VolumeNodeResources};

/// Where the CSINode lists in-tree plugins that are migrated (`v1.MigratedPluginsAnnotationKey`).
pub(super) const MIGRATED_PLUGINS_ANNOTATION: &str = "storage.alpha.kubernetes.io/migrated-plugins";

/// Puts the driver's entry to the end, in place of an older one of its name. Nothing needs to be written if that said the
/// same; the limit counts only if `compares_limit`, and as the driver reported it, so one that does not fit never does
/// (`installDriverToCSINode`).
pub(super) fn add_driver(
    csi_node: &mut CsiNode,
    driver: &str,
    info: &NodeInfo,
    compares_limit: bool,
) -> bool {
    let topology = info.topology();
    let limit = info.max_volumes_per_node;
    let drivers = &mut csi_node.spec.drivers;
    let kept = drivers.iter().any(|old| {
        let count = old
            .allocatable
            .map_or(0, |resources| i64::from(resources.count));
        old.name == driver
            && old.node_id == info.node_id
            && old.topology_keys.iter().collect::<BTreeSet<_>>() == topology.keys().collect()
            && (!compares_limit || (count == limit && old.allocatable.is_some() == (limit != 0)))
    });
    drivers.retain(|old| old.name != driver);
    drivers.push(CsiNodeDriver {
        name: driver.to_owned(),
        node_id: info.node_id.clone(),
        topology_keys: topology.keys().cloned().collect(),
        allocatable: allocatable(driver, limit),
    });
    !kept
}

/// Removes the driver's entry.
pub(super) fn remove_driver(csi_node: &mut CsiNode, driver: &str) -> bool {
    let before = csi_node.spec.drivers.len();
    csi_node.spec.drivers.retain(|old| old.name != driver);
    csi_node.spec.drivers.len() != before
}

/// Brings the annotation up to date with the sorted names of `migrated` (`setMigrationAnnotation`).
pub(super) fn set_migrated_plugins(csi_node: &mut CsiNode, migrated: &[&str]) -> bool {
    let annotations = &mut csi_node.metadata.annotations;
    let old = annotations
        .get(MIGRATED_PLUGINS_ANNOTATION)
        .cloned()
        .unwrap_or_default();
    let old: BTreeSet<_> = old.split(',').filter(|_| !old.is_empty()).collect();
    let new: BTreeSet<_> = migrated.iter().copied().collect();
    if old == new {
        return false;
    }
    if new.is_empty() {
        annotations.remove(MIGRATED_PLUGINS_ANNOTATION);
    } else {
        let names: Vec<_> = new.into_iter().collect();
        annotations.insert(MIGRATED_PLUGINS_ANNOTATION.into(), names.join(","));
    }
    true
}

/// The UID of the node that owns the CSINode, if that is not `node` with this UID; of several the last
/// (`nodeOwnsCSINode`).
pub(super) fn foreign_owner(csi_node: &CsiNode, node: &str, uid: &str) -> Option<String> {
    let owners = csi_node.metadata.owner_references.iter();
    let mut nodes = owners.filter(|owner| owner.kind == "Node");
    if nodes
        .clone()
        .any(|owner| owner.name == node && owner.uid == uid)
    {
        return None;
    }
    Some(
        nodes
            .next_back()
            .map(|owner| owner.uid.clone())
            .unwrap_or_default(),
    )
}

/// The limit as a CSINode can hold it; one below zero is none.
fn allocatable(driver: &str, limit: i64) -> Option<VolumeNodeResources> {
    if limit < 0 {
        tracing::error!(
            "Invalid attach limit value {limit} cannot be added to CSINode object for {driver:?}"
        );
    }
    if limit <= 0 {
        return None;
    }
    let count = i32::try_from(limit).unwrap_or_else(|_| {
        tracing::warn!(
            "Exceeded max supported attach limit value, truncating it to {}",
            i32::MAX
        );
        i32::MAX
    });
    Some(VolumeNodeResources { count })
}
