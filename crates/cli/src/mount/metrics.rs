//! `-o metrics=`: what a mount has done, for Prometheus to ask: a Unix socket, or a port that only this machine can reach.
//!
//! One thread, one question at a time, each with a time limit: whoever asks slowly holds up other askers, never the file system.

use crate::look::prometheus;
use anyhow::{Context, Result, bail};
use heddle_nvmfs::NvmFs;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long who asks may take for each word.
const WORD_MAX: Duration = Duration::from_secs(2);
/// Longest question.
const QUESTION_BYTES_MAX: usize = 8 << 10;
const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Where it is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A socket of this path.
    Path(PathBuf),
    /// A port of the loopback device.
    Port(SocketAddr),
}

impl Place {
    /// A path (with a slash in it), a port, or a loopback address and a port.
    pub fn parse(text: &str) -> Result<Place, String> {
        if text.contains('/') {
            return Ok(Place::Path(text.into()));
        }
        let wrong =
            || "a port of this machine (9100, 127.0.0.1:9100, [::1]:9100) or the path of a socket is wanted";
        let at = match text.parse::<u16>() {
            Ok(port) => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
            Err(_) => text.parse().map_err(|_| wrong().to_owned())?,
        };
        if at.ip().is_loopback() {
            Ok(Place::Port(at))
        } else {
            Err(format!("{}: other machines could ask; {}", at.ip(), wrong()))
        }
    }
}

/// While it lives, questions are answered; its socket goes with it.
pub struct Metrics {
    socket: Option<PathBuf>,
    /// The thread that answers has no share in the file system's life.
    _fs: Arc<NvmFs>,
}

impl Drop for Metrics {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            // Taken away already, perhaps; nothing hangs on it.
            let _ = fs::remove_file(socket);
        }
    }
}

/// Starts to answer.
pub fn start(fs: NvmFs, place: &Place) -> Result<Metrics> {
    let fs = Arc::new(fs);
    let known = Arc::downgrade(&fs);
    let thread = std::thread::Builder::new().name("heddle-metrics".into());
    let (thread, socket) = match place {
        Place::Path(path) => {
            let listener = bind(path)?;
            let serve = move || listener.incoming().flatten().for_each(|asker| answer_path(&known, asker));
            (thread.spawn(serve), Some(path.clone()))
        }
        Place::Port(at) => {
            let listener =
                TcpListener::bind(at).with_context(|| format!("cannot answer at {at} (-o metrics=)"))?;
            let serve = move || listener.incoming().flatten().for_each(|asker| answer_port(&known, asker));
            (thread.spawn(serve), None)
        }
    };
    let metrics = Metrics { socket, _fs: fs };
    thread.context("cannot start a thread")?;
    Ok(metrics)
}

/// A socket that nobody answers any more is replaced, anything else stays.
fn bind(path: &Path) -> Result<UnixListener> {
    let shown = path.display();
    let is_socket = fs::symlink_metadata(path).map(|meta| meta.file_type().is_socket());
    match is_socket {
        Ok(true) if UnixStream::connect(path).is_err() => {
            fs::remove_file(path).with_context(|| format!("cannot replace {shown}"))?;
        }
        Ok(true) => bail!("cannot answer at {shown} (-o metrics=): another program answers there"),
        Ok(false) => bail!("cannot answer at {shown} (-o metrics=): it exists and is no socket"),
        Err(_) => {}
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot answer at {shown} (-o metrics=)"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
        .with_context(|| format!("cannot restrict {shown} to its owner"))?;
    Ok(listener)
}

fn answer_path(fs: &Weak<NvmFs>, mut asker: UnixStream) {
    let limited =
        asker.set_read_timeout(Some(WORD_MAX)).and_then(|()| asker.set_write_timeout(Some(WORD_MAX)));
    if limited.is_ok() {
        answer(fs, &mut asker);
    }
}

fn answer_port(fs: &Weak<NvmFs>, mut asker: TcpStream) {
    let limited =
        asker.set_read_timeout(Some(WORD_MAX)).and_then(|()| asker.set_write_timeout(Some(WORD_MAX)));
    if limited.is_ok() {
        answer(fs, &mut asker);
    }
}

fn answer(fs: &Weak<NvmFs>, asker: &mut (impl Read + Write)) {
    let Some(question) = question(asker) else { return };
    let (status, body) = match path_of(&question) {
        Some("/metrics" | "/") => match fs.upgrade() {
            Some(fs) => ("200 OK", prometheus::page(&fs.counters())),
            None => ("503 Service Unavailable", "it is being unmounted\n".to_owned()),
        },
        Some(_) => ("404 Not Found", "there is /metrics\n".to_owned()),
        None => ("400 Bad Request", "GET /metrics is understood\n".to_owned()),
    };
    let head = format!("HTTP/1.0 {status}\r\nContent-Type: {TYPE}\r\nContent-Length: {}\r\n\r\n", body.len());
    // Who has gone meanwhile misses nothing.
    let _ = asker.write_all(head.as_bytes()).and_then(|()| asker.write_all(body.as_bytes()));
}

/// Reads up to the empty line that ends a question.
fn question(asker: &mut impl Read) -> Option<Vec<u8>> {
    let mut question = Vec::new();
    let mut some = [0; 1024];
    while question.len() < QUESTION_BYTES_MAX {
        let n = asker.read(&mut some).ok().filter(|n| *n > 0)?;
        question.extend_from_slice(&some[..n]);
        if question.windows(4).any(|end| end == b"\r\n\r\n") || question.windows(2).any(|end| end == b"\n\n")
        {
            return Some(question);
        }
    }
    None
}

/// `GET PATH[?…] HTTP/…`
fn path_of(question: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(question.split(|byte| *byte == b'\n').next()?).ok()?;
    let mut words = line.split_ascii_whitespace();
    let path = (words.next()? == "GET").then(|| words.next()).flatten()?;
    words.next()?.starts_with("HTTP/").then(|| path.split('?').next()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_path_or_a_port_that_only_this_machine_can_reach() {
        assert_eq!(Place::parse("/run/h.sock"), Ok(Place::Path("/run/h.sock".into())));
        assert_eq!(Place::parse("9100"), Ok(Place::Port("127.0.0.1:9100".parse().unwrap())));
        assert_eq!(Place::parse("[::1]:9100"), Ok(Place::Port("[::1]:9100".parse().unwrap())));
        for wrong in ["0.0.0.0:9100", "10.0.0.1:80", "metrics", "", "99999"] {
            assert!(Place::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_a_question_for_a_page_has_a_path() {
        assert_eq!(path_of(b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\n\r\n"), Some("/metrics"));
        for wrong in [&b"POST /metrics HTTP/1.1\r\n\r\n"[..], b"GET /metrics", b"\xff\xfe\n\n", b""] {
            assert_eq!(path_of(wrong), None);
        }
    }
}
