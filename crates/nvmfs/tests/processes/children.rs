//! A mounted image with an attach socket, and the processes that come through it.

use crate::common::{named_durability, options, promising};
use heddle_nvmfs::adopt::{AdoptError, adopt};
use heddle_nvmfs::server::{Server, ServerOptions};
use heddle_nvmfs::{NvmFs, Variant, Volume, format_region, mount};
use heddle_pmem::{Durability, Region};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Tells a child what to do, and where.
pub const ROLE: &str = "HEDDLE_PROCESSES_ROLE";
pub const SOCKET: &str = "HEDDLE_PROCESSES_SOCKET";

/// File beside an image that says what its writes survive.
const PROMISE: &str = "durability";

/// Where the parent said that the attach socket is.
pub fn socket() -> PathBuf {
    std::env::var_os(SOCKET).unwrap().into()
}

/// An image that is mounted and handed out.
pub struct Mounted {
    volume: Option<Volume>,
    server: Option<Server>,
}

impl Mounted {
    /// The image at this place.
    pub fn of(place: &Path, how: ServerOptions) -> Mounted {
        Mounted::with(mount(image(place), &options()).unwrap(), place, how)
    }

    /// The image at this place, from its clients, whose daemon has died.
    pub fn taken_over(place: &Path, how: ServerOptions) -> Result<Mounted, AdoptError> {
        Ok(Mounted::with(adopt(&place.join("image"))?, place, how))
    }

    fn with(volume: Volume, place: &Path, how: ServerOptions) -> Mounted {
        let server =
            Server::start(&volume, &ServerOptions { socket: Some(place.join("attach")), ..how }).unwrap();
        Mounted { volume: Some(volume), server: Some(server) }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.server.take());
        if let Some(volume) = self.volume.take() {
            volume.unmount();
        }
    }
}

/// An image in memory with a daemon in this process.
pub struct SharedMount {
    mounted: Option<Mounted>,
    dir: tempfile::TempDir,
    socket: PathBuf,
}

impl SharedMount {
    pub fn new(len_bytes: u64) -> SharedMount {
        SharedMount::with(len_bytes, ServerOptions::default())
    }

    pub fn with(len_bytes: u64, how: ServerOptions) -> SharedMount {
        let mut shared = SharedMount::unmounted(len_bytes);
        shared.mounted = Some(Mounted::of(shared.place(), how));
        shared
    }

    /// As [`SharedMount::with`], of this durability, whoever mounts it.
    pub fn promising(durability: Durability, len_bytes: u64, how: ServerOptions) -> SharedMount {
        let mut shared = SharedMount::unmounted(len_bytes);
        std::fs::write(shared.place().join(PROMISE), durability.name()).unwrap();
        shared.mounted = Some(Mounted::of(shared.place(), how));
        shared
    }

    pub fn unmounted(len_bytes: u64) -> SharedMount {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let durability = named_durability().unwrap_or(Durability::Process);
        std::fs::write(dir.path().join(PROMISE), durability.name()).unwrap();
        let region = Region::create(dir.path().join("image"), len_bytes, &promising(durability)).unwrap();
        format_region(&region, Variant::Heddle).unwrap();
        let socket = dir.path().join("attach");
        SharedMount { mounted: None, dir, socket }
    }

    /// Takes over from a daemon that has died.
    pub fn adopt(&mut self) -> Result<(), AdoptError> {
        self.mounted = Some(Mounted::taken_over(self.dir.path(), ServerOptions::default())?);
        Ok(())
    }

    pub fn fs(&self) -> NvmFs {
        self.mounted.as_ref().unwrap().volume.as_ref().unwrap().fs()
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

    pub fn unmount(&mut self) {
        self.mounted = None;
    }

    /// Unmounts; a crash: as if the power had been cut.
    pub fn unmount_as(&mut self, crash: bool) {
        let mut mounted = self.mounted.take().unwrap();
        drop(mounted.server.take());
        if crash {
            mounted.volume.take().unwrap().abandon();
        }
    }

    pub fn mount(&mut self) {
        self.mounted = Some(Mounted::of(self.dir.path(), ServerOptions::default()));
    }
}

/// The image at this place, which nobody has mounted. Between fork and exec the children of other tests hold every lock of this
/// process: they are waited for.
pub fn image(place: &Path) -> Region {
    let began = Instant::now();
    let durability = std::fs::read_to_string(place.join(PROMISE)).unwrap().parse().unwrap();
    loop {
        match Region::open(place.join("image"), &promising(durability)) {
            Err(heddle_pmem::Error::InUse { .. }) if began.elapsed() < ROLE_PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other.unwrap(),
        }
    }
}

/// How long a role may take for what it does at once on an idle machine. Beyond it is taken for hung.
pub const ROLE_PATIENCE: Duration = Duration::from_secs(60);

/// A child that does not outlive its test.
pub struct Role(pub Child, String);

pub fn start(shared: &SharedMount, role: &str) -> Role {
    start_at(shared.socket(), role)
}

pub fn start_at(socket: &Path, role: &str) -> Role {
    start_with(socket, role, &[])
}

pub fn start_with(socket: &Path, role: &str, environment: &[(&str, &Path)]) -> Role {
    let child = command_for(socket, role).envs(environment.iter().copied()).spawn().unwrap();
    Role(child, role.to_owned())
}

/// This program as a child that plays a role.
pub fn command_for(socket: &Path, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "the_child_that_plays_a_role", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(SOCKET, socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
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

    /// Waits until it says that it serves.
    pub fn is_ready(&mut self, place: &Path) {
        let sign = place.join(format!("serves-{}", self.pid()));
        let began = Instant::now();
        while !sign.exists() {
            assert!(self.0.try_wait().unwrap().is_none(), "{} ended: its own output says why", self.1);
            assert!(began.elapsed() < ROLE_PATIENCE, "{} is not ready", self.1);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn succeeds(self) {
        self.succeeds_within(Duration::from_secs(120));
    }

    pub fn succeeds_within(mut self, time: Duration) {
        let status = self.ends(time);
        assert!(status.success(), "{} failed: its own output says why", self.1);
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
