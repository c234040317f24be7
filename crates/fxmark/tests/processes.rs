//! Workers that are processes and call an engine: each workload runs with them, and whatever becomes of them, nothing is left.

use anyhow::ensure;
use heddle_fxmark::{Attach, Attached, Config, Need, Report, Session, Target, WorkersAs, Workload, run};
use heddle_nvmfs::fork::{ForkError, ForkHandle};
use heddle_nvmfs::{MountOptions, Variant, format_region, mount};
use heddle_pmem::Region;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Beside what a run needs.
const SPARE_BYTES: u64 = 16 << 20;

/// What is left of a run is looked for in this process, so one at a time.
static ONE: Mutex<()> = Mutex::new(());

/// An image of this variant. Each worker calls `comes` when it has attached.
fn engine(
    variant: Variant,
    comes: impl Fn() -> anyhow::Result<()> + Clone + Send + Sync + 'static,
) -> Target {
    let open = move |need: &Need| -> anyhow::Result<Session> {
        let region = Region::anonymous(2 * need.bytes + (4 << 10) * need.files + SPARE_BYTES)?;
        format_region(&region, variant)?;
        let volume = mount(region, &MountOptions::default())?;
        let fork = ForkHandle::of(&volume).ok().map(Arc::new);
        let comes = comes.clone();
        let attach = fork.clone().map(|fork| -> Attach {
            Box::new(move || {
                let fs = fork.join()?;
                comes()?;
                let (mapped, leaving) = (fs.clone(), fs.clone());
                let (map, leave) = (Box::new(move || mapped.map_all()), Box::new(move || leaving.leave()));
                Ok(Attached { fs: Arc::new(fs), map, leave })
            })
        });
        let fs = Arc::new(volume.fs());
        let close = Box::new(move || {
            let left = fork.map_or(Vec::new(), |fork| fork.others());
            volume.unmount();
            ensure!(left.is_empty(), "processes {left:?} have not left");
            Ok(())
        });
        Ok(Session { fs, attach, close })
    };
    Target::InProcess { name: variant.name().into(), workers_as: WorkersAs::Processes, open: Arc::new(open) }
}

/// Two workers, if this machine has processors for them.
fn short(workloads: impl IntoIterator<Item = Workload>, target: Target) -> Config {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get().min(2));
    Config {
        workloads: workloads.into_iter().collect(),
        targets: vec![target],
        cores: vec![cores],
        secs: 0.01,
        repeat: 1,
        retakes: 0,
        file_size_bytes: Some(64 * 4096 * cores as u64),
        window_bytes: 100 * 4096,
        files: 64,
        ..Config::default()
    }
}

/// The run's one error.
fn error(report: &Report) -> &str {
    assert_eq!((report.runs.len(), report.runs[0].ops), (1, 0));
    report.runs[0].error.as_deref().expect("the run failed")
}

fn image_is_mapped() -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains("memfd:heddle-region")
}

#[test]
fn every_workload_runs_with_processes_that_attach_and_leave() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let program = std::process::id();
    let target = engine(Variant::Heddle, move || {
        ensure!(std::process::id() != program, "a worker is no process of its own");
        Ok(())
    });
    let report = run(&short(Workload::all(), target), &mut ()).unwrap();
    for run in &report.runs {
        assert_eq!((&run.error, run.workers_as), (&None, WorkersAs::Processes), "{run}");
        assert!(run.ops > 0 && run.p50_ns.is_some(), "{run}");
    }
    assert_eq!(report.runs.len(), Workload::all().count());
    assert!(!image_is_mapped(), "an image was left");
}

#[test]
fn a_worker_that_is_killed_fails_the_run_and_takes_nothing_down() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let register = dir.path().to_path_buf();
    let target = engine(Variant::Heddle, move || {
        Ok(std::fs::write(register.join(std::process::id().to_string()), "")?)
    });
    let config = Config { secs: 60.0, ..short([Workload::MWCM], target) };
    let began = Instant::now();
    let (report, workers) = std::thread::scope(|scope| {
        let running = scope.spawn(|| run(&config, &mut ()).unwrap());
        let workers = wait_for(dir.path(), config.cores[0]);
        std::thread::sleep(Duration::from_millis(100));
        kill_process(workers[0], Signal::KILL).unwrap();
        (running.join().unwrap(), workers)
    });
    assert!(error(&report).contains("was killed by signal 9"), "{}", report.runs[0]);
    assert!(began.elapsed() < Duration::from_secs(30), "the others waited for it");
    for worker in workers {
        assert!(test_kill_process(worker).is_err(), "process {worker:?} is left");
    }
    assert!(!image_is_mapped(), "the image was left");
}

/// The workers, as soon as all have signed up.
fn wait_for(register: &Path, workers: usize) -> Vec<Pid> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let names = std::fs::read_dir(register).unwrap().map(|entry| entry.unwrap().file_name());
        let signed: Vec<Pid> = names.filter_map(|name| Pid::from_raw(name.to_str()?.parse().ok()?)).collect();
        if signed.len() == workers {
            return signed;
        }
        assert!(Instant::now() < end, "no worker in sight");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_worker_that_cannot_attach_fails_the_run_with_the_reason() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let target = engine(Variant::Heddle, || anyhow::bail!("the key does not fit"));
    let report = run(&short([Workload::DRBL], target), &mut ()).unwrap();
    assert!(error(&report).contains("cannot attach: the key does not fit"), "{}", report.runs[0]);
    assert!(!image_is_mapped(), "the image was left");
}

#[test]
fn an_engine_for_one_process_refuses_others_and_says_so() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    for variant in Variant::ALL.into_iter().filter(|v| *v != Variant::Heddle) {
        let region = Region::anonymous(SPARE_BYTES).unwrap();
        format_region(&region, variant).unwrap();
        let volume = mount(region, &MountOptions::default()).unwrap();
        let refused = ForkHandle::of(&volume).err().unwrap();
        assert!(
            matches!(&refused, ForkError::OneProcess { why } if why.contains(variant.name())),
            "{refused}"
        );
        volume.unmount();
        let came = Arc::new(AtomicU32::new(0));
        let counted = came.clone();
        let target = engine(variant, move || {
            counted.fetch_add(1, SeqCst);
            Ok(())
        });
        let report = run(&short([Workload::DRBL], target), &mut ()).unwrap();
        assert!(error(&report).contains("works in one process only"), "{}", report.runs[0]);
        assert_eq!(came.load(SeqCst), 0);
    }
    assert!(!image_is_mapped(), "an image was left");
}
