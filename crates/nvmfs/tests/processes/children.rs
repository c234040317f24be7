//! A mounted image with a door, and the processes that come through it.

use crate::common::options;
use heddle_nvmfs::server::{Server, ServerOptions};
use heddle_nvmfs::{NvmFs, Variant, Volume, format_region, mount};
use heddle_pmem::{OpenOptions, Region};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Tells a child what to do, and where.
pub const ROLE: &str = "HEDDLE_PROCESSES_ROLE";
pub const SOCKET: &str = "HEDDLE_PROCESSES_SOCKET";

/// An image in memory, mounted, with a daemon that hands it out.
pub struct House {
    volume: Option<Volume>,
    server: Option<Server>,
    dir: tempfile::TempDir,
    socket: PathBuf,
}

impl House {
    pub fn new(len_bytes: u64) -> House {
        House::with(len_bytes, ServerOptions::default())
    }

    pub fn with(len_bytes: u64, how: ServerOptions) -> House {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let region = Region::create(dir.path().join("image"), len_bytes, &OpenOptions::default()).unwrap();
        format_region(&region, Variant::Heddle).unwrap();
        drop(region);
        House::open(dir, how)
    }

    fn open(dir: tempfile::TempDir, how: ServerOptions) -> House {
        let region = Region::open(dir.path().join("image"), &OpenOptions::default()).unwrap();
        let volume = mount(region, &options()).unwrap();
        let socket = dir.path().join("door");
        let server = Server::start(&volume, &ServerOptions { socket: Some(socket.clone()), ..how }).unwrap();
        House { volume: Some(volume), server: Some(server), dir, socket }
    }

    pub fn fs(&self) -> NvmFs {
        self.volume.as_ref().unwrap().fs()
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Where the image is.
    pub fn place(&self) -> &Path {
        self.dir.path()
    }

    /// Gives the daemon time for a round.
    pub fn sweeps(&self) {
        std::thread::sleep(Duration::from_millis(1200));
    }

    /// Unmounts and mounts again; a crash: as if the power had been cut.
    pub fn mount_again(&mut self, crash: bool) {
        drop(self.server.take());
        let volume = self.volume.take().unwrap();
        if crash { volume.abandon() } else { volume.unmount() }
        let region = Region::open(self.dir.path().join("image"), &OpenOptions::default()).unwrap();
        let volume = mount(region, &options()).unwrap();
        let how = ServerOptions { socket: Some(self.socket.clone()), ..ServerOptions::default() };
        self.server = Some(Server::start(&volume, &how).unwrap());
        self.volume = Some(volume);
    }
}

impl Drop for House {
    fn drop(&mut self) {
        drop(self.server.take());
        if let Some(volume) = self.volume.take() {
            volume.unmount();
        }
    }
}

/// A child that does not outlive its test.
pub struct Role(pub Child, String);

pub fn start(house: &House, role: &str) -> Role {
    start_at(house.socket(), role)
}

pub fn start_at(socket: &Path, role: &str) -> Role {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_child_that_plays_a_role", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(SOCKET, socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Role(child, role.to_owned())
}

impl Role {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits for its end.
    pub fn ends(&mut self, within: Duration) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < within, "{} has not ended within {within:?}", self.1);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn succeeds(mut self) {
        let status = self.ends(Duration::from_secs(120));
        assert!(status.success(), "{} failed: its own output says why", self.1);
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
