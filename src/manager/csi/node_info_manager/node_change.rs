//! What a driver changes on the Node. Each change answers whether there is anything to write.

use std::collections::BTreeMap;

use crate::manager::csi::objects::{NODE_ID_ANNOTATION, Node};
use crate::manager::go_text::quote;

/// Prefix of the resource that held a driver's volume limit before there were CSINodes (`CSIAttachLimitPrefix`).
const ATTACH_LIMIT_PREFIX: &str = "attachable-volumes-csi-";

/// The Node cannot take the change.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeChangeError {
    #[error(
        "failed to parse node's {NODE_ID_ANNOTATION:?} annotation value ({}) err={source}",
        quote(value)
    )]
    Annotation {
        value: String,
        source: serde_json::Error,
    },
    #[error(
        "detected topology value collision: driver reported {key}:{reported} but existing label is {key}:{existing}",
        key = quote(key), reported = quote(reported), existing = quote(existing)
    )]
    TopologyCollision {
        key: String,
        reported: String,
        existing: String,
    },
}

/// Adds the driver's name for the node to the annotation.
pub(super) fn add_node_id(
    node: &mut Node,
    driver: &str,
    node_id: &str,
) -> Result<bool, NodeChangeError> {
    let mut ids = node_ids(node)?;
    if ids.get(driver).is_some_and(|id| id == node_id) {
        return Ok(false);
    }
    ids.insert(driver.to_owned(), node_id.to_owned());
    annotate(node, &ids);
    Ok(true)
}

/// Removes it; the annotation goes with the last driver.
pub(super) fn remove_node_id(node: &mut Node, driver: &str) -> Result<bool, NodeChangeError> {
    let mut ids = node_ids(node)?;
    if ids.remove(driver).is_none() {
        return Ok(false);
    }
    if ids.is_empty() {
        node.metadata.annotations.remove(NODE_ID_ANNOTATION);
    } else {
        annotate(node, &ids);
    }
    Ok(true)
}

/// Sets the driver's topology as labels, all or none. A driver with topology writes each time, changed or not.
pub(super) fn add_topology(
    node: &mut Node,
    topology: &BTreeMap<String, String>,
) -> Result<bool, NodeChangeError> {
    let labels = &mut node.metadata.labels;
    for (key, reported) in topology {
        if let Some(existing) = labels.get(key)
            && existing != reported
        {
            return Err(NodeChangeError::TopologyCollision {
                key: key.clone(),
                reported: reported.clone(),
                existing: existing.clone(),
            });
        }
    }
    labels.extend(topology.clone());
    Ok(!topology.is_empty())
}

/// Drops the driver's volume limit of old from capacity and allocatable. Not for names of more than 40 characters,
/// whose key ends in a SHA-1 of theirs.
pub(super) fn drop_attach_limit(node: &mut Node, driver: &str) -> bool {
    let key = format!("{ATTACH_LIMIT_PREFIX}{driver}");
    let capacity = node.status.capacity.remove(&key);
    let allocatable = node.status.allocatable.remove(&key);
    capacity.is_some() || allocatable.is_some()
}

fn node_ids(node: &Node) -> Result<BTreeMap<String, String>, NodeChangeError> {
    let Some(value) = node.metadata.annotations.get(NODE_ID_ANNOTATION) else {
        return Ok(BTreeMap::new());
    };
    if value.is_empty() {
        return Ok(BTreeMap::new());
    }
    // Go takes `null` for an empty map, and a null in it for an empty string.
    let ids: Option<BTreeMap<String, Option<String>>> =
        serde_json::from_str(value).map_err(|source| NodeChangeError::Annotation {
            value: value.clone(),
            source,
        })?;
    let ids = ids.unwrap_or_default().into_iter();
    Ok(ids
        .map(|(driver, id)| (driver, id.unwrap_or_default()))
        .collect())
}

fn annotate(node: &mut Node, ids: &BTreeMap<String, String>) {
    let json = serde_json::to_string(ids).expect("a map of strings is JSON");
    // `json.Marshal` escapes what HTML would read.
    let json = json
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029");
    node.metadata
        .annotations
        .insert(NODE_ID_ANNOTATION.into(), json);
}
