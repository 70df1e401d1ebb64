//! The whole manager on real sockets and a real clock, and how it starts and stops.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::{broadcast, oneshot};

use super::support::*;
use crate::manager::connector::UnixConnector;
use crate::manager::csi::node_store::{NodeStore, YamlFile};
use crate::manager::csi::{CsiHandler, NodeInfoManager};
use crate::manager::event::{Event, EventSink, What};
use crate::manager::plugin_handler::{PluginHandler, RecordingHandler};
use crate::manager::profile::Profile;
use crate::manager::{Config, PluginManager, StartError};
use crate::proto::CSI_PLUGIN;

/// Longest wait for an event, on the real clock.
const PATIENCE: Duration = Duration::from_secs(20);

struct Running {
    directory: TempDir,
    manager: Arc<PluginManager>,
    receiver: broadcast::Receiver<Event>,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), StartError>>,
}

impl Running {
    /// A manager that runs on a directory of its own.
    fn new(observe: bool, handlers: &[(&str, Arc<dyn PluginHandler>)], events: EventSink) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            registration_dir: directory.path().join("plugins_registry"),
            profile: Profile::NEWEST,
            authority: None,
            observe,
        };
        let manager = Arc::new(PluginManager::new(config, Arc::new(UnixConnector), events));
        for (plugin_type, handler) in handlers {
            manager.add_handler(plugin_type, handler.clone());
        }
        let receiver = manager.subscribe();
        let (stop, stopped) = oneshot::channel();
        let running = manager.clone();
        let task = tokio::spawn(async move {
            running
                .run(async {
                    let _ = stopped.await;
                })
                .await
        });
        Self {
            directory,
            manager,
            receiver,
            stop,
            task,
        }
    }

    fn registry(&self) -> PathBuf {
        self.directory.path().join("plugins_registry")
    }

    async fn until(&mut self, wanted: impl Fn(&Event) -> bool) -> Event {
        let search = async {
            loop {
                let event = self.receiver.recv().await.unwrap();
                if wanted(&event) {
                    return event;
                }
            }
        };
        tokio::time::timeout(PATIENCE, search)
            .await
            .expect("the event comes")
    }

    async fn until_watching(&mut self) {
        self.until(|event| matches!(event.what, What::Watching { .. }))
            .await;
    }

    async fn until_done(&mut self, socket: &Path) {
        self.until(|event| {
            event.socket.as_deref() == Some(socket)
                && matches!(event.what, What::OperationSucceeded { .. })
        })
        .await;
    }

    /// Waits until all of `count` desired sockets are registered as they are, and nothing is under way.
    async fn until_settled(&mut self, count: usize) {
        let identities = |state: &serde_json::Value, cache: &str| -> Vec<serde_json::Value> {
            let plugins = state[cache].as_array().unwrap().iter();
            plugins.map(|plugin| plugin["identity"].clone()).collect()
        };
        loop {
            let state = serde_json::to_value(self.manager.state()).unwrap();
            let desired = identities(&state, "desired_state_of_world");
            let settled = desired.len() == count
                && desired == identities(&state, "actual_state_of_world")
                && state["operations"].as_array().unwrap().is_empty();
            if settled {
                return;
            }
            self.until(|_| true).await;
        }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

/// Serves `plugin` at `path` for as long as the test lives.
fn serve_plugin(path: &Path, plugin: &Arc<FakePlugin>) {
    let listener = UnixListener::bind(path).unwrap();
    let plugin = plugin.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            plugin.accept(stream);
        }
    });
}

fn serve_driver(path: &Path, driver: &Arc<FakeDriver>) {
    let listener = UnixListener::bind(path).unwrap();
    let driver = driver.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            driver.accept(stream);
        }
    });
}

#[tokio::test]
async fn d06_sockets_at_every_depth_are_validated_and_registered() {
    let handler = Arc::<RecordingHandler>::default();
    let mut running = Running::new(false, &[], EventSink::default());
    running.until_watching().await;
    running.manager.add_handler(CSI_PLUGIN, handler.clone());
    let directories = ["", "one", "one/two"];
    for directory in directories {
        let path = running.registry().join(directory);
        std::fs::create_dir_all(&path).unwrap();
        let socket = path.join("plugin.sock");
        let plugin = FakePlugin::new(CSI_PLUGIN, directory, "/e", &["1.0.0"]);
        serve_plugin(&socket, &plugin);
    }
    running.until_settled(3).await;
    // A socket that is both listed and reported may be registered twice: then it is taken back in between.
    let calls = handler.calls();
    for directory in directories {
        let own: Vec<_> = calls
            .iter()
            .filter(|call| call.name() == directory)
            .cloned()
            .collect();
        let own = names(&own);
        assert_eq!(own[..2], ["validate", "register"], "{directory}");
        for again in own[2..].chunks(3) {
            assert_eq!(again, ["deregister", "validate", "register"], "{directory}");
        }
    }
    running.stop().await;
}

