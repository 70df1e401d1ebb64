//! Unix sockets, as both sides of the registration protocol use them.

pub mod authority;
pub mod channel;
pub mod paced;
pub mod socket_file;
pub mod watch;
mod write_through;

pub(crate) use write_through::write_through;
