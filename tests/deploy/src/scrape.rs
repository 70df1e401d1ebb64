//! What a registrar's `/metrics` really has, after a life that touches every metric.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use csi_node_driver_registrar::proto::registration::registration_client::RegistrationClient;
use csi_node_driver_registrar::proto::registration::{InfoRequest, RegistrationStatus};
use csi_node_driver_registrar::testing::csi_driver::{Behaviour, CsiDriver};
use csi_node_driver_registrar::uds::authority::Authority;
use csi_node_driver_registrar::uds::channel::Channel;
use http::HeaderValue;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{ChildStderr, Command};

/// How long the whole may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Each sample's name with the values that each of its labels has.
pub type Metrics = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Runs a registrar through a registration, a refusal and a probe, and reads its metrics.
pub fn metrics(registrar: &Path) -> Result<Metrics, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let exposition = runtime.block_on(async {
        tokio::time::timeout(LIMIT, exposition(registrar))
            .await
            .unwrap_or_else(|_| Err(format!("no metrics within {LIMIT:?}")))
    })?;
    parse(&exposition)
}

async fn exposition(registrar: &Path) -> Result<String, String> {
    let node = tempfile::tempdir().map_err(|error| error.to_string())?;
    let path = |name: &str| node.path().join(name);
    std::fs::create_dir(path("registry")).map_err(|error| error.to_string())?;
    let _driver = CsiDriver::start(&path("csi.sock"), Behaviour::named("driver.example.com"))
        .map_err(|error| error.to_string())?;
    let mut child = Command::new(registrar)
        .arg(format!("--csi-address={}", path("csi.sock").display()))
        .arg(format!(
            "--kubelet-registration-path={}",
            path("csi.sock").display()
        ))
        .arg(format!(
            "--plugin-registration-path={}",
            path("registry").display()
        ))
        .args([
            "--http-endpoint=127.0.0.1:0",
            "--liveness-endpoint=localhost:0",
        ])
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", registrar.display()))?;
    let (diagnostics, liveness) = addresses(child.stderr.take()).await?;
    notify(&path("registry/driver.example.com-reg.sock")).await?;
    get(&liveness, "/healthz").await?;
    get(&diagnostics, "/metrics").await
}

/// The addresses of the two servers, and the word that the socket is published, from the log. It is read no further: a
/// registrar goes on without a reader.
async fn addresses(stderr: Option<ChildStderr>) -> Result<(String, String), String> {
    let stderr = stderr.ok_or("the registrar has no standard error")?;
    let mut lines = BufReader::new(stderr).lines();
    let (mut diagnostics, mut liveness) = (String::new(), String::new());
    let mut last = String::new();
    while let Some(line) = lines.next_line().await.map_err(|error| error.to_string())? {
        let field = |name: &str| {
            let (_, rest) = line.split_once(&format!(" {name}=\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        match (field("serves").as_deref(), field("endpoint")) {
            (Some("diagnostics"), Some(address)) => diagnostics = address,
            (Some("liveness"), Some(address)) => liveness = address,
            _ if line.contains("Registration socket published") => {
                return Ok((diagnostics, liveness));
            }
            _ => {}
        }
        last = line;
    }
    Err(format!(
        "the registrar ended before it published its socket: {last}"
    ))
}

/// A kubelet that confirms and then refuses, so that both outcomes are counted.
async fn notify(socket: &Path) -> Result<(), String> {
    let agent = HeaderValue::from_static("grpc-go/1.82.1");
    let channel = Channel::connect(socket, Authority::PercentEncoded, agent);
    let channel = channel.await.map_err(|error| error.to_string())?;
    let mut client = RegistrationClient::with_origin(channel.clone(), channel.origin());
    client
        .get_info(InfoRequest {})
        .await
        .map_err(|status| status.to_string())?;
    for plugin_registered in [true, false] {
        let status = RegistrationStatus {
            plugin_registered,
            error: String::new(),
        };
        client
            .notify_registration_status(status)
            .await
            .map_err(|status| status.to_string())?;
    }
    Ok(())
}

async fn get(address: &str, path: &str) -> Result<String, String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = exchange
        .await
        .map_err(|error| format!("{address}{path}: {error}"))?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
        _ => Err(format!("{address}{path} answers {answer}")),
    }
}

/// Samples of the Prometheus text format. Our label values have no escapes, commas or spaces in them.
fn parse(exposition: &str) -> Result<Metrics, String> {
    let mut metrics = Metrics::new();
    for line in exposition.lines().filter(|line| !line.starts_with('#')) {
        let (sample, _) = line
            .rsplit_once(' ')
            .ok_or_else(|| format!("no sample: {line}"))?;
        let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
        let metric = metrics.entry(name.to_owned()).or_default();
        for label in labels
            .trim_end_matches('}')
            .split(',')
            .filter(|label| !label.is_empty())
        {
            let (label, value) = label
                .split_once('=')
                .ok_or_else(|| format!("no label: {line}"))?;
            metric
                .entry(label.to_owned())
                .or_default()
                .insert(value.trim_matches('"').to_owned());
        }
    }
    Ok(metrics)
}
