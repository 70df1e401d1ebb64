//! The CSI driver as its client sees it: where it listens, what it is called, whether it is ready.

mod client;
mod wait;

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(crate) use client::{CallError, Client, ConnectError};
pub use wait::Error;
pub(crate) use wait::{Driver, Identified};

use crate::uds::socket_file::{FileId, MAX_SOCKET_PATH};

/// The path of a driver's Unix socket. CSI is spoken over nothing else (CSI specification, "Identity Service RPC").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(PathBuf);

/// Why an address cannot be a CSI driver's.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AddressError {
    /// Another transport, or no absolute path.
    #[error("{0:?} is no Unix socket: CSI drivers are dialled at /path, unix:///path or unix:path")]
    NotUnix(String),
    /// No path at all.
    #[error("the address is empty: give the path of the CSI driver's socket")]
    Empty,
    /// It can never be dialled.
    #[error("socket path {0:?} is {1} bytes long, the limit is {MAX_SOCKET_PATH}")]
    TooLong(PathBuf, usize),
}

impl std::str::FromStr for Address {
    type Err = AddressError;

    /// Takes `/abs`, `unix:///abs`, `unix:/abs` and `unix:rel`, as grpc-go's resolver does.
    fn from_str(address: &str) -> Result<Self, AddressError> {
        let path = match address.strip_prefix("unix:") {
            Some(rest) => match rest.strip_prefix("//") {
                // An authority has no meaning for Unix sockets: only the empty one of unix:///path.
                Some(path) if !path.starts_with('/') => {
                    return Err(AddressError::NotUnix(address.to_owned()));
                }
                Some(path) => path,
                None => rest,
            },
            None if address.is_empty() => return Err(AddressError::Empty),
            None if address.starts_with('/') => address,
            None => return Err(AddressError::NotUnix(address.to_owned())),
        };
        if path.is_empty() {
            return Err(AddressError::Empty);
        }
        if path.len() > MAX_SOCKET_PATH {
            return Err(AddressError::TooLong(path.into(), path.len()));
        }
        Ok(Self(path.into()))
    }
}

impl Address {
    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The directory that the socket is in.
    pub fn directory(&self) -> &Path {
        match self.0.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    /// Which socket is there now, if any.
    pub fn socket(&self) -> Option<FileId> {
        fs::metadata(&self.0)
            .ok()
            .map(|metadata| FileId::from(&metadata))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// A driver's name that can be part of a file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverName(String);

/// Why a driver's name cannot be registered.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NameError {
    /// GetPluginInfo answered without a name.
    #[error("the CSI driver's name is empty: its GetPluginInfo must return one")]
    Empty,
    /// It would leave the directory, or break every log.
    #[error(
        "the CSI driver's name {0:?} contains {1:?}: it must be a DNS name such as driver.example.com"
    )]
    Forbidden(String, char),
    /// The kubelet ignores such files.
    #[error(
        "the CSI driver's name {0:?} starts with a dot, and the kubelet ignores dot files: it must be a DNS name such as driver.example.com"
    )]
    Hidden(String),
}

impl TryFrom<String> for DriverName {
    type Error = NameError;

    fn try_from(name: String) -> Result<Self, NameError> {
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if let Some(forbidden) = name.chars().find(|c| *c == '/' || c.is_control()) {
            return Err(NameError::Forbidden(name, forbidden));
        }
        if name.starts_with('.') {
            return Err(NameError::Hidden(name));
        }
        Ok(Self(name))
    }
}

impl DriverName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Why the API server would refuse this name in a CSINode, if it would (`ValidateCSIDriverName` in
    /// `pkg/apis/core/validation`: at most 63 bytes, and a DNS-1123 subdomain once it is in lower case).
    pub fn api_server_objection(&self) -> Option<&'static str> {
        let label = |label: &str| {
            let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            edge(label.chars().next())
                && edge(label.chars().next_back())
                && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        };
        if self.0.len() > 63 {
            Some("it is longer than 63 bytes")
        } else if !self.0.split('.').all(label) {
            Some("it is no DNS-1123 subdomain")
        } else {
            None
        }
    }
}

impl fmt::Display for DriverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether a directory is gone for good as seen from here: a bind mount keeps a removed directory at the path, empty and
/// without a link, and nothing can be made in it any more.
pub(crate) fn is_removed(directory: &Path) -> bool {
    fs::metadata(directory).is_ok_and(|metadata| metadata.nlink() == 0)
}
