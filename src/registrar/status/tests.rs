use proptest::prelude::*;

use super::*;

const NAME: &str = "driver.example.com";

fn name(text: &str) -> DriverName {
    text.to_owned().try_into().unwrap()
}

fn settings(policy: FailurePolicy) -> Settings {
    Settings {
        policy,
        reregister_on_driver_restart: false,
        random: || 0,
    }
}

/// A machine and the time, driven by hand.
struct Bench {
    status: Status,
    now: Instant,
    next: u64,
}

impl Bench {
    fn new(policy: FailurePolicy) -> Self {
        Self {
            status: Status::new(settings(policy)),
            now: Instant::now(),
            next: 1,
        }
    }

    fn published(policy: FailurePolicy) -> Self {
        let mut bench = Self::new(policy);
        assert!(matches!(
            bench.on(Event::Named(name(NAME))),
            Some(Action::Publish)
        ));
        bench.publish();
        bench
    }

    fn registered(policy: FailurePolicy) -> Self {
        let mut bench = Self::published(policy);
        bench.on(Event::Asked(bench.id()));
        bench.on(Event::Notified(bench.id(), Ok(())));
        assert_eq!(*bench.status.phase(), Phase::Registered);
        bench
    }

    fn on(&mut self, event: Event) -> Option<Action> {
        self.status.on(event, self.now)
    }

    fn publish(&mut self) {
        self.on(Event::Published(PublicationId(self.next)));
        self.next += 1;
    }

    fn id(&self) -> PublicationId {
        PublicationId(self.next - 1)
    }

    /// Lets the time pass until the machine wants to be woken; how long that was.
    fn elapse(&mut self) -> (Duration, Option<Action>) {
        let deadline = self.status.deadline().expect("no deadline");
        let passed = deadline - self.now;
        self.now = deadline;
        (passed, self.on(Event::Elapsed))
    }

    fn refuse(&mut self, reason: &str) -> Option<Action> {
        self.on(Event::Notified(self.id(), Err(reason.to_owned())))
    }
}

#[test]
fn a_registration_ends_in_silence() {
    let bench = Bench::registered(FailurePolicy::Exit);
    assert_eq!(bench.status.deadline(), None, "a wake-up while idle");
}

#[test]
fn a_refusal_ends_the_process_with_the_kubelets_words_and_a_hint() {
    let mut bench = Bench::published(FailurePolicy::Exit);
    bench.on(Event::Asked(bench.id()));
    let Some(Action::End(Err(error))) = bench.refuse("driver is already registered") else {
        panic!("went on after a refusal");
    };
    let text = error.to_string();
    assert!(text.contains("driver is already registered"), "{text}");
    assert!(text.contains("another registrar on this node"), "{text}");
    assert_eq!(*bench.status.phase(), Phase::Stopped);
}

#[test]
fn a_notification_without_a_question_decides_nothing() {
    let mut bench = Bench::published(FailurePolicy::Exit);
    assert!(bench.refuse("meant for the predecessor").is_none());
    assert!(bench.on(Event::Notified(bench.id(), Ok(()))).is_none());
    assert!(matches!(bench.status.phase(), Phase::Published { .. }));
}

#[test]
fn a_notification_about_an_earlier_publication_decides_nothing() {
    let mut bench = Bench::published(FailurePolicy::Exit);
    let first = bench.id();
    bench.on(Event::Asked(first));
    bench.publish();
    bench.on(Event::Asked(bench.id()));
    assert!(
        bench
            .on(Event::Notified(first, Err("old".to_owned())))
            .is_none()
    );
    assert!(matches!(bench.status.phase(), Phase::Published { .. }));
}

