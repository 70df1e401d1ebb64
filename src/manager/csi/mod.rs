//! What the kubelet does with a plugin of type `CSIPlugin` (`pkg/volume/csi`).

mod csi_node_updater;
mod drivers;
mod handler;
mod node_client;
mod node_info_manager;
pub mod node_store;
pub mod objects;
mod version;
pub mod yaml;

pub use handler::CsiHandler;
pub use node_info_manager::{InitialiseError, NodeInfoManager};
