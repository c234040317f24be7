//! What the clients do.

use super::children::{Mounted, socket};
use super::survivors;
use crate::common::Short;
use crate::kill::child::{Files, carry_out};
use crate::kill::history::Event;
use crate::kill::operation::{Operation, THREADS, mixed, operation};
use heddle_nvmfs::server::{Server, ServerOptions};
use heddle_nvmfs::{NvmFs, client};
use heddle_vfs::{Cred, Name};
use heddle_vfs::{FileSystem, Ino};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Attaches through the socket that the parent named.
pub fn attached() -> NvmFs {
    // A test that is killed itself takes its children along.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    client::attach(&socket()).unwrap_or_else(|e| panic!("{e}"))
}

pub fn play(role: &str) {
    let mut words = role.split(' ');
    let name = words.next().unwrap();
    let mut number = || words.next().unwrap().parse::<u64>().unwrap();
    match name {
        "reads-7-writes-8" => reads_7_writes_8(),
        "attaches" => attached().sync().unwrap(),
        "works" => works(number(), number(), |_| true),
        "works-on-data" => {
            works(number(), number(), |op| matches!(op, Operation::Pages { .. } | Operation::Append { .. }))
        }
        "stamps" => stamps(number(), number()),
        "checks" => checks(number(), number(), number()),
        "appends" => appends(number(), number()),
        "serves" => serves(false),
        "takes-over" => serves(true),
        "mounts-for-itself" => mounts_for_itself(),
        "writes-until-unmounted" => writes_until_unmounted(),
        "executes-something-else" => executes_something_else(),
        "closes-its-descriptors" => closes_its_descriptors(),
        "forks" => forks(),
        "forks-into-namespaces" => forks_into_namespaces(number()),
        "listens-where-it-may-not" => listens_where_it_may_not(),
        "serves-as-nobody" => serves_as_nobody(),
        "is-stepped" => {
            let number = number();
            survivors::is_stepped(words.next().unwrap(), number);
        }
        "is-nobody" => is_nobody(number() as u32, number() != 0),
        other => panic!("no such role: {other}"),
    }
}

fn reads_7_writes_8() {
    let fs = attached();
    let file = fs.open_file(Ino::ROOT, "f");
    assert_eq!(fs.read_vec(&file, 0, 20_000), [7; 10_000]);
    fs.write(&file, 0, &[8; 12_000]).unwrap();
    let made = fs.new_file(Ino::ROOT, "made-by-the-client");
    fs.append(&made, b"hello").unwrap();
    fs.release(made);
    fs.release(file);
}

/// Appends end here.
const LOG_MAX_BYTES: u64 = 32 << 20;

/// Works as thread `thread` of the kill test does, from call `first` on, for ever; notes the longest call it has made.
fn works(thread: u64, first: u64, wanted: impl Fn(Operation) -> bool) {
    let fs = attached();
    let place = socket().parent().unwrap().to_path_buf();
    let files = Files::of(&fs);
    let mut journal = File::options().append(true).create(true).open(place.join("journal")).unwrap();
    let mut longest = Duration::ZERO;
    for step in 0.. {
        let number = first + step * THREADS + thread;
        // Few appends, and none to a long log, or the image is full before the loop is over; and no more calls than a journal can hold.
        let append = matches!(operation(number), Operation::Append { .. });
        let too_much = || !mixed(number).is_multiple_of(16) || log_is_long(&fs, &files);
        if !wanted(operation(number)) || (append && too_much()) {
            continue;
        }
        if step % 8 == 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
        journal.write_all(&Event::Begun.line(number)).unwrap();
        let began = Instant::now();
        carry_out(&fs, &files, number);
        if began.elapsed() > longest {
            longest = began.elapsed();
            note_longest(&place, thread, longest);
        }
        journal.write_all(&Event::Done.line(number)).unwrap();
    }
}

/// What is appended never goes, and how often a test appends depends on the machine.
fn log_is_long(fs: &NvmFs, files: &Files) -> bool {
    fs.getattr(files.log.ino).unwrap().size_bytes > LOG_MAX_BYTES
}

fn note_longest(place: &Path, thread: u64, longest: Duration) {
    let file = place.join(format!("longest-{thread}-{}", std::process::id()));
    std::fs::write(file, (longest.as_micros() as u64).to_le_bytes()).unwrap();
}

/// Writes one value at a time over a range, until it is killed.
fn stamps(offset: u64, len: u64) {
    let fs = attached();
    let file = fs.open_file(Ino::ROOT, "torn");
    for round in 0u64.. {
        let value = (round as u8 ^ std::process::id() as u8) | 1;
        fs.write(&file, offset, &vec![value; len as usize]).unwrap();
    }
}