#[test]
fn a_notification_while_the_socket_is_not_ours_decides_nothing() {
    for occupant in [
        Occupant::Missing,
        Occupant::AnotherSocket,
        Occupant::NotASocket("a directory"),
    ] {
        let mut bench = Bench::published(FailurePolicy::Exit);
        bench.on(Event::Asked(bench.id()));
        bench.on(Event::Looked(occupant));
        let before = bench.status.phase().clone();
        assert!(bench.refuse("too late").is_none());
        assert!(bench.on(Event::Notified(bench.id(), Ok(()))).is_none());
        assert_eq!(*bench.status.phase(), before);
    }
}

#[test]
fn a_lost_socket_is_published_again_after_half_a_second() {
    let mut bench = Bench::registered(FailurePolicy::Exit);
    assert!(bench.on(Event::Looked(Occupant::Missing)).is_none());
    let (passed, action) = bench.elapse();
    assert_eq!(passed, Duration::from_millis(500));
    assert!(matches!(action, Some(Action::Publish)));
    bench.on(Event::NotPublished);
    let (passed, action) = bench.elapse();
    assert_eq!(passed, Duration::from_secs(1));
    assert!(matches!(action, Some(Action::Publish)));
}

#[test]
fn a_retry_that_cannot_be_published_is_tried_again_and_the_refusal_stands() {
    let mut bench = Bench::published(FailurePolicy::Retry);
    bench.on(Event::Asked(bench.id()));
    bench.refuse("boom");
    assert!(matches!(bench.elapse().1, Some(Action::Publish)));
    for _ in 0..3 {
        bench.on(Event::NotPublished);
        bench.on(Event::Looked(Occupant::Ours));
        assert!(matches!(bench.status.phase(), Phase::Refused { .. }));
        let (passed, action) = bench.elapse();
        assert_eq!(passed, Duration::from_secs(1));
        assert!(matches!(action, Some(Action::Publish)));
    }
}

#[test]
fn a_fresh_socket_that_cannot_be_published_is_tried_again_and_the_registration_stands() {
    let mut bench = Bench::registered(FailurePolicy::Exit);
    bench.status.settings.reregister_on_driver_restart = true;
    assert!(matches!(
        bench.on(Event::Named(name(NAME))),
        Some(Action::Publish)
    ));
    for _ in 0..3 {
        bench.on(Event::NotPublished);
        bench.on(Event::Looked(Occupant::Ours));
        assert_eq!(*bench.status.phase(), Phase::Registered);
        let (passed, action) = bench.elapse();
        assert_eq!(passed, Duration::from_secs(1));
        assert!(matches!(action, Some(Action::Publish)));
    }
    bench.publish();
    assert_eq!(
        bench.elapse().0,
        Duration::from_mins(1),
        "it is published once"
    );
}

#[test]
fn a_new_name_that_cannot_be_published_is_lost_and_not_registered() {
    let mut bench = Bench::registered(FailurePolicy::Exit);
    bench.on(Event::Named(name("other.example.com")));
    bench.on(Event::NotPublished);
    assert!(matches!(bench.status.phase(), Phase::Lost { .. }));
    assert!(matches!(bench.elapse().1, Some(Action::Publish)));
}

#[test]
fn a_socket_that_comes_back_must_be_confirmed_again() {
    let mut bench = Bench::registered(FailurePolicy::Exit);
    bench.on(Event::Looked(Occupant::Missing));
    bench.on(Event::Looked(Occupant::Ours));
    assert!(matches!(bench.status.phase(), Phase::Published { .. }));
}

#[test]
fn a_stand_by_asks_every_ten_seconds_and_takes_over_after_three_silences() {
    let mut bench = Bench::registered(FailurePolicy::Exit);
    bench.on(Event::Looked(Occupant::AnotherSocket));
    let mut silences = 0;
    for answered in [false, false, true, false, false, false] {
        let (passed, action) = bench.elapse();
        assert_eq!(passed, Duration::from_secs(10));
        assert!(matches!(action, Some(Action::AskOther)));
        silences = if answered { 0 } else { silences + 1 };
        let action = bench.on(Event::OtherAnswered(answered));
        assert_eq!(matches!(action, Some(Action::Publish)), silences == 3);
    }
}

