//! Kubernetes' plugin registration protocol, from both ends.
pub mod proto;
pub mod uds;
