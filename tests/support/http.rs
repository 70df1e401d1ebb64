//! HTTP servers of any registrar, also of one that does not tell which port it was given.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};

/// An address of the loopback network that no other of the last 255 has, whatever ports are taken on 127.0.0.1.
pub fn loopback_address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    SocketAddr::from(([127, (high & 0x3f) | 0x40, low, last], 9809))
}

/// The argument that makes the registrar serve HTTP there.
pub fn http_endpoint(address: SocketAddr) -> String {
    format!("--http-endpoint={address}")
}

/// Waits until somebody listens.
pub async fn listening(address: SocketAddr) {
    super::until(&format!("a listener at {address}"), || {
        TcpStream::connect(address).is_ok()
    })
    .await;
}
