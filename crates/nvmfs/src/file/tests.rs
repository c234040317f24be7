//! Who may pass a writer that is parked in one of the papers' steps (SRL paper, Fig. 2 and 5): a faithful variant serialises where
//! the paper does, and nowhere else.

use crate::region::Region;
use crate::steps::{Step, hook};
use crate::{MountOptions, NvmFs, Variant, Volume, format_region, mount};
use heddle_vfs::{Cred, FileSystem, Handle, Ino, Name, OpenFlags};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

const PAGE: u64 = 4096;
/// Who has not passed after this long waits.
const PATIENCE: Duration = Duration::from_millis(200);
/// Who may pass does so within this, on a loaded machine too.
const LIMIT: Duration = Duration::from_secs(20);

const STEPS: [Step; 6] =
    [Step::RangeCheck, Step::DataWrite, Step::Logging, Step::Tail, Step::Index, Step::Time];
const RANGE_LOCKED: [Variant; 3] = [Variant::NovaInterval, Variant::NovaArray, Variant::NovaTree];

/// The page that the parked writer writes, and one that nobody else touches.
const ITS_PAGE: u64 = 3;
const OTHER_PAGE: u64 = 40;

/// A file of 64 pages on a new image.
struct Scene {
    file: Handle,
    fs: NvmFs,
    _volume: Volume,
}

impl Scene {
    fn of(variant: Variant) -> Arc<Scene> {
        let region = Region::anonymous(8 << 20).unwrap();
        format_region(&region, variant).unwrap();
        let options = MountOptions { arena_bytes: 256 << 20, ..MountOptions::default() };
        let volume = mount(region, &options).unwrap();
        let (fs, name) = (volume.fs(), Name::new(b"file").unwrap());
        let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap();
        fs.write(&file, 0, &vec![1; 64 * PAGE as usize]).unwrap();
        Arc::new(Scene { file, fs, _volume: volume })
    }
}

/// A thread that passes steps, or is parked in one.
struct Other {
    passed: Receiver<Passed>,
    thread: JoinHandle<()>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Passed {
    Step(Step),
    End,
}

impl Other {
    fn spawn(
        scene: &Arc<Scene>,
        hook_of: impl FnOnce(Sender<Passed>) -> hook::Hook + Send + 'static,
        work: fn(&Scene),
    ) -> Other {
        let (send, passed) = channel();
        let scene = scene.clone();
        let thread = spawn(move || {
            hook::set(Some(hook_of(send.clone())));
            work(&scene);
            hook::set(None);
            // The test may have ended by a failure.
            let _ = send.send(Passed::End);
        });
        Other { passed, thread }
    }

    /// A thread that tells of each of the papers' steps that it passes. With the feature `planted` a write has further ones.
    fn walking(scene: &Arc<Scene>, work: fn(&Scene)) -> Other {
        let tells = |send: Sender<Passed>| -> hook::Hook {
            Arc::new(move |step| {
                if STEPS.contains(&step) {
                    // The test may have ended by a failure.
                    let _ = send.send(Passed::Step(step));
                }
            })
        };
        Other::spawn(scene, tells, work)
    }

    /// The last step it comes to, `None` if it comes to none, when it is waited for until it moves no more.
    fn stops_in(&self) -> Option<Step> {
        let mut last = None;
        loop {
            match self.passed.recv_timeout(PATIENCE) {
                Ok(Passed::Step(step)) => last = Some(step),
                Ok(Passed::End) => panic!("it was to be stopped, but it came to its end"),
                Err(RecvTimeoutError::Timeout) => return last,
                Err(RecvTimeoutError::Disconnected) => panic!("it failed"),
            }
        }
    }

