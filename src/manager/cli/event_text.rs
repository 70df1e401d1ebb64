//! Events in words.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::terminal::printable;
use crate::manager::event::What;
use crate::manager::plugin_handler::Plugin;

/// One line, without the socket's name.
pub(super) fn describe(what: &What) -> String {
    printable(&match what {
        What::Watching { directory } => format!("watching {}", directory.display()),
        What::WatchFailed { error } => format!("watch failed: {error}"),
        What::Desired {
            replaced: false, ..
        } => "socket appeared".to_owned(),
        What::Desired { replaced: true, .. } => "socket was replaced".to_owned(),
        What::Undesired => "socket is gone".to_owned(),
        What::OperationStarted { operation } => format!("{} begins", operation.name()),
        What::Dialed => "connection is ready".to_owned(),
        What::InfoReceived { plugin } => format!("GetInfo: {}", plugin_text(plugin)),
        What::Validated => "plugin is valid".to_owned(),
        What::NodeInfoReceived {
            node_id,
            max_volumes_per_node,
            topology,
            ..
        } => format!(
            "NodeGetInfo: {}",
            node_info(node_id, *max_volumes_per_node, topology.as_ref())
        ),
        What::NodeInfoFailed { error, .. } => format!("NodeGetInfo failed: {error}"),
        What::NodeWritten { node } => format!("Node {} written", node.metadata.name),
        What::CsiNodeWritten { csi_node } => {
            let drivers = csi_node.spec.drivers.iter();
            let names: Vec<_> = drivers.map(|driver| driver.name.as_str()).collect();
            let name = &csi_node.metadata.name;
            match names.as_slice() {
                [] => format!("CSINode {name} written, without drivers"),
                names => format!("CSINode {name} written, with {}", names.join(", ")),
            }
        }
        What::CsiNodeDeleted => "CSINode deleted, another node's".to_owned(),
        What::HandlerRegistered => "driver is known".to_owned(),
        What::HandlerRefused { error } => format!("driver is refused: {error}"),
        What::Notified {
            registered,
            text,
            failure,
        } => notification(*registered, text, failure.as_deref()),
        What::Deregistered { name } => format!("driver {name} is deregistered"),
        What::OperationSucceeded { operation } => format!("{} succeeded", operation.name()),
        What::OperationFailed {
            operation,
            error,
            backoff,
        } => format!(
            "{} failed, not again within {backoff:?}: {error}",
            operation.name()
        ),
    })
}

/// What a plugin says of itself.
pub(super) fn plugin_text(plugin: &Plugin) -> String {
    format!(
        "type {}, name {}, endpoint {}, versions [{}]",
        plugin.plugin_type,
        plugin.name,
        plugin.endpoint,
        plugin.supported_versions.join(", ")
    )
}

/// What a driver says of its node.
pub(super) fn node_info(
    node_id: &str,
    max_volumes: i64,
    topology: Option<&BTreeMap<String, String>>,
) -> String {
    let mut text = format!("node id {node_id}");
    // Writing to a String cannot fail.
    let _ = match max_volumes {
        0 => write!(text, ", no volume limit"),
        limit => write!(text, ", at most {limit} volumes"),
    };
    let segments = topology.into_iter().flatten();
    let segments: Vec<_> = segments
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let _ = match segments.as_slice() {
        [] => write!(text, ", no topology"),
        segments => write!(text, ", topology {}", segments.join(" ")),
    };
    text
}

fn notification(registered: bool, text: &str, failure: Option<&str>) -> String {
    let told = if registered {
        "told the plugin that it is registered".to_owned()
    } else {
        format!("told the plugin that it is refused: {text}")
    };
    match failure {
        None => told,
        Some(failure) => format!("{told}, but it did not take that: {failure}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_cannot_break_a_line() {
        let error = "x\ny\x1b[2J".to_owned();
        let line = describe(&What::HandlerRefused { error });
        assert_eq!(line, "driver is refused: x\\ny\\u{1b}[2J");
    }

    #[test]
    fn node_info_names_what_is_missing() {
        assert_eq!(
            node_info("n", 0, None),
            "node id n, no volume limit, no topology"
        );
        let topology = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        assert_eq!(
            node_info("n", 3, Some(&topology)),
            "node id n, at most 3 volumes, topology zone=a"
        );
    }
}
