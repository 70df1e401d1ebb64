//! Rows N29-N31: a volume limit that changes while its driver is registered.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use super::support::*;
use crate::manager::csi::CsiHandler;
use crate::manager::event::{Event, What};
use crate::manager::profile::Profile;

const PERIOD: Duration = Duration::from_secs(10);

/// A kubelet whose driver, with a limit of 10, is registered.
struct World {
    kubelet: Kubelet,
    handler: Arc<CsiHandler>,
    store: Arc<FaultyStore>,
    driver: Arc<FakeDriver>,
    registered: Instant,
}

async fn world(profile: Profile, period: Option<Duration>) -> World {
    let store = cluster();
    store.memory.set_update_period(DRIVER, period);
    let (mut kubelet, handler) = Kubelet::csi(Arc::default(), profile, store.clone()).await;
    let driver = FakeDriver::new("id1");
    driver.set_limit(10);
    driver.set_topology(&[("zone", "a")]);
    let listening = driver.clone();
    kubelet
        .network
        .listen(ENDPOINT, move |stream| listening.accept(stream));
    kubelet.appear(SOCKET, &FakePlugin::csi());
    kubelet.start();
    let registered = kubelet.until_registered().await.at;
    World {
        kubelet,
        handler,
        store,
        driver,
        registered,
    }
}

impl World {
    fn limit(&self) -> Option<i32> {
        let drivers = self.store.csi_node().spec.drivers;
        let driver = drivers.iter().find(|driver| driver.name == DRIVER)?;
        driver.allocatable.map(|allocatable| allocatable.count)
    }

    /// When the driver is asked next, in seconds since its registration.
    async fn next_question(&mut self) -> u64 {
        let is_answer = |what: &What| {
            matches!(
                what,
                What::NodeInfoReceived { .. } | What::NodeInfoFailed { .. }
            )
        };
        let Event { at, .. } = self.kubelet.until(is_answer).await;
        (at - self.registered).as_secs()
    }

    fn questions(&self) -> usize {
        self.driver.http.calls().len()
    }
}

#[tokio::test(start_paused = true)]
async fn n29_a_limit_that_changes_is_written_at_the_next_tick() {
    let mut world = world(Profile::NEWEST, Some(PERIOD)).await;
    assert_eq!(world.limit(), Some(10));
    let (patches, _) = world.store.writes();
    world.driver.set_limit(20);
    assert_eq!(world.next_question().await, 10);
    world
        .kubelet
        .until(|what| matches!(what, What::CsiNodeWritten { .. }))
        .await;
    assert_eq!(world.limit(), Some(20));
    assert_eq!(
        world.store.node_patches.load(Ordering::SeqCst),
        patches,
        "the Node is left alone"
    );
    // The same limit again is not written.
    let (_, writes) = world.store.writes();
    assert_eq!(world.next_question().await, 20);
    pass(5).await;
    assert_eq!(world.store.writes(), (patches, writes));
}

#[tokio::test(start_paused = true)]
async fn n29_a_driver_that_fails_is_asked_at_the_next_tick() {
    let mut world = world(Profile::NEWEST, Some(PERIOD)).await;
    world.driver.set_limit(20);
    let down = Status::unavailable("down");
    world.driver.next_answer(Answer::Error(down));
    assert_eq!(world.next_question().await, 10);
    pass(5).await;
    assert_eq!(world.limit(), Some(10));
    assert_eq!(world.next_question().await, 20);
    pass(5).await;
    assert_eq!(world.limit(), Some(20));
}

#[tokio::test(start_paused = true)]
async fn n29_ticks_that_a_slow_driver_misses_are_dropped() {
    let mut world = world(Profile::NEWEST, Some(PERIOD)).await;
    world
        .driver
        .next_answer(Answer::After(Duration::from_secs(35)));
    assert_eq!(world.next_question().await, 45);
    // One that was due meanwhile comes at once, as with Go's ticker; then they keep their distances.
    assert_eq!(world.next_question().await, 45);
    assert_eq!(world.next_question().await, 50);
    assert_eq!(world.questions(), 4);
}

#[tokio::test(start_paused = true)]
async fn n30_the_ticker_ends_with_the_registration() {
    let mut world = world(Profile::NEWEST, Some(PERIOD)).await;
    world
        .store
        .memory
        .set_update_period("nobody.example.com", Some(PERIOD));
    world.next_question().await;
    assert_eq!(world.handler.tickers(), 1, "nobody is not registered");
    world.kubelet.vanish(SOCKET);
    world.kubelet.until_unregistered().await;
    assert_eq!(world.handler.tickers(), 0);
    let questions = world.questions();
    pass(100).await;
    assert_eq!(world.questions(), questions);
    assert_eq!(world.store.drivers(), [""; 0]);
    // And begins with the next one, a period after it.
    world.kubelet.appear(SOCKET, &FakePlugin::csi());
    let again = world.kubelet.until_registered().await.at;
    world.registered = again;
    world.kubelet.skip_events();
    assert_eq!(world.next_question().await, 10);
}

#[tokio::test(start_paused = true)]
async fn n30_the_ticker_follows_the_csi_driver_object() {
    let mut world = world(Profile::NEWEST, None).await;
    pass(60).await;
    world
        .store
        .memory
        .set_update_period(DRIVER, Some(Duration::from_secs(30)));
    world.kubelet.skip_events();
    assert_eq!(world.next_question().await, 90);
    world.store.memory.set_update_period(DRIVER, Some(PERIOD));
    assert_eq!(world.next_question().await, 100);
    world.store.memory.set_update_period(DRIVER, None);
    let questions = world.questions();
    pass(100).await;
    assert_eq!(world.questions(), questions);
}

#[tokio::test(start_paused = true)]
async fn n30_the_tickers_end_with_the_kubelet() {
    let mut world = world(Profile::NEWEST, Some(PERIOD)).await;
    world.next_question().await;
    let (driver, questions) = (world.driver.clone(), world.questions());
    world.kubelet.stop.cancel();
    drop(world);
    pass(100).await;
    assert_eq!(driver.http.calls().len(), questions);
}

#[tokio::test(start_paused = true)]
async fn n31_without_a_period_or_before_1_35_there_is_no_ticker() {
    let before = Profile::from_minor(34).unwrap();
    for (profile, period) in [(Profile::NEWEST, None), (before, Some(PERIOD))] {
        let world = world(profile, period).await;
        world.driver.set_limit(20);
        pass(100).await;
        assert_eq!(world.questions(), 1, "{profile}");
        assert_eq!(world.limit(), Some(10));
    }
}
