//! The registrar at work: the only place where things happen. It waits for events (the driver's answer, a call of the
//! kubelet, a change in one of the two directories, a deadline, the stop signal), gives each to [`Status`] together with a
//! fresh look at the socket's path, and does what comes back.

use std::pin::Pin;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::metrics::RegistrarMetrics;
use super::publication::Publication;
use super::service::{self, Call, Plugin};
use super::status::{Action, Event, Phase, PublicationId, Status};
use super::{Config, Error, Registrar};
use crate::driver::{self, Driver, DriverName, Identified};
use crate::in_flight::InFlight;
use crate::limits::registration as limits;
use crate::uds::socket_file::{FileId, Occupant, PublishError};
use crate::uds::watch::Watcher;

type Identification = Pin<Box<dyn Future<Output = Result<Identified, driver::Error>> + Send>>;
type OtherAnswer = Pin<Box<dyn Future<Output = bool> + Send>>;

/// A registrar at work.
pub(super) struct Running {
    config: Config,
    status: watch::Sender<Status>,
    metrics: RegistrarMetrics,
    driver: Driver,
    watcher: Watcher,
    driver_changes: watch::Sender<()>,
    identification: Option<Identification>,
    /// The socket that told the driver's name.
    driver_socket: Option<FileId>,
    publication: Option<Publication>,
    publications: u64,
    publish_error: Option<String>,
    calls: mpsc::Receiver<Call>,
    call_sender: mpsc::Sender<Call>,
    /// Bounds the calls with large messages.
    large_calls: InFlight,
    other_answer: Option<OtherAnswer>,
    /// The server of the last socket that is no longer published, ending within its drain time. Not those before it:
    /// a socket that is lost again and again would pile them up.
    retired: Option<JoinHandle<()>>,
}

/// What the loop woke up for.
enum Wake {
    Stop,
    Identified(Result<Identified, driver::Error>),
    Call(Call),
    OtherAnswered(bool),
    DirectoryChanged,
    Deadline,
}

impl Running {
    pub(super) fn new(registrar: &Registrar) -> Self {
        let config = registrar.config.clone();
        let driver = registrar.driver.clone();
        let watcher = Watcher::new([
            driver.address.directory().to_owned(),
            config.registration_directory.clone(),
        ]);
        let (call_sender, calls) = mpsc::channel(limits::CALL_QUEUE);
        let mut running = Self {
            driver,
            watcher,
            driver_changes: watch::channel(()).0,
            identification: None,
            driver_socket: None,
            publication: None,
            publications: 0,
            publish_error: None,
            calls,
            call_sender,
            large_calls: InFlight::new(limits::MAX_LARGE_CALLS),
            other_answer: None,
            retired: None,
            status: registrar.status.clone(),
            metrics: registrar.metrics.clone(),
            config,
        };
        running.identify(running.config.driver_wait_timeout);
        running
    }

    /// Registers until `shutdown` or a failure; in either case our socket is taken away.
    pub(super) async fn run(
        &mut self,
        shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), Error> {
        match (self.until_end(shutdown).await, self.withdraw().await) {
            (Err(error), Err(another)) => {
                tracing::error!(err = %another, "Cannot clean up");
                Err(error)
            }
            (ended, withdrawn) => ended.and(withdrawn),
        }
    }

    /// Whether a socket was ever published.
    pub(super) fn has_published(&self) -> bool {
        self.publications > 0
    }

