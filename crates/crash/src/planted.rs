//! Tests of the rig: each bug of `heddle_nvmfs::planted` is planted, and must be caught; but for those that tests of the engine see.
//!
//! A planted bug affects the whole process, so bugs are tried one at a time.

use crate::cut::Bounds;
use crate::op::Workload;
use crate::rig::{Config, Failure, Nobody, run};
use crate::{ace, corpus, faults, scenes};
use heddle_nvmfs::Variant;
use heddle_nvmfs::planted::{Bug, Step, plant};
use heddle_pmem::Model;
use std::process::ExitCode;
use std::time::Instant;

/// The run that caught a bug.
pub struct Caught {
    /// The failure of the first image that failed.
    pub failure: Failure,
    /// Images mounted until then.
    pub images: u64,
}

/// Runs one workload with a bug planted.
pub fn attempt(bug: Bug, variant: Variant, workload: &Workload, model: Model, seed: u64) -> Option<Caught> {
    plant(Some(bug));
    let config = Config { variant, model, bounds: Bounds { ordered: 64, random: 8, seed }, only: None };
    let report = run(workload, &config, &mut Nobody);
    plant(None);
    let report = report.ok()?;
    report.failures.into_iter().next().map(|failure| Caught { failure, images: report.images })
}

/// For each bug the workload that catches it soonest.
const WHERE: &[(Bug, Variant, &str)] = &[
    (Bug::DataFenceMissing, Variant::Heddle, "data"),
    (Bug::EntryBeforeData, Variant::Heddle, "data"),
    (Bug::CommitFenceMissing, Variant::Heddle, "data"),
    (Bug::TailBeforeEntryFence, Variant::Nova, "data"),
    (Bug::MarkBeforeEntryFence, Variant::NovaTree, "sizes"),
    (Bug::TailFenceMissing, Variant::Nova, "data"),
    (Bug::MarkFenceMissing, Variant::NovaTree, "data"),
    (Bug::PageLinkedBeforeHeader, Variant::Heddle, "names"),
    (Bug::PageNotZeroed, Variant::Heddle, "data-in-pieces"),
    (Bug::HeadNotFlushed, Variant::Heddle, "data"),
    (Bug::TailNotFlushed, Variant::Nova, "data"),
    (Bug::MarkNotFlushed, Variant::NovaTree, "data"),
    (Bug::RecordNotFlushed, Variant::NovaTree, "sizes"),
    (Bug::InodeNotFlushed, Variant::Heddle, "names"),
    (Bug::ChunkPointerNotFlushed, Variant::Heddle, "inode-chunks"),
    (Bug::EdgeNotFlushed, Variant::Heddle, "data"),
    (Bug::ListNotFlushed, Variant::Heddle, "data-in-pieces"),
    (Bug::RenameTellsOneDirectory, Variant::Heddle, "renames"),
    (Bug::OldDirectoryNotTold, Variant::Heddle, "renames-cleaned"),
    (Bug::OldNameGoesFirst, Variant::Heddle, "renames"),
    (Bug::LinksNotCounted, Variant::Heddle, "names"),
    (Bug::TombstoneDroppedEarly, Variant::Heddle, "removals-kept"),
    (Bug::PunchDroppedEarly, Variant::Heddle, "data-in-pieces"),
    (Bug::SizeRecordDropped, Variant::Heddle, "sizes-cleaned"),
    (Bug::PageReusedBeforeUnlink, Variant::Heddle, "tombstones"),
    (Bug::WriteInPlace, Variant::NovaTree, "data"),
    (Bug::FloorNotRaised, Variant::Heddle, "ranges"),
    (Bug::ChangeCountNotRaised, Variant::Heddle, "sizes"),
    (Bug::LatestTimeWins, Variant::Heddle, "attributes"),
    (Bug::CutCreationMovesTime, Variant::Heddle, "attributes"),
    (Bug::StaleMark, Variant::Heddle, "data-in-pieces"),
    (Bug::HalfTransactionCounts, Variant::Heddle, "sizes"),
    (Bug::UnmarkedEntryCounts, Variant::NovaTree, "sizes"),
    (Bug::OnlyFirstPageRead, Variant::Heddle, "log-page"),
    (Bug::LaterNameWins, Variant::Heddle, "names-in-chains"),
    (Bug::RenameReplayedTwice, Variant::Heddle, "renames"),
    (Bug::SlotNotZeroed, Variant::Heddle, "names"),
    (Bug::UnwrittenIsData, Variant::Heddle, "ranges"),
    (Bug::ChunkNotZeroed, Variant::Heddle, "inode-chunks"),
    (Bug::StaleBytesBeyondEnd, Variant::Heddle, "sizes"),
    (Bug::SuperblocksTogether, Variant::Heddle, "remounts"),
    (Bug::FreedBeforeCommit, Variant::NovaTree, "log-page"),
    (Bug::ExchangeNotTold, Variant::Heddle, "exchanges-cleaned"),
    (Bug::UnnamedNotFlushed, Variant::Heddle, "unnamed"),
    (Bug::UnlinkedBeforeCopies, Variant::Heddle, "logged-anew"),
    (Bug::AttributesForgotten, Variant::Heddle, "logged-anew"),
    (Bug::ShiftWritesUnwritten, Variant::Heddle, "unwritten"),
];

