//! What a kubelet sends as `:authority`, by the API that it speaks and by its version.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// An `:authority`, as a kubelet derives it from the socket that it dials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authority {
    /// `localhost`: CSI and device plugin sockets since kubelet 1.26 (`newGrpcConn` in `pkg/volume/csi/csi_client.go`).
    #[default]
    Localhost,
    /// The socket's path, percent-encoded: registration sockets since kubelet 1.29 (grpc-go 1.57 and later).
    PercentEncoded,
    /// The socket's path as it is: registration sockets up to kubelet 1.28.
    Raw,
}

impl Authority {
    /// The octets of the `:authority` of a client that dials `path`.
    pub fn value(self, path: &Path) -> Vec<u8> {
        let path = path.as_os_str().as_bytes();
        match self {
            Self::Localhost => b"localhost".to_vec(),
            Self::PercentEncoded => percent_encoded(path),
            Self::Raw => path.to_vec(),
        }
    }
}

/// `encodeAuthority` of grpc-go's `clientconn.go`.
fn percent_encoded(path: &[u8]) -> Vec<u8> {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut encoded = Vec::with_capacity(3 * path.len());
    for &octet in path {
        if octet.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(&octet) {
            encoded.push(octet);
        } else {
            encoded.extend([
                b'%',
                HEX[usize::from(octet >> 4)],
                HEX[usize::from(octet & 0xf)],
            ]);
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn value(authority: Authority, path: &[u8]) -> Vec<u8> {
        authority.value(Path::new(OsStr::from_bytes(path)))
    }

    #[test]
    fn a_registration_socket() {
        let path = b"/var/lib/kubelet/plugins_registry/x-reg.sock";
        assert_eq!(value(Authority::Localhost, path), b"localhost");
        assert_eq!(
            value(Authority::PercentEncoded, path),
            b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fx-reg.sock"
        );
        assert_eq!(value(Authority::Raw, path), path);
    }

    #[test]
    fn every_octet_as_grpc_go_encodes_it() {
        let kept = b"-_.~!$&'()*+,;=:[]@";
        for octet in 0..=255 {
            let expected = match octet {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => vec![octet],
                _ if kept.contains(&octet) => vec![octet],
                _ => format!("%{octet:02X}").into_bytes(),
            };
            assert_eq!(value(Authority::PercentEncoded, &[octet]), expected);
            assert_eq!(value(Authority::Raw, &[octet]), [octet]);
        }
    }
}
