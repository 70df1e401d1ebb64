//! What is going to happen: a pure function of the seed. A model of the node keeps the actions possible; what real processes
//! make of them is not known here.

use std::fmt;
use std::time::Duration;

use super::random::Random;

/// Drivers of the node, each with its own directory, name and registrars.
pub const SLOTS: usize = 2;
/// Names that a driver may take.
const NAMES: u64 = 2;
/// Registrars of one driver at once.
const MAX_PODS: usize = 3;
/// Rounds of a plan, each of which ends in a quiet node.
const ROUNDS: u64 = 2;
/// Actions of a calm round, and how many times as many happen in a hasty one.
const ACTIONS: (u64, u64) = (10, 18);
const HASTE: u64 = 3;
/// Actions for which a driver may stay away: the kubelet's waits double meanwhile.
const MAX_ABSENCE: u32 = 3;

/// What a registrar does on a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Exit,
    Retry,
}

impl Policy {
    /// As the flag's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exit => "exit",
            Self::Retry => "retry",
        }
    }
}

/// A registrar's place on the node; its processes come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pod {
    pub slot: usize,
    pub number: u32,
    pub policy: Policy,
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", letter(self.slot), self.number)
    }
}

/// How drivers and their directories are told apart.
pub fn letter(slot: usize) -> char {
    ['a', 'b'][slot]
}

/// One thing that happens to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A driver comes, over whatever lies at its path. `start` counts its starts, and is the volume limit that it tells.
    StartDriver {
        slot: usize,
        name: String,
        start: u32,
    },
    /// A driver dies, with or without taking its socket's file along.
    StopDriver {
        slot: usize,
        leaves_file: bool,
    },
    /// `NodeGetInfo` fails so often.
    NodeInfoFails {
        slot: usize,
        times: u32,
    },
    /// The next `NodeGetInfo` takes so long.
    NodeInfoSlow {
        slot: usize,
        delay: Duration,
    },
    /// `GetPluginInfo` fails so often.
    PluginInfoFails {
        slot: usize,
        times: u32,
    },
    Start(Pod),
    Terminate(Pod),
    /// `again_after` is when the container is started anew.
    Kill {
        pod: Pod,
        again_after: Option<Duration>,
    },
    /// The registration socket of this name, if there is one.
    DeleteSocket(String),
    /// Everything in the registration directory.
    EmptyRegistry,
    /// The directory itself; the kubelet, which loses its watch by that, is down meanwhile.
    RecreateRegistry {
        down: Duration,
    },
    RestartKubelet {
        gracefully: bool,
        down: Duration,
    },
}

impl Action {
    /// What the report counts it as.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::StartDriver { .. } => "driver starts",
            Self::StopDriver { .. } => "driver stops",
            Self::NodeInfoFails { .. } => "NodeGetInfo failures",
            Self::NodeInfoSlow { .. } => "slow NodeGetInfo",
            Self::PluginInfoFails { .. } => "GetPluginInfo failures",
            Self::Start(_) => "registrar starts",
            Self::Terminate(_) => "registrar TERMs",
            Self::Kill { .. } => "registrar KILLs",
            Self::DeleteSocket(_) => "socket deletions",
            Self::EmptyRegistry => "registry emptied",
            Self::RecreateRegistry { .. } => "registry re-created",
            Self::RestartKubelet { .. } => "kubelet restarts",
        }
    }
}

/// An action, and how long nothing happens after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub action: Action,
    pub pause: Duration,
}

/// Actions until the node is left alone.
pub type Round = Vec<Step>;

/// All that happens to one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Whether the registrars of a slot publish anew when their driver restarts.
    pub reregisters: [bool; SLOTS],
    pub rounds: Vec<Round>,
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut model = Model {
            random: Random::new(seed),
            slots: Default::default(),
            pods: 0,
            hasty: false,
        };
        let reregisters = [model.random.percent(50), model.random.percent(50)];
        let rounds = (0..ROUNDS).map(|_| model.round()).collect();
        Self {
            reregisters,
            rounds,
        }
    }
}

/// The node as far as the actions determine it.
struct Model {
    random: Random,
    slots: [Slot; SLOTS],
    pods: u32,
    /// Whether this round leaves things less time to become right in between.
    hasty: bool,
}

#[derive(Default)]
struct Slot {
    has_driver: bool,
    /// The name of the driver that is or was there.
    name: String,
    starts: u32,
    /// Actions since the driver went.
    absence: u32,
    pods: Vec<Pod>,
}

impl Model {
    /// Random actions; at the end every driver with a registrar is alive, and the others have none.
    fn round(&mut self) -> Round {
        let mut round = Round::new();
        self.hasty = self.random.percent(50);
        let haste = if self.hasty { HASTE } else { 1 };
        for _ in 0..haste * self.random.between(ACTIONS.0, ACTIONS.1) {
            let action = self.action();
            self.add(&mut round, action);
        }
        for slot in 0..SLOTS {
            if self.random.percent(25) {
                while let Some(pod) = self.slots[slot].pods.pop() {
                    self.add(&mut round, Action::Terminate(pod));
                }
                continue;
            }
            if !self.slots[slot].has_driver {
                let action = self.start_driver(slot);
                self.add(&mut round, action);
            }
            if self.slots[slot].pods.is_empty() {
                let action = self.start(slot);
                self.add(&mut round, action);
            }
        }
        round
    }

