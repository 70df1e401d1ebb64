//! The wire: generated messages and services, their constants, and the codec that all of them use.
//!
//! Generated types stay inside the modules that speak gRPC (`driver`, `registrar::service`, the manager's operation
//! generator); everything behind those uses types of its own.

use std::marker::PhantomData;
use std::sync::Arc;

use prost::Message;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status};

/// CSI 1.x, `csi.proto`: Identity and Node services.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    reason = "generated code; the documentation is in proto/"
)]
pub mod csi {
    tonic::include_proto!("csi.v1");
}

/// The kubelet's `pluginregistration` API, version 1.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    reason = "generated code; the documentation is in proto/"
)]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// `PluginInfo.type` of a CSI driver (`CSIPlugin` in `k8s.io/kubelet/pkg/apis/pluginregistration/v1`).
pub const CSI_PLUGIN: &str = "CSIPlugin";

/// Largest message that either side takes. The messages here are a few hundred bytes; a notification carries the
/// kubelet's error text, which quotes driver and API server.
pub const MAX_MESSAGE_SIZE: usize = 64 * 1024;

/// Bytes that an encoder or decoder reserves at once: enough for nearly every message, and no 8 KiB per call.
fn buffer() -> BufferSettings {
    BufferSettings::new(512, 8 * 1024)
}

/// Protobuf messages in gRPC, as [`tonic_prost::ProstCodec`], with two differences: buffers of the size of our
/// messages, and a decoding failure that can be told from an `Internal` sent by the peer (see [`is_undecodable`]).
#[derive(Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<T: Message, U> Encoder for Codec<T, U> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buf)
            .map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffer()
    }
}

impl<T, U: Message + Default> Decoder for Codec<T, U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        U::decode(buf).map(Some).map_err(|error| {
            let mut status = Status::new(Code::Internal, error.to_string());
            status.set_source(Arc::new(error));
            status
        })
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffer()
    }
}

/// How tonic's texts begin about a peer whose messages have no frame, a broken one, or do not come. They have nothing else
/// that tells them from an `Internal` of the peer.
const BAD_FRAMES: [&str; 3] = [
    "protocol error: received message with ",
    "Unexpected EOF decoding stream",
    "Missing response message",
];

/// Whether this status says that *we* could not decode the peer's message, as opposed to an `Internal` that the peer
/// itself sent: trying again helps only in the second case.
pub fn is_undecodable(status: &Status) -> bool {
    let is_bad_message = std::error::Error::source(status)
        .is_some_and(<dyn std::error::Error>::is::<prost::DecodeError>);
    let is_bad_frame = status.code() == Code::Internal
        && BAD_FRAMES
            .iter()
            .any(|text| status.message().starts_with(text));
    is_bad_message || is_bad_frame
}

/// What grpc-go's `codes.Code.String` says, as the Go sidecars' metrics and the kubelet's texts have it.
#[cfg(feature = "registrar")]
pub(crate) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