#[test]
fn a_stand_by_takes_over_when_the_other_is_gone() {
    let mut bench = Bench::registered(FailurePolicy::Exit);
    bench.on(Event::Looked(Occupant::AnotherSocket));
    bench.on(Event::Looked(Occupant::Missing));
    let (_, action) = bench.elapse();
    assert!(matches!(action, Some(Action::Publish)));
}

#[test]
fn retries_are_spaced_from_a_second_to_two_minutes_and_start_over_after_a_success() {
    let mut bench = Bench::published(FailurePolicy::Retry);
    let mut delays = Vec::new();
    for _ in 0..9 {
        bench.on(Event::Asked(bench.id()));
        bench.refuse("boom");
        let (passed, action) = bench.elapse();
        assert!(matches!(action, Some(Action::Publish)));
        delays.push(passed.as_secs());
        bench.publish();
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 120, 120]);
    bench.on(Event::Asked(bench.id()));
    bench.on(Event::Notified(bench.id(), Ok(())));
    bench.refuse("boom");
    assert_eq!(bench.elapse().0, Duration::from_secs(1));
}

#[test]
fn a_kubelet_that_retries_by_itself_neither_delays_nor_needs_our_retry() {
    let mut bench = Bench::published(FailurePolicy::Retry);
    bench.on(Event::Asked(bench.id()));
    bench.refuse("first");
    let deadline = bench.status.deadline();
    bench.now += Duration::from_millis(500);
    bench.refuse("second");
    assert_eq!(bench.status.deadline(), deadline);
    bench.on(Event::Notified(bench.id(), Ok(())));
    assert_eq!(*bench.status.phase(), Phase::Registered);
}

#[test]
fn silence_is_reported_once_for_no_call_and_once_for_no_outcome() {
    let mut bench = Bench::published(FailurePolicy::Exit);
    assert_eq!(bench.elapse().0, Duration::from_mins(1));
    assert_eq!(bench.status.deadline(), None);
    bench.on(Event::Asked(bench.id()));
    assert_eq!(bench.elapse().0, Duration::from_mins(3));
    assert_eq!(bench.status.deadline(), None);
}

#[test]
fn a_new_name_is_published_and_the_same_name_only_where_asked_for() {
    let mut bench = Bench::registered(FailurePolicy::Exit);
    assert!(bench.on(Event::Named(name(NAME))).is_none());
    assert!(matches!(
        bench.on(Event::Named(name("other.example.com"))),
        Some(Action::Publish)
    ));
    assert_eq!(bench.status.name(), Some(&name("other.example.com")));

    bench.publish();
    bench.status.settings.reregister_on_driver_restart = true;
    let again = || Event::Named(name("other.example.com"));
    assert!(matches!(bench.on(again()), Some(Action::Publish)));
    bench.on(Event::Looked(Occupant::AnotherSocket));
    assert!(
        bench.on(again()).is_none(),
        "a stand-by fights its successor"
    );
}

/// The world around the machine: one path, and who holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Nobody,
    Us(PublicationId),
    AnotherRegistrar { answers: bool },
    SomethingElse,
}

#[derive(Clone, Copy, Debug)]
enum Incident {
    SocketLost,
    SuccessorComes {
        answers: bool,
    },
    SomethingElseComes,
    OursComesBack,
    DriverRenamed,
    DriverRestarted,
    KubeletAsks,
    KubeletConfirms,
    KubeletRefuses,
    TimePasses,
    /// From now on the directory takes no new socket, or takes one again.
    DirectoryFull(bool),
    Stop,
}