    fn add(&mut self, round: &mut Round, action: Action) {
        for slot in &mut self.slots {
            slot.absence += u32::from(!slot.has_driver);
        }
        let pause = match self.random.below(4) {
            0 => 0,
            1 | 2 if self.hasty => self.random.below(30),
            _ if self.hasty => self.random.below(200),
            1 | 2 => self.random.below(300),
            _ => self.random.between(300, 1500),
        };
        let pause = Duration::from_millis(pause);
        round.push(Step { action, pause });
    }

    fn action(&mut self) -> Action {
        let missed = |slot: &Slot| !slot.has_driver && slot.absence >= MAX_ABSENCE;
        if let Some(slot) = self.slots.iter().position(missed) {
            return self.start_driver(slot);
        }
        loop {
            let slot = usize::from(self.random.percent(50));
            if let Some(action) = self.try_action(slot) {
                return action;
            }
        }
    }

    /// None where the drawn action is not possible.
    fn try_action(&mut self, slot: usize) -> Option<Action> {
        let has_driver = self.slots[slot].has_driver;
        let millis =
            |random: &mut Random, low, high| Duration::from_millis(random.between(low, high));
        Some(match self.random.below(100) {
            0..20 => {
                if self.slots[slot].pods.len() >= MAX_PODS {
                    return None;
                }
                self.start(slot)
            }
            20..35 => Action::Terminate(self.take_pod(slot)?),
            35..47 => {
                let pod = self.take_pod(slot)?;
                let again = self.random.percent(70);
                let again_after = again.then(|| millis(&mut self.random, 0, 600));
                if again {
                    self.slots[slot].pods.push(pod);
                }
                Action::Kill { pod, again_after }
            }
            47..58 => Action::DeleteSocket(self.name(slot)),
            58..61 => Action::EmptyRegistry,
            61..63 => Action::RecreateRegistry {
                down: millis(&mut self.random, 0, 1500),
            },
            63..70 => Action::RestartKubelet {
                gracefully: self.random.percent(50),
                down: millis(&mut self.random, 0, 1500),
            },
            70..76 => has_driver.then(|| self.node_info_fails(slot))?,
            76..80 => {
                let delay = has_driver.then(|| millis(&mut self.random, 100, 3000))?;
                Action::NodeInfoSlow { slot, delay }
            }
            80..83 => {
                let times = has_driver.then(|| self.random.between(1, 2))?;
                let times = u32::try_from(times).unwrap();
                Action::PluginInfoFails { slot, times }
            }
            83..90 => {
                if !has_driver {
                    return None;
                }
                self.slots[slot].has_driver = false;
                self.slots[slot].absence = 0;
                let leaves_file = self.random.percent(50);
                Action::StopDriver { slot, leaves_file }
            }
            // Over a living one, too.
            _ => self.start_driver(slot),
        })
    }

    fn node_info_fails(&mut self, slot: usize) -> Action {
        let times = u32::try_from(self.random.between(1, 2)).unwrap();
        Action::NodeInfoFails { slot, times }
    }

    fn start_driver(&mut self, slot: usize) -> Action {
        let keeps_its_name = !self.slots[slot].name.is_empty() && self.random.percent(60);
        let name = if keeps_its_name {
            self.slots[slot].name.clone()
        } else {
            self.name(slot)
        };
        let model = &mut self.slots[slot];
        model.has_driver = true;
        model.name.clone_from(&name);
        model.starts += 1;
        let start = model.starts;
        Action::StartDriver { slot, name, start }
    }

    fn start(&mut self, slot: usize) -> Action {
        self.pods += 1;
        let policy = *self.random.pick(&[Policy::Exit, Policy::Retry]);
        let number = self.pods;
        let pod = Pod {
            slot,
            number,
            policy,
        };
        self.slots[slot].pods.push(pod);
        Action::Start(pod)
    }

    fn take_pod(&mut self, slot: usize) -> Option<Pod> {
        let pods = self.slots[slot].pods.len() as u64;
        if pods == 0 {
            return None;
        }
        let index = usize::try_from(self.random.below(pods)).unwrap();
        Some(self.slots[slot].pods.remove(index))
    }

    fn name(&mut self, slot: usize) -> String {
        let number = self.random.between(1, NAMES);
        format!("{}{number}.example.com", letter(slot))
    }
}

#[test]
fn a_plan_is_a_function_of_its_seed() {
    assert_eq!(Plan::of(7), Plan::of(7));
    assert_ne!(Plan::of(7), Plan::of(8));
}

#[test]
fn every_kind_of_action_is_planned() {
    let kinds: std::collections::BTreeSet<_> = (0..50)
        .flat_map(|seed| Plan::of(seed).rounds)
        .flatten()
        .map(|step| step.action.kind())
        .collect();
    assert_eq!(kinds.len(), 12, "{kinds:?}");
}
