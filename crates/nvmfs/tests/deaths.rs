//! Processes that die between any two stores of a call, and settlers that die between any two stores of settling.
//!
//! Each case forks a process that makes a call and ends after so many stores, to the volatile memory or the region; then one that settles
//! it, and ends after so many of its own; then this process settles both. What is there must be what was before the call or after it, no
//! living reader's pin may be gone, no block may have two owners, none but an operation's worth may be lost, and all that others do must
//! work on: a lock that nobody gives back is a deadlock, which shuttle reports.
//!
//! Why shuttle  Its build is the one in which each store can be counted; nothing is scheduled here.
//! How many     Cases at random for `HEDDLE_DEATHS_SECONDS` (3), `HEDDLE_DEATHS_SEED` (1) says which. `HEDDLE_DEATHS_ALL=1`: each place of
//!              each call, and with it each N-th place of settling, where N is `HEDDLE_DEATHS_STEP` (1).
//!              `HEDDLE_DEATHS_CALL`, `_STORES` and `_SETTLER`: one case.
//! Run          `cargo xtask shuttle`
#![cfg(shuttle)]

#[path = "deaths/calls.rs"]
mod calls;
mod common;

use calls::{CALLS, CROWD, GROWS, NAMES_A_NAMELESS, attribute, prepare};
use common::{Disk, Short, env, name, root, sound};
use heddle_arena::sync::death;
use heddle_nvmfs::deaths::{Pin, pin, settle_all, unpin};
use heddle_nvmfs::fsck::survey;
use heddle_nvmfs::{NvmFs, Variant, Volume};
use heddle_vfs::{FileKind, FileSystem, Handle, Ino, SetXattr, XattrName};
use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, Runner};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const IMAGE_BYTES: u64 = 4 << 20;
/// Blocks that a death may cost: those of the operation, in twelve extents at most, and a log page.
const LOST_MAX: u64 = 24;
/// What all processes of a case have open, and the pin of a reader that lives.
struct Case {
    disk: Disk,
    volume: Option<Volume>,
    fs: Option<NvmFs>,
    file: Handle,
    /// Its last name is gone.
    nameless: Option<Handle>,
    dir: Ino,
    /// A directory whose table grows with the next name.
    crowd: Ino,
    pin: Option<Pin>,
}

/// What a call changes.
type View = Vec<Option<Vec<u8>>>;