    fn comes_to_its_end(&self) {
        while self.passed.recv_timeout(LIMIT).expect("it may pass") != Passed::End {}
    }
}

/// The hook of a thread that is parked in a step until the other side is dropped.
fn parks_in(step: Step, released: Receiver<()>) -> impl FnOnce(Sender<Passed>) -> hook::Hook + Send {
    move |send: Sender<Passed>| -> hook::Hook {
        let released = Mutex::new(Some(released));
        Arc::new(move |at| {
            if at == step
                && let Some(released) = released.lock().unwrap().take()
            {
                let _ = send.send(Passed::Step(at));
                // Ends also when the test fails and drops its side.
                let _ = released.recv();
            }
        })
    }
}

/// Parks a writer of `ITS_PAGE` in a step, lets `look` look at what others do, and lets it go: then all come to their end.
fn with_writer_parked(variant: Variant, step: Step, look: impl FnOnce(&Arc<Scene>) -> Vec<Other>) {
    let scene = Scene::of(variant);
    let (release, released) = channel::<()>();
    let writer = Other::spawn(&scene, parks_in(step, released), |scene| write_page(scene, ITS_PAGE));
    assert_eq!(
        writer.passed.recv_timeout(LIMIT),
        Ok(Passed::Step(step)),
        "a write of {variant:?} passes {step:?}"
    );
    let others = look(&scene);
    assert!(!writer.thread.is_finished(), "the writer was to be parked in {step:?} all the time");
    drop(release);
    for other in others.into_iter().chain([writer]) {
        other.comes_to_its_end();
        other.thread.join().unwrap();
    }
}

fn write_page(scene: &Scene, page: u64) {
    scene.fs.write(&scene.file, page * PAGE, &[2; PAGE as usize]).unwrap();
}

fn read_page(scene: &Scene, page: u64) {
    let mut bytes = [0; PAGE as usize];
    assert_eq!(scene.fs.read(&scene.file, page * PAGE, &mut bytes).unwrap(), bytes.len());
    // The first bytes are those that `write_same` writes too.
    assert!(bytes[10..].iter().all(|b| *b == bytes[10]), "half a write");
}

fn write_other(scene: &Scene) {
    write_page(scene, OTHER_PAGE);
}

fn write_same(scene: &Scene) {
    scene.fs.write(&scene.file, ITS_PAGE * PAGE - 10, &[3; 20]).unwrap();
}

fn read_other(scene: &Scene) {
    read_page(scene, OTHER_PAGE);
}

fn read_same(scene: &Scene) {
    read_page(scene, ITS_PAGE);
}

#[test]
fn in_nova_nobody_passes_a_writer_in_any_step() {
    for step in STEPS {
        with_writer_parked(Variant::Nova, step, |scene| {
            let others =
                [write_other, write_same, read_other, read_same].map(|work| Other::walking(scene, work));
            for other in &others {
                assert_eq!(other.stops_in(), None, "past a writer in {step:?}");
            }
            others.into()
        });
    }
}

/// How far a writer of another range comes; `None`: to its end.
fn writer_stops_after(parked: Step) -> Option<Step> {
    match parked {
        Step::RangeCheck | Step::DataWrite => None,
        Step::Logging => Some(Step::DataWrite),
        Step::Tail => Some(Step::Logging),
        Step::Index => Some(Step::Tail),
        Step::Time => Some(Step::Index),
        _ => None,
    }
}

#[test]
fn range_locks_make_writers_of_other_ranges_wait_for_commits_alone() {
    for variant in RANGE_LOCKED {
        for step in STEPS {
            with_writer_parked(variant, step, |scene| {
                let other = Other::walking(scene, write_other);
                match writer_stops_after(step) {
                    None => {
                        other.comes_to_its_end();
                        Vec::new()
                    }
                    Some(last) => {
                        assert_eq!(other.stops_in(), Some(last), "{variant:?}, past a writer in {step:?}");
                        vec![other]
                    }
                }
            });
        }
    }
}

#[test]
fn range_locks_let_readers_of_other_ranges_pass_a_writer() {
    for variant in RANGE_LOCKED {
        for step in STEPS {
            with_writer_parked(variant, step, |scene| {
                Other::walking(scene, read_other).comes_to_its_end();
                Vec::new()
            });
        }
    }
}

#[test]
fn range_locks_make_overlapping_calls_wait_for_the_whole_write() {
    for variant in RANGE_LOCKED {
        for step in STEPS {
            with_writer_parked(variant, step, |scene| {
                let others = [write_same, read_same].map(|work| Other::walking(scene, work));
                for other in &others {
                    assert_eq!(other.stops_in(), None, "{variant:?}, past a writer in {step:?}");
                }
                others.into()
            });
        }
    }
}

#[test]
fn every_write_of_the_papers_variants_passes_their_steps_in_order() {
    for variant in Variant::ALL.into_iter().filter(|v| v.lock().is_some()) {
        let scene = Scene::of(variant);
        let other = Other::walking(&scene, write_other);
        let steps: Vec<Passed> = other.passed.iter().collect();
        let wanted: Vec<Passed> = STEPS.map(Passed::Step).into_iter().chain([Passed::End]).collect();
        assert_eq!(steps, wanted, "{variant:?}");
        other.thread.join().unwrap();
    }
}

#[test]
fn a_parked_writer_takes_no_time_back() {
    let times = |scene: &Scene| {
        let attr = scene.fs.getattr(scene.file.ino).unwrap();
        (attr.mtime, attr.ctime)
    };
    let mut met = None;
    with_writer_parked(Variant::Heddle, Step::Durable, |scene| {
        let before = times(scene);
        Other::walking(scene, write_other).comes_to_its_end();
        assert!(times(scene) > before, "a write after a look at the times shows a later one");
        met = Some((scene.clone(), times(scene)));
        Vec::new()
    });
    let (scene, later) = met.unwrap();
    assert_eq!(times(&scene), later, "the slower writer has an older time");
}

/// Reads across the end of the file, as far as it goes and on.
fn read_across_the_end(scene: &Scene) {
    let mut bytes = vec![9; 3 * PAGE as usize];
    let read = scene.fs.read(&scene.file, 63 * PAGE, &mut bytes).unwrap();
    bytes.truncate(read);
    let grown = [vec![1; PAGE as usize - 10], vec![2; PAGE as usize + 10]].concat();
    assert!(bytes == grown, "{read} bytes of a write that moved the end");
}

/// It has seen the size before that. A part of the write is none.
#[test]
fn a_read_that_waited_for_a_moved_end_reads_up_to_it() {
    for variant in [Variant::Nova, Variant::NovaTree] {
        let scene = Scene::of(variant);
        let grows: fn(&Scene) = |scene| {
            scene.fs.write(&scene.file, 64 * PAGE - 10, &[2; PAGE as usize + 10]).unwrap();
        };
        waits_for(&scene, Step::DataWrite, grows, read_across_the_end);
        let cuts: fn(&Scene) = |scene| {
            let size = heddle_vfs::SetAttr { size_bytes: Some(10 * PAGE + 7), ..Default::default() };
            scene.fs.setattr(&Cred::root(), scene.file.ino, Some(&scene.file), &size).unwrap();
        };
        waits_for(&scene, Step::Tail, cuts, |scene| {
            let mut bytes = vec![9; 30 * PAGE as usize];
            assert_eq!(scene.fs.read(&scene.file, 10 * PAGE, &mut bytes), Ok(7));
        });
        // The first call of a thread is timed, and stands for 64.
        let waited = Duration::from_nanos(scene.fs.counters().totals.wait_ns());
        assert!(waited > 64 * Duration::from_millis(20), "{variant:?}: {waited:?}");
    }
}

/// The inode's lock guards its log, too. Range locks do not: a change of mode waits for commits alone.
#[test]
fn only_in_nova_a_change_of_mode_waits_for_a_writer() {
    let change: fn(&Scene) = |scene| {
        let mode = heddle_vfs::SetAttr { perm: Some(0o600), ..Default::default() };
        scene.fs.setattr(&Cred::root(), scene.file.ino, None, &mode).unwrap();
    };
    let writes_first_page: fn(&Scene) = |scene| write_page(scene, 0);
    waits_for(&Scene::of(Variant::Nova), Step::DataWrite, writes_first_page, change);
    let scene = Scene::of(Variant::NovaTree);
    let (release, released) = channel::<()>();
    let parked = Other::spawn(&scene, parks_in(Step::DataWrite, released), writes_first_page);
    assert_eq!(parked.passed.recv_timeout(LIMIT), Ok(Passed::Step(Step::DataWrite)));
    let other = Other::walking(&scene, change);
    other.comes_to_its_end();
    drop(release);
    parked.comes_to_its_end();
    for call in [parked, other] {
        call.thread.join().unwrap();
    }
}

/// Parks a call in a step, has another one wait for it, and lets both come to their ends.
fn waits_for(scene: &Arc<Scene>, step: Step, parks: fn(&Scene), waits: fn(&Scene)) {
    let (release, released) = channel::<()>();
    let parked = Other::spawn(scene, parks_in(step, released), parks);
    assert_eq!(parked.passed.recv_timeout(LIMIT), Ok(Passed::Step(step)));
    let other = Other::walking(scene, waits);
    assert_eq!(other.stops_in(), None, "past a call in {step:?}");
    drop(release);
    for call in [parked, other] {
        call.comes_to_its_end();
        call.thread.join().unwrap();
    }
}