/// Reads the range: every time it is of one value, and not always of the same.
fn checks(offset: u64, len: u64, reads: u64) {
    let fs = attached();
    let file = fs.open_file(Ino::ROOT, "torn");
    let mut bytes = vec![0; len as usize];
    let mut values = [false; 256];
    let began = Instant::now();
    for read in 0.. {
        // The writers may take longer to come than many reads do.
        if read >= reads && values.iter().filter(|seen| **seen).count() > 1 {
            break;
        }
        assert!(read < reads || began.elapsed() < Duration::from_secs(60), "nobody wrote meanwhile");
        assert_eq!(fs.read(&file, offset, &mut bytes).unwrap(), bytes.len());
        let torn = bytes.iter().position(|byte| *byte != bytes[0]);
        assert_eq!(torn, None, "read {read} of {len} bytes at {offset} is torn");
        values[usize::from(bytes[0])] = true;
    }
    fs.release(file);
}

/// Appends `count` records that say whose they are and how long.
fn appends(who: u64, count: u64) {
    let fs = attached();
    let file = fs.open_file(Ino::ROOT, "log");
    for n in 0..count {
        let number = n * THREADS + who;
        let record = crate::kill::operation::record(number, 16 + mixed(number) as usize % 5000);
        fs.append(&file, &record).unwrap();
    }
    fs.release(file);
}

/// A daemon, until it is killed. `take_over`: of what the clients of a dead one hold.
fn serves(take_over: bool) {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let place = socket().parent().unwrap().to_path_buf();
    let _house = match take_over {
        false => Mounted::of(&place, Default::default()),
        true => Mounted::taken_over(&place, ServerOptions::default()).unwrap_or_else(|e| panic!("{e}")),
    };
    std::fs::write(place.join(format!("serves-{}", std::process::id())), "").unwrap();
    loop {
        std::thread::park();
    }
}

/// Mounts, and lets nobody attach, until it is killed.
fn mounts_for_itself() {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let place = socket().parent().unwrap().to_path_buf();
    let region = super::children::image(&place);
    let _volume = heddle_nvmfs::mount(region, &crate::common::options()).unwrap();
    std::fs::write(place.join("mounted"), "").unwrap();
    loop {
        std::thread::park();
    }
}

fn writes_until_unmounted() {
    let fs = attached();
    let file = fs.open_file(Ino::ROOT, "f");
    std::fs::write(socket().with_extension(format!("began-{}", std::process::id())), "").unwrap();
    loop {
        match fs.write(&file, 4096, &[1; 9000]) {
            Ok(_) => {}
            Err(heddle_vfs::Error::Unmounted) => break,
            Err(other) => panic!("{other}"),
        }
    }
    let ended = heddle_vfs::Error::Unmounted;
    // Calls that take no lane, too: an image that somebody has mounted anew may have other files.
    assert_eq!(fs.fsync(&file, false).err(), Some(ended.clone()));
    assert_eq!(fs.getattr(file.ino).err(), Some(ended.clone()));
    assert_eq!(fs.seek(&file, heddle_vfs::SeekTarget::Data, 0).err(), Some(ended.clone()));
    assert_eq!(fs.lookup(&Cred::root(), Ino::ROOT, Name::new(b"f").unwrap()).err(), Some(ended.clone()));
    assert_eq!(fs.statfs().err(), Some(ended));
}

/// One thread executes another program while others write: the kernel ends them wherever they are.
fn executes_something_else() {
    let fs = attached();
    let file = fs.open_file(Ino::ROOT, "f");
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (fs, file) = (&fs, &file);
            scope.spawn(move || {
                loop {
                    fs.write(file, thread * 100, &[2; 20_000]).unwrap();
                    fs.append(file, &[3; 100]).unwrap();
                }
            });
        }
        std::thread::sleep(Duration::from_millis(20));
        use std::os::unix::process::CommandExt;
        panic!("{}", std::process::Command::new("/bin/true").exec());
    });
}

fn closes_its_descriptors() {
    let fs = attached();
    let file = fs.open_file(Ino::ROOT, "f");
    // SAFETY: whatever these descriptors were for, nothing in this process needs them any more.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) }, 0);
    for round in 0..1000u64 {
        fs.write(&file, round % 16 * 4096, &[4; 4096]).unwrap();
    }
    fs.release(file);
}

