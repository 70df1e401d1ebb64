//! Rows W: what registration looks like on the wire, and its limits in time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::support::*;
use crate::manager::event::What;
use crate::manager::profile::Profile;
use crate::proto::CSI_PLUGIN;
use crate::uds::authority::Accepted;

#[tokio::test(start_paused = true)]
async fn w01_one_connection_carries_get_info_and_the_notification() {
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    let plugin = FakePlugin::csi();
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_registered().await;
    pass(1).await;
    let calls = plugin.http.calls();
    let paths: Vec<_> = calls
        .iter()
        .map(|call| (call.connection, call.path.as_str()))
        .collect();
    assert_eq!(
        paths,
        [
            (1, "/pluginregistration.Registration/GetInfo"),
            (
                1,
                "/pluginregistration.Registration/NotifyRegistrationStatus"
            ),
        ]
    );
    let told = Notification {
        registered: true,
        error: String::new(),
    };
    assert_eq!(plugin.notifications(), [told]);
    assert_eq!((plugin.http.opened(), plugin.http.closed()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn w02_methods_and_deadlines_are_the_kubelets() {
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    let plugin = FakePlugin::csi();
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_registered().await;
    let calls = plugin.http.calls();
    let seen: Vec<_> = calls
        .iter()
        .map(|call| {
            (
                call.path.as_str(),
                call.timeout.as_deref().unwrap_or_default(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("/pluginregistration.Registration/GetInfo", "1000000u"),
            (
                "/pluginregistration.Registration/NotifyRegistrationStatus",
                "5000000u"
            ),
        ]
    );
}

/// A gRPC message with its five octets of framing, and an answer that ends well.
fn grpc_answer(
    message: &[u8],
) -> http::Response<impl hyper::body::Body<Data = Bytes, Error = std::convert::Infallible> + use<>>
{
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message);
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let body = Full::new(Bytes::from(framed)).with_trailers(std::future::ready(Some(Ok(trailers))));
    http::Response::builder()
        .header("content-type", "application/grpc")
        .body(body)
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn w03_messages_are_those_of_the_proto() {
    /// Fields 1 to 4, field 4 twice, and a field 15 that this API does not have.
    const INFO: &[u8] = b"\x0a\x09CSIPlugin\x12\x01n\x1a\x02/e\x22\x031.0\x22\x031.1\x7a\x03new";
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    let (sender, mut requests) = mpsc::channel(8);
    kubelet.network.listen(SOCKET, move |stream| {
        let sender = sender.clone();
        let service = service_fn(move |request: http::Request<Incoming>| {
            let sender = sender.clone();
            async move {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let answer = if path.ends_with("/GetInfo") {
                    INFO
                } else {
                    b""
                };
                sender.send((path, body)).await.unwrap();
                Ok::<_, std::convert::Infallible>(grpc_answer(answer))
            }
        });
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(Accepted::new(stream)), service);
        tokio::spawn(connection);
    });
    kubelet.see(SOCKET);
    kubelet.start();
    let event = kubelet
        .until(|what| matches!(what, What::InfoReceived { .. }))
        .await;
    let What::InfoReceived { plugin } = event.what else {
        unreachable!("until matched it")
    };
    assert_eq!(
        (plugin.plugin_type.as_str(), plugin.name.as_str()),
        (CSI_PLUGIN, "n")
    );
    assert_eq!(plugin.endpoint, "/e");
    assert_eq!(plugin.supported_versions, ["1.0", "1.1"]);
    kubelet.until_registered().await;
    let (_, get_info) = requests.recv().await.unwrap();
    assert_eq!(&get_info[..], b"\0\0\0\0\0", "an empty message");
    let (_, notification) = requests.recv().await.unwrap();
    assert_eq!(
        &notification[..],
        b"\0\0\0\0\x02\x08\x01",
        "field 1 is true, field 2 is absent"
    );
}

/// Passes a client's stream on, and keeps what the client says.
fn tap(client: DuplexStream, heard: Arc<Mutex<Vec<u8>>>) -> DuplexStream {
    let (server, near) = tokio::io::duplex(64 * 1024);
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(near);
    tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
    tokio::spawn(async move {
        let mut octets = Vec::new();
        while from_client.read_buf(&mut octets).await.unwrap() > 0 {
            heard.lock().unwrap().extend_from_slice(&octets);
            to_server.write_all(&octets).await.unwrap();
            octets.clear();
        }
    });
    server
}

/// The `:authority` of each call of one registration by the kubelet of this minor version.
async fn registration_authorities(minor: u16) -> Vec<Vec<u8>> {
    let profile = Profile::from_minor(minor).unwrap();
    let (mut kubelet, _) = Kubelet::recording(profile, CSI_PLUGIN);
    let plugin = FakePlugin::csi();
    let heard = Arc::<Mutex<Vec<u8>>>::default();
    let heard_there = heard.clone();
    kubelet.network.listen(SOCKET, move |stream| {
        plugin.accept(tap(stream, heard_there.clone()));
    });
    kubelet.see(SOCKET);
    kubelet.start();
    kubelet.until_registered().await;
    let heard = heard.lock().unwrap();
    crate::uds::authority::heard(&heard)
}

#[tokio::test(start_paused = true)]
async fn w04_since_1_29_registration_calls_carry_the_encoded_socket_path() {
    for minor in [29, 37] {
        assert_eq!(
            registration_authorities(minor).await,
            [b"%2Fregistry%2Fdriver-reg.sock"; 2],
            "1.{minor}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn w05_up_to_1_28_registration_calls_carry_the_socket_path() {
    for minor in [17, 28] {
        assert_eq!(
            registration_authorities(minor).await,
            [SOCKET.as_bytes(); 2],
            "1.{minor}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn w07_csi_calls_carry_localhost() {
    let network = Arc::<Network>::default();
    let (mut kubelet, _) = Kubelet::csi(network.clone(), K136, cluster()).await;
    let driver = FakeDriver::new("id1");
    let service = driver.clone();
    network.listen(ENDPOINT, move |stream| service.accept(stream));
    kubelet.appear(SOCKET, &FakePlugin::csi());
    kubelet.start();
    kubelet.until_registered().await;
    let calls = driver.http.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].path, "/csi.v1.Node/NodeGetInfo");
    assert_eq!(calls[0].authority.as_deref(), Some("localhost"));
}

#[tokio::test(start_paused = true)]
async fn w08_get_info_has_one_second() {
    let (mut kubelet, handler) = Kubelet::recording(K136, CSI_PLUGIN);
    let plugin = FakePlugin::csi();
    plugin.next_get_info(Answer::After(Duration::from_millis(1500)));
    kubelet.appear(SOCKET, &plugin);
    let start = Instant::now();
    kubelet.start();
    let (at, error) = kubelet.until_failed().await;
    assert_eq!(at - start, Duration::from_secs(1));
    assert_eq!(
        error,
        "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket /registry/driver-reg.sock, err: \
         rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    );
    assert_eq!(plugin.notifications(), []);
    assert!(handler.calls().is_empty());
    kubelet.until_registered().await;
    assert_eq!(plugin.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn w09_a_notification_has_five_seconds() {
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    let plugin = FakePlugin::csi();
    plugin.every_notify(Answer::Never);
    kubelet.appear(SOCKET, &plugin);
    let start = Instant::now();
    kubelet.start();
    let (at, error) = kubelet.until_failed().await;
    assert_eq!(at - start, Duration::from_secs(5));
    assert_eq!(
        error,
        "RegisterPlugin error -- failed to send registration status at socket /registry/driver-reg.sock, err: \
         : rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    );
}

#[tokio::test(start_paused = true)]
async fn w10_a_socket_without_listener_is_dialled_for_ten_seconds() {
    for listens in [false, true] {
        let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
        if listens {
            kubelet.network.refuse(SOCKET);
        }
        kubelet.see(SOCKET);
        let start = Instant::now();
        kubelet.start();
        let (at, error) = kubelet.until_failed().await;
        assert_eq!(at - start, Duration::from_secs(10));
        assert_eq!(
            error,
            "RegisterPlugin error -- dial failed at socket /registry/driver-reg.sock, err: \
             failed to dial socket /registry/driver-reg.sock, err: context deadline exceeded"
        );
        let attempts = kubelet.network.attempts(SOCKET);
        assert!(
            (4..=6).contains(&attempts),
            "after 0, 1, 2.6, 5.2 and 9.3 s, more or less: {attempts}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn w10_a_plugin_that_comes_within_the_dial_is_registered() {
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    kubelet.network.refuse(SOCKET);
    kubelet.see(SOCKET);
    let start = Instant::now();
    kubelet.start();
    pass(4).await;
    let plugin = FakePlugin::csi();
    kubelet
        .network
        .listen(SOCKET, move |stream| plugin.accept(stream));
    let registered = kubelet.until_registered().await;
    assert!(registered.at - start < Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn w10_a_socket_that_accepts_and_says_nothing_is_no_plugin() {
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    kubelet.network.listen(SOCKET, |stream| {
        tokio::spawn(async move {
            let mut stream = stream;
            let mut octets = Vec::new();
            // Until the client gives up.
            let _ = stream.read_to_end(&mut octets).await;
        });
    });
    kubelet.see(SOCKET);
    let start = Instant::now();
    kubelet.start();
    let (at, error) = kubelet.until_failed().await;
    assert_eq!(at - start, Duration::from_secs(10));
    assert!(error.ends_with("err: context deadline exceeded"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn w10_a_socket_that_speaks_http_1_is_no_plugin() {
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    kubelet.network.listen(SOCKET, |stream| {
        tokio::spawn(async move {
            let mut stream = stream;
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .await
                .unwrap();
        });
    });
    kubelet.see(SOCKET);
    let start = Instant::now();
    kubelet.start();
    let (at, error) = kubelet.until_failed().await;
    assert_eq!(at - start, Duration::from_secs(10));
    assert!(error.contains("dial failed"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn w12_a_server_without_the_service_is_asked_again() {
    let (mut kubelet, handler) = Kubelet::recording(K136, CSI_PLUGIN);
    let driver = FakeDriver::new("id1");
    let service = driver.clone();
    kubelet
        .network
        .listen(SOCKET, move |stream| service.accept(stream));
    kubelet.see(SOCKET);
    kubelet.start();
    let (_, error) = kubelet.until_failed().await;
    assert!(error.contains("RPC GetInfo"), "{error}");
    assert!(error.contains("code = Unimplemented"), "{error}");
    kubelet.until_failed().await;
    let calls = driver.http.calls();
    assert!(
        calls.iter().all(|call| call.path.ends_with("/GetInfo")),
        "never notified: {calls:?}"
    );
    assert_eq!(calls.len(), 2);
    assert!(handler.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn w13_a_registered_plugin_is_left_alone() {
    let (mut kubelet, _) = Kubelet::recording(K136, CSI_PLUGIN);
    let plugin = FakePlugin::csi();
    kubelet.appear(SOCKET, &plugin);
    kubelet.start();
    kubelet.until_registered().await;
    pass(300).await;
    assert_eq!(plugin.http.calls().len(), 2);
    assert_eq!(kubelet.network.attempts(SOCKET), 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_while_the_handler_works_is_dialled_again() {
    let (mut kubelet, handler) = Kubelet::recording(K136, CSI_PLUGIN);
    handler.delay_registration(Duration::from_secs(30));
    let first = FakePlugin::csi();
    kubelet.appear(SOCKET, &first);
    kubelet.start();
    pass(5).await;
    first.kill.cancel();
    let second = FakePlugin::csi();
    let service = second.clone();
    kubelet
        .network
        .listen(SOCKET, move |stream| service.accept(stream));
    kubelet.until_registered().await;
    assert_eq!(
        second.asked(),
        0,
        "a new instance is told without having been asked"
    );
    assert_eq!(second.notifications().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_with_its_listener_fails_at_once() {
    let (mut kubelet, handler) = Kubelet::recording(K136, CSI_PLUGIN);
    handler.delay_registration(Duration::from_secs(30));
    let plugin = FakePlugin::csi();
    kubelet.appear(SOCKET, &plugin);
    let start = Instant::now();
    kubelet.start();
    pass(5).await;
    plugin.kill.cancel();
    kubelet.network.refuse(SOCKET);
    let (at, error) = kubelet.until_failed().await;
    assert_eq!(at - start, Duration::from_secs(30));
    assert!(
        error.ends_with(
            r#"rpc error: code = Unavailable desc = connection error: desc = "transport: Error while dialing: dial unix /registry/driver-reg.sock: connect: connection refused""#
        ),
        "{error}"
    );
}
