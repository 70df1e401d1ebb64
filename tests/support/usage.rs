//! What Linux tells about a process: memory, threads, descriptors, processor time.

use std::fs;
use std::time::Duration;

use nix::unistd::Pid;

/// A process, seen from outside.
#[derive(Clone, Copy)]
pub struct Usage(Pid);

impl Usage {
    pub fn of(pid: Pid) -> Self {
        Self(pid)
    }

    pub fn status(self, key: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap();
        let line = status.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name == key).then(|| value.trim().to_owned())
        });
        line.unwrap_or_else(|| panic!("no {key} in the status of {}", self.0))
    }

    fn kibibytes(self, key: &str) -> u64 {
        let value = self.status(key);
        value.trim_end_matches(" kB").parse().unwrap()
    }

    /// Its resident memory, in KiB.
    pub fn resident(self) -> u64 {
        self.kibibytes("VmRSS")
    }

    /// What of it is nobody else's and in no file, in KiB.
    pub fn anonymous(self) -> u64 {
        self.kibibytes("RssAnon")
    }

    /// The most memory that it ever had resident, in KiB.
    pub fn peak_memory(self) -> u64 {
        self.kibibytes("VmHWM")
    }

    /// What it may have resident at most, in KiB, under any abuse: 8 MiB. A build without optimization, which maps much more of
    /// its program file and has larger futures, gets what it maps on top, and a quarter.
    pub fn memory_limit(self) -> u64 {
        const LIMIT: u64 = 8 * 1024;
        const LARGEST_RELEASE: u64 = 5 * 1024;
        let file = self.kibibytes("RssFile");
        if file <= LARGEST_RELEASE {
            LIMIT
        } else {
            LIMIT + file - LARGEST_RELEASE / 2 + LIMIT / 4
        }
    }

    pub fn descriptors(self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.0))
            .unwrap()
            .count()
    }

    pub fn threads(self) -> usize {
        self.of_each_thread("comm").len()
    }

    /// How often its threads gave up the processor or lost it. A thread that sleeps in one system call has no part in it.
    pub fn context_switches(self) -> u64 {
        let threads = self.of_each_thread("status");
        let lines = threads.iter().flat_map(|status| status.lines());
        lines
            .filter(|line| line.contains("ctxt_switches"))
            .map(|line| {
                let count = line.split_whitespace().last().unwrap();
                count.parse::<u64>().unwrap()
            })
            .sum()
    }

    /// The processor time that its threads used so far; of those that ended, nothing.
    pub fn processor_time(self) -> Duration {
        // The first number, in nanoseconds (Linux, `Documentation/scheduler/sched-stats.rst`). `stat` has hundredths of a second.
        let threads = self.of_each_thread("schedstat");
        let times = threads.iter().map(|schedstat| -> u64 {
            let time = schedstat.split_whitespace().next().unwrap();
            time.parse().unwrap()
        });
        Duration::from_nanos(times.sum())
    }

    fn of_each_thread(self, file: &str) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0)).unwrap();
        let files = tasks.map(|task| task.unwrap().path().join(file));
        // A thread may end meanwhile.
        files
            .filter_map(|path| fs::read_to_string(path).ok())
            .collect()
    }
}
