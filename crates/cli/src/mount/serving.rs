//! Serves an opened image of any engine until it is unmounted, then closes it.

use super::options::Options;
use super::{Args, background, metrics, metrics::Metrics, ready, source_of};
use crate::unmount_report::UnmountReport;
use anyhow::{Context, Result, bail};
use heddle_console::output::talk;
use heddle_fuse::{EndMark, MountPoint, Mounted, Unmounter};
use heddle_nvmfs::counters::Counters;
use heddle_nvmfs::server::Server;
use heddle_vfs::FileSystem;
use heddle_vfs::workers::Ended;
use signal_hook::iterator::Signals;
use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How serving ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It is unmounted: no call comes any more.
    Unmounted,
    /// It could not be unmounted: calls may still come.
    StillMounted,
    /// `FS_IOC_SHUTDOWN`: nothing more may be written, as after a power cut.
    ShutDown,
}

/// An opened image, as serving needs it.
pub trait OpenImage: Sized {
    /// The file system that the kernel's requests go to.
    fn file_system(&self) -> Arc<dyn FileSystem>;

    /// Returns a reader of the counters of that file system.
    fn counters(&self) -> impl Fn() -> Counters + Send + 'static;

    /// Opens the attach socket, through which other processes read statistics or attach. Without it the image is
    /// mounted all the same.
    fn open_attach_socket(&self, args: &Args, options: &Options) -> Option<Server>;

    /// Work that is repeated while the image is served, and its interval.
    fn upkeep(&self) -> Option<(Duration, Box<dyn FnMut() + Send>)>;

    /// Returns true if other processes hold the state of this image: a mount that fails leaves it unchanged.
    fn is_held_by_clients(&self) -> bool;

    /// Closes an image that was not served.
    ///
    /// # Errors
    /// Some writes have not reached the media.
    fn give_up(self) -> Result<()>;

    /// Closes the image after serving. `unmount_report` is left for `heddle umount` before other processes can
    /// have the image.
    ///
    /// # Errors
    /// Some writes have not reached the media.
    fn close(self, end: End, unmount_report: &UnmountReport) -> Result<()>;
}

/// Where a mount is to be, and its log, opened before the mount is there: this process must never wait for its own mount.
pub struct Target {
    pub place: MountPoint,
    pub log: Option<File>,
}

/// Serves until it is unmounted.
pub fn serve(
    args: &Args,
    options: &Options,
    image: impl OpenImage,
    mut signals: Signals,
    target: Target,
) -> Result<()> {
    let unmount_report = UnmountReport::of(&args.image);
    let end_mark = EndMark::new().context("cannot make the end mark of the mount (memfd_create)");
    let begun =
        end_mark.and_then(|end_mark| Ok((begin(args, options, &image, target, &mut signals)?, end_mark)));
    let (serving, end_mark) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            image.give_up()?;
            return Err(error);
        }
    };
    let served = finish(serving, image, &unmount_report, &end_mark);
    say_ended(args, &served);
    served
}

/// A mount that is served, and the threads beside it.
struct Serving {
    mounted: Mounted,
    attach_server: Option<Server>,
    metrics: Option<Metrics>,
    upkeep: Option<Upkeep>,
}

