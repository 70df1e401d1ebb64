//! `run`: a kubelet's plugin manager on a directory, until it is stopped.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::node::{AuthorityName, Cluster, Kubelet, NodeArguments, Settings};
use super::{Error, Exit};
use crate::http::{Endpoint, Listeners};
use crate::klog;
use crate::manager::PluginManager;
use crate::manager::csi::node_store::NodeStore;
use crate::signals::Signals;

#[cfg(feature = "kube")]
mod api_server;
mod diagnostics;
mod overview;
mod printer;
mod registry;

#[cfg(feature = "kube")]
use api_server::ApiServerArguments;
use diagnostics::Diagnostics;
use printer::Printer;
pub(super) use registry::RegistryError;

/// How long a reader may take for the last events.
const DRAIN: Duration = Duration::from_secs(1);

const AFTER_HELP: &str = "\
A real kubelet's registry (.../kubelet/plugins_registry, whatever links lead there) is refused: every refusal sent there
would make a registrar of the node exit. --observe looks at it without a word to anybody; --take-over is for a node whose
kubelet does not run.

--http-endpoint serves /metrics in Prometheus' text format, and /state, both caches with handlers and backoff as JSON.

Example:
  kubelet-plugin-manager run --registration-dir /tmp/registry --http-endpoint localhost:9900 --objects-file /tmp/node.yaml";

/// The arguments of `run`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP, after_help = "--help says more.")]
pub(super) struct Arguments {
    /// Directory in which registration sockets appear; made if it is missing
    #[arg(long, value_name = "DIRECTORY")]
    registration_dir: PathBuf,

    /// Only look: ask plugins what they are, but send no notification and call no driver
    #[arg(long, conflicts_with = "take_over")]
    observe: bool,

    /// Act as the kubelet even in a real kubelet's registry
    #[arg(long)]
    take_over: bool,

    /// How events are printed
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output: Output,

    /// Address that serves /metrics and /state, such as localhost:9900
    #[arg(long, value_name = "ADDRESS")]
    http_endpoint: Option<Endpoint>,

    /// File that holds Node and CSINode as YAML, written after every change
    #[arg(long, value_name = "FILE")]
    objects_file: Option<PathBuf>,

    /// What registration calls carry as :authority, instead of the version's own
    #[arg(long, value_name = "FORM")]
    authority: Option<AuthorityName>,

    #[cfg(feature = "kube")]
    #[command(flatten)]
    api_server: ApiServerArguments,

    #[command(flatten)]
    node: NodeArguments,
}

/// How events are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A line each, for people
    Text,
    /// An object a line
    Json,
}

/// Runs until a signal, or until nobody reads the events any more.
pub(super) async fn run(arguments: Arguments, signals: Signals) -> Result<Exit, Error> {
    if !arguments.observe && !arguments.take_over {
        registry::refuse_real(&arguments.registration_dir)?;
    }
    // Before anything is touched.
    let listeners = arguments.http_endpoint.as_ref().map(Endpoint::bind);
    let listeners = listeners.transpose()?;
    arguments.node.start_logging(Some(klog::Level::new(0)));
    #[cfg(feature = "kube")]
    if let Some(api_server) = arguments.api_server.connect().await? {
        let cluster = Cluster::of(&arguments.node, api_server);
        return run_in(cluster, &arguments, listeners, signals).await;
    }
    run_in(
        Cluster::new(&arguments.node),
        &arguments,
        listeners,
        signals,
    )
    .await
}

async fn run_in<S: NodeStore + 'static>(
    mut cluster: Cluster<S>,
    arguments: &Arguments,
    listeners: Option<Listeners>,
    mut signals: Signals,
) -> Result<Exit, Error> {
    let printer = Printer::new(arguments.output, cluster.subscribe());
    let settings = Settings {
        registration_dir: &arguments.registration_dir,
        authority: arguments.authority,
        observe: arguments.observe,
    };
    // Takes as long as the API server is away.
    let start = async {
        if let Some(path) = &arguments.objects_file {
            cluster.write_to(path).await?;
        }
        Ok::<_, Error>(cluster.kubelet(settings).await?)
    };
    let kubelet = tokio::select! {
        kubelet = start => kubelet?,
        signal = signals.next() => return Err(Error::Interrupted(signal)),
    };
    let stop = kubelet.stop.clone();
    let _server = serve(listeners, kubelet.manager.clone());
    tokio::select! {
        result = until_end(kubelet, printer) => result,
        () = second_signal(&mut signals, &stop) => Ok(Exit::Failure),
    }
}

/// Prints until the kubelet has ended. A reader that is gone ends it.
async fn until_end(kubelet: Kubelet, printer: Printer) -> Result<Exit, Error> {
    let stop = kubelet.stop.clone();
    let ended = CancellationToken::new();
    let printing = async {
        let too_late = async {
            ended.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        };
        let result = tokio::select! {
            result = printer.print(&ended) => result,
            () = too_late => Ok(()),
        };
        stop.cancel();
        result
    };
    let running = async {
        let result = kubelet.ended().await;
        ended.cancel();
        result
    };
    let (output, end) = tokio::join!(printing, running);
    end?;
    match output {
        // `run | head` has what it wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Success),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(Exit::Success),
    }
}

/// The first signal stops the kubelet; returns with the second, which does not wait.
async fn second_signal(signals: &mut Signals, stop: &CancellationToken) {
    let signal = signals.next().await;
    tracing::info!(signal, "Stopping");
    stop.cancel();
    let signal = signals.next().await;
    tracing::error!(signal, "A second signal, exiting at once");
}

/// Serves until the value that it returns is dropped.
fn serve(listeners: Option<Listeners>, manager: Arc<PluginManager>) -> oneshot::Sender<()> {
    let (stop, stopped) = oneshot::channel();
    if let Some(listeners) = listeners {
        for address in listeners.addresses() {
            tracing::info!(endpoint = %address, "HTTP server listening");
        }
        tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            if let Err(err) = listeners
                .serve(Arc::new(Diagnostics(manager)), stopped)
                .await
            {
                tracing::error!(%err, "Cannot serve HTTP");
            }
        });
    }
    stop
}
