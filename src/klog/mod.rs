//! klog's view of `tracing`: its verbosity levels, and (elsewhere in this room) its text and JSON formats.
//!
//! Events without a verbosity are plain `tracing` events: `info!` is klog's `V(0)`, `warn!` and `error!` its W and E.
//! Keys are klog's camel-case names (`csiAddress = %address`), an error goes into `err`. A higher verbosity is the
//! *name* of an event, since `tracing` has too few levels to hold it: see [`verbose!`](crate::klog::verbose).

/// An info line that only `--v=LEVEL` or more shows: `verbose!(4, socketPath = %path, "Health check")`.
///
/// A program that embeds the library with its own subscriber sees levels 1 and 2 as `DEBUG` and the rest as `TRACE`.
#[macro_export]
#[doc(hidden)]
macro_rules! klog_verbose {
    (1, $($event:tt)+) => { ::tracing::event!(name: "v1", ::tracing::Level::DEBUG, $($event)+) };
    (2, $($event:tt)+) => { ::tracing::event!(name: "v2", ::tracing::Level::DEBUG, $($event)+) };
    (3, $($event:tt)+) => { ::tracing::event!(name: "v3", ::tracing::Level::TRACE, $($event)+) };
    (4, $($event:tt)+) => { ::tracing::event!(name: "v4", ::tracing::Level::TRACE, $($event)+) };
    (5, $($event:tt)+) => { ::tracing::event!(name: "v5", ::tracing::Level::TRACE, $($event)+) };
}

pub use klog_verbose as verbose;
