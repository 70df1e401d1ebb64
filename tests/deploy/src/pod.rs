//! What an API server would refuse beyond the types, and flags that the registrar does not have.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Container, PodSpec, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// What our image and the original's are called, whatever their registry.
const REGISTRAR_IMAGE: &str = "csi-node-driver-registrar";

/// The entrypoint of both.
const REGISTRAR_COMMAND: &str = "/csi-node-driver-registrar";

/// Problems of a DaemonSet and of the pods that it makes.
pub fn daemon_set_problems(registrar: &Path, daemon_set: &DaemonSet) -> Vec<String> {
    let Some(spec) = &daemon_set.spec else {
        return vec!["it has no spec".to_owned()];
    };
    let mut problems = Vec::new();
    let selected = spec.selector.match_labels.clone().unwrap_or_default();
    let metadata = spec.template.metadata.clone().unwrap_or_default();
    let labels = metadata.labels.unwrap_or_default();
    if selected.is_empty()
        || selected
            .iter()
            .any(|(key, value)| labels.get(key) != Some(value))
    {
        problems.push(format!(
            "the selector {selected:?} does not select the labels {labels:?}"
        ));
    }
    match &spec.template.spec {
        Some(pod) => problems.extend(pod_problems(registrar, pod)),
        None => problems.push("its template has no spec".to_owned()),
    }
    problems
}

/// Problems of a pod.
pub fn pod_problems(registrar: &Path, pod: &PodSpec) -> Vec<String> {
    let volumes: BTreeSet<_> = pod
        .volumes
        .iter()
        .flatten()
        .map(|volume| volume.name.as_str())
        .collect();
    let mut unused = volumes.clone();
    let mut problems = Vec::new();
    for container in &pod.containers {
        let mut problem =
            |text: String| problems.push(format!("container {}: {text}", container.name));
        if container.image.as_deref().unwrap_or_default().is_empty() {
            problem("it has no image".to_owned());
        }
        for mount in container.volume_mounts.iter().flatten() {
            unused.remove(mount.name.as_str());
            if !volumes.contains(mount.name.as_str()) {
                problem(format!(
                    "it mounts {}, which is no volume of the pod",
                    mount.name
                ));
            }
        }
        for port in unknown_ports(container) {
            problem(format!(
                "a probe goes to port {port}, which it does not name"
            ));
        }
        if let Some(refusal) = refused_flags(registrar, container) {
            problem(refusal);
        }
    }
    problems.extend(
        unused
            .into_iter()
            .map(|volume| format!("no container mounts volume {volume}")),
    );
    problems
}

/// Ports that probes name and the container does not.
fn unknown_ports(container: &Container) -> Vec<String> {
    let named: BTreeSet<_> = container
        .ports
        .iter()
        .flatten()
        .filter_map(|port| port.name.as_deref())
        .collect();
    [
        &container.liveness_probe,
        &container.readiness_probe,
        &container.startup_probe,
    ]
    .into_iter()
    .flatten()
    .filter_map(|probe| match probe {
        Probe {
            http_get: Some(get),
            ..
        } => match &get.port {
            IntOrString::String(port) if !named.contains(port.as_str()) => Some(port.clone()),
            _ => None,
        },
        _ => None,
    })
    .collect()
}

/// What the registrar says of its arguments, and of those in its hook.
fn refused_flags(registrar: &Path, container: &Container) -> Option<String> {
    let image = container.image.as_deref().unwrap_or_default();
    let name = image.split(['@', ':']).next().unwrap_or_default();
    if name.rsplit('/').next() != Some(REGISTRAR_IMAGE) {
        return None;
    }
    let hook = container
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let hook = hook
        .and_then(|hook| hook.exec.as_ref())
        .and_then(|exec| exec.command.as_deref());
    if let Some(command) = hook {
        match command {
            [program, arguments @ ..] if program == REGISTRAR_COMMAND => {
                if let Some(refusal) = refusal(registrar, arguments, "--help") {
                    return Some(format!("its preStop hook: {refusal}"));
                }
            }
            _ => {
                return Some(format!(
                    "its preStop hook {command:?} is no command of the image"
                ));
            }
        }
    }
    refusal(
        registrar,
        container.args.as_deref().unwrap_or_default(),
        "--version",
    )
}

/// Has the registrar read the arguments; `last` keeps it from doing anything.
fn refusal(registrar: &Path, arguments: &[String], last: &str) -> Option<String> {
    let output = match Command::new(registrar).args(arguments).arg(last).output() {
        Ok(output) => output,
        Err(error) => return Some(format!("cannot start {}: {error}", registrar.display())),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    (!output.status.success())
        .then(|| format!("{arguments:?}: {}", said.lines().next().unwrap_or_default()))
}
