//! The node info manager against an API server that follows a script: each exchange is expected, in its order.

use std::sync::Arc;

use http::{Request, Response};
use kube::client::Body;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower_test::mock;

use super::*;
use crate::manager::csi::node_client::NodeInfo;
use crate::manager::csi::node_info_manager::NodeInfoManager;
use crate::manager::event::EventSink;
use crate::manager::profile::Profile;

const DRIVER: &str = "driver.example.com";
const NODE: &str = "node1";
const NODE_UID: &str = "11111111-1111-4111-8111-111111111111";

const GET_NODE: &str = "GET /api/v1/nodes/node1";
const PATCH_NODE: &str = "PATCH /api/v1/nodes/node1/status?&fieldManager=kubelet-plugin-manager";
const GET_CSI_NODE: &str = "GET /apis/storage.k8s.io/v1/csinodes/node1";
const PUT_CSI_NODE: &str =
    "PUT /apis/storage.k8s.io/v1/csinodes/node1?&fieldManager=kubelet-plugin-manager";
const POST_CSI_NODE: &str =
    "POST /apis/storage.k8s.io/v1/csinodes?&fieldManager=kubelet-plugin-manager";
const DELETE_CSI_NODE: &str = "DELETE /apis/storage.k8s.io/v1/csinodes/node1";

/// Longest wait for a scenario, on the virtual clock.
const PATIENCE: Duration = Duration::from_hours(1);

/// What the API server does with a request.
#[derive(Clone)]
enum Answer {
    /// 200 and this.
    Object(Value),
    /// An API server's own refusal: code, reason, message.
    Status(u16, &'static str, &'static str),
    /// Something that is no status, as from a proxy on the way.
    Text(u16, &'static str),
    /// Lines of a watch, after which it ends.
    Lines(Vec<Value>),
    /// Nothing.
    Never,
}

type Exchange = (&'static str, Answer);

/// The script's requests as they came: their bodies, `null` where there was none.
type Script = JoinHandle<Vec<Value>>;

/// An API server that expects these requests, one after another.
fn api_server(script: Vec<Exchange>) -> (KubeStore, Script) {
    let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
    let script = tokio::spawn(async move {
        let mut bodies = Vec::new();
        let mut unanswered = Vec::new();
        for (expected, answer) in script {
            let (request, respond) = handle.next_request().await.expect("a further request");
            let (head, body) = request.into_parts();
            assert_eq!(
                format!("{} {}", head.method, head.uri).trim_end_matches('?'),
                expected
            );
            if expected == PATCH_NODE {
                assert_eq!(
                    head.headers["content-type"],
                    "application/strategic-merge-patch+json"
                );
            }
            let body = body.collect_bytes().await.unwrap();
            bodies.push(serde_json::from_slice(&body).unwrap_or_default());
            match answer.response() {
                Some(response) => respond.send_response(response),
                // Dropped, it would be an answer.
                None => unanswered.push(respond),
            }
        }
        // The rest of the world hangs.
        if let Some((request, _)) = handle.next_request().await {
            panic!(
                "one request too many: {} {}",
                request.method(),
                request.uri()
            );
        }
        bodies
    });
    (KubeStore::new(Client::new(service, "default")), script)
}

impl Answer {
    fn response(self) -> Option<Response<Body>> {
        let response = |code: u16, body: String| {
            let body = Body::from(body.into_bytes());
            Response::builder()
                .status(code)
                .body(body)
                .expect("a valid response")
        };
        Some(match self {
            Self::Object(object) => response(200, object.to_string()),
            Self::Status(code, reason, message) => {
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": message, "reason": reason, "code": code,
                });
                response(code, status.to_string())
            }
            Self::Text(code, text) => response(code, text.to_owned()),
            Self::Lines(lines) => {
                let lines = lines.iter().map(|line| format!("{line}\n"));
                response(200, lines.collect())
            }
            Self::Never => return None,
        })
    }
}

fn node_object() -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {
            "name": NODE, "uid": NODE_UID, "resourceVersion": "1",
            "labels": {"kubernetes.io/hostname": NODE},
            "managedFields": [{"manager": "kubelet"}],
        },
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {"capacity": {"cpu": "2"}, "conditions": []},
    })
}