impl Case {
    fn new() -> Case {
        let disk = Disk::new(Variant::Heddle, IMAGE_BYTES);
        let volume = disk.mount();
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "file");
        fs.write(&file, 0, &[1; 2 * PAGE + 200]).unwrap();
        fs.write(&file, PAGE as u64, &[2; PAGE]).unwrap();
        let old = fs.new_file(Ino::ROOT, "old");
        fs.write(&old, 0, &[3; PAGE]).unwrap();
        fs.setxattr(&root(), old.ino, attribute(), b"old", SetXattr::Any).unwrap();
        fs.release(old);
        let nameless = fs.new_file(Ino::ROOT, "nameless");
        fs.write(&nameless, 0, &[4; PAGE]).unwrap();
        fs.remove(Ino::ROOT, "nameless").unwrap();
        let dir = fs.new_dir(Ino::ROOT, "dir");
        let [crowd, _] = ["crowd", "empty"].map(|text| fs.new_dir(Ino::ROOT, text));
        CROWD.iter().for_each(|text| fs.release(fs.new_file(crowd, text)));
        fs.setxattr(&root(), file.ino, attribute(), b"before", SetXattr::Any).unwrap();
        let pin = Some(pin(&fs, &file).unwrap());
        let (volume, fs, nameless) = (Some(volume), Some(fs), Some(nameless));
        Case { disk, volume, fs, file, nameless, dir, crowd, pin }
    }

    fn fs(&self) -> &NvmFs {
        self.fs.as_ref().unwrap()
    }

    /// What the open file holds; mode and attributes of it and of a directory; then what each name leads to.
    fn view(&self) -> View {
        let fs = self.fs();
        let crowd = |text: &'static str| (self.crowd, text);
        let named = [(Ino::ROOT, "old"), (Ino::ROOT, "other"), (self.dir, "other"), (Ino::ROOT, "new")]
            .into_iter()
            .chain(CROWD.into_iter().chain([GROWS]).map(crowd))
            .chain([(Ino::ROOT, "empty")]);
        let held = |(dir, text): (Ino, &str)| {
            let attr = fs.find(dir, text).ok()?;
            if attr.kind == FileKind::Directory {
                return Some(fs.parent(attr.ino).unwrap().0.to_le_bytes().to_vec());
            }
            if attr.kind == FileKind::Symlink {
                return Some(fs.readlink(attr.ino).unwrap());
            }
            let file = fs.open_file(dir, text);
            let bytes = fs.read_vec(&file, 0, 4 * PAGE);
            fs.release(file);
            Some(bytes)
        };
        let open = fs.read_vec(&self.file, 0, 6 * PAGE);
        assert_eq!(open.len() as u64, fs.size(&self.file));
        let attributes = [self.file.ino, self.dir].into_iter().flat_map(|ino| {
            let mode = fs.getattr(ino).unwrap().perm.to_le_bytes().to_vec();
            let attribute = fs.getxattr(&root(), ino, attribute()).ok();
            [Some(mode), attribute, fs.getxattr(&root(), ino, XattrName::ACL_ACCESS).ok()]
        });
        [Some(open)].into_iter().chain(attributes).chain(named.map(held)).collect()
    }

    /// Everybody goes on, whatever the dead were at; the image is used to the last block, and nothing of it is another's.
    /// `counts_a_link`: a file without a name may count one, until the next mount.
    fn goes_on(mut self, thoroughly: bool, counts_a_link: bool) {
        let fs = self.fs.take().unwrap();
        assert!(unpin(&fs, &self.file, self.pin.take().unwrap()).unwrap(), "a living reader's pin is gone");
        let nameless = self.nameless.take().unwrap();
        assert_eq!(fs.read_vec(&nameless, 0, 2 * PAGE), [4; PAGE], "an open file without a name");
        fs.release(nameless);
        for text in ["old", "other", "new"].into_iter().chain(CROWD).chain([GROWS]) {
            for dir in [Ino::ROOT, self.dir, self.crowd] {
                match fs.find(dir, text) {
                    Ok(attr) if attr.kind == FileKind::Directory => {
                        fs.rmdir(&root(), dir, name(text)).unwrap();
                    }
                    Ok(_) => fs.remove(dir, text).unwrap(),
                    Err(_) => {}
                }
                fs.release(fs.new_file(dir, text));
            }
        }
        fs.write(&self.file, 0, &[7; 3 * PAGE]).unwrap();
        fs.resize(&self.file, PAGE as u64).unwrap();
        if thoroughly {
            let all = fs.new_file(Ino::ROOT, "all");
            while fs.append(&all, &[8; 16 * PAGE]).is_ok() {}
            while fs.append(&all, &[8; PAGE]).is_ok() {}
            assert_eq!(fs.read_vec(&self.file, 0, 2 * PAGE), [7; PAGE], "a block has two owners");
            fs.resize(&all, 0).unwrap();
            fs.release(all);
        }
        let there = survey("test", self.disk.region()).unwrap().unwrap();
        let free = fs.statfs().unwrap().blocks_free;
        let most = there.blocks_free + there.blocks_inodes;
        assert!(free <= most, "{free} blocks are free, of which fsck finds {most}");
        assert!(
            free + LOST_MAX >= there.blocks_free,
            "{free} of {} free blocks came back",
            there.blocks_free
        );
        if !counts_a_link {
            sound(self.disk.region()).unwrap();
        }
        fs.release(self.file);
        drop(fs);
        self.volume.take().unwrap().unmount();
        if counts_a_link {
            self.disk.mount().unmount();
        }
        sound(self.disk.region()).unwrap();
    }
}

/// Runs `before` and `work` in a process that dies after so many stores of `work`; false if it came to its end before.
fn dies(stores: u64, before: impl FnOnce(), work: impl FnOnce()) -> bool {
    // SAFETY: this process has one thread at work; the child leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let both = || {
            before();
            death::after(stores);
            work();
        };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(both));
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = 0;
    // SAFETY: room for the answer.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "a child ended with {status:x}");
    match libc::WEXITSTATUS(status) {
        death::CODE => true,
        0 => false,
        code => panic!("a child panicked: {code}"),
    }
}

