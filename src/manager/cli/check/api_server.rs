//! What an API server would refuse to store. The kubelet's store here is in memory and takes everything; in a cluster the
//! registration would fail with these.

use crate::manager::csi::objects::{CsiNode, Node};

/// Longest name of a driver (`ValidateCSIDriverName` in `pkg/apis/core/validation`).
const MAX_DRIVER_NAME: usize = 63;
/// Longest node id (`csiNodeIDMaxLength` in `pkg/apis/storage/validation`); so in 1.28 and 1.37, 192 in 1.22, 128 in 1.17.
const MAX_NODE_ID: usize = 256;
/// Longest value of a label, and longest name in a key (`k8s.io/apimachinery/pkg/util/validation`).
const MAX_LABEL: usize = 63;
/// Longest DNS name, and so longest prefix of a key.
const MAX_SUBDOMAIN: usize = 253;

/// One line for each objection to `driver`'s part of both objects (`ValidateCSINode`, `ValidateNodeUpdate`).
pub(super) fn objections(driver: &str, node: &Node, csi_node: &CsiNode) -> Vec<String> {
    let mut objections = Vec::new();
    // Case does not matter there.
    let lower = driver.to_ascii_lowercase();
    if driver.len() > MAX_DRIVER_NAME || !is_subdomain(&lower) {
        objections.push(format!(
            "the API server refuses the driver's name {driver:?}: it takes a DNS name of at most {MAX_DRIVER_NAME} characters; \
             change what GetPluginInfo returns"
        ));
    }
    let entries = csi_node.spec.drivers.iter();
    for entry in entries.filter(|entry| entry.name == driver) {
        if entry.node_id.len() > MAX_NODE_ID {
            objections.push(format!(
                "the API server refuses the node id: it has {} bytes, the limit is {MAX_NODE_ID}; change what NodeGetInfo returns",
                entry.node_id.len()
            ));
        }
        for key in &entry.topology_keys {
            if !is_qualified_name(key) {
                objections.push(format!(
                    "the API server refuses the topology key {key:?}: it takes an optional DNS name and a slash, then at most \
                     {MAX_LABEL} letters, digits, '-', '_' and '.'"
                ));
            }
            let value = node.metadata.labels.get(key).map_or("", String::as_str);
            if !value.is_empty() && !is_name(value) {
                objections.push(format!(
                    "the API server refuses the topology value {value:?} of {key:?} as a label: it takes at most {MAX_LABEL} \
                     letters, digits, '-', '_' and '.'"
                ));
            }
        }
    }
    objections
}

/// `IsDNS1123Subdomain`.
fn is_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN
        && text.split('.').all(|label| {
            let octets = label.as_bytes();
            let edge = |octet: Option<&u8>| octet.is_some_and(u8::is_ascii_alphanumeric);
            edge(octets.first())
                && edge(octets.last())
                && octets.iter().all(|octet| {
                    octet.is_ascii_lowercase() || octet.is_ascii_digit() || *octet == b'-'
                })
        })
}

/// `IsQualifiedName`.
fn is_qualified_name(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
        None => is_name(key),
    }
}

/// The name part of a key, and a label's value that is not empty (`IsValidLabelValue`).
fn is_name(text: &str) -> bool {
    let octets = text.as_bytes();
    let edge = |octet: Option<&u8>| octet.is_some_and(u8::is_ascii_alphanumeric);
    octets.len() <= MAX_LABEL
        && edge(octets.first())
        && edge(octets.last())
        && octets
            .iter()
            .all(|octet| octet.is_ascii_alphanumeric() || b"-_.".contains(octet))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::csi::objects::{CsiNodeDriver, ObjectMeta};

    fn count(driver: &str, node_id: &str, key: &str, value: &str) -> usize {
        let mut node = Node::new("node1", "uid");
        node.metadata.labels.insert(key.into(), value.into());
        let mut csi_node = CsiNode::new(ObjectMeta::default());
        csi_node.spec.drivers.push(CsiNodeDriver {
            name: driver.into(),
            node_id: node_id.into(),
            topology_keys: vec![key.into()],
            allocatable: None,
        });
        objections(driver, &node, &csi_node).len()
    }

    #[test]
    fn what_the_api_server_takes() {
        for driver in ["d", "Driver.Example.COM", "a-1.b", &"x".repeat(63)] {
            assert_eq!(count(driver, "id", "zone", "a"), 0, "{driver}");
        }
        for key in ["zone", "a.b/Zone_1.x", &format!("a/{}", "x".repeat(63))] {
            assert_eq!(count("d", "id", key, "a"), 0, "{key}");
        }
        for value in ["", "A", "a_b.c-d", &"x".repeat(63)] {
            assert_eq!(count("d", "id", "zone", value), 0, "{value}");
        }
        assert_eq!(count("d", &"x".repeat(256), "zone", "a"), 0);
    }

    #[test]
    fn what_it_refuses() {
        for driver in ["", "a_b", "-a", "a-", "a..b", ".a", "a/b", &"x".repeat(64)] {
            assert_eq!(count(driver, "id", "zone", "a"), 1, "{driver}");
        }
        for key in ["", "a/", "/a", "a/b/c", "A/b", "-", &"x".repeat(64)] {
            assert_eq!(count("d", "id", key, "a"), 1, "{key}");
        }
        for value in ["a b", "-a", "a/b", &"x".repeat(64)] {
            assert_eq!(count("d", "id", "zone", value), 1, "{value}");
        }
        assert_eq!(count("d", &"x".repeat(257), "zone", "a"), 1);
    }
}
