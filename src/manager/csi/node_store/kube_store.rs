//! Node, CSINode and CSIDrivers in an API server, asked as a kubelet's client asks: one request at a time, no cache.

use std::error::Error;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node as ApiNode;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode as ApiCsiNode};
use kube::Resource;
use kube::api::{Api, DeleteParams, GetParams, Patch, PatchParams, PostParams};
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::{Request, request};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use kube::{Client, Config};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use tokio::sync::watch;
use tokio_stream::StreamExt;

use super::{CSI_NODES, NODES, NodeStore, StoreError, UpdatePeriods};
use crate::manager::BoxFuture;
use crate::manager::csi::objects::{CsiNode, Node, ObjectMeta};

/// For a connection to the API server, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// For a request with its answer, of which an API server itself takes no longer (`--request-timeout`). A kubelet waits for
/// ever.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);

/// For an answer, or the next octets of one: more than the 295 s that a watch may be silent. It bounds the watcher's lists,
/// whose requests are not ours.
const READ_TIMEOUT: Duration = Duration::from_mins(5);

/// How the objects' managed fields name the writer.
const FIELD_MANAGER: &str = "kubelet-plugin-manager";

/// There is no API server to ask.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The file, or what it names.
    #[error("{}", causes(.0))]
    Kubeconfig(#[from] KubeconfigError),
    /// No service account.
    #[error("{}; this works in a pod only, elsewhere use --kubeconfig", causes(.0))]
    InCluster(#[from] InClusterError),
    /// Certificates or keys.
    #[error("{}", causes(.0))]
    Client(#[from] kube::Error),
}

/// One cluster's API server.
#[derive(Clone)]
pub struct KubeStore {
    client: Client,
}

impl std::fmt::Debug for KubeStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeStore").finish_non_exhaustive()
    }
}

/// The object that a request is about, as errors name it.
#[derive(Clone, Copy)]
struct Subject<'a> {
    resource: &'static str,
    name: &'a str,
}

impl KubeStore {
    /// Asks whatever answers `client`.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The current context of the kubeconfig file at this path; without one, the cluster of this pod. Nothing is asked yet.
    pub async fn connect(kubeconfig: Option<&Path>) -> Result<Self, ConnectError> {
        let mut config = match kubeconfig {
            Some(path) => {
                let kubeconfig = Kubeconfig::read_from(path)?;
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?
            }
            None => Config::incluster()?,
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        // Else the time for which a connection waited for its request counts too.
        config.reset_reader_on_write = true;
        Ok(Self::new(Client::try_from(config)?))
    }

    /// Sends a request about one object.
    async fn ask<T: DeserializeOwned>(
        &self,
        subject: Subject<'_>,
        request: Result<http::Request<Vec<u8>>, request::Error>,
    ) -> Result<T, StoreError> {
        let request = request.map_err(|error| StoreError::Other(causes(&error)))?;
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, self.client.request(request)).await;
        match answer {
            Ok(answer) => answer.map_err(|error| refusal(subject, &error)),
            Err(_) => Err(StoreError::Other(format!(
                "no answer from the API server about {} {:?} within {} s",
                subject.resource,
                subject.name,
                REQUEST_TIMEOUT.as_secs()
            ))),
        }
    }
}

/// The resource's requests, whatever the object.
fn requests<K: Resource<DynamicType = ()>>() -> Request {
    Request::new(K::url_path(&(), None))
}

fn node(name: &str) -> Subject<'_> {
    let resource = NODES;
    Subject { resource, name }
}

fn csi_node(name: &str) -> Subject<'_> {
    let resource = CSI_NODES;
    Subject { resource, name }
}

fn body(object: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(object).expect("objects have string keys and no numbers that JSON lacks")
}

fn post() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PostParams::default()
    }
}

/// Who set which field fills pages, and a write that leaves it out changes nothing of it.
fn without_managed_fields(mut metadata: ObjectMeta) -> ObjectMeta {
    metadata.other.remove("managedFields");
    metadata
}

/// An API server's status as the error that `k8s.io/apimachinery/pkg/api/errors` takes it for.
fn refusal(subject: Subject<'_>, error: &kube::Error) -> StoreError {
    let resource = subject.resource;
    let name = subject.name.to_owned();
    match error {
        kube::Error::Api(status) if status.is_not_found() => {
            StoreError::NotFound { resource, name }
        }
        kube::Error::Api(status) if status.is_already_exists() => {
            StoreError::AlreadyExists { resource, name }
        }
        kube::Error::Api(status) if status.is_conflict() => StoreError::Conflict { resource, name },
        kube::Error::Api(status) if !status.message.is_empty() => {
            StoreError::Other(status.message.clone())
        }
        other => StoreError::Other(causes(other)),
    }
}

