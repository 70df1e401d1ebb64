//! A node on which a plan happens: real registrars, drivers in this process, a kubelet on its own thread. A registrar that
//! ends because the kubelet refused it is started again, as its pod would.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use csi_node_driver_registrar::manager::csi::node_store::MemoryStore;
use csi_node_driver_registrar::manager::csi::objects::Node as NodeObject;
use csi_node_driver_registrar::manager::profile::Profile;
use csi_node_driver_registrar::testing::csi_driver::{Behaviour, CsiDriver, Fault};
use nix::sys::signal::Signal;
use tokio::time::sleep;
use tonic::Code;

use super::journal::Journal;
use super::kubelet::{Kubelet, NODE};
use super::plan::{Action, Plan, Pod, Policy, SLOTS, letter};
use super::support::{DEADLINE, Node, Registrar, registrar_command, within};

/// How often ended processes are looked for.
const TICK: Duration = Duration::from_millis(50);
/// Last lines that the report shows of a registrar that ended.
const TAIL: usize = 12;

/// Fields are dropped in this order: nobody is left without what it uses.
pub struct World {
    seed: u64,
    pub profile: Profile,
    pub reregisters: [bool; SLOTS],
    pub pods: Vec<Running>,
    /// Asked to stop.
    leaving: Vec<Running>,
    pub kubelet: Option<Kubelet>,
    pub drivers: [Option<Driver>; SLOTS],
    pub store: Arc<MemoryStore>,
    pub journal: Journal,
    pub counts: BTreeMap<&'static str, u64>,
    pub node: Node,
}

/// A registrar's process.
pub struct Running {
    pub pod: Pod,
    pub process: Registrar,
}

/// A driver that lives.
pub struct Driver {
    pub name: String,
    pub start: u32,
    server: CsiDriver,
}

impl World {
    pub fn new(seed: u64, plan: &Plan, profile: Profile) -> Self {
        let node = Node::new();
        for slot in 0..SLOTS {
            let directory = csi_socket(&node, slot);
            fs::create_dir_all(directory.parent().unwrap()).unwrap();
        }
        let store = Arc::new(MemoryStore::new(NodeObject::new(NODE, "uid-of-the-node")));
        let journal = Journal::new();
        let kubelet = Kubelet::start(&node.registry(), profile, &store, &journal);
        Self {
            seed,
            profile,
            reregisters: plan.reregisters,
            pods: Vec::new(),
            leaving: Vec::new(),
            kubelet: Some(kubelet),
            drivers: Default::default(),
            store,
            journal,
            counts: BTreeMap::new(),
            node,
        }
    }

    pub fn kubelet(&self) -> &Kubelet {
        self.kubelet.as_ref().unwrap()
    }

    pub fn csi_socket(&self, slot: usize) -> PathBuf {
        csi_socket(&self.node, slot)
    }

    /// Does one thing.
    pub async fn act(&mut self, action: &Action) {
        self.journal.note(format!("{action:?}"));
        *self.counts.entry(action.kind()).or_default() += 1;
        match action {
            Action::StartDriver { slot, name, start } => self.start_driver(*slot, name, *start),
            Action::StopDriver { slot, leaves_file } => {
                let driver = self.drivers[*slot].take().unwrap();
                if *leaves_file {
                    driver.server.kill().await;
                } else {
                    driver.server.stop().await.unwrap();
                }
            }
            Action::NodeInfoFails { slot, times } => {
                let fault = fails(*times);
                self.behave(*slot, |behaviour| behaviour.node_info = fault);
            }
            Action::NodeInfoSlow { slot, delay } => {
                let fault = Fault::SlowOnce(*delay);
                self.behave(*slot, |behaviour| behaviour.node_info = fault);
            }
            Action::PluginInfoFails { slot, times } => {
                let fault = fails(*times);
                self.behave(*slot, |behaviour| behaviour.plugin_info = fault);
            }
            Action::Start(pod) => self.start(*pod),
            Action::Terminate(pod) => self.terminate(*pod),
            Action::Kill { pod, again_after } => self.kill(*pod, *again_after).await,
            Action::DeleteSocket(name) => {
                removed(fs::remove_file(self.node.registration_socket(name)));
            }
            Action::EmptyRegistry => {
                for name in self.node.published() {
                    removed(fs::remove_file(self.node.registry().join(name)));
                }
            }
            Action::RecreateRegistry { down } => self.recreate_registry(*down).await,
            Action::RestartKubelet { gracefully, down } => {
                self.kubelet.take().unwrap().end(*gracefully).await;
                self.pause(*down).await;
                self.start_kubelet();
            }
        }
    }