#[tokio::test]
async fn a_driver_comes_and_goes_on_real_sockets() {
    let events = EventSink::default();
    let store = cluster();
    let files = tempfile::tempdir().unwrap();
    let objects = files.path().join("objects.yaml");
    let yaml: Arc<dyn NodeStore> = Arc::new(YamlFile::new(store.clone(), &objects));
    let node_info = Arc::new(NodeInfoManager::new(
        NODE,
        Profile::NEWEST,
        Some(yaml),
        events.clone(),
    ));
    node_info.initialise().await.unwrap();
    let handler = CsiHandler::new(
        Profile::NEWEST,
        Arc::new(UnixConnector),
        node_info,
        events.clone(),
    );
    let mut running = Running::new(false, &[(CSI_PLUGIN, Arc::new(handler))], events);
    running.until_watching().await;

    let driver = FakeDriver::new("id1");
    driver.set_topology(&[("topology.example.com/zone", "a")]);
    let endpoint = running.directory.path().join("csi.sock");
    serve_driver(&endpoint, &driver);
    let socket = running.registry().join("driver-reg.sock");
    let plugin = FakePlugin::new(CSI_PLUGIN, DRIVER, endpoint.to_str().unwrap(), &["1.0.0"]);
    serve_plugin(&socket, &plugin);
    running.until_done(&socket).await;
    assert!(plugin.notifications()[0].registered);
    let expected = "\
apiVersion: v1
kind: Node
metadata:
  annotations:
    csi.volume.kubernetes.io/nodeid: \"{\\\"driver.example.com\\\":\\\"id1\\\"}\"
  labels:
    topology.example.com/zone: a
  name: node1
  resourceVersion: \"2\"
  uid: \"11111111-1111-4111-8111-111111111111\"
spec: {}
status: {}
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata:
  annotations:
    storage.alpha.kubernetes.io/migrated-plugins: \"kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume\"
  name: node1
  ownerReferences:
  - apiVersion: v1
    kind: Node
    name: node1
    uid: \"11111111-1111-4111-8111-111111111111\"
  resourceVersion: \"3\"
  uid: \"00000000-0000-4000-8000-000000000001\"
spec:
  drivers:
  - name: driver.example.com
    nodeID: id1
    topologyKeys:
    - topology.example.com/zone
";
    assert_eq!(std::fs::read_to_string(&objects).unwrap(), expected);

    std::fs::remove_file(&socket).unwrap();
    running.until_done(&socket).await;
    let text = std::fs::read_to_string(&objects).unwrap();
    assert!(text.contains("drivers: []"), "{text}");
    assert!(text.contains("topology.example.com/zone: a"), "{text}");
    assert!(!text.contains("nodeid"), "{text}");
    running.stop().await;
}

#[tokio::test]
async fn an_observer_asks_and_does_nothing_else() {
    let handler = Arc::<RecordingHandler>::default();
    let mut running = Running::new(true, &[(CSI_PLUGIN, handler.clone())], EventSink::default());
    running.until_watching().await;
    let good = FakePlugin::csi();
    let socket = running.registry().join("driver-reg.sock");
    serve_plugin(&socket, &good);
    running.until_done(&socket).await;
    let foreign = FakePlugin::new("Foo", DRIVER, ENDPOINT, &["1.0.0"]);
    serve_plugin(&running.registry().join("foreign-reg.sock"), &foreign);
    let failed = running
        .until(|event| matches!(event.what, What::OperationFailed { .. }))
        .await;
    assert!(
        matches!(failed.what, What::OperationFailed { error, .. } if error.contains("no handler registered"))
    );
    std::fs::remove_file(&socket).unwrap();
    running.until_done(&socket).await;
    assert!(good.notifications().is_empty() && foreign.notifications().is_empty());
    assert_eq!(names(&handler.calls()), ["validate"]);
    running.stop().await;
}

/// A configuration whose directory cannot be made.
fn impossible(directory: &TempDir, profile: Profile) -> PluginManager {
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let config = Config {
        registration_dir: file.join("plugins_registry"),
        profile,
        authority: None,
        observe: false,
    };
    PluginManager::new(config, Arc::new(UnixConnector), EventSink::default())
}

#[tokio::test]
async fn a_watcher_that_cannot_start_ends_the_manager_since_1_26() {
    let directory = tempfile::tempdir().unwrap();
    let manager = impossible(&directory, Profile::NEWEST);
    let error = manager.run(std::future::pending()).await.unwrap_err();
    assert!(matches!(error, StartError::Directory { .. }), "{error}");
    let manager = impossible(&directory, K117);
    manager.run(std::future::ready(())).await.unwrap();
}

#[tokio::test]
async fn stopping_cancels_operations_since_1_37() {
    for (profile, cancels) in [(Profile::NEWEST, true), (K136, false)] {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            registration_dir: directory.path().to_owned(),
            profile,
            authority: None,
            observe: false,
        };
        let manager = PluginManager::new(config, Arc::new(UnixConnector), EventSink::default());
        let mut receiver = manager.subscribe();
        // Nobody listens: the dial takes its ten seconds.
        std::os::unix::net::UnixListener::bind(directory.path().join("dead.sock")).unwrap();
        let shutdown = async {
            while !matches!(
                receiver.recv().await.unwrap().what,
                What::OperationStarted { .. }
            ) {}
        };
        manager.run(shutdown).await.unwrap();
        if cancels {
            let event = tokio::time::timeout(PATIENCE, receiver.recv())
                .await
                .unwrap()
                .unwrap();
            assert!(
                matches!(&event.what, What::OperationFailed { error, .. } if error.ends_with("context canceled")),
                "{event:?}"
            );
        } else {
            let state = serde_json::to_value(manager.state()).unwrap();
            assert_eq!(
                state["operations"][0]["running"], "register",
                "the operation goes on"
            );
        }
    }
}
