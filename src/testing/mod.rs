//! What tests and demonstrations need in place of the real thing: a CSI driver with faults on demand.

pub mod csi_driver;
