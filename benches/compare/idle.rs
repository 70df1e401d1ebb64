//! What a registrar costs while nobody asks it anything, which is nearly always.

use std::time::Duration;

use tokio::time::sleep;

use crate::arguments::Arguments;
use crate::samples::Samples;
use crate::subject::{Subject, driver};
use crate::support::Node;
use crate::table::{Budget, Row};

/// For the end of the kubelet's connection and what follows from it.
const SETTLE: Duration = Duration::from_secs(2);

pub async fn rows(subjects: &[Subject], arguments: &Arguments) -> Vec<Row> {
    let idle = arguments.idle();
    eprintln!("idle: {idle:?}");
    // All at once: they share nothing but the time.
    let mut registered = Vec::new();
    for subject in subjects {
        let node = Node::new();
        let driver = driver(&node, arguments.driver_delay());
        let (registrar, _) = subject.register(&node, &[]).await;
        registered.push((node, driver, registrar));
    }
    sleep(SETTLE).await;
    let used = || -> Vec<_> {
        let usages = registered.iter().map(|(.., registrar)| registrar.usage());
        usages
            .map(|usage| (usage.context_switches(), usage.processor_time()))
            .collect()
    };
    let before = used();
    sleep(idle).await;
    let (switches, times) = before
        .into_iter()
        .zip(used())
        .map(|(before, after)| {
            #[allow(clippy::cast_precision_loss, reason = "below 2^52")]
            let switches = (after.0 - before.0) as f64;
            let time = after.1.saturating_sub(before.1).as_secs_f64() * 1e3;
            (Samples::exact(switches), Samples::exact(time))
        })
        .unzip();
    let seconds = idle.as_secs();
    vec![
        Row::new(
            format!("Context switches in {seconds} idle seconds"),
            "",
            switches,
        )
        .within(Budget::AtMost(0.0)),
        Row::new(format!("CPU time in {seconds} idle seconds"), "ms", times)
            .within(Budget::AtMost(0.0)),
    ]
}