    async fn until_end(
        &mut self,
        mut shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), Error> {
        loop {
            let wake = self.next(shutdown.as_mut()).await;
            self.look();
            let event = match wake {
                Wake::Stop => Event::Stop,
                Wake::Identified(Ok(identified)) => {
                    self.driver_socket = identified.socket;
                    let name = DriverName::try_from(identified.name)?;
                    self.announce(&name);
                    Event::Named(name)
                }
                Wake::Identified(Err(error)) => {
                    self.identification_failed(error)?;
                    continue;
                }
                Wake::Call(Call::Asked(id)) => Event::Asked(id),
                Wake::Call(Call::Notified(id, outcome)) => {
                    self.count(&outcome);
                    Event::Notified(id, outcome)
                }
                Wake::OtherAnswered(answered) => Event::OtherAnswered(answered),
                Wake::DirectoryChanged => {
                    // An identification under way hears of it; otherwise a new one may be due.
                    self.driver_changes.send_replace(());
                    if self.identification.is_none()
                        && self.driver.address.socket() != self.driver_socket
                    {
                        self.identify(None);
                    }
                    continue;
                }
                Wake::Deadline => Event::Elapsed,
            };
            if let Some(action) = self.tell(event)
                && let Some(result) = self.act(action)
            {
                return result;
            }
        }
    }

    /// Counts an outcome under the name that was published.
    fn count(&self, outcome: &Result<(), String>) {
        if let Some(name) = self.status.borrow().name() {
            self.metrics.notified(name.as_str(), outcome.is_ok());
        }
    }

