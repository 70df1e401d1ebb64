//! Rows N: what installing and uninstalling a driver does to Node and CSINode.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::csi_node_change::{MIGRATED_PLUGINS_ANNOTATION, set_migrated_plugins};
use super::*;
use crate::manager::csi::node_store::CSI_NODES;
use crate::manager::csi::objects::{CsiNodeDriver, NODE_ID_ANNOTATION};
use crate::manager::tests::support::*;

const DRIVER1: &str = "com.example.csi.driver1";
const OTHER: &str = "net.example.storage.other-driver";

fn info(topology: Option<&[(&str, &str)]>, limit: i64) -> NodeInfo {
    let map = |segments: &[(&str, &str)]| {
        let segments = segments.iter();
        segments
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    NodeInfo {
        node_id: "id1".into(),
        max_volumes_per_node: limit,
        topology: topology.map(map),
    }
}

fn manager(profile: Profile, store: &Arc<FaultyStore>) -> NodeInfoManager {
    let store: Arc<dyn NodeStore> = store.clone();
    NodeInfoManager::new(NODE, profile, Some(store), EventSink::default())
}

/// An initialised manager and its cluster, with no driver installed.
async fn fresh(profile: Profile) -> (NodeInfoManager, Arc<FaultyStore>) {
    let store = cluster();
    let manager = manager(profile, &store);
    manager.initialise().await.unwrap();
    (manager, store)
}

fn conflict() -> StoreError {
    StoreError::Conflict {
        resource: CSI_NODES,
        name: NODE.into(),
    }
}

/// Writes of the Node and of the CSINode that `action` makes.
async fn writes_of<T>(store: &FaultyStore, action: impl Future<Output = T>) -> ((usize, usize), T) {
    let before = store.writes();
    let result = action.await;
    let after = store.writes();
    ((after.0 - before.0, after.1 - before.1), result)
}

#[tokio::test(start_paused = true)]
async fn n01_a_driver_on_an_empty_node() {
    let (manager, store) = fresh(Profile::NEWEST).await;
    manager
        .install(DRIVER1, &info(Some(&[("zone", "zoneA")]), 0))
        .await
        .unwrap();
    assert_eq!(
        store.annotation().as_deref(),
        Some(r#"{"com.example.csi.driver1":"id1"}"#)
    );
    assert_eq!(
        store.labels().into_iter().collect::<Vec<_>>(),
        [("zone".into(), "zoneA".into())]
    );
    let drivers = store.csi_node().spec.drivers;
    assert_eq!(
        drivers,
        [CsiNodeDriver {
            name: DRIVER1.into(),
            node_id: "id1".into(),
            topology_keys: vec!["zone".into()],
            allocatable: None,
        }]
    );
}

#[tokio::test(start_paused = true)]
async fn n02_the_same_driver_again_changes_nothing() {
    let (manager, store) = fresh(Profile::NEWEST).await;
    let info = info(Some(&[("zone", "zoneA")]), 0);
    manager.install(DRIVER1, &info).await.unwrap();
    let (node, csi_node) = (store.node(), store.csi_node());
    let (writes, result) = writes_of(&store, manager.install(DRIVER1, &info)).await;
    result.unwrap();
    // A driver with topology sends a patch each time, an empty one here.
    assert_eq!(writes, (1, 0));
    assert_eq!(store.node().metadata.annotations, node.metadata.annotations);
    assert_eq!(store.node().metadata.labels, node.metadata.labels);
    assert_eq!(store.csi_node(), csi_node);
}

#[tokio::test(start_paused = true)]
async fn n02_without_topology_nothing_is_sent_at_all() {
    let (manager, store) = fresh(Profile::NEWEST).await;
    manager.install(DRIVER1, &info(None, 0)).await.unwrap();
    let (writes, result) = writes_of(&store, manager.install(DRIVER1, &info(None, 0))).await;
    result.unwrap();
    assert_eq!(writes, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn n03_topology_may_come_later() {
    let (manager, store) = fresh(Profile::NEWEST).await;
    manager.install(DRIVER1, &info(None, 0)).await.unwrap();
    manager
        .install(DRIVER1, &info(Some(&[("zone", "zoneA")]), 0))
        .await
        .unwrap();
    assert_eq!(
        store.labels().get("zone").map(String::as_str),
        Some("zoneA")
    );
    assert_eq!(store.csi_node().spec.drivers[0].topology_keys, ["zone"]);
    assert_eq!(store.drivers(), [DRIVER1]);
}

#[tokio::test(start_paused = true)]
async fn n04_another_driver_is_left_alone() {
    let (manager, store) = fresh(Profile::NEWEST).await;
    manager.install(OTHER, &info(None, 0)).await.unwrap();
    manager.install(DRIVER1, &info(None, 0)).await.unwrap();
    assert_eq!(
        store.annotation().as_deref(),
        Some(r#"{"com.example.csi.driver1":"id1","net.example.storage.other-driver":"id1"}"#)
    );
    assert_eq!(store.drivers(), [OTHER, DRIVER1]);
    // A change moves the entry to the end.
    manager.install(OTHER, &info(None, 7)).await.unwrap();
    assert_eq!(store.drivers(), [DRIVER1, OTHER]);
}

#[tokio::test(start_paused = true)]
async fn n05_a_topology_collision_costs_four_attempts_and_changes_nothing() {
    let mut node = Node::new(NODE, NODE_UID);
    node.metadata.labels.insert("zone".into(), "zoneA".into());
    let store = FaultyStore::new(node);
    let manager = manager(Profile::NEWEST, &store);
    manager.initialise().await.unwrap();
    let start = Instant::now();
    let info = info(Some(&[("other", "x"), ("zone", "other-zone")]), 0);
    let (writes, result) = writes_of(&store, manager.install(DRIVER1, &info)).await;
    assert_eq!(
        result.unwrap_err().to_string(),
        "error updating Node object with CSI driver node info: error updating node: \
         timed out waiting for the condition; caused by: detected topology value collision: \
         driver reported \"zone\":\"other-zone\" but existing label is \"zone\":\"zoneA\""
    );
    assert_eq!(writes, (0, 0));
    assert_eq!(store.annotation(), None);
    let slept = start.elapsed();
    assert!(
        slept >= Duration::from_millis(310) && slept <= Duration::from_millis(345),
        "{slept:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn n07_no_topology_means_no_labels_and_no_keys() {
    let (manager, store) = fresh(Profile::NEWEST).await;
    manager.install(DRIVER1, &info(None, 0)).await.unwrap();
    assert!(store.labels().is_empty());
    assert!(store.csi_node().spec.drivers[0].topology_keys.is_empty());
}

#[tokio::test(start_paused = true)]
async fn n09_an_empty_node_id_is_refused_before_any_write() {
    let (manager, store) = fresh(Profile::NEWEST).await;
    let empty = NodeInfo {
        node_id: String::new(),
        ..info(None, 0)
    };
    let (writes, result) = writes_of(&store, manager.install(DRIVER1, &empty)).await;
    assert_eq!(
        result.unwrap_err().to_string(),
        "error adding CSI driver node info: driverNodeID must not be empty"
    );
    assert_eq!(writes, (0, 0));
}

/// The count that a limit becomes.
async fn count_of(limit: i64) -> Option<i32> {
    let (manager, store) = fresh(Profile::NEWEST).await;
    manager.install(DRIVER1, &info(None, limit)).await.unwrap();
    store.csi_node().spec.drivers[0]
        .allocatable
        .map(|resources| resources.count)
}

#[tokio::test(start_paused = true)]
async fn n10_a_limit_is_a_count() {
    assert_eq!(count_of(10).await, Some(10));
}

#[tokio::test(start_paused = true)]
async fn n11_the_largest_limit_fits() {
    assert_eq!(count_of(2_147_483_647).await, Some(2_147_483_647));
}

#[tokio::test(start_paused = true)]
async fn n12_a_larger_limit_is_cut() {
    assert_eq!(count_of(2_147_483_648).await, Some(2_147_483_647));
    assert_eq!(count_of(i64::MAX).await, Some(i32::MAX));
}

#[tokio::test(start_paused = true)]
async fn n13_no_limit_is_no_count() {
    assert_eq!(count_of(0).await, None);
    assert_eq!(count_of(-1).await, None, "nor is a negative one");
}

#[tokio::test(start_paused = true)]
async fn n14_a_changed_limit_is_written_since_1_28() {
    for (profile, expected) in [(Profile::NEWEST, 20), (K119, 20), (K117, 10)] {
        let (manager, store) = fresh(profile).await;
        manager.install(DRIVER1, &info(None, 10)).await.unwrap();
        manager.install(DRIVER1, &info(None, 20)).await.unwrap();
        let count = store.csi_node().spec.drivers[0]
            .allocatable
            .map(|resources| resources.count);
        assert_eq!(count, Some(expected), "{profile}");
    }
}

#[tokio::test(start_paused = true)]
async fn n16_a_limit_that_does_not_fit_is_written_each_time() {
    for limit in [2_147_483_648, -1] {
        let (manager, store) = fresh(Profile::NEWEST).await;
        manager.install(DRIVER1, &info(None, limit)).await.unwrap();
        let (writes, result) =
            writes_of(&store, manager.install(DRIVER1, &info(None, limit))).await;
        result.unwrap();
        assert_eq!(writes, (0, 1), "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn n18_a_missing_csi_node_is_created_first() {
    let (manager, store) = fresh(Profile::NEWEST).await;
    store.memory.delete_csi_node(NODE).await.unwrap();
    let (writes, result) = writes_of(&store, manager.install(DRIVER1, &info(None, 0))).await;
    result.unwrap();
    assert_eq!(writes, (1, 2));
    let csi_node = store.csi_node();
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: NODE.into(),
        uid: NODE_UID.into(),
        other: Map::new(),
    };
    assert_eq!(csi_node.metadata.owner_references, [owner]);
    let annotation = csi_node
        .metadata
        .annotations
        .get(MIGRATED_PLUGINS_ANNOTATION);
    assert!(
        annotation.is_some_and(|names| names.starts_with("kubernetes.io/aws-ebs,")),
        "{annotation:?}"
    );
    assert_eq!(store.drivers(), [DRIVER1]);
}

#[tokio::test(start_paused = true)]
async fn n19_three_conflicts_are_survived() {
    let (manager, store) = fresh(Profile::NEWEST).await;
    store.fail_updates([conflict(), conflict(), conflict()]);
    manager.install(DRIVER1, &info(None, 0)).await.unwrap();
    assert_eq!(store.drivers(), [DRIVER1]);
}

#[tokio::test(start_paused = true)]
async fn n20_four_conflicts_are_one_error() {
    let (manager, store) = fresh(Profile::NEWEST).await;
    store.fail_updates(std::iter::repeat_with(conflict).take(4));
    let error = manager.install(DRIVER1, &info(None, 0)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "error updating CSINode object with CSI driver node info: error updating CSINode: timed out waiting for the condition; \
         caused by: Operation cannot be fulfilled on csinodes.storage.k8s.io \"node1\": \
         the object has been modified; please apply your changes to the latest version and try again"
    );
    assert!(
        store.annotation().is_some(),
        "the Node keeps its change until the caller undoes it"
    );
}

#[tokio::test(start_paused = true)]
async fn n21_an_annotation_that_is_no_json_is_an_error() {
    for value in ["no JSON", "[]", "{\"a\":1}"] {
        let mut node = Node::new(NODE, NODE_UID);
        node.metadata
            .annotations
            .insert(NODE_ID_ANNOTATION.into(), value.into());
        let store = FaultyStore::new(node);
        let manager = manager(Profile::NEWEST, &store);
        manager.initialise().await.unwrap();
        let text = format!("failed to parse node's \"{NODE_ID_ANNOTATION}\" annotation value");
        let error = manager
            .install(DRIVER1, &info(None, 0))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(&text), "{error}");
        let error = manager.uninstall(DRIVER1).await.unwrap_err().to_string();
        assert!(error.contains(&text), "{error}");
        assert_eq!(store.annotation().as_deref(), Some(value));
    }
}

#[tokio::test(start_paused = true)]
async fn n21_an_empty_or_null_annotation_is_an_empty_map() {
    for value in ["", "null"] {
        let mut node = Node::new(NODE, NODE_UID);
        node.metadata
            .annotations
            .insert(NODE_ID_ANNOTATION.into(), value.into());
        let store = FaultyStore::new(node);
        let manager = manager(Profile::NEWEST, &store);
        manager.initialise().await.unwrap();
        manager.install("a&b", &info(None, 0)).await.unwrap();
        assert_eq!(store.annotation().as_deref(), Some(r#"{"a\u0026b":"id1"}"#));
    }
}

#[tokio::test(start_paused = true)]
async fn n22_an_uninstalled_driver_leaves_its_labels_and_the_object() {
    let (manager, store) = fresh(Profile::NEWEST).await;
    manager
        .install(DRIVER1, &info(Some(&[("zone", "zoneA")]), 0))
        .await
        .unwrap();
    manager.uninstall(DRIVER1).await.unwrap();
    assert_eq!(store.annotation(), None);
    assert_eq!(
        store.labels().get("zone").map(String::as_str),
        Some("zoneA")
    );
    assert_eq!(store.drivers(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn n23_uninstalling_an_unknown_driver_writes_nothing() {
    let (manager, store) = fresh(Profile::NEWEST).await;
    manager.install(OTHER, &info(None, 0)).await.unwrap();
    let (writes, result) = writes_of(&store, manager.uninstall(DRIVER1)).await;
    result.unwrap();
    assert_eq!(writes, (0, 0));
    assert_eq!(store.drivers(), [OTHER]);
}

#[tokio::test(start_paused = true)]
async fn n25_uninstalling_without_csi_node_succeeds() {
    let store = cluster();
    manager(Profile::NEWEST, &store)
        .uninstall(DRIVER1)
        .await
        .unwrap();
    assert_eq!(store.writes(), (0, 0));
}

#[test]
fn n27_the_migrated_plugins_annotation_is_a_set() {
    let set = |migrated: &[&str], old: Option<&str>| {
        let mut csi_node = CsiNode::new(ObjectMeta::default());
        let annotations = &mut csi_node.metadata.annotations;
        annotations.insert("other".into(), "kept".into());
        if let Some(old) = old {
            annotations.insert(MIGRATED_PLUGINS_ANNOTATION.into(), old.into());
        }
        let changed = set_migrated_plugins(&mut csi_node, migrated);
        assert_eq!(
            csi_node.metadata.annotations.remove("other").as_deref(),
            Some("kept")
        );
        (
            changed,
            csi_node
                .metadata
                .annotations
                .remove(MIGRATED_PLUGINS_ANNOTATION),
        )
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(set(&["test"], None), (true, text("test")));
    assert_eq!(
        set(&["test", "foo"], Some("test")),
        (true, text("foo,test"))
    );
    assert_eq!(set(&[], Some("test")), (true, None));
    assert_eq!(set(&[], None), (false, None));
    assert_eq!(
        set(&["foo", "test"], Some("test,foo")),
        (false, text("test,foo"))
    );
}

#[tokio::test(start_paused = true)]
async fn n28_topology_keys_are_sorted() {
    let (manager, store) = fresh(Profile::NEWEST).await;
    manager
        .install(DRIVER1, &info(Some(&[("b", "1"), ("a", "2")]), 0))
        .await
        .unwrap();
    assert_eq!(store.csi_node().spec.drivers[0].topology_keys, ["a", "b"]);
}

// Beyond the table: section 7.6 and the rest of section 8.

#[tokio::test(start_paused = true)]
async fn initialisation_waits_for_the_api_server_and_tries_again() {
    let store = cluster();
    let manager = Arc::new(manager(Profile::NEWEST, &store));
    store.break_writes(Some(StoreError::Other("down".into())));
    let initialise = tokio::spawn({
        let manager = manager.clone();
        async move { manager.initialise().await }
    });
    pass(1).await;
    assert!(!initialise.is_finished());
    store.break_writes(None);
    initialise.await.unwrap().unwrap();
    assert_eq!(store.drivers(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn initialisation_gives_up_after_its_backoff() {
    for (profile, least, most) in [(Profile::NEWEST, 140, 160), (K119, 23, 30)] {
        let store = cluster();
        let manager = manager(profile, &store);
        store.break_writes(Some(StoreError::Other("down".into())));
        let start = Instant::now();
        let error = manager.initialise().await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to initialize CSINode after retrying: down"
        );
        let seconds = start.elapsed().as_secs();
        assert!((least..=most).contains(&seconds), "{profile}: {seconds}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_csi_node_of_another_node_is_replaced_since_1_35() {
    let store = cluster();
    manager(K119, &store).initialise().await.unwrap();
    manager(K119, &store)
        .install(OTHER, &info(None, 0))
        .await
        .unwrap();
    let mut foreign = store.csi_node();
    foreign.metadata.owner_references[0].uid = "another".into();
    store.memory.update_csi_node(&foreign).await.unwrap();
    // Before: taken as it is.
    manager(K119, &store)
        .install(DRIVER1, &info(None, 0))
        .await
        .unwrap();
    assert_eq!(store.drivers(), [OTHER, DRIVER1]);
    // Since: deleted at the first attempt, created at the second.
    let manager = manager(Profile::from_minor(35).unwrap(), &store);
    manager.initialise().await.unwrap();
    assert_eq!(store.drivers(), [""; 0]);
    assert_eq!(store.csi_node().metadata.owner_references[0].uid, NODE_UID);
}

#[tokio::test(start_paused = true)]
async fn an_install_before_the_initialisation_destroys_the_csi_node() {
    let (_, store) = fresh(Profile::NEWEST).await;
    let uninitialised = manager(Profile::NEWEST, &store);
    let error = uninitialised
        .install(DRIVER1, &info(None, 0))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("was owned by different node"), "{error}");
    assert!(error.contains("uid must not be empty"), "{error}");
    assert!(store.memory.objects().1.is_none());
}

#[tokio::test(start_paused = true)]
async fn attach_limits_of_old_are_dropped_by_the_versions_that_do() {
    for (minor, install_drops, uninstall_drops) in [
        (17, false, true),
        (31, false, true),
        (34, true, true),
        (35, true, true),
        (36, false, false),
    ] {
        let key = format!("attachable-volumes-csi-{DRIVER1}");
        let mut node = Node::new(NODE, NODE_UID);
        node.status.capacity.insert(key.clone(), "5".into());
        node.status.allocatable.insert(key.clone(), "5".into());
        let store = FaultyStore::new(node);
        let manager = manager(Profile::from_minor(minor).unwrap(), &store);
        manager.initialise().await.unwrap();
        manager.install(DRIVER1, &info(None, 0)).await.unwrap();
        assert_eq!(
            store.node().status.capacity.is_empty(),
            install_drops,
            "1.{minor}"
        );
        manager.uninstall(DRIVER1).await.unwrap();
        assert_eq!(
            store.node().status.allocatable.is_empty(),
            uninstall_drops,
            "1.{minor}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_cluster_nothing_can_be_installed() {
    let manager = NodeInfoManager::new(NODE, Profile::NEWEST, None, EventSink::default());
    manager.initialise().await.unwrap();
    let error = manager
        .install(DRIVER1, &info(None, 0))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("caused by: error getting kube client"),
        "{error}"
    );
    let error = manager.uninstall(DRIVER1).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "error uninstalling CSI driver from CSINode object error getting CSI client"
    );
}
