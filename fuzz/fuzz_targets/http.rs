//! The HTTP server's endpoints, and its connections: whatever a client says is answered by HTTP or by nothing, and the
//! connection ends with the client.

#![no_main]

use std::cell::RefCell;
use std::io;
use std::task::{Context, Poll};
use std::sync::Arc;
use std::time::Duration;

use csi_node_driver_registrar::connections::Listener;
use csi_node_driver_registrar::http::{self as server, Answer, Endpoint, Handler, Question, async_trait};
use http::StatusCode;
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// Has one connection.
struct Once(RefCell<Option<DuplexStream>>);

impl Listener for Once {
    type Stream = DuplexStream;

    fn poll_accept(&self, _: &mut Context<'_>) -> Poll<io::Result<DuplexStream>> {
        match self.0.borrow_mut().take() {
            Some(stream) => Poll::Ready(Ok(stream)),
            None => Poll::Pending,
        }
    }
}

#[derive(Clone)]
struct Echo;

#[async_trait]
impl Handler for Echo {
    async fn handle(&self, question: Question) -> Answer {
        Answer::text(StatusCode::OK, question.path)
    }
}

/// What the server says to a client that says this and closes.
async fn exchange(octets: &[u8]) -> Vec<u8> {
    let (client, stream) = tokio::io::duplex(1024);
    let (mut reader, mut writer) = tokio::io::split(client);
    let listener = Once(RefCell::new(Some(stream)));
    let mut answer = Vec::new();
    let talking = async {
        let saying = async {
            // The server may have closed before.
            let _ = writer.write_all(octets).await;
            let _ = writer.shutdown().await;
        };
        let (_, read) = tokio::join!(saying, reader.read_to_end(&mut answer));
        read.expect("a duplex has no errors");
    };
    // The clock stands still while anything can go on: this is never waited for.
    let talking = tokio::time::timeout(Duration::from_secs(3600), talking);
    tokio::select! {
        () = server::serve(listener, Arc::new(Echo), std::future::pending()) => unreachable!("never stopped"),
        ended = talking => ended.expect("the connection ends with the client"),
    }
    answer
}

fuzz_target!(|input: &[u8]| {
    if let Ok(text) = str::from_utf8(input)
        && let Ok(endpoint) = text.parse::<Endpoint>()
    {
        let written = endpoint.to_string();
        assert_eq!(
            written.parse::<Endpoint>().ok(),
            Some(endpoint),
            "{written}"
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without threads");
    let answer = runtime.block_on(exchange(input));
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1."),
        "{:?}",
        String::from_utf8_lossy(&answer)
    );
});