    /// Lets time pass, and starts again what ended meanwhile.
    pub async fn pause(&mut self, duration: Duration) {
        let end = Instant::now() + duration;
        loop {
            self.reap().await;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            sleep(left.min(TICK)).await;
        }
    }

    /// Looks at every process: those that were asked to stop end with success, the others only by a refusal.
    pub async fn reap(&mut self) {
        for mut running in std::mem::take(&mut self.leaving) {
            if running.process.is_running() {
                self.leaving.push(running);
            } else {
                self.ended(&mut running, true).await;
            }
        }
        for mut running in std::mem::take(&mut self.pods) {
            if running.process.is_running() {
                self.pods.push(running);
            } else {
                self.ended(&mut running, false).await;
                self.start(running.pod);
            }
        }
    }

    /// Waits for the end of every registrar that was asked to stop.
    pub async fn everybody_has_left(&mut self) {
        let begun = Instant::now();
        while !self.leaving.is_empty() {
            assert!(
                begun.elapsed() < DEADLINE,
                "{} do not stop",
                list(&self.leaving)
            );
            self.pause(TICK).await;
        }
    }

    /// Faults that are left do not happen any more.
    pub fn heal_drivers(&mut self) {
        for driver in self.drivers.iter().flatten() {
            driver.server.change(|behaviour| {
                behaviour.node_info = Fault::None;
                behaviour.plugin_info = Fault::None;
            });
        }
    }

