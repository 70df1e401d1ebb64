//! `/metrics`: the kubelet's one gauge, and what it lacks, the operations.

use std::fmt::{self, Write as _};
use std::path::Path;

use tokio::time::Instant;

use super::actual_state_of_world::ActualStateOfWorld;
use super::desired_state_of_world::DesiredStateOfWorld;
use super::operation_executor::{OperationExecutor, OperationKind, Outcome};

/// All metrics in Prometheus' text format, read from the caches at this moment
/// (`pluginmanager/metrics/metrics.go` for the first).
pub(super) fn render(
    desired: &DesiredStateOfWorld,
    actual: &ActualStateOfWorld,
    executor: &OperationExecutor,
) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    write_plugins(&mut text, desired, actual).unwrap_or_default();
    write_operations(&mut text, executor).unwrap_or_default();
    text
}

fn write_plugins(
    text: &mut String,
    desired: &DesiredStateOfWorld,
    actual: &ActualStateOfWorld,
) -> fmt::Result {
    const NAME: &str = "plugin_manager_total_plugins";
    head(
        text,
        NAME,
        "gauge",
        "[ALPHA] Number of plugins in Plugin Manager",
    )?;
    for plugin in actual.plugins() {
        let path = label(&plugin.socket_path);
        writeln!(
            text,
            r#"{NAME}{{socket_path="{path}",state="actual_state_of_world"}} 1"#
        )?;
    }
    for plugin in desired.plugins() {
        let path = label(&plugin.socket_path);
        writeln!(
            text,
            r#"{NAME}{{socket_path="{path}",state="desired_state_of_world"}} 1"#
        )?;
    }
    Ok(())
}

fn write_operations(text: &mut String, executor: &OperationExecutor) -> fmt::Result {
    const TOTAL: &str = "plugin_manager_operations_total";
    const FAILURES: &str = "plugin_manager_operation_failures";
    const BACKOFF: &str = "plugin_manager_operation_backoff_seconds";
    let state = executor.state();
    head(
        text,
        TOTAL,
        "counter",
        "Operations that ended, by kind and result",
    )?;
    for kind in [OperationKind::Register, OperationKind::Unregister] {
        for (outcome, result) in [
            (Outcome::Succeeded, "succeeded"),
            (Outcome::Failed, "failed"),
        ] {
            let count = state
                .totals
                .get(&(kind, outcome))
                .copied()
                .unwrap_or_default();
            let operation = kind.name();
            writeln!(
                text,
                r#"{TOTAL}{{operation="{operation}",result="{result}"}} {count}"#
            )?;
        }
    }
    let failing: Vec<_> = state
        .operations
        .iter()
        .filter_map(|(path, operations)| Some((label(path), operations.backoff.as_ref()?)))
        .collect();
    head(
        text,
        FAILURES,
        "gauge",
        "Failed operations on a socket since the last that succeeded",
    )?;
    for (path, backoff) in &failing {
        writeln!(
            text,
            r#"{FAILURES}{{socket_path="{path}"}} {}"#,
            backoff.failures
        )?;
    }
    head(
        text,
        BACKOFF,
        "gauge",
        "Time until the next operation on a socket is permitted",
    )?;
    for (path, backoff) in &failing {
        let remaining = backoff.remaining(Instant::now()).unwrap_or_default();
        writeln!(
            text,
            r#"{BACKOFF}{{socket_path="{path}"}} {}"#,
            remaining.as_secs_f64()
        )?;
    }
    Ok(())
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

/// A path as a label's value.
fn label(path: &Path) -> String {
    path.display()
        .to_string()
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n")
}
