//! What forged fields led to: issues that fsck said it had mended and had not, and images it called sound that did not mount.
//! Each was found by the fuzzer's target `repair`; a second look after the repair, and a mount, are in [`repaired`] and [`mended`].

use super::craft::{Craft, DIRECTORY};
use super::crafted::rename_entry;
use super::sample::{Sample, image_bytes, region_of, repaired};
use crate::common::{Short, each_variant, options};
use heddle_nvmfs::format::inode::{FoundInode, InodeBase, TAIL_WORD};
use heddle_nvmfs::format::page::{PageHeader, SLOTS, slot_pos};
use heddle_nvmfs::format::pointer::{self, PointerLocation, Target};
use heddle_nvmfs::format::record::{Blocks, Record, Txn};
use heddle_nvmfs::format::superblock::MOUNTS_MAX;
use heddle_nvmfs::fsck::{Code, examine};
use heddle_nvmfs::ids::{InodeId, PageNo, Version};
use heddle_nvmfs::{LogKind, Variant, mount};
use heddle_pmem::Pos;
use heddle_vfs::testkit::Tree;
use heddle_vfs::{FileSystem, Ino};

/// What is left of a sample that `craft` lied in: `code` is found, all of it mended, and the image mounts and can be used. Files beyond
/// the named ones are as they were.
#[track_caller]
fn mended(variant: Variant, code: Code, but: &[&str], craft: impl Fn(&Craft<'_>, &Sample)) {
    let sample = Sample::new(variant);
    craft(&Craft::new(&sample), &sample);
    let verdict = examine("lie", &sample.region).unwrap();
    let found = verdict.issues.iter().any(|(issue, _)| issue.code == code);
    assert!(found, "{variant:?}: no {code} in {:#?}", verdict.issues);
    let region = repaired(&sample.region, &verdict);
    let volume = mount(region, &options()).unwrap_or_else(|e| panic!("{variant:?}: {e}"));
    let fs = volume.fs();
    let strip = |mut tree: Tree| {
        tree.nodes.retain(|path, _| path != b"/" && !but.iter().any(|b| path.starts_with(b.as_bytes())));
        tree
    };
    let after = strip(Tree::of(&fs).unwrap());
    assert_eq!(after.difference(&strip(sample.tree.clone())), None, "{variant:?}: {:#?}", verdict.issues);
    fs.release(fs.new_file(Ino::ROOT, "a file made after the repair"));
    drop(fs);
    volume.unmount();
}

/// `code` is found in a sample as it stands, all of it mended, and the image mounts.
#[track_caller]
fn seen(sample: &Sample, code: Code) {
    let verdict = examine("lie", &sample.region).unwrap();
    let found = verdict.issues.iter().any(|(issue, _)| issue.code == code);
    assert!(found, "no {code} in {:#?}", verdict.issues);
    mount(repaired(&sample.region, &verdict), &options()).unwrap().unmount();
}

/// All variants with this kind of log.
fn each_with(kind: LogKind, test: impl Fn(Variant)) {
    each_variant(|variant| {
        if variant.log() == kind {
            test(variant);
        }
    });
}

/// crash_two_chunks_in_one_place: the second pointer made the first chunk's slots garbage that was swept, then made anew, then swept.
#[test]
fn a_pointer_to_another_chunk_is_dropped_without_touching_slots() {
    each_variant(|variant| {
        mended(variant, Code::CHUNK_LOST, &[], |craft, _| {
            let raw = craft.region.load_u64(craft.layout().chunk_pointer(0));
            let Target::At(first) =
                pointer::decode(craft.seed, DIRECTORY, PointerLocation::InodeChunk(0), raw)
            else {
                panic!("no chunk")
            };
            for (n, block) in [(1, first), (2, first)] {
                let lie = pointer::encode(craft.seed, DIRECTORY, PointerLocation::InodeChunk(n), block);
                craft.store(craft.layout().chunk_pointer(n), lie);
            }
        });
    });
}

/// A pointer to a file's log was believed to lead to a chunk: its records were swept as garbage in slots.
#[test]
fn a_chunk_pointer_to_log_or_data_harms_neither() {
    each_variant(|variant| {
        mended(variant, Code::CHUNK_LOST, &[], |craft, sample| {
            let lie =
                |n: u64, block| pointer::encode(craft.seed, DIRECTORY, PointerLocation::InodeChunk(n), block);
            craft.store(craft.layout().chunk_pointer(1), lie(1, sample.log_page("victim")));
            let pieces = Some(sample.ino("/pieces"));
            let data = sample.survey().owners.into_iter().find(|o| o.data && o.ino == pieces).unwrap().block;
            craft.store(craft.layout().chunk_pointer(3), lie(3, data));
        });
    });
}

/// The root's chunk was looked for only where its pointer was damaged, not where it led elsewhere.
#[test]
fn a_pointer_to_the_roots_chunk_that_leads_elsewhere_is_put_right() {
    each_variant(|variant| {
        mended(variant, Code::CHUNK_OUTSIDE, &[], |craft, sample| {
            let lie = pointer::encode(
                craft.seed,
                DIRECTORY,
                PointerLocation::InodeChunk(0),
                sample.log_page("victim"),
            );
            craft.store(craft.layout().chunk_pointer(0), lie);
        });
    });
}

/// The tail was put to the first slot, which was no end of anything as long as a half of a change stood in the page: for ever.
#[test]
fn a_tail_is_found_where_nothing_of_the_log_is_whole() {
    each_with(LogKind::Tail, |variant| {
        mended(variant, Code::TAIL_OUTSIDE, &["/moved", "/link"], |craft, sample| {
            let page = sample.log_page("moved");
            for (slot, record, txn) in craft.records(page) {
                craft.put(page, slot, &record, Txn { slots: txn.slots + 1, ..txn }, true);
            }
            let ino = sample.ino("/moved");
            let tail = pointer::encode_tail(craft.seed, craft.id(ino), page, 63);
            craft.store(craft.slot(ino).plus(64 + TAIL_WORD * 8), tail);
        });
    });
}

/// The count of mounts was raised to what one log page said, and the next inode's generation overflowed.
#[test]
fn a_log_page_of_an_impossible_mount_uses_up_no_mounts() {
    each_variant(|variant| {
        mended(variant, Code::VERSION_RANGE, &["/victim"], |craft, sample| {
            let page = sample.log_page("victim");
            let header = PageHeader { epoch: MOUNTS_MAX, ..craft.header(page) };
            let mut line = header.encode(craft.seed);
            line[7] = craft.region.load_u64(page.pos().plus(56));
            craft.region.nt_line(page.pos(), &line);
        });
    });
}

/// The first look took the name for what a power cut leaves; the repair counted as a mount, and the second look took it for one of that.
#[test]
fn a_name_of_an_inode_of_a_mount_that_never_was_goes() {
    each_variant(|variant| {
        for mounts in 1..=3 {
            mended(variant, Code::DANGLING_CLEAN, &["/symlink", "/lost+found"], |craft, sample| {
                rename_entry(craft, sample, "symlink", |record| {
                    if let Record::Name { child, .. } = record {
                        child.generation += mounts << 40;
                    }
                });
            });
        }
    });
}

/// The mount dropped such a name without a word, of an image that was unmounted cleanly too.
#[test]
fn a_mount_counts_names_without_an_inode_that_it_drops() {
    each_variant(|variant| {
        for clean in [true, false] {
            let sample = Sample::new(variant);
            let mounted = || mount(sample.region.map_again().unwrap(), &options()).unwrap();
            let volume = mounted();
            assert_eq!(volume.report.names_dropped, 0, "{variant:?}");
            let fs = volume.fs();
            let late = fs.new_file(Ino::ROOT, "late");
            let ino = late.ino;
            fs.release(late);
            drop(fs);
            if clean {
                volume.unmount()
            } else {
                volume.abandon()
            }
            let at = Craft::new(&sample).slot(ino);
            [0, 64].into_iter().for_each(|line| sample.region.nt_line(at.plus(line), &[0; 8]));
            let code = if clean { Code::DANGLING_CLEAN } else { Code::DANGLING };
            let verdict = examine("lie", &sample.region).unwrap();
            assert!(verdict.issues.iter().any(|(issue, _)| issue.code == code), "{variant:?}");
            // Whoever mounts next is told; the one after has nothing new to hear.
            for dropped in [1, 0] {
                let volume = mounted();
                assert_eq!(volume.report.names_dropped, dropped, "{variant:?}, clean: {clean}");
                let mut tree = Tree::of(&volume.fs()).unwrap();
                // Its own times have changed.
                tree.nodes.insert(b"/".to_vec(), sample.tree.nodes[b"/".as_slice()].clone());
                assert_eq!(tree.difference(&sample.tree), None, "{variant:?}, clean: {clean}");
                volume.unmount();
            }
        }
    });
}

/// An inode of generation 0 got a name, and the mount said that it is gone.
#[test]
fn a_slot_of_generation_0_holds_no_inode() {
    each_variant(|variant| {
        mended(variant, Code::SLOT_LOST, &["/pieces"], |craft, sample| {
            let ino = sample.ino("/pieces");
            let at = craft.slot(ino);
            let FoundInode::Whole(mut base) = InodeBase::decode(craft.seed, ino, &craft.region.line(at))
            else {
                panic!("no inode")
            };
            base.id = InodeId { ino, generation: 0 };
            craft.region.nt_line(at, &base.encode(craft.seed));
        });
    });
}

/// A line that lacks its mark alone was called torn, whatever it said; the mount called it damaged.
#[test]
fn a_senseless_unmarked_line_is_damage_for_mount_and_fsck() {
    each_with(LogKind::CommitMark, |variant| {
        mended(variant, Code::RECORD, &["/victim"], |craft, sample| {
            let page = sample.log_page("victim");
            let (slot, record, txn) = craft.records(page).pop().unwrap();
            craft.put(page, slot, &record, txn, false);
            // A kind that no record has, the checksum right: as the record of another kind is sealed, then its kind changed.
            craft.reseal(page, slot, |line| line[0] |= 0x3f << 32);
        });
    });
}

/// A whole line of a change that is not whole, behind a gap, was called torn; the mount called it damaged.
#[test]
fn a_partial_record_behind_a_gap_is_damage_for_mount_and_fsck() {
    each_with(LogKind::SelfCertifying, |variant| {
        let sample = Sample::new(variant);
        // As after a power cut: torn lines are no damage in themselves.
        let volume = mount(sample.region.map_again().unwrap(), &options()).unwrap();
        std::mem::forget(volume);
        let craft = Craft::new(&sample);
        let page = sample.log_page("victim");
        let records = craft.records(page);
        let at = records.len() - 3;
        let ((gap, ..), (slot, record, txn)) = (&records[at - 1], &records[at]);
        (slot + 1..=SLOTS).for_each(|slot| sample.region.nt_line(slot_pos(page, slot), &[0; 8]));
        craft.put(page, *slot, record, Txn { slots: txn.slots + 1, ..*txn }, true);
        craft.store(slot_pos(page, *gap).plus(16), 0);
        seen(&sample, Code::RECORD_GONE);
    });
}

/// A torn line in a page before the last was called torn; the mount, for which all before the tail is whole, called it damaged.
#[test]
fn a_torn_line_before_the_tail_is_damage_to_both_readings() {
    each_with(LogKind::Tail, |variant| {
        let sample = Sample::new(variant);
        let volume = mount(sample.region.map_again().unwrap(), &options()).unwrap();
        // A page of this mount behind the last one.
        let fs = volume.fs();
        fs.release(fs.new_file(Ino::ROOT, "further"));
        std::mem::forget(volume);
        let craft = Craft::new(&sample);
        let what = format!("the log of inode {}", Ino::ROOT.0);
        let pages = sample.survey().owners.into_iter().filter(|o| o.what == what).map(|o| o.block);
        let page = pages.filter(|page| !craft.records(*page).is_empty()).min_by_key(|p| craft.header(*p).era);
        let page = page.unwrap();
        let (slot, ..) = craft.records(page).pop().unwrap();
        craft.store(slot_pos(page, slot).plus(16), 0);
        seen(&sample, Code::RECORD_GONE);
    });
}

/// A file that nobody has written has no log, and the tail of a log without pages was not looked at: of all bits that flip, these alone
/// were not found.
#[test]
fn a_flipped_tail_of_an_inode_without_a_log_is_turned_back() {
    each_with(LogKind::Tail, |variant| {
        let sample = Sample::new(variant);
        let survey = sample.survey();
        let logless =
            |ino: Ino| survey.owners.iter().all(|owner| owner.what != format!("the log of inode {}", ino.0));
        let bare: Vec<Ino> = sample.inos.values().copied().filter(|ino| logless(*ino)).collect();
        assert!(!bare.is_empty(), "every file of the sample has a log");
        for ino in bare {
            let at = Craft::new(&sample).slot(ino).plus((8 + TAIL_WORD) * 8);
            for bit in 0..64 {
                Craft::new(&sample).store(at, 1 << bit);
                let verdict = examine("flipped", &sample.region).unwrap();
                assert!(verdict.issues.iter().any(|(issue, _)| issue.code == Code::TAIL), "bit {bit}");
                assert!(mount(region_of(&image_bytes(&sample.region)), &options()).is_err(), "bit {bit}");
                assert_eq!(repaired(&sample.region, &verdict).load_u64(at), 0);
            }
            Craft::new(&sample).store(at, 0);
        }
    });
}

/// A head that is gone made a log that never was, though the tail still stood in one of its pages.
#[test]
fn a_log_without_a_head_is_missed_where_its_tail_stands() {
    each_with(LogKind::Tail, |variant| {
        mended(variant, Code::HEAD, &["/victim"], |craft, sample| {
            craft.store(craft.slot(sample.ino("/victim")).plus(8 * 8), 0);
        });
    });
}

/// A change that never counted said it was longer than it is, and the mount dropped, and zeroed, the finished changes behind it.
#[test]
fn a_torn_record_with_a_false_length_hides_no_committed_one() {
    each_with(LogKind::CommitMark, |variant| {
        let sample = Sample::new(variant);
        let craft = Craft::new(&sample);
        let page = sample.log_page("victim");
        let records = craft.records(page);
        let (slot, record, txn) = records[0].clone();
        craft.put(page, slot, &record, Txn { slots: 60, ..txn }, false);
        let whole = |at: Pos| sample.region.line(at);
        let (second, ..) = records[1];
        let before = whole(slot_pos(page, second));
        mount(sample.region.map_again().unwrap(), &options()).unwrap().unmount();
        assert_eq!(whole(slot_pos(page, second)), before, "{variant:?}: a finished change is gone");
        assert_eq!(whole(slot_pos(page, slot)), [0; 8], "{variant:?}: what never counted is still there");
    });
}

/// A link whose target is lost was given a name in lost+found, which was taken from it because its target is lost, and so on.
#[test]
fn a_link_without_a_name_whose_target_is_lost_gets_none() {
    each_variant(|variant| {
        mended(variant, Code::ORPHAN, &["/symlink"], |craft, sample| {
            let ino = Some(sample.ino("/symlink"));
            let text = sample.survey().owners.into_iter().find(|o| o.data && o.ino == ino).unwrap().block;
            craft.region.nt_zero(text.pos(), 4096);
            craft.change(sample.log_page("symlink"), |record| {
                if let Record::Write { end_in_last_page, .. } = record {
                    *end_in_last_page = 4096;
                    return true;
                }
                false
            });
            rename_entry(craft, sample, "symlink", |record| {
                if let Record::Name { removed, .. } = record {
                    *removed = true;
                }
            });
        });
    });
}

/// A name got the version behind the largest that can be when it was dropped, and the next reading called its record damaged.
#[test]
fn a_record_of_a_version_that_no_file_reaches_goes() {
    each_variant(|variant| {
        mended(variant, Code::VERSION_RANGE, &["/symlink", "/lost+found"], |craft, sample| {
            rename_entry(craft, sample, "symlink", |record| {
                if let Record::Name { version, child, .. } = record {
                    (*version, child.ino) = (Version(Version::LIMIT - 1), Ino((1 << 40) - 1));
                }
            });
        });
    });
}

/// Copies were stored into free blocks at each reading, and their file's log was never written for want of one more.
#[test]
fn a_file_whose_copies_find_no_room_is_left_as_it_is() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        let craft = Craft::new(&sample);
        let layout = craft.layout();
        let pages = layout.last().0 - layout.data.0;
        // All data of the image are pages of one more file.
        craft.change(sample.log_page("victim"), |record| {
            if let Record::Write { pages: count, blocks, page, version, .. } = record {
                (*count, *blocks, *page, *version) =
                    (pages, Blocks::At(layout.data), PageNo(900), Version(1 << 40));
                return true;
            }
            false
        });
        let verdict = examine("lie", &sample.region).unwrap();
        let left: Vec<Code> =
            verdict.issues.iter().filter(|(_, mended)| !mended).map(|(i, _)| i.code).collect();
        assert!(left.contains(&Code::NO_SPACE), "{variant:?}: {left:?}");
        let no_space = verdict.issues.iter().find(|(issue, _)| issue.code == Code::NO_SPACE).unwrap();
        assert!(no_space.0.what.starts_with("no blocks for copies of"), "{variant:?}: {}", no_space.0.what);
        assert!(!left.contains(&Code::UNSETTLED), "{variant:?}: {left:?}");
        for (block, words) in verdict.changes() {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            sample.region.nt_write(block.pos(), &bytes);
        }
        let again = examine("lie", &sample.region).unwrap();
        assert_eq!(
            (again.left(), again.changes().count()),
            (again.found(), 0),
            "{variant:?}: {:#?}",
            again.issues
        );
    });
}

