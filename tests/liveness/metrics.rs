//! What the drop-in and the endpoint beside the registrar tell Prometheus.

use std::net::SocketAddr;

use csi_node_driver_registrar::testing::csi_driver::Fault;
use tonic::Code;

use crate::support::{DRIVER, Node, get, until};
use crate::{WAYS, Way};

/// Upper bounds of the durations, as every CSI sidecar has them.
const BOUNDS: [&str; 14] = [
    "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "15", "25", "50", "120", "300", "600", "+Inf",
];

async fn value(metrics: SocketAddr, sample: &str) -> Option<f64> {
    let answer = get(metrics, "/metrics").await;
    assert_eq!(answer.status, 200);
    let mut lines = answer.body.lines().filter_map(|line| line.rsplit_once(' '));
    let line = lines.find(|(name, _)| *name == sample);
    line.map(|(_, value)| value.parse().unwrap())
}

fn calls(code: &str) -> String {
    format!(
        "csi_sidecar_operations_seconds_count{{driver_name=\"{DRIVER}\",grpc_status_code=\"{code}\",method_name=\"/csi.v1.Identity/Probe\"}}"
    )
}

#[tokio::test]
async fn calls_are_counted_by_driver_method_and_gos_code() {
    for way in WAYS {
        let node = Node::new();
        let driver = node.driver();
        let more: &[&str] = match way {
            Way::DropIn => &["--probe-timeout=300ms"],
            // The registrar's own Probe is not asked for, so that all are the kubelet's.
            Way::Merged => &[
                "--probe-timeout=300ms",
                "--http-endpoint=localhost:0",
                "--wait-for-ready=false",
            ],
        };
        let probed = way.start(&node, more).await;
        let metrics = match way {
            Way::DropIn => probed.http,
            Way::Merged => probed.process.address_of("diagnostics").await,
        };
        let ready = "csi_driver_probe_ready";
        assert_eq!(value(metrics, ready).await, Some(0.0), "{way:?}");
        until("the first contact", || {
            driver.calls().borrow().plugin_info > 0
        })
        .await;
        match way {
            Way::DropIn => drop(probed.process.log().line("CSI driver name").await),
            Way::Merged => drop(node.published_as(DRIVER).await),
        }
        for _ in 0..3 {
            probed.assert_alive().await;
        }
        assert_eq!(value(metrics, &calls("OK")).await, Some(3.0), "{way:?}");
        assert_eq!(value(metrics, ready).await, Some(1.0), "{way:?}");
        for bound in BOUNDS {
            let bucket = calls("OK")
                .replace("_count", "_bucket")
                .replace('}', &format!(",le=\"{bound}\"}}"));
            assert!(value(metrics, &bucket).await.is_some(), "{bucket}");
        }
        driver.change(|behaviour| behaviour.ready = Some(false));
        probed.assert_fails(&["not ready"]).await;
        assert_eq!(value(metrics, &calls("OK")).await, Some(4.0), "{way:?}");
        assert_eq!(value(metrics, ready).await, Some(0.0), "{way:?}");
        driver.change(|behaviour| behaviour.ready = Some(true));
        for (fault, code) in [
            (Fault::Hangs, "DeadlineExceeded"),
            (
                Fault::Fails {
                    code: Code::Cancelled,
                    message: String::new(),
                    times: 1,
                },
                "Canceled",
            ),
        ] {
            driver.change(|behaviour| behaviour.probe = fault);
            assert_eq!(probed.probe().await.status, 500);
            assert_eq!(value(metrics, &calls(code)).await, Some(1.0), "{way:?}");
        }
        driver.change(|behaviour| behaviour.probe = Fault::None);
        for metric in [
            "process_start_time_seconds",
            "process_resident_memory_bytes",
            "process_open_fds",
            "process_cpu_seconds_total",
        ] {
            assert!(value(metrics, metric).await.is_some(), "{way:?} {metric}");
        }
    }
}

#[tokio::test]
async fn a_registrar_without_the_endpoint_has_no_probes_to_tell_of() {
    let node = Node::new();
    let _driver = node.driver();
    let registrar = node.registrar(["--http-endpoint=127.0.0.1:0"]);
    node.published_as(DRIVER).await;
    let metrics = registrar.http_address().await;
    assert_eq!(value(metrics, "csi_driver_probe_ready").await, None);
}