/// Children that are forked while other threads write work with lanes of their own.
fn forks() {
    let fs = attached();
    let file = fs.open_file(Ino::ROOT, "f");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (fs, file, stop) = (&fs, &file, &stop);
        for thread in 0..2u64 {
            scope.spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    fs.write(file, thread * 4096, &[5; 4096]).unwrap();
                }
            });
        }
        for child in 0..50u64 {
            // SAFETY: the child calls the file system alone and leaves by `_exit`.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let whole = (0..20).all(|_| fs.write(file, (child % 4) * 4096, &[5; 8192]).is_ok());
                // SAFETY: ends this process.
                unsafe { libc::_exit(i32::from(!whole)) };
            }
            let mut status = 0;
            // SAFETY: room for the answer.
            unsafe { libc::waitpid(pid, &mut status, 0) };
            assert_eq!(status, 0, "child {child} failed");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    fs.release(file);
}

/// Forks into other namespaces, of users or of numbers, before or after it has attached; four children write and check files of their own.
fn forks_into_namespaces(way: u64) {
    let flags = if way == 2 {
        libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS
    } else {
        libc::CLONE_NEWPID
    };
    let early = (way != 1).then(attached);
    // A user namespace is for processes of one thread: a forked one.
    let middle = forked(|| {
        // SAFETY: changes this process alone.
        assert_eq!(unsafe { libc::unshare(flags) }, 0, "{}", std::io::Error::last_os_error());
        forked_and_waited_for(|| {
            let fs = early.unwrap_or_else(|| client::attach(&socket()).unwrap_or_else(|e| panic!("{e}")));
            let children: Vec<_> = (0..4u64).map(|child| forked(|| writes_and_checks(&fs, child))).collect();
            children.into_iter().for_each(succeeded);
        });
    });
    succeeded(middle);
}

/// A child that does this.
fn forked(work: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child calls the file system alone and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: a setting of this process: it does not outlive its parent.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    pid
}

fn forked_and_waited_for(work: impl FnOnce()) {
    succeeded(forked(work));
}

fn succeeded(pid: libc::pid_t) {
    let mut status = 0;
    // SAFETY: room for the answer.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0, "a child failed: its own output says why");
}

fn writes_and_checks(fs: &NvmFs, child: u64) {
    let file = fs.new_file(Ino::ROOT, &format!("child-{child}"));
    let mut page = [0; 4096];
    let stamp = |page: u64, round: u64| [(page as u8 ^ round as u8).wrapping_mul(31) ^ child as u8; 4096];
    for round in 0..20 {
        (0..64).for_each(|page| assert_eq!(fs.write(&file, page * 4096, &stamp(page, round)), Ok(4096)));
        for at in 0..64 {
            assert_eq!(fs.read(&file, at * 4096, &mut page), Ok(4096));
            assert!(page == stamp(at, round), "child {child}, round {round}: page {at} is wrong");
        }
        // The daemon's rounds and the others' waits come between.
        std::thread::sleep(Duration::from_millis(20));
    }
    fs.release(file);
}

/// A daemon of a user who may not write to the socket's directory.
fn listens_where_it_may_not() {
    let here = tempfile::tempdir().unwrap();
    let image = here.path().join("image");
    let region = heddle_pmem::Region::create(&image, 16 << 20, &Default::default()).unwrap();
    heddle_nvmfs::format_region(&region, heddle_nvmfs::Variant::Heddle).unwrap();
    let volume = heddle_nvmfs::mount(region, &crate::common::options()).unwrap();
    // SAFETY: a plain system call; all threads of this process become that user.
    assert_eq!(unsafe { libc::setuid(65534) }, 0);
    let options = ServerOptions { socket: Some(socket().with_extension("new")), ..ServerOptions::default() };
    let error = Server::start(&volume, &options).err().unwrap().to_string();
    assert!(error.contains("ermission denied") && error.contains("attach.new"), "{error}");
    volume.unmount();
}

/// A daemon of another user, until it is killed.
fn serves_as_nobody() {
    // SAFETY: a plain system call; all threads of this process become that user.
    assert_eq!(unsafe { libc::setuid(65534) }, 0);
    serves(false);
}

/// Attaches as a user without rights, in this group; `let_in` says what is expected.
fn is_nobody(group: u32, let_in: bool) {
    // SAFETY: plain system calls of a process with one thread that matters.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setgid(group), 0);
        assert_eq!(libc::setuid(65534), 0);
    }
    match client::attach(&socket()) {
        Ok(fs) => {
            assert!(let_in, "a stranger was let in");
            fs.sync().unwrap();
        }
        Err(error @ (client::AttachError::Permission { .. } | client::AttachError::Refused { .. })) => {
            assert!(!let_in, "{error}");
        }
        Err(error) => panic!("{error}"),
    }
}
