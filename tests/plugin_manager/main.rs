//! The kubelet's side, black box: `kubelet-plugin-manager` with its sub-commands, and our registrar's binary under our
//! manager.

#![allow(clippy::unwrap_used, reason = "test code")]

mod check;
mod demo;
mod fake_registrar;
#[cfg(feature = "kube")]
mod kube_flags;
mod manager;
mod registrar;
mod run;
#[path = "../support/mod.rs"]
mod support;
mod tool;