    /// Everything that is left is ended and looked at.
    pub async fn end(mut self) -> BTreeMap<&'static str, u64> {
        assert!(self.pods.is_empty() && self.leaving.is_empty());
        for driver in &mut self.drivers {
            if let Some(driver) = driver.take() {
                driver.server.stop().await.unwrap();
            }
        }
        self.kubelet.take().unwrap().end(true).await;
        let root = self.node.root().to_owned();
        let counts = std::mem::take(&mut self.counts);
        drop(self);
        assert!(!root.exists(), "{} is left", root.display());
        counts
    }

    fn start_driver(&mut self, slot: usize, name: &str, start: u32) {
        // A living one ends as in a crash.
        self.drivers[slot] = None;
        let behaviour = Behaviour {
            node_id: node_id(slot),
            max_volumes: i64::from(start),
            ..Behaviour::named(name)
        };
        let server = CsiDriver::start(&self.csi_socket(slot), behaviour).unwrap();
        let name = name.to_owned();
        self.drivers[slot] = Some(Driver {
            name,
            start,
            server,
        });
    }

    fn behave(&self, slot: usize, change: impl FnOnce(&mut Behaviour)) {
        let driver = self.drivers[slot].as_ref().unwrap();
        driver.server.change(change);
    }

    fn start(&mut self, pod: Pod) {
        let socket = self.csi_socket(pod.slot).display().to_string();
        let mut command = registrar_command();
        command.args([
            format!("--csi-address={socket}"),
            format!("--kubelet-registration-path={socket}"),
            format!(
                "--plugin-registration-path={}",
                self.node.registry().display()
            ),
            format!(
                "--reregister-on-driver-restart={}",
                self.reregisters[pod.slot]
            ),
            format!("--registration-failure-policy={}", pod.policy.name()),
            "--http-endpoint=127.0.0.1:0".to_owned(),
            "--termination-log-path=".to_owned(),
            "-v=4".to_owned(),
        ]);
        let process = Registrar::spawn(command);
        self.journal
            .note(format!("  {pod} is process {}", process.pid()));
        self.pods.push(Running { pod, process });
    }

    fn take(&mut self, pod: Pod) -> Running {
        let index = self.pods.iter().position(|running| running.pod == pod);
        self.pods.remove(index.unwrap())
    }

    fn terminate(&mut self, pod: Pod) {
        let running = self.take(pod);
        // It may have ended by itself, and is not waited for yet: then the signal has no effect.
        running.process.signal(Signal::SIGTERM);
        self.leaving.push(running);
    }

    async fn kill(&mut self, pod: Pod, again_after: Option<Duration>) {
        let mut running = self.take(pod);
        running.process.signal(Signal::SIGKILL);
        running.process.exit().await;
        self.keep_tail(&running).await;
        drop(running);
        if let Some(delay) = again_after {
            self.pause(delay).await;
            self.start(pod);
        }
    }

    async fn recreate_registry(&mut self, down: Duration) {
        self.kubelet.take().unwrap().end(false).await;
        let registry = self.node.registry();
        // A registrar may publish in it meanwhile.
        within(DEADLINE, "the registry to be removed", async {
            while let Err(error) = fs::remove_dir_all(&registry) {
                assert_eq!(error.kind(), io::ErrorKind::DirectoryNotEmpty, "{error}");
                sleep(TICK).await;
            }
        })
        .await;
        self.pause(down).await;
        fs::create_dir(&registry).unwrap();
        self.start_kubelet();
    }

    fn start_kubelet(&mut self) {
        let registry = self.node.registry();
        let kubelet = Kubelet::start(&registry, self.profile, &self.store, &self.journal);
        self.kubelet = Some(kubelet);
    }

    async fn ended(&mut self, running: &mut Running, asked: bool) {
        let status = running.process.exit().await;
        self.journal
            .note(format!("  {} ended, {status}", running.pod));
        let log = self.keep_tail(running).await;
        let refused = running.pod.policy == Policy::Exit
            && log.contains("the kubelet refused the registration");
        // The first publication fails where there is no directory, or where its temporary socket is taken away.
        let unpublished = log.contains("cannot publish the registration socket");
        let expected = match status.code() {
            Some(0) => asked,
            Some(1) => refused || unpublished,
            // It had not begun to run, and so not to catch signals.
            None => asked && log.is_empty() && status.signal() == Some(Signal::SIGTERM as i32),
            Some(_) => false,
        };
        assert!(
            expected,
            "{} ended with {status}, asked to stop: {asked}",
            running.pod
        );
    }

    /// Takes the last lines of its log into the journal.
    async fn keep_tail(&self, running: &Running) -> String {
        let log = running.process.log().complete().await;
        let lines: Vec<_> = log.lines().collect();
        for line in &lines[lines.len().saturating_sub(TAIL)..] {
            self.journal.note(format!("    | {line}"));
        }
        log
    }
}

impl Drop for World {
    /// The report of a failure. The logs of the registrars that live follow it (see `Registrar`).
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        eprintln!(
            "--- what happened: seconds, UTC, event\n{}",
            self.journal.text()
        );
        let state = self.kubelet.as_ref().map(|kubelet| kubelet.manager.state());
        let state = serde_json::to_string_pretty(&state).unwrap();
        let csi_node = serde_json::to_string(&self.store.objects().1).unwrap();
        eprintln!("--- the kubelet's state\n{state}\n{csi_node}");
        eprintln!(
            "--- seed {}, Kubernetes {}, running: {}; stopping: {}",
            self.seed,
            self.profile,
            list(&self.pods),
            list(&self.leaving)
        );
    }
}

fn list(running: &[Running]) -> String {
    let names = running
        .iter()
        .map(|running| format!("{} (process {})", running.pod, running.process.pid()));
    names.collect::<Vec<_>>().join(", ")
}

fn csi_socket(node: &Node, slot: usize) -> PathBuf {
    node.root()
        .join(format!("plugins/{}/csi.sock", letter(slot)))
}

/// What the driver calls the node.
pub fn node_id(slot: usize) -> String {
    format!("node-of-{}", letter(slot))
}

fn fails(times: u32) -> Fault {
    Fault::Fails {
        code: Code::Unavailable,
        message: "not now".to_owned(),
        times,
    }
}

/// Whether nobody listens at a socket any more.
pub fn is_dead(path: &std::path::Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// What was to be removed may be gone.
fn removed(result: io::Result<()>) {
    if let Err(error) = result {
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