/// Bugs that need many lanes in calls at once.
const CROWDED: &[Bug] = &[Bug::OnlyInlineChainsRead, Bug::LaterChainWins];
/// How often such a scene is played.
const CROWDED_TRIES: usize = 8;

/// Bugs of failing calls: no power is cut.
const FAILING: &[Bug] = &[Bug::FailedWriteLeaks];

/// Bugs that need a stalled writer, and the step in which it stalls.
const STALLED: &[(Bug, Step)] = &[
    (Bug::StopsAtFirstGap, Step::Logged),
    (Bug::TailOverAHole, Step::Logging),
    (Bug::LinkFencedLate, Step::Unfenced),
];

/// Bugs without effect if processes die and memory stays: a flush or a fence is missing, but the order of
/// stores is right. The last one needs a name that arrives without the inode stored before it.
const OF_POWER_CUTS: &[Bug] = &[
    Bug::DataFenceMissing,
    Bug::CommitFenceMissing,
    Bug::TailBeforeEntryFence,
    Bug::MarkBeforeEntryFence,
    Bug::TailFenceMissing,
    Bug::MarkFenceMissing,
    Bug::PageLinkedBeforeHeader,
    Bug::HeadNotFlushed,
    Bug::TailNotFlushed,
    Bug::MarkNotFlushed,
    Bug::RecordNotFlushed,
    Bug::InodeNotFlushed,
    Bug::ChunkPointerNotFlushed,
    Bug::EdgeNotFlushed,
    Bug::ListNotFlushed,
    Bug::PageReusedBeforeUnlink,
    Bug::LinkFencedLate,
    Bug::SuperblocksTogether,
    Bug::CutCreationMovesTime,
    Bug::UnnamedNotFlushed,
];
/// The fast table plays so many of them with dying processes: each takes as long as a workload without
/// findings.
const OF_POWER_CUTS_FAST: usize = 3;

/// Bugs that the engine's own tests see: `cargo xtask breaches` plants them.
const OF_TESTS: &[Bug] = &[
    Bug::PastLastSlot,
    Bug::HeadBlockStays,
    Bug::ErasBeginAnew,
    Bug::TornPartStays,
    Bug::CleaningPositionStays,
    Bug::MovedPunchTooWide,
    Bug::BeyondTailStays,
    Bug::SettledSizeStays,
    Bug::ForeignRecordNotNoted,
    Bug::ExchangeKeepsParent,
    Bug::ReplacedDirectoryCounted,
    Bug::RemovalBeforeMark,
    Bug::PageEndSaysNoSize,
    Bug::KeptSizeGrows,
    Bug::ZeroedRunOverGap,
    Bug::LongListCut,
    Bug::HeldSlotsForgotten,
    Bug::ChunkFreedEarly,
    Bug::EmptySetDropped,
    Bug::CleaningMovesTime,
];

/// Tries the soonest workload, under a model of power cuts or of deaths.
fn soonest(bug: Bug, model: Model, seed: u64) -> Option<Caught> {
    if let Some((_, stall)) = STALLED.iter().find(|(known, _)| *known == bug) {
        plant(Some(bug));
        let played = std::iter::once(1).chain(scenes::PAGE_ENDS).find_map(|records| {
            scenes::stalled_writer(Variant::NovaTree, *stall, records, model).ok().flatten()
        });
        plant(None);
        return played.map(|failure| Caught { failure, images: 0 });
    }
    if CROWDED.contains(&bug) {
        plant(Some(bug));
        // The machine decides which writer gets which chain; one try in nine hides the bug.
        let played =
            (0..CROWDED_TRIES).find_map(|_| scenes::many_lanes(Variant::Heddle, model).ok().flatten());
        plant(None);
        return played.map(|failure| Caught { failure, images: 0 });
    }
    if FAILING.contains(&bug) {
        plant(Some(bug));
        let found = faults::refused(Variant::Heddle, faults::Resource::Memory);
        plant(None);
        return found.err().map(|text| Caught { failure: without_a_cut(Variant::Heddle, text), images: 0 });
    }
    let (_, variant, name) = WHERE.iter().find(|(known, ..)| *known == bug)?;
    let workload = corpus::workload(name)?;
    attempt(bug, *variant, &workload, model, seed)
}

