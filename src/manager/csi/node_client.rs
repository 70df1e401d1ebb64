//! The kubelet's one question to a driver during registration, on a connection of its own (`csi_client.go`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::manager::connector::{Connector, connect};
use crate::manager::grpc_status::{RpcError, answer, request, within};
use crate::proto::csi::NodeGetInfoRequest;
use crate::proto::csi::node_client::NodeClient;
use crate::uds::authority::Authority;

/// For all that one registration asks its driver, with the dials (`csiTimeout`).
pub(super) const CSI_TIMEOUT: Duration = Duration::from_mins(2);

/// What a driver says of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeInfo {
    /// The driver's name for the node.
    pub(super) node_id: String,
    /// 0 for no limit; not checked by anybody.
    pub(super) max_volumes_per_node: i64,
    /// None where the driver sends no topology.
    pub(super) topology: Option<BTreeMap<String, String>>,
}

impl NodeInfo {
    /// A driver without topology is one with an empty one.
    pub(super) fn topology(&self) -> Cow<'_, BTreeMap<String, String>> {
        match &self.topology {
            Some(topology) => Cow::Borrowed(topology),
            None => Cow::Owned(BTreeMap::new()),
        }
    }
}

/// Whom to ask, how, and until when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'a> {
    pub(super) endpoint: &'a Path,
    pub(super) authority: Authority,
    pub(super) deadline: Instant,
}

/// Calls `NodeGetInfo` once. A socket that is missing or refuses fails at once.
pub(super) async fn node_get_info(
    connector: &dyn Connector,
    question: Question<'_>,
    stop: &CancellationToken,
) -> Result<NodeInfo, RpcError> {
    let limit = question.deadline.saturating_duration_since(Instant::now());
    let call = async {
        let channel = connect(connector, question.endpoint, question.authority)
            .await
            .map_err(RpcError::unavailable)?;
        let origin = channel.origin();
        let mut client = NodeClient::with_origin(channel, origin)
            .max_decoding_message_size(crate::proto::MAX_MESSAGE_SIZE);
        answer(
            client
                .node_get_info(request(NodeGetInfoRequest {}, limit))
                .await,
        )
    };
    let info = within(limit, stop, call).await?;
    Ok(NodeInfo {
        node_id: info.node_id,
        max_volumes_per_node: info.max_volumes_per_node,
        topology: info
            .accessible_topology
            .map(|topology| topology.segments.into_iter().collect()),
    })
}
