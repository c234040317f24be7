use super::*;
use crate::{File, Passed};
use heddle_nvmfs::{MountOptions, Variant, format_region, mount};
use heddle_pmem::Region;
use heddle_vfs::short::Short;
use rustix::fd::AsFd;

fn file() -> (std::fs::File, KernelStat) {
    let file = tempfile::tempfile().unwrap();
    let kernel_stat = KernelStat::of(file.as_fd()).unwrap();
    (file, kernel_stat)
}

/// A list of one mount, asked again at `again_ms`.
fn one(kernel_stat: &KernelStat, first: MountAnswer, again_ms: u64) -> Attachments {
    let entry = Entry {
        dev: kernel_stat.dev,
        mount: kernel_stat.mount,
        first_answer: first,
        attached_later: AtomicPtr::default(),
        again_ms: AtomicU64::new(again_ms),
        next: std::ptr::null(),
    };
    Attachments { head: AtomicPtr::new(Box::into_raw(Box::new(entry))) }
}

fn engine() -> &'static Attachment {
    let region = Region::anonymous(4 << 20).unwrap();
    format_region(&region, Variant::Heddle).unwrap();
    let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
    let volume = Box::leak(Box::new(mount(region, &options).unwrap()));
    Attachment::new(volume.fs(), 1)
}

#[test]
fn only_a_granted_hold_is_lost_in_a_takeover() {
    let serving = engine();
    // The same file system, met before its present daemon took over.
    let earlier = Attachment::of_daemon(NvmFs::clone(serving.fs()), 1, serving.daemon + 1);
    let ino = serving.fs().new_file(heddle_vfs::Ino::ROOT, "f").ino.0;
    let kernel_stat = KernelStat { ino, ..file().1 };
    let [lost, served] = [earlier, serving].map(|at| File::new(at, kernel_stat, libc::O_RDWR));
    assert!(earlier.begin_hold().is_none() && !earlier.has_lost_holds(), "a refused one");
    assert!(lost.begin_hold().is_none() && served.begin_hold().is_some());
    serving.begin_hold().unwrap().granted();
    assert!(!earlier.has_lost_holds(), "one of the daemon that serves");
    drop(Hold::begin(earlier));
    assert!(!earlier.has_lost_holds(), "one that the kernel refused");
    assert_eq!((lost.unmapped(), lost.sync(true)), (Ok(Ok(())), Ok(Ok(()))));
    let (granted, refused) = (Hold::begin(earlier), Hold::begin(earlier));
    granted.granted();
    drop(refused);
    assert!(earlier.has_lost_holds() && !serving.has_lost_holds());
    assert_eq!((lost.unmapped(), lost.sync(true)), (Err(Passed::Engine), Err(Passed::Engine)));
    assert_eq!(served.unmapped(), Ok(Ok(())), "no call is served where a hold was lost");
    let later = Attachment::of_daemon(NvmFs::clone(serving.fs()), 1, serving.daemon + 2);
    earlier.gone.store(true, Ordering::SeqCst);
    assert!(later.has_lost_holds(), "one of a mount that was let go of");
}

#[test]
fn another_file_systems_mount_is_asked_once() {
    let (mounts, (file, kernel_stat)) = (Attachments::default(), file());
    assert!(mounts.known(&kernel_stat).is_none());
    assert!(matches!(mounts.find(&kernel_stat, file.as_fd()), MountAnswer::Foreign));
    assert!(matches!(mounts.known(&kernel_stat), Some(MountAnswer::Foreign)));
    assert!(matches!(mounts.find(&KernelStat { ino: 1, ..kernel_stat }, file.as_fd()), MountAnswer::Foreign));
    assert_eq!(mounts.entries().count(), 1, "another file of the same mount");
    assert!(mounts.known(&KernelStat { mount: kernel_stat.mount + 1, ..kernel_stat }).is_none());
    assert!(mounts.known(&KernelStat { dev: kernel_stat.dev + 1, ..kernel_stat }).is_none());
    let later = KernelStat { mount: kernel_stat.mount + 1, ..kernel_stat };
    assert!(matches!(mounts.find(&later, file.as_fd()), MountAnswer::Foreign));
    assert_eq!(mounts.entries().count(), 2);
    assert!(!mounts.any_engine_mapped() && mounts.refusals().next().is_none());
    assert!(
        !mounts.has_met(&kernel_stat)
            && !mounts.has_met(&KernelStat { dev: kernel_stat.dev + 1, ..kernel_stat })
    );
}

