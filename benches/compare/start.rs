//! How long a start takes while the driver is there already: what a node waits for when a pod is restarted.

use std::time::Duration;

use tokio::time::Instant;

use crate::arguments::Arguments;
use crate::rounds::rounds;
use crate::subject::{Publication, Subject, driver};
use crate::support::Node;
use crate::table::{Budget, Row};

pub async fn rows(subjects: &[Subject], arguments: &Arguments) -> Vec<Row> {
    let delay = arguments.driver_delay();
    let measure = async |subject: &Subject| start(subject, delay).await;
    let [published, answered] = rounds("starts", subjects, arguments.starts, measure).await;
    vec![
        Row::new("Exec to socket", "ms", published).within(Budget::OfOthers(0.25)),
        Row::new("Exec to first `GetInfo` answered", "ms", answered),
    ]
}

async fn start(subject: &Subject, delay: Duration) -> [f64; 2] {
    let node = Node::new();
    let _driver = driver(&node, delay);
    let mut publication = Publication::of(&node);
    let begin = Instant::now();
    let (_registrar, _) = subject.start(&node, &[]);
    let seen = publication.seen().await;
    let _kubelet = publication.answered().await;
    let answered = Instant::now();
    [seen, answered].map(|at| (at - begin).as_secs_f64() * 1e3)
}