fn incident() -> impl Strategy<Value = Incident> {
    prop_oneof![
        2 => Just(Incident::SocketLost),
        2 => any::<bool>().prop_map(|answers| Incident::SuccessorComes { answers }),
        1 => Just(Incident::SomethingElseComes),
        1 => Just(Incident::OursComesBack),
        1 => Just(Incident::DriverRenamed),
        1 => Just(Incident::DriverRestarted),
        3 => Just(Incident::KubeletAsks),
        3 => Just(Incident::KubeletConfirms),
        2 => Just(Incident::KubeletRefuses),
        6 => Just(Incident::TimePasses),
        1 => any::<bool>().prop_map(Incident::DirectoryFull),
        1 => Just(Incident::Stop),
    ]
}

/// Drives the machine as `Running` does, against a path that others use too.
struct World {
    bench: Bench,
    holder: Holder,
    ours: Option<(PublicationId, String)>,
    names: u32,
    full: bool,
    ended: bool,
}

impl World {
    fn new(policy: FailurePolicy, reregister: bool) -> Self {
        let mut bench = Bench::new(policy);
        bench.status.settings.reregister_on_driver_restart = reregister;
        let mut world = Self {
            bench,
            holder: Holder::Nobody,
            ours: None,
            names: 0,
            full: false,
            ended: false,
        };
        world.tell(Event::Named(name("driver0")));
        world
    }

    fn look(&mut self) {
        let occupant = match (self.holder, &self.ours) {
            (_, None) | (Holder::Nobody, _) => Occupant::Missing,
            (Holder::Us(id), Some((ours, _))) if id == *ours => Occupant::Ours,
            (Holder::Us(_) | Holder::AnotherRegistrar { .. }, _) => Occupant::AnotherSocket,
            (Holder::SomethingElse, _) => Occupant::NotASocket("a regular file"),
        };
        let action = self.bench.on(Event::Looked(occupant));
        assert!(action.is_none());
    }

    fn tell(&mut self, event: Event) {
        self.look();
        let mut next = self.bench.on(event);
        while let Some(action) = next.take() {
            match action {
                Action::Publish => self.publish(),
                Action::AskOther => {
                    let answers = self.holder == Holder::AnotherRegistrar { answers: true };
                    next = self.bench.on(Event::OtherAnswered(answers));
                }
                Action::End(_) => self.end(),
            }
        }
    }

    fn publish(&mut self) {
        assert!(!self.ended, "published after the end");
        let wanted = self.bench.status.name().unwrap().to_string();
        if self
            .ours
            .as_ref()
            .is_some_and(|(_, published)| *published != wanted)
        {
            self.withdraw();
            // Another name is another path.
            self.holder = Holder::Nobody;
        }
        match self.holder {
            _ if self.full => {
                self.bench.on(Event::NotPublished);
            }
            Holder::SomethingElse => {
                self.bench.on(Event::NotPublished);
            }
            Holder::AnotherRegistrar { answers: true } if self.ours.is_some() => {
                panic!("fought a registrar that answers")
            }
            _ => {
                self.ours = Some((PublicationId(self.bench.next), wanted));
                self.holder = Holder::Us(PublicationId(self.bench.next));
                self.bench.publish();
            }
        }
    }

    fn withdraw(&mut self) {
        if let Some((id, _)) = self.ours.take()
            && self.holder == Holder::Us(id)
        {
            self.holder = Holder::Nobody;
        }
    }

    fn end(&mut self) {
        self.withdraw();
        self.ended = true;
    }

    fn meet(&mut self, incident: Incident) {
        let current = self.ours.as_ref().map(|(id, _)| *id);
        match incident {
            Incident::SocketLost => self.holder = Holder::Nobody,
            Incident::SuccessorComes { answers } => {
                self.holder = Holder::AnotherRegistrar { answers };
            }
            Incident::SomethingElseComes => self.holder = Holder::SomethingElse,
            Incident::OursComesBack => {
                if let Some(id) = current {
                    self.holder = Holder::Us(id);
                }
            }
            Incident::DriverRenamed => {
                self.names += 1;
                self.tell(Event::Named(name(&format!("driver{}", self.names))));
            }
            Incident::DriverRestarted => {
                self.tell(Event::Named(name(&format!("driver{}", self.names))));
            }
            Incident::KubeletAsks => self.call(Event::Asked),
            Incident::KubeletConfirms => self.call(|id| Event::Notified(id, Ok(()))),
            Incident::KubeletRefuses => {
                self.call(|id| Event::Notified(id, Err("boom".to_owned())));
            }
            Incident::TimePasses => self.pass_time(),
            Incident::DirectoryFull(full) => self.full = full,
            Incident::Stop => self.tell(Event::Stop),
        }
        self.look();
    }

