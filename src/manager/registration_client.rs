//! The kubelet's client of the registration service: one for each registration, from the dial to the notification
//! (`dial` and `notifyPlugin` in `pluginmanager/operationexecutor/operation_generator.go`).

use std::path::Path;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::connector::{Connector, connect};
use super::grpc_status::{RpcError, answer, request, within};
use super::plugin_handler::Plugin;
use super::retry::chance;
use crate::klog;
use crate::proto::registration::registration_client::RegistrationClient as Grpc;
use crate::proto::registration::{InfoRequest, RegistrationStatus};
use crate::uds::authority::Authority;
use crate::uds::channel::Channel;

/// Until the connection is ready (`dialTimeoutDuration`).
pub(super) const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// For `GetInfo`, from the dial's end.
pub(super) const GET_INFO_TIMEOUT: Duration = Duration::from_secs(1);
/// For one `NotifyRegistrationStatus` (`notifyTimeoutDuration`).
pub(super) const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);

/// Wait after the first attempt of a dial that failed (grpc-go, `backoff.DefaultConfig`).
const REDIAL_FIRST: Duration = Duration::from_secs(1);
/// What each next wait is multiplied with.
const REDIAL_FACTOR: f64 = 1.6;
/// Part of a wait, except the first, by which chance shortens or lengthens it.
const REDIAL_JITTER: f64 = 0.2;

/// How the dial ended that did not succeed, as Go's context says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DialError {
    #[error("context deadline exceeded")]
    DeadlineExceeded,
    #[error("context canceled")]
    Canceled,
}

/// Where registration calls go and what they look like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dialer<'a> {
    pub(super) connector: &'a dyn Connector,
    pub(super) authority: Authority,
    pub(super) stop: &'a CancellationToken,
}

/// A client whose connection was ready once. If it is lost, the next call dials the path again, as grpc-go does, and may
/// so reach another process than the one that was asked first.
#[derive(Debug)]
pub(super) struct RegistrationClient<'a> {
    dialer: Dialer<'a>,
    socket_path: &'a Path,
    channel: Channel,
}

impl<'a> RegistrationClient<'a> {
    /// Dials until somebody answers in HTTP/2, for [`DIAL_TIMEOUT`] at most: a missing or refusing socket is tried again
    /// within that window (grpc-go, `WithBlock`).
    pub(super) async fn dial(dialer: Dialer<'a>, socket_path: &'a Path) -> Result<Self, DialError> {
        let channel = tokio::select! {
            biased;
            channel = dial_until_ready(dialer, socket_path) => channel,
            () = dialer.stop.cancelled() => return Err(DialError::Canceled),
            () = tokio::time::sleep(DIAL_TIMEOUT) => return Err(DialError::DeadlineExceeded),
        };
        Ok(Self {
            dialer,
            socket_path,
            channel,
        })
    }

    /// Asks the plugin what it is. An empty endpoint becomes the registration socket.
    pub(super) async fn get_info(&mut self) -> Result<Plugin, RpcError> {
        let stop = self.dialer.stop;
        let socket_path = self.socket_path;
        let call = async {
            let mut client = self.grpc().await?;
            answer(
                client
                    .get_info(request(InfoRequest {}, GET_INFO_TIMEOUT))
                    .await,
            )
        };
        let info = within(GET_INFO_TIMEOUT, stop, call).await?;
        let endpoint = if info.endpoint.is_empty() {
            socket_path.display().to_string()
        } else {
            info.endpoint
        };
        Ok(Plugin {
            socket_path: socket_path.to_owned(),
            plugin_type: info.r#type,
            name: info.name,
            endpoint,
            supported_versions: info.supported_versions,
        })
    }

    /// Tells the plugin how its registration went.
    pub(super) async fn notify(&mut self, registered: bool, error: &str) -> Result<(), RpcError> {
        let stop = self.dialer.stop;
        let status = RegistrationStatus {
            plugin_registered: registered,
            error: error.to_owned(),
        };
        let call = async {
            let mut client = self.grpc().await?;
            answer(
                client
                    .notify_registration_status(request(status, NOTIFY_TIMEOUT))
                    .await,
            )
        };
        within(NOTIFY_TIMEOUT, stop, call).await?;
        Ok(())
    }

    async fn grpc(&mut self) -> Result<Grpc<Channel>, RpcError> {
        if self.channel.is_closed() {
            self.channel = connect(
                self.dialer.connector,
                self.socket_path,
                self.dialer.authority,
            )
            .await
            .map_err(RpcError::unavailable)?;
        }
        let origin = self.channel.origin();
        Ok(Grpc::with_origin(self.channel.clone(), origin)
            .max_decoding_message_size(crate::proto::MAX_MESSAGE_SIZE))
    }
}

async fn dial_until_ready(dialer: Dialer<'_>, socket_path: &Path) -> Channel {
    let mut backoff = REDIAL_FIRST;
    let mut jitter = 0.0;
    loop {
        match connect(dialer.connector, socket_path, dialer.authority).await {
            Ok(channel) => return channel,
            Err(err) => {
                klog::verbose!(4, path = %socket_path.display(), %err, "Dial attempt failed");
            }
        }
        tokio::time::sleep(backoff.mul_f64(1.0 + jitter * (2.0 * chance() - 1.0))).await;
        backoff = backoff.mul_f64(REDIAL_FACTOR);
        jitter = REDIAL_JITTER;
    }
}
