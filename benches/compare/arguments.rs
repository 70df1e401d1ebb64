//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// Compares registrars.
#[derive(Debug, Parser)]
#[command(name = "compare")]
pub struct Arguments {
    /// Binaries of registrars; the first is ours, a static release build
    #[arg(required = true, value_name = "REGISTRAR")]
    pub registrars: Vec<PathBuf>,

    /// Binary of another liveness probe; may be repeated
    #[arg(long, value_name = "PATH")]
    pub livenessprobe: Vec<PathBuf>,

    /// How often each is started
    #[arg(long, value_name = "N", default_value_t = 51)]
    pub starts: usize,

    /// How often each waits for a driver
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub waits: usize,

    /// How often each is loaded with ten thousand calls
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub loads: usize,

    /// How many seconds each is left alone
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    idle: u64,

    /// How many milliseconds the driver takes to answer
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0)]
    driver_delay: u64,

    /// What cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

impl Arguments {
    /// How long each is left alone.
    pub fn idle(&self) -> Duration {
        Duration::from_secs(self.idle)
    }

    /// How long the driver takes to answer.
    pub fn driver_delay(&self) -> Duration {
        Duration::from_millis(self.driver_delay)
    }
}
