use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tonic::Status;
use tracing::subscriber::DefaultGuard;

use super::*;
use crate::klog;

/// The log lines of this thread.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl klog::Output for Lines {
    fn write_line(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
}

impl Lines {
    fn here() -> (Self, DefaultGuard) {
        let lines = Self::default();
        let subscriber =
            klog::Subscriber::new(klog::Settings::default(), lines.clone(), klog::Zone::utc());
        (lines, tracing::subscriber::set_default(subscriber))
    }
}

fn driver(address: &Path) -> Driver {
    Driver {
        address: address.to_str().unwrap().parse().unwrap(),
        timeout: Duration::from_secs(1),
        wait_for_ready: true,
        metrics: Metrics::new(),
    }
}

/// A connect to nothing fails at once, so that the clock alone decides.
#[tokio::test(start_paused = true)]
async fn a_wait_says_one_line_every_ten_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let driver = driver(&dir.path().join("csi.sock"));
    let (lines, _guard) = Lines::here();
    let (_changes, changed) = watch::channel(());
    let limit = Duration::from_secs(65);
    let error = driver.identify(Some(limit), changed).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    let lines = lines.0.lock().unwrap();
    assert_eq!(lines.len(), 6, "{lines:#?}");
    for (line, waited) in lines.iter().zip([10, 20, 30, 40, 50, 60]) {
        assert!(line.contains(&format!("waited={waited}\n")), "{line}");
        assert!(line.contains("No such file or directory"), "{line}");
    }
}

/// The first tries come fast, since no event announces `listen()`; later ones once a second.
#[tokio::test(start_paused = true)]
async fn connecting_is_tried_at_least_once_a_second() {
    let dir = tempfile::tempdir().unwrap();
    let driver = driver(&dir.path().join("csi.sock"));
    let mut wait = Wait::new(&driver, None);
    let refused = || {
        Failure::Connect(ConnectError {
            path: driver.address.path().to_owned(),
            source: io::ErrorKind::ConnectionRefused.into(),
        })
    };
    let pauses: Vec<_> = (0..14)
        .map(|_| wait.failed(refused()).unwrap().as_millis())
        .collect();
    let expected = [
        1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000, 1000, 1000,
    ];
    assert_eq!(pauses, expected);
    wait.be_quick();
    assert_eq!(wait.failed(refused()).unwrap(), Duration::from_millis(1));

    let busy = || {
        Failure::Call(CallError {
            method: "GetPluginInfo",
            status: Box::new(Status::unavailable("busy")),
        })
    };
    let pauses: Vec<_> = (0..8)
        .map(|_| wait.failed(busy()).unwrap().as_millis())
        .collect();
    assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
}

#[test]
fn a_directory_is_where_the_socket_is() {
    for (address, directory) in [
        ("/csi/csi.sock", "/csi"),
        ("/csi.sock", "/"),
        ("unix:csi.sock", "."),
        ("unix:a/csi.sock", "a"),
        ("unix:///csi//csi.sock", "/csi"),
    ] {
        let address: Address = address.parse().unwrap();
        assert_eq!(address.directory(), Path::new(directory), "{address}");
    }
}
