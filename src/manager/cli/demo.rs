//! `demo`: a CSI driver, our registrar and a kubelet's plugin manager in one process, through everything that happens to
//! them on a node.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::node::{Cluster, Kubelet, NodeArguments, Settings};
use super::temporary_directory::TemporaryDirectory;
use super::terminal::{Style, Tone};
use super::{Error, Exit};
use crate::driver::{Address, AddressError};
use crate::manager::OperationKind::{Register, Unregister};
use crate::manager::csi::yaml;
use crate::manager::event::What;
use crate::registrar::{self, FailurePolicy, Registrar};
use crate::signals::Signals;
use crate::testing::csi_driver::{Behaviour, CsiDriver};

mod timeline;

use timeline::{Party, Timeline};

/// The embedded driver's name.
pub(super) const DRIVER: &str = "driver.example.com";

/// Volumes that the driver takes at first, and after its restart.
const MAX_VOLUMES: [i64; 2] = [16, 32];

/// Deadline of each of the registrar's calls.
const REGISTRAR_TIMEOUT: Duration = Duration::from_secs(1);

/// The arguments of `demo`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    node: NodeArguments,
}

/// What did not happen as it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoryError {
    #[error("waited {limit:?} in vain for {what}; -v 4 shows more")]
    TimedOut { what: &'static str, limit: Duration },
    #[error("the embedded registrar ended: {0}")]
    Registrar(#[from] registrar::Error),
    #[error("the embedded registrar ended before it was told to")]
    RegistrarEnded,
    #[error("the directory cannot hold the driver's socket: {0}; set TMPDIR to a shorter one")]
    Address(#[from] AddressError),
    #[error("{DRIVER} is still registered after the stop")]
    NotForgotten,
}

/// Tells the story once.
pub(super) async fn run(arguments: Arguments, mut signals: Signals) -> Result<Exit, Error> {
    arguments.node.start_logging(None);
    let directory = TemporaryDirectory::new()?;
    let story = Story::new(&arguments.node, directory.path());
    tokio::select! {
        result = story.tell() => result.map(|()| Exit::Success),
        signal = signals.next() => Err(Error::Interrupted(signal)),
    }
}

/// The parties, and where they meet.
struct Story {
    cluster: Cluster,
    registry: PathBuf,
    csi_socket: PathBuf,
    node: String,
    heading: String,
    timeline: Timeline,
    style: Style,
}

/// The registrar's task, and its end.
struct RunningRegistrar {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), registrar::Error>>,
}

impl Story {
    fn new(arguments: &NodeArguments, directory: &Path) -> Self {
        let cluster = Cluster::new(arguments);
        let style = Style::stdout();
        let profile = arguments.profile;
        Self {
            registry: directory.join("plugins_registry"),
            csi_socket: directory.join("csi.sock"),
            node: arguments.node_name.clone(),
            heading: format!(
                "A CSI driver, its registrar and the plugin manager of a Kubernetes {profile} kubelet, on node {} in {}",
                arguments.node_name,
                directory.display()
            ),
            timeline: Timeline::new(style, cluster.subscribe()),
            cluster,
            style,
        }
    }

    async fn tell(mut self) -> Result<(), Error> {
        println(&self.style.paint(Tone::Heading, &self.heading))?;
        self.timeline
            .heading("Registration: driver, kubelet and registrar start")?;
        let driver = self.driver(MAX_VOLUMES[0])?;
        let kubelet = self.kubelet().await?;
        let registrar = self.registrar()?;
        self.timeline
            .until("the registration", is_registered)
            .await?;

        self.timeline
            .heading("Kubelet restart: the registrar goes on, its socket is found again")?;
        kubelet.stop().await?;
        self.timeline.say(Party::Kubelet, "stopped")?;
        let kubelet = self.kubelet().await?;
        self.timeline
            .until("the second registration", is_registered)
            .await?;

        self.timeline
            .heading("Driver restart: it takes more volumes now, so it is registered anew")?;
        driver.kill().await;
        self.timeline.say(Party::Driver, "died")?;
        let driver = self.driver(MAX_VOLUMES[1])?;
        self.timeline
            .until("the third registration", is_registered)
            .await?;
        let registered = yaml::documents(&self.cluster.values());

        self.timeline
            .heading("Stop: the registrar takes its socket away")?;
        self.stop(registrar).await?;
        kubelet.stop().await?;
        driver
            .stop()
            .await
            .map_err(|source| self.no_driver(source))?;
        self.conclude(&registered)
    }

    fn driver(&mut self, max_volumes: i64) -> Result<CsiDriver, Error> {
        let driver = CsiDriver::start(&self.csi_socket, behaviour(DRIVER, &self.node, max_volumes))
            .map_err(|source| self.no_driver(source))?;
        let text = format!("{DRIVER} listens at {}", self.csi_socket.display());
        self.timeline.say(Party::Driver, &text)?;
        Ok(driver)
    }

    fn no_driver(&self, source: io::Error) -> Error {
        Error::Driver {
            path: self.csi_socket.clone(),
            source,
        }
    }

    async fn kubelet(&mut self) -> Result<Kubelet, Error> {
        let settings = Settings {
            registration_dir: &self.registry,
            authority: None,
            observe: false,
        };
        let mut events = self.cluster.subscribe();
        let mut kubelet = self.cluster.kubelet(settings).await?;
        kubelet.watches(&mut events).await?;
        Ok(kubelet)
    }

    fn registrar(&mut self) -> Result<RunningRegistrar, Error> {
        let socket = self.csi_socket.display().to_string();
        let registrar = Registrar::new(registrar::Config {
            driver_address: socket.parse::<Address>().map_err(StoryError::Address)?,
            timeout: REGISTRAR_TIMEOUT,
            kubelet_registration_path: socket,
            registration_directory: self.registry.clone(),
            wait_for_ready: true,
            driver_wait_timeout: None,
            reregister_on_driver_restart: true,
            failure_policy: FailurePolicy::Exit,
            outlives_failures: false,
        });
        self.timeline.follow(registrar.status());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(registrar.run(async {
            let _ = stopped.await;
        }));
        Ok(RunningRegistrar { stop, task })
    }

    async fn stop(&mut self, registrar: RunningRegistrar) -> Result<(), Error> {
        if registrar.stop.send(()).is_err() {
            return Err(match registrar.task.await {
                Ok(Err(error)) => StoryError::Registrar(error).into(),
                _ => StoryError::RegistrarEnded.into(),
            });
        }
        // Before 1.19 the kubelet asks the plugin that it unregisters, which is gone by now.
        if self.cluster.forgets_plugins_that_are_gone() {
            self.timeline
                .until("the deregistration", |what| {
                    let operation = Unregister;
                    *what == What::OperationSucceeded { operation }
                })
                .await?;
        } else {
            self.timeline
                .until("the socket to go", |what| *what == What::Undesired)
                .await?;
            let text = "keeps the driver registered, as kubelets did before 1.19";
            self.timeline.say(Party::Kubelet, text)?;
        }
        match registrar.task.await {
            Ok(result) => result.map_err(StoryError::Registrar)?,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
        self.timeline.say(Party::Registrar, "ended")?;
        Ok(())
    }

    /// Shows both objects, and whether they are what they should be.
    fn conclude(&self, registered: &str) -> Result<(), Error> {
        let stopped = yaml::documents(&self.cluster.values());
        let heading = |text: &str| self.style.paint(Tone::Heading, text);
        println(&format!(
            "\n{}\n{registered}\n{}\n{stopped}",
            heading("The node's objects while the driver was registered"),
            heading("and at the end: labels stay, as on any node"),
        ))?;
        let text = if !self.cluster.forgets_plugins_that_are_gone() {
            "Registered three times, and still there, as with the kubelets of that time."
        } else if self.cluster.has_forgotten(DRIVER) {
            "Registered three times, deregistered at the end: all as it should be."
        } else {
            return Err(StoryError::NotForgotten.into());
        };
        println(&self.style.paint(Tone::Good, text))?;
        Ok(())
    }
}

/// A healthy driver whose answers fill every field of the objects.
pub(super) fn behaviour(name: &str, node: &str, max_volumes: i64) -> Behaviour {
    let zone = (format!("topology.{name}/zone"), "zone-a".to_owned());
    Behaviour {
        node_id: format!("{node}-id"),
        max_volumes,
        topology: [zone].into(),
        ..Behaviour::named(name)
    }
}

fn is_registered(what: &What) -> bool {
    let operation = Register;
    *what == What::OperationSucceeded { operation }
}

fn println(text: &str) -> io::Result<()> {
    use std::io::Write;
    writeln!(io::stdout(), "{text}")
}
