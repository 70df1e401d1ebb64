//! How long a registrar that waits already takes to see its driver: what a node waits for when all containers of a pod start.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::arguments::Arguments;
use crate::rounds::turn;
use crate::samples::Samples;
use crate::subject::{Publication, Subject, driver};
use crate::support::Node;
use crate::table::{Budget, Row};

pub async fn rows(subjects: &[Subject], arguments: &Arguments) -> Vec<Row> {
    let mut times = vec![Vec::new(); subjects.len()];
    let rounds = arguments.waits;
    for round in 1..=rounds {
        eprint!("\rwaits: {round}/{rounds} ");
        // All at once: waiting costs them nothing.
        let waiting: Vec<_> = subjects
            .iter()
            .map(|subject| {
                let node = Node::new();
                let (registrar, _) = subject.start(&node, &[]);
                (node, registrar)
            })
            .collect();
        sleep(phase()).await;
        for index in turn(round, subjects.len()) {
            let node = &waiting[index].0;
            let mut publication = Publication::of(node);
            let _driver = driver(node, arguments.driver_delay());
            let listening = Instant::now();
            let seen = publication.seen().await;
            times[index].push((seen - listening).as_secs_f64() * 1e3);
        }
    }
    eprintln!();
    let times: Vec<_> = times.into_iter().map(Samples::new).collect();
    let of = |pick: fn(&Samples) -> f64| times.iter().map(pick).map(Samples::exact).collect();
    let what = "Driver listening to socket published";
    vec![
        Row::new(what, "ms", times.clone()),
        Row::new(
            format!("{what}, 99th percentile"),
            "ms",
            of(|times| times.percentile(99)),
        )
        .within(Budget::AtMost(5.0)),
        Row::new(format!("{what}, worst"), "ms", of(Samples::largest)),
    ]
}

/// Some time from one second to two: registrars that look now and then are met anywhere between two looks.
fn phase() -> Duration {
    // Keys of hash tables are random.
    let random = RandomState::new().hash_one(());
    Duration::from_secs(1) + Duration::from_micros(random % 1_000_000)
}
