//! The invariant: once nothing happens any more, exactly the living drivers that have a registrar are registered, in every
//! place where that shows, after no more time than the waits that the failures before have earned.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use csi_node_driver_registrar::manager::csi::objects::NODE_ID_ANNOTATION;
use serde_json::Value;
use tokio::time::sleep;

use super::kubelet::names;
use super::plan::SLOTS;
use super::support::{HttpAnswer, try_get};
use super::world::{World, is_dead, node_id};

/// What an operation under way that cannot succeed may last (10 s of dialling), 3 s of a slow `NodeGetInfo`, the seconds in
/// which registrars look again and the kubelet makes its passes; the rest is for a busy machine.
const BASE: Duration = Duration::from_secs(25);
/// Until a stand-by takes over from a registrar that was killed: three questions, 10 s apart, and their answers' deadline.
const TAKE_OVER: Duration = Duration::from_secs(34);
/// The kubelet's longest wait after a failure, and the registrar's.
const LONGEST_WAITS: (Duration, Duration) = (Duration::from_secs(122), Duration::from_mins(2));
/// How long the invariant has to hold: two passes of the reconciler.
const HOLDS_FOR: Duration = Duration::from_millis(2200);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// A registered driver, as every place should show it.
struct Registered {
    slot: usize,
    name: String,
    endpoint: String,
    /// None where a restarted driver is not asked again.
    volumes: Option<u32>,
}

impl World {
    /// Waits for the invariant, and says how long that took.
    pub async fn settle(&mut self) -> Duration {
        self.heal_drivers();
        self.everybody_has_left().await;
        self.sweep();
        let limit = self.limit();
        self.journal.note(format!("quiet; {limit:?} to settle"));
        let begun = Instant::now();
        let mut holds_since = None;
        loop {
            self.reap().await;
            match self.look().await {
                Ok(()) => {
                    let since = *holds_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= HOLDS_FOR {
                        self.journal.note("settled");
                        return since - begun;
                    }
                }
                Err(reason) => {
                    holds_since = None;
                    assert!(
                        begun.elapsed() < limit,
                        "not settled {limit:?} after the last action: {reason}"
                    );
                }
            }
            sleep(LOOK).await;
        }
    }

    fn registered(&self) -> Vec<Registered> {
        let lives = |slot: &usize| self.pods.iter().any(|running| running.pod.slot == *slot);
        let slots = (0..SLOTS).filter(lives);
        slots
            .filter_map(|slot| {
                let driver = self.drivers[slot].as_ref()?;
                Some(Registered {
                    slot,
                    name: driver.name.clone(),
                    endpoint: self.csi_socket(slot).display().to_string(),
                    volumes: self.reregisters[slot].then_some(driver.start),
                })
            })
            .collect()
    }

    /// Removes what killed registrars have left, and no registrar will ever replace: a kubelet keeps to a socket's file.
    fn sweep(&self) {
        let registered = self.registered();
        for name in self.node.published() {
            let path = self.node.registry().join(&name);
            let is_awaited = registered
                .iter()
                .any(|driver| name == format!("{}-reg.sock", driver.name));
            if !name.starts_with('.') && !is_awaited && is_dead(&path) {
                self.journal.note(format!("remove the dead {name}"));
                // A registrar that lives may have withdrawn it.
                let _ = fs::remove_file(path);
            }
        }
    }

    /// The kubelet's waits and the registrars' double with each failure in a row. Two more may come while things settle:
    /// that of an operation under way, and that of one against a socket about to be replaced.
    fn limit(&self) -> Duration {
        let operations = self.state("operations");
        let waits = operations
            .iter()
            .filter_map(|o| o["backoff_seconds"].as_f64());
        let kubelet = Duration::from_secs_f64(waits.fold(0.0, f64::max));
        let registrar = self.pods.iter().filter_map(|running| {
            let line = running.process.log().lines().into_iter().rev();
            let line = line.into_iter().find(|line| line.contains("retryIn="))?;
            let (_, wait) = line.split_once("retryIn=")?;
            Some(Duration::from_secs_f64(
                wait.split(' ').next()?.parse().ok()?,
            ))
        });
        let registrar = registrar.max().unwrap_or_default();
        let is_orphaned = self
            .registered()
            .iter()
            .any(|driver| is_dead(&self.node.registration_socket(&driver.name)));
        let take_over = if is_orphaned {
            TAKE_OVER
        } else {
            Duration::ZERO
        };
        let (longest_kubelet, longest_registrar) = LONGEST_WAITS;
        BASE + take_over
            + (4 * kubelet).min(longest_kubelet)
            + (4 * registrar).min(longest_registrar)
    }

    /// The first place that does not show what it should.
    async fn look(&mut self) -> Result<(), String> {
        let registered = self.registered();
        self.look_at_directory(&registered)?;
        self.look_at_caches(&registered)?;
        self.look_at_objects(&registered)?;
        self.look_at_registrars(&registered).await
    }

