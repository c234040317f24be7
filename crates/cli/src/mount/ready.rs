//! Tells systemd that the mount is ready (`Type=notify`, sd_notify(3)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Does nothing if no service manager listens.
pub fn tell_service_manager() {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match place.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&place),
    };
    // There is no way to report this failure: the service manager gives up by itself.
    let _ = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &to));
}
