//! Where and when it was measured: times mean little without.

use std::fs;
use std::thread;

/// The machine, and how busy it is with other things.
pub fn description() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let processors = thread::available_parallelism().map_or(0, usize::from);
    let load = read("/proc/loadavg");
    let load: Vec<_> = load.split(' ').take(3).collect();
    format!(
        "{} {}, {processors} processors, Linux {}, load average {}",
        std::env::consts::OS,
        std::env::consts::ARCH,
        read("/proc/sys/kernel/osrelease").trim(),
        load.join(" "),
    )
}