    /// Waits for whatever comes first.
    async fn next(&mut self, shutdown: Pin<&mut impl Future<Output = ()>>) -> Wake {
        let deadline = self.status.borrow().deadline();
        tokio::select! {
            biased;
            () = shutdown => Wake::Stop,
            Some(call) = self.calls.recv() => Wake::Call(call),
            result = polled(&mut self.identification) => Wake::Identified(result),
            answered = polled(&mut self.other_answer) => Wake::OtherAnswered(answered),
            () = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            } => Wake::Deadline,
            // Last: in a busy directory there is always an event, and a deadline that is over moves into the future.
            () = self.watcher.changed() => Wake::DirectoryChanged,
        }
    }

    fn tell(&self, event: Event) -> Option<Action> {
        let now = Instant::now();
        let mut action = None;
        self.status.send_modify(|status| {
            let before = status.phase().clone();
            action = status.on(event, now);
            if let (Phase::Published { since, .. }, Phase::Registered) = (before, status.phase()) {
                self.metrics.confirmed(now - since);
            }
        });
        action
    }

    /// Tells the machine what lies at the path, so that it decides on nothing older.
    fn look(&self) {
        let occupant = self
            .publication
            .as_ref()
            .map_or(Occupant::Missing, Publication::occupant);
        self.tell(Event::Looked(occupant));
    }

    /// Starts asking the driver's name.
    fn identify(&mut self, limit: Option<Duration>) {
        let driver = self.driver.clone();
        let changes = self.driver_changes.subscribe();
        self.identification = Some(Box::pin(
            async move { driver.identify(limit, changes).await },
        ));
    }

    fn identification_failed(&mut self, error: driver::Error) -> Result<(), Error> {
        let is_fatal =
            self.publication.is_none() || matches!(error, driver::Error::DirectoryGone(_));
        if is_fatal {
            return Err(error.into());
        }
        // The registration stands; only the next change of the driver's socket is a reason to ask again.
        tracing::error!(err = %error, "The restarted CSI driver does not tell its name, it stays registered as it was");
        self.driver_socket = self.driver.address.socket();
        Ok(())
    }

    fn announce(&self, name: &DriverName) {
        crate::klog::verbose!(2, csiDriverName = %name, "CSI driver name");
        if self.status.borrow().name() == Some(name) {
            return;
        }
        if let Some(objection) = name.api_server_objection() {
            tracing::warn!(
                csiDriverName = %name,
                objection,
                "The API server will refuse this name in a CSINode, and the kubelet then refuses the registration; change \
                 what the driver's GetPluginInfo returns"
            );
        }
        if let Some((path, length)) = self.config.host_path_too_long(name.as_str()) {
            tracing::warn!(
                hostPath = %path.display(),
                length,
                limit = crate::uds::socket_file::MAX_SOCKET_PATH,
                "The registration socket's path is too long on the host, where the kubelet dials it: shorten the driver's \
                 name or the kubelet's root directory"
            );
        }
    }

    fn act(&mut self, action: Action) -> Option<Result<(), Error>> {
        match action {
            Action::Publish => self.publish().err().map(Err),
            Action::AskOther => {
                self.ask_other();
                None
            }
            Action::End(result) => Some(result),
        }
    }

    /// Publishes a fresh socket. An error is the end; what may pass is left to the machine.
    fn publish(&mut self) -> Result<(), Error> {
        let Some(name) = self.status.borrow().name().cloned() else {
            return Ok(());
        };
        let is_renamed = self
            .publication
            .as_ref()
            .is_some_and(|publication| publication.name() != name.as_str());
        if is_renamed && let Err(error) = self.take_away() {
            tracing::error!(err = %error, "Cannot clean up");
        }
        let id = PublicationId(self.publications + 1);
        let plugin = Plugin {
            name: name.to_string(),
            endpoint: self.config.kubelet_registration_path.clone(),
            publication: id,
            calls: self.call_sender.clone(),
            status: self.status.subscribe(),
            large_calls: self.large_calls.clone(),
        };
        match Publication::new(&self.config.registration_directory, plugin) {
            Ok(publication) => {
                tracing::info!(socketPath = %publication.path().display(), "Registration socket published, waiting for the kubelet");
                if let Some(before) = self.publication.replace(publication) {
                    self.retire(before.retire());
                }
                self.publications += 1;
                self.metrics.published();
                self.publish_error = None;
                self.tell(Event::Published(id));
                Ok(())
            }
            Err(error) => self.publishing_failed(error),
        }
    }

    fn publishing_failed(&mut self, error: PublishError) -> Result<(), Error> {
        let directory = &self.config.registration_directory;
        if driver::is_removed(directory) {
            return Err(Error::DirectoryGone(directory.clone()));
        }
        let is_first = self.publications == 0 && !error.is_exhaustion();
        if is_first || matches!(error, PublishError::TooLong { .. }) {
            return Err(error.into());
        }
        let error = error.to_string();
        if self.publish_error.as_ref() != Some(&error) {
            tracing::error!(
                err = error,
                "Cannot publish the registration socket, trying every second"
            );
            self.publish_error = Some(error);
        }
        self.tell(Event::NotPublished);
        Ok(())
    }

    /// Asks the socket that took our path for its driver's name.
    fn ask_other(&mut self) {
        let Some(publication) = &self.publication else {
            return;
        };
        let path = publication.path().to_owned();
        let name = publication.name().to_owned();
        let limit = self.config.timeout;
        self.other_answer = Some(Box::pin(async move {
            let answer = service::ask(&path, limit).await;
            answer.is_ok_and(|answer| answer.name == name)
        }));
    }

    fn retire(&mut self, server: JoinHandle<()>) {
        if let Some(earlier) = self.retired.replace(server) {
            earlier.abort();
        }
    }

    /// Takes our socket away, if it is still ours, and lets its server end.
    fn take_away(&mut self) -> Result<(), Error> {
        let Some(publication) = self.publication.take() else {
            return Ok(());
        };
        let path = publication.path().to_owned();
        let removed = publication.remove();
        self.retire(publication.retire());
        removed.map_err(|source| Error::Withdraw { path, source })
    }

    /// Takes our socket away, and gives the calls in flight their time.
    async fn withdraw(&mut self) -> Result<(), Error> {
        self.tell(Event::Stop);
        let taken_away = self.take_away();
        // Calls that come in between are answered, and decide nothing.
        self.calls.close();
        if let Some(retired) = self.retired.take() {
            let _ = timeout(limits::DRAIN, retired).await;
        }
        taken_away
    }
}

/// A future that may not be there; taken away once it is ready.
async fn polled<T>(future: &mut Option<Pin<Box<dyn Future<Output = T> + Send>>>) -> T {
    let Some(running) = future else {
        return std::future::pending().await;
    };
    let result = running.as_mut().await;
    *future = None;
    result
}
