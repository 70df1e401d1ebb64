//! A CSI driver that registers itself with the kubelet: no sidecar beside it.
//!
//! ```sh
//! cargo run --example embedded -- PLUGIN-DIRECTORY REGISTRATION-DIRECTORY
//! ```
//!
//! In a pod the two are hostPath volumes, mounted at the same paths as on the host:
//! `/var/lib/kubelet/plugins/embedded.example.com` and `/var/lib/kubelet/plugins_registry`. On a laptop any directories do;
//! `kubelet-plugin-manager run --registration-dir REGISTRATION-DIRECTORY` then plays the kubelet.

use std::error::Error;
use std::path::PathBuf;

use csi_node_driver_registrar::registrar::{Config, FailurePolicy, Registrar};
use csi_node_driver_registrar::testing::csi_driver::{Behaviour, CsiDriver};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut directories = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(plugin), Some(registry)) = (directories.next(), directories.next()) else {
        return Err("usage: embedded PLUGIN-DIRECTORY REGISTRATION-DIRECTORY".into());
    };
    let socket = plugin.join("csi.sock");
    let path = socket.to_str().ok_or("the directory's name is no UTF-8")?;

    // Here stands your own driver: Identity and Node of the CSI specification, on a Unix socket. The order does not matter,
    // the registrar waits for it.
    let driver = CsiDriver::start(&socket, Behaviour::named("embedded.example.com"))?;

    let mut config = Config::new(path.parse()?, path, registry);
    // A kubelet that refuses must not end a driver that works.
    config.failure_policy = FailurePolicy::Retry;
    config.outlives_failures = true;
    let registrar = Registrar::new(config);

    // What a readiness probe of the driver would ask.
    let mut status = registrar.status();
    tokio::spawn(async move {
        let mut known = false;
        while let Ok(now) = status.wait_for(|now| now.is_registered() != known).await {
            known = now.is_registered();
            println!("registered: {known}");
        }
    });

    let mut terminate = signal(SignalKind::terminate())?;
    let (stop, stopped) = oneshot::channel::<()>();
    let registering = tokio::spawn(registrar.run(async {
        let _ = stopped.await;
    }));
    terminate.recv().await;

    // First the registration goes, then the driver: the kubelet must not be sent to a socket that is closed.
    drop(stop);
    registering.await??;
    driver.stop().await?;
    Ok(())
}