#[test]
fn an_engine_that_is_let_go_of_is_found_no_more() {
    let ((file, kernel_stat), ours) = (file(), engine());
    let mounts = one(&kernel_stat, MountAnswer::Ours(ours), 0);
    assert!(mounts.any_engine_mapped());
    assert!(matches!(mounts.known(&kernel_stat), Some(MountAnswer::Ours(at)) if std::ptr::eq(at, ours)));
    assert!(matches!(mounts.find(&kernel_stat, file.as_fd()), MountAnswer::Ours(_)));
    for _ in 0..2 {
        // SAFETY: no file of the engine was made.
        unsafe { mounts.let_go() };
        assert!(!mounts.any_engine_mapped());
    }
    assert!(matches!(mounts.known(&kernel_stat), Some(MountAnswer::Refused(DETACHED))));
    assert_eq!(mounts.refusals().collect::<Vec<_>>(), [DETACHED]);
    assert!(mounts.has_met(&kernel_stat));
}

#[test]
fn a_refusal_is_asked_again_once_its_time_has_come() {
    let (file, kernel_stat) = file();
    let mounts = one(&kernel_stat, MountAnswer::Refused("no"), now_ms() + 60_000);
    assert!(matches!(mounts.known(&kernel_stat), Some(MountAnswer::Refused("no"))));
    let again = |mounts: &Attachments| mounts.entry(&kernel_stat).unwrap().again_ms.load(Ordering::SeqCst);
    let (before, now) = (again(&mounts), now_ms());
    assert!(matches!(mounts.find(&kernel_stat, file.as_fd()), MountAnswer::Refused("no")));
    assert!(matches!(
        mounts.entry(&kernel_stat).unwrap().ask_again(&kernel_stat, file.as_fd()),
        MountAnswer::Refused("no")
    ));
    assert_eq!(again(&mounts), before, "nobody was asked");
    let mounts = one(&kernel_stat, MountAnswer::Refused("no"), now);
    assert!(mounts.known(&kernel_stat).is_none(), "it is due");
    assert!(matches!(mounts.find(&kernel_stat, file.as_fd()), MountAnswer::Refused("no")));
    let next = again(&mounts);
    assert!((now + 1000..now + 30_000).contains(&next), "not before a second has passed");
    assert_eq!(mounts.refusals().collect::<Vec<_>>(), ["no"]);
    let mounts = one(&kernel_stat, MountAnswer::Refused("no"), now);
    mounts
        .entry(&kernel_stat)
        .unwrap()
        .attached_later
        .store(std::ptr::from_ref(engine()).cast_mut(), Ordering::SeqCst);
    assert!(
        matches!(mounts.known(&kernel_stat), Some(MountAnswer::Ours(_))),
        "it was asked again, and is ours"
    );
}

#[test]
fn a_refusal_that_took_long_is_asked_for_seldom() {
    let now = now_ms();
    let (soon, late) = (ask_again_at(now) - now, ask_again_at(now - 1000) - now);
    assert!((1000..1500).contains(&soon), "{soon} ms");
    assert!((20_000..30_000).contains(&late), "{late} ms");
    let began = std::time::Instant::now();
    std::thread::sleep(Duration::from_millis(30));
    let (by_them, by_us) = (began.elapsed().as_millis() as u64, now_ms() - now);
    assert!((30..=by_them + 100).contains(&by_us), "{by_us} of {by_them} ms");
}

#[test]
fn a_mount_is_asked_again_by_one_thread_at_a_time() {
    let (_file, kernel_stat) = file();
    let mounts = one(&kernel_stat, MountAnswer::Refused("no"), 100_000);
    let entry = mounts.entry(&kernel_stat).unwrap();
    assert!(!entry.claim(99_999), "it is not due");
    assert!(entry.claim(100_000));
    for other in [100_000, 100_001, 129_999] {
        assert!(!entry.claim(other), "the first one asks still, {other}");
    }
    assert!(entry.claim(130_000), "the first one has ended meanwhile");
}

#[test]
fn the_clock_is_the_systems_monotonic_one() {
    let systems = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32).as_millis() as u64
    };
    let (before, now, after) = (systems(), now_ms(), systems());
    assert!((before..=after).contains(&now), "{now} between {before} and {after}");
}

#[test]
fn a_process_that_asks_for_it_maps_an_image_once() {
    const ASKS: &str = "HEDDLE_PREFAULT";
    let _alone = crate::words::ONE_TEST.lock();
    let at = engine();
    at.prefault();
    let said = std::env::var(ASKS).ok();
    let mapped_by = if said.as_deref() == Some("1") { process() } else { 0 };
    assert_eq!(at.mapped_by.load(Ordering::SeqCst), mapped_by, "{said:?}");
    assert_eq!(at.is_first_of_process(), mapped_by == 0);
    assert!(!at.is_first_of_process());
    if said.is_none() {
        for said in ["1", "0", ""] {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            again.args(["attach::tests::a_process_that_asks_for_it_maps_an_image_once", "--exact"]);
            assert!(again.env(ASKS, said).output().unwrap().status.success(), "{said:?}");
        }
    }
}