/// The node's CSINode in this version, with another driver in it.
fn csi_node_object(version: &str) -> Value {
    json!({
        "kind": "CSINode", "apiVersion": "storage.k8s.io/v1",
        "metadata": {
            "name": NODE, "uid": "u", "resourceVersion": version,
            "annotations": {"storage.alpha.kubernetes.io/migrated-plugins": Profile::NEWEST.migrated_plugins().join(",")},
            "finalizers": ["example.com/kept"],
            "managedFields": [{"manager": "kubelet"}],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE_UID}],
        },
        "spec": {"drivers": [{"name": "other", "nodeID": "o", "topologyKeys": null}]},
    })
}

fn get_node() -> Exchange {
    (GET_NODE, Answer::Object(node_object()))
}

fn get_csi_node(version: &str) -> Exchange {
    (GET_CSI_NODE, Answer::Object(csi_node_object(version)))
}

/// What the initialisation asks of a node whose CSINode is there.
fn initialisation() -> Vec<Exchange> {
    vec![get_csi_node("1"), get_node(), get_csi_node("1")]
}

/// What the Node's part of an install asks.
fn node_part() -> Vec<Exchange> {
    vec![get_node(), (PATCH_NODE, Answer::Object(node_object()))]
}

fn info() -> NodeInfo {
    let topology = [("topology.kubernetes.io/zone".to_owned(), "a".to_owned())];
    NodeInfo {
        node_id: "id1".into(),
        max_volumes_per_node: 5,
        topology: Some(topology.into()),
    }
}

fn manager(store: KubeStore) -> NodeInfoManager {
    NodeInfoManager::new(
        NODE,
        Profile::NEWEST,
        Some(Arc::new(store)),
        EventSink::default(),
    )
}

/// Initialises, then installs the driver: the error, and all bodies.
async fn install(script: impl IntoIterator<Item = Exchange>) -> (Result<(), String>, Vec<Value>) {
    let exchanges = initialisation().into_iter().chain(script).collect();
    let (store, script) = api_server(exchanges);
    let run = async {
        let manager = manager(store);
        manager.initialise().await.unwrap();
        let result = manager.install(DRIVER, &info()).await;
        drop(manager);
        (
            result.map_err(|error| error.to_string()),
            script.await.expect("the script is followed"),
        )
    };
    tokio::time::timeout(PATIENCE, run)
        .await
        .expect("nobody hangs")
}

#[tokio::test(start_paused = true)]
async fn an_installed_driver_is_a_status_patch_and_a_whole_csi_node() {
    let script = node_part().into_iter().chain([
        get_csi_node("1"),
        (PUT_CSI_NODE, Answer::Object(csi_node_object("2"))),
    ]);
    let (result, bodies) = install(script).await;
    result.unwrap();
    let patch = json!({"metadata": {
        "annotations": {"csi.volume.kubernetes.io/nodeid": r#"{"driver.example.com":"id1"}"#},
        "labels": {"topology.kubernetes.io/zone": "a"},
    }});
    assert_eq!(bodies[4], patch, "the patch holds nothing else");
    let mut written = csi_node_object("1");
    written["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("managedFields");
    written["spec"]["drivers"] = json!([
        {"name": "other", "nodeID": "o", "topologyKeys": []},
        {"name": DRIVER, "nodeID": "id1", "topologyKeys": ["topology.kubernetes.io/zone"], "allocatable": {"count": 5}},
    ]);
    assert_eq!(
        bodies[6], written,
        "version and finalizers are those that were read"
    );
}

#[tokio::test(start_paused = true)]
async fn after_a_409_the_object_is_read_again() {
    let conflict = Answer::Status(409, "Conflict", "Operation cannot be fulfilled on csinodes");
    let script = node_part().into_iter().chain([
        get_csi_node("1"),
        (PUT_CSI_NODE, conflict),
        get_csi_node("7"),
        (PUT_CSI_NODE, Answer::Object(csi_node_object("8"))),
    ]);
    let (result, bodies) = install(script).await;
    result.unwrap();
    assert_eq!(bodies[8]["metadata"]["resourceVersion"], "7");
}

#[tokio::test(start_paused = true)]
async fn a_409_on_creation_is_another_creator_and_its_object_is_taken() {
    let exists = Answer::Status(
        409,
        "AlreadyExists",
        "csinodes.storage.k8s.io \"node1\" already exists",
    );
    let missing = Answer::Status(
        404,
        "NotFound",
        "csinodes.storage.k8s.io \"node1\" not found",
    );
    let script = node_part().into_iter().chain([
        (GET_CSI_NODE, missing),
        (POST_CSI_NODE, exists),
        get_csi_node("3"),
        (PUT_CSI_NODE, Answer::Object(csi_node_object("4"))),
    ]);
    let (result, bodies) = install(script).await;
    result.unwrap();
    assert_eq!(bodies[8]["metadata"]["resourceVersion"], "3");
}

#[tokio::test(start_paused = true)]
async fn a_403_is_the_error_after_four_attempts() {
    let message = "nodes \"node1\" is forbidden: User \"x\" cannot patch resource \"nodes/status\"";
    let forbidden = (PATCH_NODE, Answer::Status(403, "Forbidden", message));
    let attempt = [get_node(), forbidden];
    let (result, _) = install(std::iter::repeat_n(attempt, 4).flatten()).await;
    let error = result.unwrap_err();
    assert_eq!(
        error,
        "error updating Node object with CSI driver node info: error updating node: \
         timed out waiting for the condition; caused by: failed to patch status \
         \"{\\\"metadata\\\":{\\\"annotations\\\":{\\\"csi.volume.kubernetes.io/nodeid\\\":\\\"{\\\\\\\"driver.example.com\\\\\\\":\\\\\\\"id1\\\\\\\"}\\\"},\
         \\\"labels\\\":{\\\"topology.kubernetes.io/zone\\\":\\\"a\\\"}}}\" for node \"node1\": \
         nodes \"node1\" is forbidden: User \"x\" cannot patch resource \"nodes/status\""
    );
}

#[tokio::test(start_paused = true)]
async fn after_a_404_the_csi_node_is_created_and_then_filled() {
    let missing = Answer::Status(
        404,
        "NotFound",
        "csinodes.storage.k8s.io \"node1\" not found",
    );
    let mut created = csi_node_object("5");
    created["spec"]["drivers"] = Value::Null;
    let script = node_part().into_iter().chain([
        (GET_CSI_NODE, missing),
        (POST_CSI_NODE, Answer::Object(created)),
        (PUT_CSI_NODE, Answer::Object(csi_node_object("6"))),
    ]);
    let (result, bodies) = install(script).await;
    result.unwrap();
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE_UID}]);
    assert_eq!(bodies[6]["metadata"]["ownerReferences"], owner);
    assert_eq!(bodies[6]["spec"], json!({"drivers": []}));
    assert_eq!(bodies[7]["metadata"]["resourceVersion"], "5");
    assert_eq!(bodies[7]["spec"]["drivers"][0]["name"], DRIVER);
}