/// A record said that it belonged to a transaction of other slots than the one before it; the mount counted it, fsck did not.
#[test]
fn a_record_that_lies_about_its_transaction_counts_in_neither_reading() {
    each_with(LogKind::SelfCertifying, |variant| {
        let sample = Sample::new(variant);
        // As after a power cut: parts of a change are no damage in themselves.
        std::mem::forget(mount(sample.region.map_again().unwrap(), &options()).unwrap());
        let craft = Craft::new(&sample);
        let page = sample.log_page("victim");
        let records = craft.records(page);
        let ((slot, record, txn), (before, ..)) = (&records[records.len() - 1], &records[records.len() - 2]);
        craft.put(page, *slot, record, Txn { first: *before, slots: txn.first + txn.slots - before }, true);
        assert!(mount(sample.region.map_again().unwrap(), &options()).is_err(), "{variant:?}: it mounts");
        seen(&sample, Code::RECORD);
    });
}

/// A record of the largest change count there can be: the next change of that inode had none left, and the mount panicked.
#[test]
fn an_unknown_change_count_is_damage_for_mount_and_fsck() {
    each_variant(|variant| {
        mended(variant, Code::RECORD, &["/victim"], |craft, sample| {
            craft.change(sample.log_page("victim"), |record| {
                if let Record::Write { change_count, .. } = record {
                    *change_count = (1 << 50) - 1;
                    return true;
                }
                false
            });
            assert!(mount(sample.region.map_again().unwrap(), &options()).is_err(), "{variant:?}: it mounts");
        });
    });
}

