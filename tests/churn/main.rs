//! Churn: whatever happens to registrars, drivers, sockets and the kubelet, once it stops exactly the living drivers are
//! registered.
//!
//! Random actions happen to a node with two drivers: real registrars start, get TERM and KILL and overlap; drivers restart
//! under the same name and another and answer with faults; sockets, all sockets and the directory are removed; the kubelet
//! (the plugin manager, on a thread of its own) stops, dies and starts anew. Then nothing happens any more, and everything
//! has to become right and stay so ([`settled`] says what that means, and how long it may take): for the newest kubelet, and
//! for 1.28, which does not try a failed registration again before its socket is re-created.
//!
//! * `CHURN_SECONDS`: how long, 60 if it is not set. A seed's node lives for about half a minute, and no further one is begun
//!   that would probably end later.
//! * `CHURN_SEED`: the first seed, by chance if it is not set; further ones count up. Seeds are printed.
//!
//! The actions and the pauses between them are a pure function of the seed; what processes do meanwhile is their own.
//!
//! ```text
//! CHURN_SECONDS=600 cargo test --test churn -- --nocapture
//! CHURN_SEED=4711 CHURN_SECONDS=1 cargo test --test churn newest
//! ```

#![allow(
    clippy::unwrap_used,
    unreachable_pub,
    reason = "the modules of a test binary have no users outside it, and fail by a panic"
)]

mod journal;
mod kubelet;
mod plan;
mod random;
mod settled;
#[path = "../support/mod.rs"]
mod support;
mod world;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use csi_node_driver_registrar::manager::profile::Profile;
use plan::{Action, Plan};
use world::World;

/// Seeds by chance are below this: short enough to be typed.
const SEEDS: u64 = 1_000_000;

/// What one node came to.
#[derive(Default)]
struct Outcome {
    counts: BTreeMap<&'static str, u64>,
    longest: Duration,
}

#[tokio::test]
async fn newest_kubelet() {
    soak(Profile::NEWEST).await;
}

#[tokio::test]
async fn kubelet_1_28() {
    soak(Profile::from_minor(28).unwrap()).await;
}

async fn soak(profile: Profile) {
    let budget = Duration::from_secs(number("CHURN_SECONDS").unwrap_or(60));
    let first = number("CHURN_SEED").unwrap_or_else(|| RandomState::new().hash_one(0_u8) % SEEDS);
    let begun = Instant::now();
    let mut longest = Duration::ZERO;
    let mut counts = BTreeMap::<_, u64>::new();
    let mut seed = first;
    loop {
        eprintln!("Kubernetes {profile}: CHURN_SEED={seed}");
        let seed_begun = Instant::now();
        let outcome = live(seed, profile).await;
        longest = longest.max(seed_begun.elapsed());
        eprintln!(
            "Kubernetes {profile}: seed {seed} settled within {:.1?} at most, lived for {:.0?}",
            outcome.longest,
            seed_begun.elapsed()
        );
        for (kind, count) in outcome.counts {
            *counts.entry(kind).or_default() += count;
        }
        if begun.elapsed() + longest > budget {
            break;
        }
        seed += 1;
    }
    let actions: u64 = counts.values().sum();
    eprintln!("Kubernetes {profile}: seeds {first} to {seed}, {actions} actions: {counts:?}");
}

/// One node's life.
async fn live(seed: u64, profile: Profile) -> Outcome {
    let plan = Plan::of(seed);
    let mut world = World::new(seed, &plan, profile);
    let mut longest = Duration::ZERO;
    for round in &plan.rounds {
        for step in round {
            world.act(&step.action).await;
            world.pause(step.pause).await;
        }
        longest = longest.max(world.settle().await);
    }
    let pods: Vec<_> = world.pods.iter().map(|running| running.pod).collect();
    for pod in pods {
        world.act(&Action::Terminate(pod)).await;
    }
    Outcome {
        longest: longest.max(world.settle().await),
        counts: world.end().await,
    }
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={value} is no number")),
    )
}
