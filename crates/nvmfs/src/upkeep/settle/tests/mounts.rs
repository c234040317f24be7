//! Processes that die, and what later mounts find of their calls: what survivors saw, and nothing that a mount did not find before.

use super::super::sweep;
use super::*;
use crate::format::page::SLOTS;
use crate::log::chain;

fn open(fs: &NvmFs) -> Handle {
    let ino = fs.lookup(&Cred::root(), Ino::ROOT, Name::new(b"f").unwrap()).unwrap().ino;
    fs.open(&Cred::root(), ino, OpenFlags::READ_WRITE).unwrap()
}

/// Ends this mount as a power cut does, mounts again, lets `work` use the file, and says what it is then.
fn mounted_again(region: &Region, volume: Volume, work: impl FnOnce(&NvmFs, &Handle)) -> (Volume, State) {
    volume.abandon();
    let volume = mount_again(region);
    let fs = volume.fs();
    let file = open(&fs);
    work(&fs, &file);
    let found = state(&fs, &file);
    fs.release(file);
    lease::leave(&fs.core);
    (volume, found)
}

/// A settled append was in the pages and in the log, and the size stayed.
#[test]
fn a_mount_finds_what_survivors_saw_of_a_dead_call() {
    for call in CALLS {
        for nth in 1.. {
            let Bench { region, volume, file } = bench();
            let fs = volume.fs();
            let died = dies(nth, || call.1(&fs, &file));
            sweep(&fs.core);
            let seen = state(&fs, &file);
            fs.release(file);
            lease::leave(&fs.core);
            drop(fs);
            let (volume, found) = mounted_again(&region, volume, |_, _| ());
            assert!(found == seen, "{}, step {nth}: the mount finds something else", call.0);
            volume.unmount();
            if !died {
                break;
            }
        }
    }
}

/// Its record stayed in the page's last slot, and counted when the next call had taken another page.
#[test]
fn a_call_that_one_mount_did_not_find_never_happens() {
    for variant in Variant::ALL {
        for nth in 1.. {
            let region = Region::anonymous(8 << 20).unwrap();
            format(&region, variant).unwrap();
            let volume = mount_again(&region);
            let fs = volume.fs();
            let file = make(&fs);
            let log = chain::existing(&fs.core, fs.core.inode(file.ino).unwrap()).next().unwrap();
            while log.tail().1 != SLOTS {
                fs.write(&file, 0, &[1; PAGE as usize]).unwrap();
            }
            let died = dies(nth, || {
                fs.write(&file, 2 * PAGE, &[0xaa; PAGE as usize]).unwrap();
            });
            drop(fs);
            let (volume, found) = mounted_again(&region, volume, |fs, file| {
                // Two slots.
                let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
                fs.setattr(&Cred::root(), file.ino, None, &set).unwrap();
            });
            let (volume, later) = mounted_again(&region, volume, |_, _| ());
            assert!(found == later, "{}, step {nth}: it has happened since", variant.name());
            volume.unmount();
            if !died {
                assert!(nth > 2, "{}: it has no steps", variant.name());
                break;
            }
        }
    }
}

/// It is a record for each run of blocks. None of them says a size, whichever are there.
#[test]
fn an_allocation_cut_between_its_pieces_keeps_the_size() {
    for nth in 1.. {
        let Bench { region, volume, file } = bench();
        let fs = volume.fs();
        // Of the free blocks no two are neighbours.
        let (_, full) = {
            let name = Name::new(b"full").unwrap();
            fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap()
        };
        let written = (0..).take_while(|page| fs.write(&full, page * PAGE, &[1; PAGE as usize]).is_ok());
        for page in (0..written.count() as u64).step_by(2) {
            fs.fallocate(&full, RangeOp::Punch, page * PAGE, PAGE).unwrap();
        }
        fs.release(full);
        let size = fs.getattr(file.ino).unwrap().size_bytes;
        let keep = RangeOp::Allocate { keep_size: true };
        let died = dies(nth, || fs.fallocate(&file, keep, 20 * PAGE, 40 * PAGE).unwrap());
        drop(fs);
        let (volume, found) = mounted_again(&region, volume, |_, _| ());
        assert_eq!(found.bytes.len() as u64, size, "step {nth}: the size");
        volume.unmount();
        if !died {
            assert!(nth > 2, "it has no steps");
            break;
        }
    }
}