/// A log page of the largest era there can be: the next page of that inode had none left, and the mount panicked.
#[test]
fn a_page_of_an_unreachable_era_is_damage_for_mount_and_fsck() {
    each_variant(|variant| {
        mended(variant, Code::HEADER, &["/victim"], |craft, sample| {
            let page = sample.log_page("victim");
            let header = PageHeader { era: (1 << 62) - 1, ..craft.header(page) };
            let mut line = header.encode(craft.seed);
            line[7] = craft.region.line(page.pos())[7];
            craft.region.nt_line(page.pos(), &line);
            craft.region.fence();
            assert!(mount(sample.region.map_again().unwrap(), &options()).is_err(), "{variant:?}: it mounts");
        });
    });
}

/// Reading the link asked for as much memory as its size said, and the mount ended; fsck had called it damage.
#[test]
fn a_symlink_of_impossible_size_is_damage_for_mount_and_fsck() {
    each_variant(|variant| {
        mended(variant, Code::SYMLINK, &["/symlink"], |craft, sample| {
            craft.change(sample.log_page("symlink"), |record| {
                if let Record::Write { page, .. } = record {
                    page.0 = 1 << 33;
                    return true;
                }
                false
            });
            assert!(mount(sample.region.map_again().unwrap(), &options()).is_err(), "{variant:?}: it mounts");
        });
    });
}