fn without_a_cut(variant: Variant, text: String) -> Failure {
    Failure {
        workload: "faults".into(),
        variant,
        step: 0,
        op: String::new(),
        returned: true,
        fence: None,
        arrived: String::new(),
        text,
    }
}

/// Tries all tests of the rig, suitable variants first, until one catches the bug.
fn search(bug: Bug, seed: u64) -> Option<Caught> {
    let workloads: Vec<Workload> = corpus::workloads().into_iter().chain(ace::sequences(1, None)).collect();
    let variants = [Variant::Heddle, Variant::NovaTree, Variant::Nova];
    workloads.iter().find_map(|workload| {
        variants.iter().find_map(|variant| attempt(bug, *variant, workload, Model::Ordered, seed))
    })
}

/// Prints the table. Returns success if every bug was caught. With `fast`, a bug that its workload does not
/// catch is not searched for elsewhere.
pub fn table(seed: u64, fast: bool) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let (mut tried, mut missed) = (0, Vec::new());
    let models = [Model::Ordered, Model::Process];
    let kept =
        models.map(commit_marks_keep_what_returned) == [true; 2] && models.map(scenes_hold) == [true; 2];
    println!(
        "| bug | caught by | at | images until then | where processes die | seconds |\n|---|---|---|---|---|---|"
    );
    for bug in Bug::ALL.iter().filter(|bug| !OF_TESTS.contains(bug)) {
        let start = Instant::now();
        tried += 1;
        let found =
            soonest(*bug, Model::Ordered, seed).or_else(|| if fast { None } else { search(*bug, seed) });
        let of_power_cuts = OF_POWER_CUTS.iter().position(|known| known == bug);
        let skipped = fast && of_power_cuts.is_some_and(|place| place >= OF_POWER_CUTS_FAST);
        let of_deaths = if skipped { None } else { soonest(*bug, Model::Process, seed) };
        let (deaths, as_argued) = match (of_deaths, of_power_cuts) {
            (None, Some(_)) => (if skipped { "-" } else { "nothing lost" }, true),
            (Some(_), Some(_)) => ("CAUGHT", false),
            (Some(_), None) => ("caught", true),
            (None, None) => ("MISSED", false),
        };
        if !as_argued {
            missed.push(bug.name());
        }
        let seconds = start.elapsed().as_secs_f64();
        match found {
            Some(Caught { failure, images }) => {
                let when = match (failure.fence, failure.returned) {
                    (None, _) => "no power cut".to_string(),
                    (_, true) => format!("after {}, stores {}", failure.op, failure.arrived),
                    (Some(fence), false) => {
                        format!("{}, fence {fence}, stores {}", failure.op, failure.arrived)
                    }
                };
                let shorter: String = when.chars().take(90).collect();
                let by = format!("{} {}", failure.variant.name(), failure.workload);
                println!("| {} | {by} | {shorter} | {images} | {deaths} | {seconds:.1} |", bug.name());
            }
            None => {
                println!("| {} | MISSED | | | {deaths} | {seconds:.1} |", bug.name());
                missed.push(bug.name());
            }
        }
    }
    let of_power_cuts = OF_POWER_CUTS.len();
    println!(
        "{tried} bugs planted, {of_power_cuts} of them bugs of power cuts alone; not as they should be: {missed:?}"
    );
    if kept && missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// The other half of the SRL paper's argument: with commit marks, returned calls beside a stalled writer
/// survive. (With a tail they do not: `tail-over-a-hole`.)
fn commit_marks_keep_what_returned(model: Model) -> bool {
    let mut all = true;
    for variant in [Variant::NovaInterval, Variant::NovaArray, Variant::NovaTree] {
        let played = scenes::writer_stalled_anywhere(variant, model);
        if !matches!(played, Ok(None)) {
            println!("FAILED, nothing planted: {}, a stalled writer: {played:?}", variant.name());
            all = false;
        }
    }
    all
}

/// The scenes of `heddle`.
fn scenes_hold(model: Model) -> bool {
    let mut all = true;
    for (name, scene) in scenes::SCENES {
        let wrong = match scene(model) {
            Ok((failure, _)) => failure.map(|failure| failure.to_string()),
            Err(text) => Some(text),
        };
        if let Some(text) = wrong {
            println!("FAILED, nothing planted: {name}, {}: {text}", model.name());
            all = false;
        }
    }
    all
}