    fn look_at_directory(&self, registered: &[Registered]) -> Result<(), String> {
        let (hidden, visible): (Vec<_>, Vec<_>) = self
            .node
            .published()
            .into_iter()
            .partition(|name| name.starts_with('.'));
        let wanted = registered
            .iter()
            .map(|driver| format!("{}-reg.sock", driver.name));
        same("registration directory", visible, wanted)?;
        // Registrars that were killed leave temporary sockets.
        match hidden
            .iter()
            .find(|name| !is_dead(&self.node.registry().join(name)))
        {
            None => Ok(()),
            Some(name) => Err(format!("{name} is not dead")),
        }
    }

    /// Both states of the world and the operations, as `/state` shows them, and the handler's drivers.
    fn look_at_caches(&self, registered: &[Registered]) -> Result<(), String> {
        let path = |driver: &Registered| {
            let path = self.node.registration_socket(&driver.name);
            path.display().to_string()
        };
        let identity = |entry: &Value| (text(entry, "socket_path"), entry["identity"].to_string());
        let desired: Vec<_> = self.state("desired_state_of_world");
        let paths = desired.iter().map(|entry| text(entry, "socket_path"));
        same("desired state of world", paths, registered.iter().map(path))?;
        let actual = self.state("actual_state_of_world");
        same(
            "actual state of world: identities",
            actual.iter().map(identity),
            desired.iter().map(identity),
        )?;
        let plugin = |entry: &Value| (text(entry, "name"), text(entry, "endpoint"));
        let wanted = || {
            let drivers = registered.iter();
            drivers.map(|driver| (driver.name.clone(), driver.endpoint.clone()))
        };
        same("actual state of world", actual.iter().map(plugin), wanted())?;
        same("CSI drivers", self.kubelet().handler.drivers(), wanted())?;
        let operations = self.state("operations");
        let is_wanted = |entry: &&Value| {
            let socket = text(entry, "socket_path");
            !entry["running"].is_null() || registered.iter().any(|driver| path(driver) == socket)
        };
        match operations.iter().find(is_wanted) {
            None => Ok(()),
            Some(operation) => Err(format!("operation {operation}")),
        }
    }

    /// Node and CSINode, without what earlier kubelets have left there.
    fn look_at_objects(&self, registered: &[Registered]) -> Result<(), String> {
        let mut inherited = self.kubelet().inherited();
        for driver in registered {
            inherited.remove(&driver.name);
        }
        let (node, csi_node) = self.store.objects();
        let present = names(csi_node.as_ref());
        let wanted: BTreeSet<_> = registered
            .iter()
            .map(|driver| driver.name.clone())
            .collect();
        same("CSINode", present.difference(&inherited), &wanted)?;
        let ids = node.metadata.annotations.get(NODE_ID_ANNOTATION);
        let mut ids: BTreeMap<String, String> =
            ids.map_or_else(BTreeMap::new, |ids| serde_json::from_str(ids).unwrap());
        ids.retain(|name, _| !inherited.contains(name));
        let wanted = registered
            .iter()
            .map(|driver| (driver.name.clone(), node_id(driver.slot)));
        same("annotation of the Node", ids, wanted)?;
        for driver in registered {
            let drivers = csi_node.iter().flat_map(|csi_node| &csi_node.spec.drivers);
            let entry = drivers.filter(|entry| entry.name == driver.name);
            let entry: Vec<_> = entry
                .map(|entry| {
                    let count = entry.allocatable.map(|allocatable| allocatable.count);
                    let count = count.and_then(|count| u32::try_from(count).ok());
                    (entry.node_id.clone(), driver.volumes.and(count))
                })
                .collect();
            same(
                &format!("entry of {} in the CSINode", driver.name),
                entry,
                [(node_id(driver.slot), driver.volumes)],
            )?;
        }
        Ok(())
    }

    /// One registrar of each driver is ready, the others stand by.
    async fn look_at_registrars(&self, registered: &[Registered]) -> Result<(), String> {
        for driver in registered {
            let mut ready = 0;
            for running in &self.pods {
                if running.pod.slot != driver.slot {
                    continue;
                }
                let address = running.process.http_address().await;
                match try_get(address, "/readyz").await {
                    Ok(HttpAnswer { status: 200, .. }) => ready += 1,
                    Ok(HttpAnswer { body, .. }) if body.starts_with("superseded") => {}
                    answer => return Err(format!("/readyz of {}: {answer:?}", running.pod)),
                }
            }
            if ready != 1 {
                return Err(format!("{ready} registrars of {} are ready", driver.name));
            }
        }
        Ok(())
    }

    fn state(&self, part: &str) -> Vec<Value> {
        let state = serde_json::to_value(self.kubelet().manager.state()).unwrap();
        state[part].as_array().unwrap().clone()
    }
}

fn text(entry: &Value, key: &str) -> String {
    entry[key].as_str().unwrap().to_owned()
}

/// Whether two collections have the same items.
fn same<T: Ord + std::fmt::Debug>(
    what: &str,
    found: impl IntoIterator<Item = T>,
    wanted: impl IntoIterator<Item = T>,
) -> Result<(), String> {
    let mut found: Vec<_> = found.into_iter().collect();
    let mut wanted: Vec<_> = wanted.into_iter().collect();
    found.sort();
    wanted.sort();
    if found == wanted {
        return Ok(());
    }
    Err(format!("{what}: {found:?} instead of {wanted:?}"))
}
