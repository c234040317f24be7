//! Telling systemd that the mount is there (`Type=notify`, sd_notify(3)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Does nothing where no service manager listens.
pub fn tell_service_manager() {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match place.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&place),
    };
    // It cannot be told that it was not told: it gives up on us by itself.
    let _ = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &to));
}
