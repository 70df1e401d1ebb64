//! Every document is read with Kubernetes' own type, and no field may be left over.

use std::path::Path;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use k8s_openapi::api::storage::v1::CSIDriver;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{pod, read};

/// What is wrong with the documents in these files, a line each.
pub fn check(registrar: &Path, files: &[&str]) -> Result<Vec<String>, String> {
    let mut problems = Vec::new();
    let mut checked = 0;
    for file in files {
        let documents: Vec<Value> = serde_saphyr::from_multiple(&read(file)?)
            .map_err(|error| format!("{file}: {error}"))?;
        if documents.is_empty() {
            problems.push(format!("{file}: there is nothing in it"));
        }
        for document in documents {
            let text = |field: &str| document[field].as_str().unwrap_or_default().to_owned();
            let (api_version, kind) = (text("apiVersion"), text("kind"));
            let name = document["metadata"]["name"]
                .as_str()
                .unwrap_or("?")
                .to_owned();
            checked += 1;
            problems.extend(
                document_problems(registrar, &api_version, &kind, document)
                    .into_iter()
                    .map(|problem| format!("{file}: {kind} {name}: {problem}")),
            );
        }
    }
    println!("{checked} documents in {} files", files.len());
    Ok(problems)
}

fn document_problems(
    registrar: &Path,
    api_version: &str,
    kind: &str,
    document: Value,
) -> Vec<String> {
    let mut problems = Vec::new();
    match (api_version, kind) {
        ("apps/v1", "DaemonSet") => {
            if let Some(daemon_set) = typed::<DaemonSet>(document, &mut problems) {
                problems.extend(pod::daemon_set_problems(registrar, &daemon_set));
            }
        }
        ("v1", "Pod") => {
            if let Some(pod) = typed::<Pod>(document, &mut problems) {
                problems.extend(pod::pod_problems(registrar, &pod.spec.unwrap_or_default()));
            }
        }
        ("v1", "ConfigMap") => drop(typed::<ConfigMap>(document, &mut problems)),
        ("v1", "Namespace") => drop(typed::<Namespace>(document, &mut problems)),
        ("v1", "ServiceAccount") => drop(typed::<ServiceAccount>(document, &mut problems)),
        ("storage.k8s.io/v1", "CSIDriver") => drop(typed::<CSIDriver>(document, &mut problems)),
        // The operator's own types judge these: strict/main.go.
        ("monitoring.coreos.com/v1", "PodMonitor" | "PrometheusRule") => {}
        _ => problems.push(format!(
            "no type to read {api_version} {kind} with: add it to manifests.rs"
        )),
    }
    problems
}

/// Reads a document with its type; what the type does not know is a problem.
fn typed<T: DeserializeOwned>(document: Value, problems: &mut Vec<String>) -> Option<T> {
    let read = serde_ignored::deserialize(document, |path| {
        // It writes optional fields as `field.?`.
        problems.push(format!(
            "unknown field {}",
            path.to_string().replace(".?", "")
        ));
    });
    match read {
        Ok(value) => Some(value),
        Err(error) => {
            problems.push(error.to_string());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(yaml: &str) -> Vec<String> {
        let document = serde_saphyr::from_str(yaml).unwrap();
        let mut problems = Vec::new();
        drop(typed::<DaemonSet>(document, &mut problems));
        problems
    }

    const DAEMON_SET: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: a}
spec:
  selector: {}
  template:
    spec:
      containers:
      - name: c
        image: i
";

    #[test]
    fn a_right_one_passes() {
        assert_eq!(problems(DAEMON_SET), Vec::<String>::new());
    }

    #[test]
    fn an_unknown_field_is_refused_with_its_path() {
        let wrong = DAEMON_SET.replace("image: i", "imge: i");
        assert_eq!(
            problems(&wrong),
            ["unknown field spec.template.spec.containers.0.imge"]
        );
    }

    #[test]
    fn a_known_field_in_the_wrong_place_is_refused() {
        let wrong = DAEMON_SET.replace("image: i", "image: i\n        hostNetwork: true");
        assert_eq!(
            problems(&wrong),
            ["unknown field spec.template.spec.containers.0.hostNetwork"]
        );
    }

    #[test]
    fn a_wrong_type_is_refused() {
        let wrong = DAEMON_SET.replace("image: i", "args: [{}]");
        assert_eq!(problems(&wrong).len(), 1);
    }
}
