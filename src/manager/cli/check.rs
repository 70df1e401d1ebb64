//! `check`: one registration and one graceful stop of a registrar, followed step by step, and a verdict that a driver's
//! author can act on.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::demo;
use super::node::{AuthorityName, NodeArguments};
use super::temporary_directory::TemporaryDirectory;
use super::{Error, Exit};
use crate::goflag::GoDuration;
use crate::signals::Signals;
use crate::testing::csi_driver::CsiDriver;

mod api_server;
mod attempt;
mod follower;
mod process;
mod report;
mod session;
mod step;
mod stop;
mod warnings;
mod words;

use session::{Plan, Session};

/// Stands for the registration directory in the registrar's arguments.
const REGISTRATION_DIR: &str = "{registration-dir}";

/// Stands for the embedded driver's socket.
const CSI_ADDRESS: &str = "{csi-address}";

/// Volumes that the embedded driver takes.
const MAX_VOLUMES: i64 = 16;

const AFTER_HELP: &str = "\
In the registrar's arguments {registration-dir} becomes the directory that is watched, and {csi-address} the socket of the
embedded driver. The registrar is a process on this machine: the path of the driver's socket that it reports is dialled
here as it stands, as a kubelet does it on its host.

The check passes, with exit code 0, only if a kubelet would have the driver registered and the stop (SIGTERM) left nothing
behind. Warnings are about what works here and may not on a node; they do not fail the check, unless an API server would
refuse the driver's names. A refused registration is not waited out, although kubelets since 1.36 try again.

Examples:
  # a driver that listens at /tmp/csi.sock, with its registrar
  kubelet-plugin-manager check -- csi-node-driver-registrar --csi-address=/tmp/csi.sock \\
    --kubelet-registration-path=/tmp/csi.sock --plugin-registration-path={registration-dir}

  # a registrar alone, for a test report
  kubelet-plugin-manager check --embedded-driver --output junit -- ./my-registrar --csi-address={csi-address} \\
    --kubelet-registration-path={csi-address} --plugin-registration-path={registration-dir} > junit.xml";

/// The arguments of `check`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP, after_help = "--help says more, and has examples.")]
pub(super) struct Arguments {
    /// Longest wait for the registration, and again for the stop
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    timeout: GoDuration,

    /// Form of the verdict
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output: Output,

    /// Start a CSI driver without faults for the registrar, of this name
    #[arg(
        long,
        value_name = "NAME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = demo::DRIVER
    )]
    embedded_driver: Option<String>,

    /// What registration calls carry as :authority, instead of the version's own
    #[arg(long, value_name = "FORM")]
    authority: Option<AuthorityName>,

    #[command(flatten)]
    node: NodeArguments,

    /// The registrar and its arguments
    #[arg(last = true, required = true, value_name = "REGISTRAR")]
    registrar: Vec<OsString>,
}

/// Form of the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Text,
    /// One object
    Json,
    /// A test suite, each step a test case
    Junit,
}

/// A combination of arguments that makes no sense.
#[derive(Debug, thiserror::Error)]
pub(super) enum UsageError {
    #[error("--timeout={0}: must be greater than zero")]
    Timeout(GoDuration),
    #[error(
        "{CSI_ADDRESS} stands for the embedded driver's socket: add --embedded-driver, or write the path of yours"
    )]
    NoDriver,
}

/// Checks once.
pub(super) async fn run(arguments: Arguments, mut signals: Signals) -> Result<Exit, Error> {
    let timeout = arguments.timeout.to_std().filter(|it| !it.is_zero());
    let timeout = timeout.ok_or(UsageError::Timeout(arguments.timeout))?;
    arguments.node.start_logging(None);
    let directory = TemporaryDirectory::new()?;
    let places = Places {
        // Short, so that sockets with the longest names fit that an API server takes.
        registry: directory.path().join("registry"),
        csi_socket: directory.path().join("csi.sock"),
    };
    let has_driver = arguments.embedded_driver.is_some();
    let plan = Plan {
        command: places.fill(&arguments.registrar, has_driver)?,
        is_told_the_directory: mentions(&arguments.registrar, REGISTRATION_DIR),
        given: arguments.registrar.clone(),
        registry: places.registry.clone(),
        timeout,
    };
    let _driver = arguments
        .embedded_driver
        .as_deref()
        .map(|name| places.driver(name, &arguments.node.node_name))
        .transpose()?;
    let checking = async {
        let mut session = Session::start(&arguments.node, arguments.authority, plan).await?;
        session.register().await;
        session.stop_registrar().await;
        session.report().await
    };
    let mut report = tokio::select! {
        report = checking => report?,
        signal = signals.next() => return Err(Error::Interrupted(signal)),
    };
    if has_driver && !mentions(&arguments.registrar, CSI_ADDRESS) {
        report.warn(format!(
            "the embedded driver was not used: no argument of the registrar contains {CSI_ADDRESS}"
        ));
    }
    let text = match arguments.output {
        Output::Text => report.text(super::terminal::Style::stdout()),
        Output::Json => report.json(),
        Output::Junit => report.junit(),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(if report.passed() {
        Exit::Success
    } else {
        Exit::Failure
    })
}

/// Where registrar and kubelet meet.
struct Places {
    registry: PathBuf,
    csi_socket: PathBuf,
}

impl Places {
    /// The command with real paths for its placeholders.
    fn fill(&self, command: &[OsString], has_driver: bool) -> Result<Vec<OsString>, UsageError> {
        if !has_driver && mentions(command, CSI_ADDRESS) {
            return Err(UsageError::NoDriver);
        }
        let fill = |argument: &OsString| {
            let argument = replace(argument, REGISTRATION_DIR, &self.registry);
            replace(&argument, CSI_ADDRESS, &self.csi_socket)
        };
        Ok(command.iter().map(fill).collect())
    }

    fn driver(&self, name: &str, node: &str) -> Result<CsiDriver, Error> {
        let behaviour = demo::behaviour(name, node, MAX_VOLUMES);
        CsiDriver::start(&self.csi_socket, behaviour).map_err(|source| Error::Driver {
            path: self.csi_socket.clone(),
            source,
        })
    }
}

fn position(argument: &[u8], placeholder: &str) -> Option<usize> {
    argument
        .windows(placeholder.len())
        .position(|window| window == placeholder.as_bytes())
}

fn mentions(command: &[OsString], placeholder: &str) -> bool {
    let mut arguments = command.iter();
    arguments.any(|argument| position(argument.as_bytes(), placeholder).is_some())
}

/// `argument` with `path` wherever `placeholder` stands.
fn replace(argument: &OsStr, placeholder: &str, path: &Path) -> OsString {
    let mut rest = argument.as_bytes();
    let mut replaced = Vec::new();
    while let Some(at) = position(rest, placeholder) {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(path.as_os_str().as_bytes());
        rest = &rest[at + placeholder.len()..];
    }
    replaced.extend_from_slice(rest);
    OsString::from_vec(replaced)
}

/// A duration as people write it.
fn shown(duration: Duration) -> String {
    format!("{duration:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_wherever_they_stand() {
        let places = Places {
            registry: "/r".into(),
            csi_socket: "/c.sock".into(),
        };
        let command = [
            "x",
            "{csi-address}",
            "-a={registration-dir}/{registration-dir}",
            "{}",
        ];
        let command = command.map(OsString::from);
        let filled = places.fill(&command, true).unwrap();
        assert_eq!(filled, ["x", "/c.sock", "-a=/r//r", "{}"]);
        assert!(places.fill(&command, false).is_err());
        assert!(places.fill(&command[2..], false).is_ok());
    }
}
