//! klog's view of `tracing`: its flags, its verbosity levels, its text and JSON formats, so that whoever reads, greps or
//! parses the Go sidecars' logs can go on doing so.
//!
//! Events without a verbosity are plain `tracing` events: `info!` is klog's `V(0)`, `warn!` and `error!` its W and E.
//! Keys are klog's camel-case names (`csiAddress = %address`), an error goes into `err`. A higher verbosity is the
//! *name* of an event, since `tracing` has too few levels to hold it: see [`verbose!`](crate::klog::verbose).
//! Values given with `%` or `?` are strings; numbers and booleans stay what they are. Spans are not shown. `DEBUG` and
//! `TRACE` events are other crates' and are never shown, whatever the verbosity.
//!
//! ```no_run
//! use csi_node_driver_registrar::klog;
//!
//! klog::init(klog::Settings::default()).expect("the only subscriber");
//! tracing::info!(version = "1.0.0", "Version");
//! klog::verbose!(4, socketPath = "/registration/x-reg.sock", "Health check");
//! ```

mod json;
mod record;
mod stderr;
mod subscriber;
mod text;
mod verbosity;
mod zone;

#[cfg(feature = "registrar")]
mod flags;

#[cfg(feature = "registrar")]
pub use flags::{Flags, IgnoredFlag, Problem, Validation};
pub use stderr::LossyWriter;
pub use subscriber::{Output, Subscriber};
pub use verbosity::{Level, LevelError, VModule, VModuleError, Verbosity};
pub use zone::Zone;

/// What `--logging-format` chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// klog's own lines.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What is logged, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The shape of a line.
    pub format: Format,
    /// The lines that are shown.
    pub verbosity: Verbosity,
}

/// Logs to standard error from here on, in local time. Fails if the process has a subscriber already.
pub fn init(settings: Settings) -> Result<(), tracing::subscriber::SetGlobalDefaultError> {
    tracing::subscriber::set_global_default(Subscriber::new(
        settings,
        LossyWriter::stderr(),
        Zone::local(),
    ))
}

/// An info line that only `--v=LEVEL` or more shows: `verbose!(4, socketPath = %path, "Health check")`.
///
/// A program that embeds the library with its own subscriber sees `INFO` events whose name is `v1` to `v5`. Not `DEBUG` and
/// `TRACE`: those are compiled out of the programs, since what other crates have to say there is 160 KB that nobody sees.
#[macro_export]
#[doc(hidden)]
macro_rules! klog_verbose {
    (1, $($event:tt)+) => { ::tracing::event!(name: "v1", ::tracing::Level::INFO, $($event)+) };
    (2, $($event:tt)+) => { ::tracing::event!(name: "v2", ::tracing::Level::INFO, $($event)+) };
    (3, $($event:tt)+) => { ::tracing::event!(name: "v3", ::tracing::Level::INFO, $($event)+) };
    (4, $($event:tt)+) => { ::tracing::event!(name: "v4", ::tracing::Level::INFO, $($event)+) };
    (5, $($event:tt)+) => { ::tracing::event!(name: "v5", ::tracing::Level::INFO, $($event)+) };
}

pub use klog_verbose as verbose;