    /// A kubelet dials whatever is at the path; only ours reports to us.
    fn call(&mut self, event: impl FnOnce(PublicationId) -> Event) {
        if let Holder::Us(id) = self.holder
            && !self.ended
        {
            self.tell(event(id));
        }
    }

    fn pass_time(&mut self) {
        self.look();
        if let Some(deadline) = self.bench.status.deadline() {
            assert!(deadline >= self.bench.now, "a deadline in the past");
            self.bench.now = deadline;
            self.tell(Event::Elapsed);
            assert!(
                self.bench
                    .status
                    .deadline()
                    .is_none_or(|next| next > self.bench.now),
                "a loop without a delay"
            );
        }
    }

    /// A kubelet that is content, and others that leave.
    fn settle(&mut self) {
        self.full = false;
        if matches!(
            self.holder,
            Holder::SomethingElse | Holder::AnotherRegistrar { .. }
        ) {
            self.holder = Holder::Nobody;
        }
        for _ in 0..8 {
            self.pass_time();
        }
        self.meet(Incident::KubeletAsks);
        self.meet(Incident::KubeletConfirms);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_happens_the_end_state_is_right_and_nobody_elses_is_removed(
        incidents in prop::collection::vec(incident(), 0..40),
        retries in any::<bool>(),
        reregister in any::<bool>(),
    ) {
        let policy = if retries { FailurePolicy::Retry } else { FailurePolicy::Exit };
        let mut world = World::new(policy, reregister);
        for incident in incidents {
            let before = world.holder;
            // Whoever has not published under this name yet is the newest, and takes the path.
            let is_successor = world.ours.is_none();
            world.meet(incident);
            if matches!(before, Holder::AnotherRegistrar { answers: true })
                && !is_successor
                && !matches!(incident, Incident::DriverRenamed)
            {
                let taken = matches!(world.holder, Holder::Us(_))
                    && !matches!(incident, Incident::OursComesBack);
                prop_assert!(!taken, "took the path of a living registrar at {:?}", incident);
            }
            if world.bench.status.phase() == &Phase::Registered {
                let ours = world.ours.as_ref().map(|(id, _)| Holder::Us(*id));
                prop_assert_eq!(Some(world.holder), ours, "registered with a socket that is not there");
            }
            prop_assert_eq!(world.ended, world.bench.status.phase() == &Phase::Stopped);
        }
        let ended = world.ended;
        let before = world.holder;
        if ended {
            prop_assert!(!matches!(before, Holder::Us(id) if world.ours.as_ref().is_some_and(|(ours, _)| *ours == id)));
            prop_assert_eq!(world.bench.status.deadline(), None);
        } else {
            world.settle();
            prop_assert_eq!(world.bench.status.phase(), &Phase::Registered);
            world.meet(Incident::Stop);
            prop_assert_eq!(world.holder, Holder::Nobody);
        }
    }

    #[test]
    fn retry_delays_stay_within_their_bounds(refusals in any::<u32>(), random in any::<u64>()) {
        let delay = retry_delay(refusals, random);
        prop_assert!(delay >= Duration::from_millis(800) && delay <= Duration::from_mins(2));
        let longest = retry_delay(refusals, 0);
        prop_assert!(delay <= longest && delay >= longest * 4 / 5);
    }
}
