//! gRPC errors as grpc-go words them, and the deadline that every call here has.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Response, Status};

use crate::proto::code_name;

/// A failed call. Shown as `rpc error: code = Unavailable desc = ...` (grpc-go, `status.Error`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RpcError {
    pub(super) code: Code,
    pub(super) message: String,
}

impl RpcError {
    pub(super) fn unavailable(message: impl fmt::Display) -> Self {
        Self {
            code: Code::Unavailable,
            message: message.to_string(),
        }
    }

    fn deadline_exceeded() -> Self {
        Self {
            code: Code::DeadlineExceeded,
            message: "context deadline exceeded".into(),
        }
    }

    fn canceled() -> Self {
        Self {
            code: Code::Cancelled,
            message: "context canceled".into(),
        }
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rpc error: code = {} desc = {}",
            code_name(self.code),
            self.message
        )
    }
}

impl Error for RpcError {}

impl From<Status> for RpcError {
    /// A broken connection is `Unavailable` to grpc-go; tonic cannot know that its transport is hyper.
    fn from(status: Status) -> Self {
        if broke_connection(&status) {
            return Self::unavailable(format_args!(
                "error reading from server: {}",
                status.message()
            ));
        }
        Self {
            code: status.code(),
            message: status.message().to_owned(),
        }
    }
}

fn broke_connection(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<hyper::Error>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Awaits `call`, at most for `limit`, and not after `stop`. The server knows the limit, and may end the call at the same
/// time: that is the limit's doing, too (grpc-go, `handleRSTStream`).
pub(super) async fn within<T>(
    limit: Duration,
    stop: &CancellationToken,
    call: impl Future<Output = Result<T, RpcError>>,
) -> Result<T, RpcError> {
    let start = Instant::now();
    tokio::select! {
        biased;
        result = call => match result {
            Err(error) if error.code == Code::Unavailable && start.elapsed() >= limit => {
                Err(RpcError::deadline_exceeded())
            }
            result => result,
        },
        () = stop.cancelled() => Err(RpcError::canceled()),
        () = tokio::time::sleep(limit) => Err(RpcError::deadline_exceeded()),
    }
}

/// A request that tells the server its deadline, as grpc-go's do.
pub(super) fn request<T>(message: T, limit: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(limit);
    request
}

/// The message of an answer, or its error.
pub(super) fn answer<T>(result: Result<Response<T>, Status>) -> Result<T, RpcError> {
    Ok(result?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_grpc_go_writes_them() {
        let error = RpcError::from(Status::cancelled("stop"));
        assert_eq!(error.to_string(), "rpc error: code = Canceled desc = stop");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_ends_at_its_deadline_or_at_the_stop() {
        let limit = Duration::from_secs(1);
        let stop = CancellationToken::new();
        let start = tokio::time::Instant::now();
        let error = within::<()>(limit, &stop, std::future::pending())
            .await
            .unwrap_err();
        assert_eq!(error.code, Code::DeadlineExceeded);
        assert_eq!(start.elapsed(), limit);
        stop.cancel();
        let error = within::<()>(limit, &stop, std::future::pending())
            .await
            .unwrap_err();
        assert_eq!(error.code, Code::Cancelled);
        assert_eq!(within(limit, &stop, async { Ok(1) }).await, Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_up_at_the_deadline_was_too_slow() {
        let limit = Duration::from_secs(1);
        let stop = CancellationToken::new();
        for (after, code) in [(999, Code::Unavailable), (1000, Code::DeadlineExceeded)] {
            let hang_up = async {
                tokio::time::sleep(Duration::from_millis(after)).await;
                Err::<(), _>(RpcError::unavailable("error reading from server: reset"))
            };
            let error = within(limit, &stop, hang_up).await.unwrap_err();
            assert_eq!(error.code, code);
        }
    }
}