/// Which call, after how many stores it dies, and after how many of its own its settler.
#[derive(Clone, Copy, Debug)]
struct Deaths {
    call: usize,
    stores: u64,
    settler: u64,
}

/// Did the call, and did the settler, die?
fn case(deaths: Deaths, thoroughly: bool) -> (bool, bool) {
    struct Tell(Deaths);
    impl Drop for Tell {
        fn drop(&mut self) {
            if std::thread::panicking() {
                println!("failed: {:?}, a process that {}", self.0, CALLS[self.0.call].0);
            }
        }
    }
    let _tell = Tell(deaths);
    let (what, call) = CALLS[deaths.call];
    let (before, after) = {
        let whole = Case::new();
        prepare(what, &whole);
        let before = whole.view();
        call(&whole);
        (before, whole.view())
    };
    let case = Case::new();
    let died = dies(deaths.stores, || prepare(what, &case), || call(&case));
    let settler_died = dies(deaths.settler, || (), || _ = settle_all(case.fs()));
    settle_all(case.fs());
    let is = case.view();
    // Made of two calls.
    let between = what.starts_with("opens") && is == after;
    assert!(is == before || is == after || between, "neither before nor after");
    assert!(died || is == after, "it returned, and is not there");
    // The first settler could not tell whether the name's link was taken back.
    case.goes_on(thoroughly, settler_died && what == NAMES_A_NAMELESS);
    (died, settler_died)
}

fn real(work: impl Fn() + Send + Sync + 'static) {
    death::of_real_processes();
    heddle_pmem::BEFORE_STORE.set(death::before_store).unwrap();
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.silence_warnings = true;
    config.max_steps = shuttle::MaxSteps::None;
    Runner::new(RandomScheduler::new_from_seed(1, 1), config).run(work);
}

/// SplitMix64.
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *random;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[test]
fn a_death_between_any_two_stores_leaves_what_was_before_or_after() {
    real(|| match env("HEDDLE_DEATHS_STORES", u64::MAX) {
        _ if env("HEDDLE_DEATHS_ALL", 0) != 0 => all(),
        u64::MAX => at_random(),
        stores => {
            let call = env("HEDDLE_DEATHS_CALL", 0) as usize;
            case(Deaths { call, stores, settler: env("HEDDLE_DEATHS_SETTLER", u64::MAX) }, true);
        }
    });
}

fn all() {
    let (step, only) = (env("HEDDLE_DEATHS_STEP", 1), env("HEDDLE_DEATHS_CALL", u64::MAX));
    for call in (0..CALLS.len()).filter(|call| only == u64::MAX || *call as u64 == only) {
        let (mut cases, mut longest, began) = (0, 0, Instant::now());
        for stores in 0.. {
            let mut died = false;
            for settler in (stores % step..).step_by(step as usize) {
                let (this, settlers) = case(Deaths { call, stores, settler }, cases % 8 == 0);
                (cases, longest, died) = (cases + 1, longest.max(settler), this);
                if !settlers {
                    break;
                }
            }
            if !died {
                println!(
                    "{}: {stores} stores, at most {longest} of a settler, {cases} cases, {:?}",
                    CALLS[call].0,
                    began.elapsed()
                );
                break;
            }
        }
    }
}

fn at_random() {
    let seconds = Duration::from_secs(env("HEDDLE_DEATHS_SECONDS", 3));
    let mut random = env("HEDDLE_DEATHS_SEED", 1);
    println!("HEDDLE_DEATHS_SEED={random}");
    // What a call makes at most, as far as is known: found out while it goes.
    let mut known = vec![(600, 400); CALLS.len()];
    let (mut cases, mut deaths, began) = (0, 0, Instant::now());
    while began.elapsed() < seconds {
        let call = next(&mut random) as usize % CALLS.len();
        let (stores_max, settler_max) = known[call];
        let (stores, settler) = (next(&mut random) % stores_max, next(&mut random) % settler_max);
        let died = case(Deaths { call, stores, settler }, next(&mut random).is_multiple_of(8));
        if !died.0 {
            known[call].0 = stores.max(2);
        }
        (cases, deaths) = (cases + 1, deaths + u64::from(died.0) + u64::from(died.1));
    }
    println!("{cases} cases, {deaths} deaths");
    assert!(deaths > 10, "nobody died");
}
