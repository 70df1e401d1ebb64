//! Every bound of the two servers, the registration socket's and HTTP's, in one place: what a client can take of this process.
//! `docs/limits.md` says what happens when one is hit. Together they keep the process below 8 MiB under any abuse.

use std::time::Duration;

/// Pause after a failed accept: the usual cause (no descriptor left) does not go away by trying at once.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The registration socket's server.
pub mod registration {
    use std::time::Duration;

    pub use crate::proto::MAX_MESSAGE_SIZE;

    /// Connections to one registration socket at once. A kubelet holds one for the length of a registration.
    pub const MAX_CONNECTIONS: usize = 64;

    /// Calls on one connection at once.
    pub const MAX_STREAMS: u32 = 4;

    /// Bytes that every call may hold. `GetInfo` is empty, and so is a notification without an error text.
    pub const SMALL_MESSAGE: usize = 1024;

    /// Calls that hold more than [`SMALL_MESSAGE`] and are not complete, over all connections to all sockets of this process:
    /// each may hold up to [`MAX_MESSAGE_SIZE`]. A kubelet sends one at a time; beyond the limit the oldest is answered
    /// `ResourceExhausted`.
    pub const MAX_LARGE_CALLS: usize = 8;

    /// Receive window of a stream, in bytes: messages are a few hundred. What all streams may send before anybody has looked at it
    /// counts; the window of a connection cannot be made smaller than 64 KiB.
    pub const WINDOW: u32 = 4 * 1024;

    /// Largest header list, in bytes. grpc-go sends some two hundred.
    pub const MAX_HEADER_LIST: u32 = 8 * 1024;

    /// Bytes buffered for sending on one stream.
    pub const MAX_SEND_BUFFER: usize = 16 * 1024;

    /// Streams that a client may open and reset before they are looked at ("rapid reset").
    pub const MAX_PENDING_RESETS: usize = 8;

    /// Streams of one connection that the server resets for the client's fault, such as one too many at once, before it closes
    /// the connection. Each is remembered for a second.
    pub const MAX_ERROR_RESETS: usize = 8;

    /// How long calls in flight may take once the socket is withdrawn.
    pub const DRAIN: Duration = Duration::from_secs(2);

    /// Calls of the kubelet that wait to be looked at; a caller beyond that waits with its answer.
    pub const CALL_QUEUE: usize = 16;
}

/// The HTTP servers: diagnostics and liveness, each by itself.
pub mod http {
    use std::time::Duration;

    /// Connections to one server at once; beyond that the oldest that never completed a request is closed.
    pub const MAX_CONNECTIONS: usize = 128;

    /// Bytes of a request line and its headers, and of answers that the client does not take; hyper takes no less.
    pub const MAX_HEAD: usize = 8 * 1024;

    /// Header lines of a request.
    pub const MAX_HEADERS: usize = 64;

    /// How long a client may take for the head of a request, and how long a connection may idle between two.
    pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

    /// How long a connection takes requests, and how long the last one may take then. For those that nothing else ends.
    pub const MAX_AGE: Duration = Duration::from_mins(5);

    /// How long answers in flight may take once the server stops.
    pub const DRAIN: Duration = Duration::from_millis(500);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    #[test]
    fn each_is_in_the_documentation() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let source = fs::read_to_string(root.join("src/limits.rs")).unwrap();
        let page = fs::read_to_string(root.join("docs/limits.md")).unwrap();
        let names = source.lines().filter_map(|line| {
            let (name, _) = line.trim().strip_prefix("pub const ")?.split_once(':')?;
            Some(name)
        });
        let names: Vec<_> = names.chain(["MAX_MESSAGE_SIZE"]).collect();
        assert!(names.len() > 10, "{names:?}");
        for name in names {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }
}