#[tokio::test(start_paused = true)]
async fn a_404_of_the_node_itself_is_an_error() {
    let missing = Answer::Status(404, "NotFound", "nodes \"node1\" not found");
    let (result, _) = install(std::iter::repeat_n((GET_NODE, missing), 4)).await;
    assert!(
        result
            .unwrap_err()
            .ends_with("caused by: nodes \"node1\" not found")
    );
}

#[tokio::test(start_paused = true)]
async fn a_500_is_survived_whoever_sends_it() {
    let script = [
        (
            GET_NODE,
            Answer::Status(500, "InternalError", "etcdserver: leader changed"),
        ),
        (GET_NODE, Answer::Text(502, "Bad Gateway")),
        (GET_NODE, Answer::Text(200, "<html>")),
    ];
    let script = script.into_iter().chain(node_part()).chain([
        get_csi_node("1"),
        (PUT_CSI_NODE, Answer::Object(csi_node_object("2"))),
    ]);
    let (result, _) = install(script).await;
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn different_errors_are_all_named() {
    let script = [
        (
            GET_NODE,
            Answer::Status(500, "InternalError", "etcdserver: leader changed"),
        ),
        (
            GET_NODE,
            Answer::Status(429, "TooManyRequests", "slow down"),
        ),
        (GET_NODE, Answer::Never),
        (
            GET_NODE,
            Answer::Status(401, "Unauthorized", "Unauthorized"),
        ),
    ];
    let (result, _) = install(script).await;
    let error = result.unwrap_err();
    let causes = "caused by: [etcdserver: leader changed, slow down, \
                  no answer from the API server about nodes \"node1\" within 60 s, Unauthorized]";
    assert!(error.ends_with(causes), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_request_without_answer_ends_after_its_minute() {
    let start = Instant::now();
    let (result, _) = install(std::iter::repeat_n((GET_NODE, Answer::Never), 4)).await;
    assert!(result.unwrap_err().ends_with("within 60 s"));
    assert_eq!(start.elapsed().as_secs(), 4 * 60);
}

#[tokio::test(start_paused = true)]
async fn the_initialisation_waits_for_an_api_server_that_is_not_up_yet() {
    let mut script = vec![
        (GET_CSI_NODE, Answer::Text(503, "")),
        (
            GET_CSI_NODE,
            Answer::Status(403, "Forbidden", "RBAC: not yet"),
        ),
        (GET_CSI_NODE, Answer::Never),
    ];
    script.extend(initialisation());
    let (store, script) = api_server(script);
    let start = Instant::now();
    manager(store).initialise().await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 1 + 1 + 60 + 1);
    script.await.expect("the script is followed");
}

#[tokio::test(start_paused = true)]
async fn a_csi_node_of_an_older_incarnation_is_deleted_and_made_anew() {
    let mut foreign = csi_node_object("1");
    foreign["metadata"]["ownerReferences"][0]["uid"] = json!("older");
    let missing = Answer::Status(
        404,
        "NotFound",
        "csinodes.storage.k8s.io \"node1\" not found",
    );
    let script = vec![
        (GET_CSI_NODE, Answer::Object(foreign.clone())),
        get_node(),
        (GET_CSI_NODE, Answer::Object(foreign.clone())),
        // An API server answers with the object or with a status.
        (
            DELETE_CSI_NODE,
            Answer::Object(json!({"kind": "Status", "status": "Success"})),
        ),
        get_node(),
        (GET_CSI_NODE, missing),
        (POST_CSI_NODE, Answer::Object(csi_node_object("2"))),
    ];
    let (store, script) = api_server(script);
    manager(store).initialise().await.unwrap();
    let bodies = script.await.expect("the script is followed");
    assert_eq!(bodies[6]["metadata"]["ownerReferences"][0]["uid"], NODE_UID);
}

const LIST: &str = "GET /apis/storage.k8s.io/v1/csidrivers?&limit=500";

fn csi_driver(name: &str, period: Option<i64>, version: &str) -> Value {
    json!({
        "kind": "CSIDriver", "apiVersion": "storage.k8s.io/v1",
        "metadata": {"name": name, "resourceVersion": version},
        "spec": {"nodeAllocatableUpdatePeriodSeconds": period},
    })
}

fn list(items: &[Value], version: &str) -> Exchange {
    let list = json!({
        "kind": "CSIDriverList", "apiVersion": "storage.k8s.io/v1",
        "metadata": {"resourceVersion": version}, "items": items,
    });
    (LIST, Answer::Object(list))
}

fn event(kind: &str, object: &Value) -> Value {
    json!({"type": kind, "object": object})
}

/// Waits until the periods are these.
async fn until(periods: &mut watch::Receiver<UpdatePeriods>, expected: &[(&str, u64)]) {
    let expected = expected
        .iter()
        .map(|&(name, seconds)| (name.to_owned(), Duration::from_secs(seconds)))
        .collect::<UpdatePeriods>();
    let wait = periods.wait_for(|periods| *periods == expected);
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("they come")
        .expect("the watch lives");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_begins_anew_and_what_was_known_stays() {
    const WATCH_1: &str = "GET /apis/storage.k8s.io/v1/csidrivers?&watch=true&timeoutSeconds=290&allowWatchBookmarks=true&resourceVersion=1";
    const WATCH_2: &str = "GET /apis/storage.k8s.io/v1/csidrivers?&watch=true&timeoutSeconds=290&allowWatchBookmarks=true&resourceVersion=2";
    const WATCH_9: &str = "GET /apis/storage.k8s.io/v1/csidrivers?&watch=true&timeoutSeconds=290&allowWatchBookmarks=true&resourceVersion=9";
    let gone = json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"});
    let (store, script) = api_server(vec![
        (LIST, Answer::Status(403, "Forbidden", "not yet")),
        list(
            &[csi_driver("a", Some(10), "1"), csi_driver("b", None, "1")],
            "1",
        ),
        (
            WATCH_1,
            Answer::Lines(vec![event("MODIFIED", &csi_driver("b", Some(30), "2"))]),
        ),
        // It ended as watches do: from the last version on.
        (WATCH_2, Answer::Lines(vec![event("ERROR", &gone)])),
        (LIST, Answer::Text(500, "down")),
        list(
            &[
                csi_driver("b", Some(30), "9"),
                csi_driver("c", Some(0), "9"),
            ],
            "9",
        ),
        (WATCH_9, Answer::Never),
    ]);
    let mut periods = store.update_periods();
    assert!(periods.borrow().is_empty());
    until(&mut periods, &[("a", 10), ("b", 30)]).await;
    until(&mut periods, &[("b", 30)]).await;
    drop(periods);
    drop(store);
    tokio::time::timeout(PATIENCE, script)
        .await
        .expect("the watch ends with its reader")
        .expect("the script is followed");
}
