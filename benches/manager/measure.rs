//! One row: plugins that are there before the subject starts, then a thousand removals.

use std::path::Path;
use std::time::{Duration, Instant};

use super::Failure;
use super::plugins::socket;
use super::process::Process;
use super::subject::Handler;

/// Sockets that are removed at once, if there are so many.
const REMOVALS: usize = 1_000;

/// What is measured.
pub(crate) struct Row<'a> {
    pub(crate) plugins: usize,
    pub(crate) handler: Handler,
    /// Plugins beside them that take a connection and say nothing.
    pub(crate) hung: usize,
    /// The program that is the kubelet; none for ours.
    pub(crate) kubelet: Option<&'a Path>,
}

/// What it took.
pub(crate) struct Figures {
    plugins: usize,
    /// From the subject's start until the last plugin was told that it is registered.
    pub(crate) registered: Duration,
    registered_cpu: Duration,
    peak_memory: u64,
    /// From the first removal until the handler has forgotten the last of them.
    removed: Duration,
    removed_cpu: Duration,
}

impl Figures {
    pub(crate) const HEADING: &str = "\
| Manager | Handler | Plugins | All registered | CPU time | each | Peak memory | Removals noticed | CPU time |
|---|---|--:|--:|--:|--:|--:|--:|--:|";

    /// CPU time for each registration, in milliseconds.
    pub(crate) fn cpu_each(&self) -> f64 {
        let plugins = u32::try_from(self.plugins).unwrap_or(u32::MAX);
        self.registered_cpu.as_secs_f64() * 1000.0 / f64::from(plugins)
    }
}

/// Measures and prints the row.
pub(crate) fn measure(row: &Row<'_>) -> Result<Figures, Failure> {
    let directory = tempfile::tempdir()?;
    let registry = directory.path().join("registry");
    std::fs::create_dir(&registry)?;
    let count = row.plugins.to_string();
    let path = registry.to_str().ok_or("a path that is not UTF-8")?;
    let plugins = Process::role(&["plugins", path, &count, &row.hung.to_string()])?;
    plugins.wait_for("plugins that listen", 1, |line| line == "listening")?;

    let removals = row.plugins.min(REMOVALS);
    let start = Instant::now();
    let subject = subject(row, path, directory.path(), removals)?;
    plugins.wait_for("registrations", 1, |line| line == "registered")?;
    let registered = start.elapsed();
    let registered_cpu = subject.cpu()?;

    let start = Instant::now();
    for number in 0..removals {
        std::fs::remove_file(socket(&registry, number))?;
    }
    match row.kubelet {
        None => subject.wait_for("removals", 1, |line| line == "deregistered")?,
        Some(_) => subject.wait_for("removals", removals, |line| {
            line.contains(r#""event":"handler_returned""#)
                && line.contains(r#""call":"deregister""#)
        })?,
    }
    let figures = Figures {
        plugins: row.plugins,
        registered,
        registered_cpu,
        peak_memory: subject.peak_memory()?,
        removed: start.elapsed(),
        removed_cpu: subject.cpu()?.saturating_sub(registered_cpu),
    };
    print(row, &figures, removals);
    Ok(figures)
}

fn subject(
    row: &Row<'_>,
    registry: &str,
    directory: &Path,
    removals: usize,
) -> Result<Process, Failure> {
    let Some(kubelet) = row.kubelet else {
        let removals = removals.to_string();
        return Process::role(&["subject", registry, row.handler.name(), &removals]);
    };
    let objects = directory.join("objects.json");
    let objects = format!("-objects={}", objects.display());
    Process::start(kubelet, &[&format!("-dir={registry}"), &objects])
}

fn print(row: &Row<'_>, figures: &Figures, removals: usize) {
    let manager = match (row.kubelet, row.hung) {
        (Some(_), _) => "kubelet's",
        (None, 0) => "ours",
        (None, _) => "ours, one plugin hangs",
    };
    println!(
        "| {manager} | {} | {} | {:.2} s | {:.2} s | {:.2} ms | {} MiB | {removals} in {:.2} s | {:.2} s |",
        row.handler.name(),
        row.plugins,
        figures.registered.as_secs_f64(),
        figures.registered_cpu.as_secs_f64(),
        figures.cpu_each(),
        figures.peak_memory,
        figures.removed.as_secs_f64(),
        figures.removed_cpu.as_secs_f64(),
    );
}