/// An error with what caused it, each said once.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

impl NodeStore for KubeStore {
    fn get_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Node, StoreError>> {
        Box::pin(async move {
            let request = requests::<ApiNode>().get(name, &GetParams::default());
            let mut read: Node = self.ask(node(name), request).await?;
            read.metadata = without_managed_fields(read.metadata);
            Ok(read)
        })
    }

    fn patch_node_status<'a>(
        &'a self,
        name: &'a str,
        patch: &'a Value,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let parameters = PatchParams {
                field_manager: Some(FIELD_MANAGER.into()),
                ..PatchParams::default()
            };
            let patch = Patch::Strategic(patch);
            let request =
                requests::<ApiNode>().patch_subresource("status", name, &parameters, &patch);
            let IgnoredAny = self.ask(node(name), request).await?;
            Ok(())
        })
    }

    fn get_csi_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<CsiNode, StoreError>> {
        Box::pin(async move {
            let request = requests::<ApiCsiNode>().get(name, &GetParams::default());
            let mut read: CsiNode = self.ask(csi_node(name), request).await?;
            read.metadata = without_managed_fields(read.metadata);
            Ok(read)
        })
    }

    fn create_csi_node<'a>(
        &'a self,
        object: &'a CsiNode,
    ) -> BoxFuture<'a, Result<CsiNode, StoreError>> {
        Box::pin(async move {
            let request = requests::<ApiCsiNode>().create(&post(), body(object));
            let mut created: CsiNode = self.ask(csi_node(&object.metadata.name), request).await?;
            created.metadata = without_managed_fields(created.metadata);
            Ok(created)
        })
    }

    fn update_csi_node<'a>(&'a self, object: &'a CsiNode) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let name = &object.metadata.name;
            let request = requests::<ApiCsiNode>().replace(name, &post(), body(object));
            let IgnoredAny = self.ask(csi_node(name), request).await?;
            Ok(())
        })
    }

    fn delete_csi_node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let request = requests::<ApiCsiNode>().delete(name, &DeleteParams::default());
            let IgnoredAny = self.ask(csi_node(name), request).await?;
            Ok(())
        })
    }

    fn update_periods(&self) -> watch::Receiver<UpdatePeriods> {
        let (sender, receiver) = watch::channel(UpdatePeriods::new());
        tokio::spawn(follow(Api::all(self.client.clone()), sender));
        receiver
    }
}

/// Keeps `periods` as the CSIDrivers say, until nobody reads it.
async fn follow(drivers: Api<CSIDriver>, periods: watch::Sender<UpdatePeriods>) {
    // Its backoff is that of client-go's reflector.
    let events = watch_objects(drivers, watcher::Config::default()).default_backoff();
    let mut events = pin!(events);
    let mut listed = UpdatePeriods::new();
    loop {
        let event = tokio::select! {
            () = periods.closed() => return,
            event = events.next() => event,
        };
        match event {
            None => return,
            Some(Err(err)) => {
                tracing::warn!(err = causes(&err), "Cannot watch CSIDrivers, trying again");
            }
            Some(Ok(Event::Init)) => listed.clear(),
            Some(Ok(Event::InitApply(driver))) => set(&mut listed, &driver),
            Some(Ok(Event::InitDone)) => {
                periods.send_replace(std::mem::take(&mut listed));
            }
            Some(Ok(Event::Apply(driver))) => periods.send_modify(|known| set(known, &driver)),
            Some(Ok(Event::Delete(driver))) => periods.send_modify(|known| {
                known.remove(driver.metadata.name.as_deref().unwrap_or_default());
            }),
        }
    }
}

/// Takes over what one CSIDriver says.
fn set(periods: &mut UpdatePeriods, driver: &CSIDriver) {
    let name = driver.metadata.name.clone().unwrap_or_default();
    let seconds = driver.spec.node_allocatable_update_period_seconds;
    match seconds.and_then(|seconds| u64::try_from(seconds).ok()) {
        Some(seconds) if seconds > 0 => {
            periods.insert(name, Duration::from_secs(seconds));
        }
        _ => {
            periods.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests;