/// Mounts the image, and reports that it is ready. After an error nothing is mounted.
fn begin(
    args: &Args,
    options: &Options,
    image: &impl OpenImage,
    Target { place, log }: Target,
    signals: &mut Signals,
) -> Result<Serving> {
    stop_if_told(args, signals)?;
    let start = |at| metrics::start(image.counters(), at, options.metrics_group);
    let metrics = options.metrics.as_ref().map(start).transpose()?;
    let attach_server = image.open_attach_socket(args, options);
    let mut shown = shown_as(args, options, attach_server.as_ref());
    if image.is_held_by_clients() {
        // Descriptors of the dead mount are unknown to this one, so it cannot tell which files others change meanwhile.
        shown.ttl = Duration::ZERO;
    }
    let name = args.image.display().to_string();
    heddle_fuse::tell_of_damage(move |text| talk(&format!("{name}: {text}")));
    let mounted = place.mount(image.file_system(), &shown);
    let begun = mounted.map_err(anyhow::Error::from).and_then(|mounted| {
        say_ready(args, log.as_ref(), &mounted, signals)?;
        Ok(mounted)
    });
    match begun {
        Ok(mounted) => {
            let upkeep = image.upkeep().map(|work| Upkeep::start(work, mounted.shut_down()));
            Ok(Serving { mounted, attach_server, metrics, upkeep })
        }
        Err(error) => {
            if let (Some(attach_server), true) = (attach_server, image.is_held_by_clients()) {
                // The next daemon finds the state by this server's note.
                attach_server.abandon();
            }
            Err(error)
        }
    }
}

/// Waits for the end, and closes the image accordingly.
fn finish(
    serving: Serving,
    image: impl OpenImage,
    unmount_report: &UnmountReport,
    end_mark: &EndMark,
) -> Result<()> {
    let Serving { mounted, attach_server, metrics, upkeep } = serving;
    let was_shut_down = mounted.shut_down();
    let served = mounted.wait();
    drop(upkeep);
    let end = match &served {
        Err(heddle_fuse::Error::Unmount { .. }) => End::StillMounted,
        _ if was_shut_down() => End::ShutDown,
        _ => End::Unmounted,
    };
    let stopped = metrics.map_or(Ended::Whole, Metrics::close);
    match attach_server.map_or(Ended::Whole, |attach_server| stops(attach_server, end)).max(stopped) {
        Ended::Whole => {}
        Ended::HeldUp => talk(
            "heddle: a thread of the attach socket or of the metrics does not end: a program has sent it a descriptor whose file cannot \
             be closed. The image is closed without it",
        ),
        // It may still store to the image.
        Ended::AtWork => {
            let why = "a thread of the mount was still at work on the image, which is left as a kill leaves it; the next mount recovers";
            unmount_report.leave(why);
            // Nothing is closed, and a successor finds the note.
            image.close(End::StillMounted, unmount_report)?;
            bail!(why);
        }
    }
    let closed = image.close(end, unmount_report);
    if closed.is_ok()
        && end == End::Unmounted
        && let Err(error) = end_mark.set()
    {
        talk(&format!("heddle: heddle umount will take this mount for killed: {error}"));
    }
    ended(served)?;
    closed
}

/// Stops the attach socket. The image of a mount that is not unmounted is left as by a dead daemon, so the next one must find its state.
fn stops(attach_server: Server, end: End) -> Ended {
    match end {
        End::Unmounted => attach_server.close(),
        End::StillMounted | End::ShutDown => attach_server.abandon(),
    }
}

