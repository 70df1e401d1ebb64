//! Kubernetes' plugin registration protocol, from both ends.
pub mod goflag;
pub mod klog;
pub mod proto;
pub mod uds;