/// A thread that works while the image is served.
struct Upkeep {
    /// Dropped to end it.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Upkeep {
    /// Starts the work. It ends when this is dropped or the file system was shut down.
    fn start(
        (every, mut work): (Duration, Box<dyn FnMut() + Send>),
        is_shut_down: impl Fn() -> bool + Send + 'static,
    ) -> Upkeep {
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) && !is_shut_down() {
                work();
            }
        });
        Upkeep { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Fails if a signal was sent before there was a mount.
fn stop_if_told(args: &Args, signals: &mut Signals) -> Result<()> {
    match signals.pending().next() {
        Some(_) => {
            bail!("{}: interrupted before it was mounted; the image is in order", args.image.display())
        }
        None => Ok(()),
    }
}

/// The options of the kernel's mount.
fn shown_as(args: &Args, options: &Options, attach_server: Option<&Server>) -> heddle_fuse::MountOptions {
    heddle_fuse::MountOptions {
        source: source_of(args),
        attach_ioctl: attach_server.map(Server::attach_ioctl),
        read_only: options.read_only,
        allow_other: options.allow_other,
        uid: options.uid,
        gid: options.gid,
        exec: options.exec,
        suid: options.suid,
        dev: options.dev,
        ..heddle_fuse::MountOptions::default()
    }
}

/// Tells the parent process and the service manager that the mount is ready. From then on signals unmount.
fn say_ready(args: &Args, log: Option<&File>, mounted: &Mounted, signals: &mut Signals) -> Result<()> {
    let ready = format!("{}: mounted at {}", args.image.display(), mounted.dir().display());
    talk(&ready);
    if args.tell_ready {
        background::tell_ready(log)?;
        talk(&ready);
    }
    ready::tell_service_manager();
    let unmounter = mounted.unmounter();
    // Other commands of this program do not use these signals, so they stay caught.
    let mut signals = std::mem::replace(signals, Signals::new([] as [i32; 0])?);
    std::thread::spawn(move || leave_on_signal(&mut signals, &unmounter));
    Ok(())
}

fn say_ended(args: &Args, served: &Result<()>) {
    if args.tell_ready {
        match served {
            Ok(()) => talk(&format!("{}: unmounted", args.image.display())),
            Err(error) => talk(&format!("{}: {error:#}", args.image.display())),
        }
    }
}

fn ended(served: Result<(), heddle_fuse::Error>) -> Result<()> {
    match served {
        Err(heddle_fuse::Error::Session { source, .. }) if is_an_end(&source) => Ok(()),
        other => Ok(other?),
    }
}

/// When a detached mount loses its last file, the kernel may end the connection in the middle of its message.
fn is_an_end(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECONNABORTED)
}

/// Unmounts at the first signal. If files are open, the mount leaves the tree and is served until they are
/// closed, even if another namespace has it mounted. The second signal ends the process.
fn leave_on_signal(signals: &mut Signals, unmounter: &Unmounter) {
    let mut come = signals.forever();
    if come.next().is_some() {
        if let Some(dir) = unmounter.covered_at() {
            talk(&format!(
                "heddle: another file system is mounted over {}: what is left below it is taken away with heddle umount",
                dir.display()
            ));
        }
        if let Err(busy) = unmounter.unmount() {
            talk(&format!("heddle: {busy}"));
            talk(
                "heddle: detached; serving what is open until it is closed. A second signal ends this at once",
            );
            if let Err(error) = unmounter.detach() {
                talk(&format!("heddle: {error}"));
            }
        }
        unmounter.leave();
    }
    if come.next().is_some() {
        talk("heddle: ended at once; the next mount recovers the image");
        std::process::exit(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_nvmfs::server::ServerOptions;
    use heddle_nvmfs::{MountOptions, Variant, format_region, mount, runtime_directory};
    use heddle_pmem::{OpenOptions, Region};
    use rustix::fs::{AtFlags, statat, unlinkat};
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn only_an_unmounted_image_needs_no_successor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let region = Region::create(&path, 8 << 20, &OpenOptions::default()).unwrap();
        format_region(&region, Variant::Heddle).unwrap();
        let how = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
        let volume = mount(region, &how).unwrap();
        let file = path.metadata().unwrap();
        let note = format!("{:x}-{:x}.mount", file.dev(), file.ino());
        for (end, is_left) in [(End::Unmounted, false), (End::StillMounted, true), (End::ShutDown, true)] {
            let server = Server::start(&volume, &ServerOptions::default()).unwrap();
            let notes = runtime_directory(false).unwrap();
            assert!(statat(&notes, &note, AtFlags::empty()).is_ok(), "it is not noted at all");
            assert_eq!(stops(server, end), Ended::Whole);
            assert_eq!(statat(&notes, &note, AtFlags::empty()).is_ok(), is_left, "{end:?}");
            let _ = unlinkat(&notes, &note, AtFlags::empty());
        }
        volume.abandon();
    }
}
