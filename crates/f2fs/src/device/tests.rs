use super::*;

fn device(blocks: u64) -> (tempfile::TempDir, Device) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("image");
    File::create(&path).unwrap().set_len(blocks * BLOCK_BYTES as u64).unwrap();
    let device = Device::open(&path, Access::Write).unwrap();
    (dir, device)
}

fn fails_once_at(device: &Device, served: u64) {
    *device.faults.lock().unwrap() = Faults { served, failing: 1, ..Faults::default() };
}

fn open_descriptors(path: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path)).count()
}

/// Linux tells one of them; the block that was lost is the other's.
#[test]
fn a_flush_under_way_beside_one_that_fails_fails_too() {
    let (_dir, device) = device(8);
    device.write(BlockAddr(1), &[1; BLOCK_BYTES]).unwrap();
    fails_once_at(&device, 0);
    let mut under_way = device.flushes.begin();
    assert!(device.flush().is_err());
    // As if it had looked before.
    device.forget_loss();
    assert!(matches!(device.flush_by(&mut under_way), Err(Error::Io(_))));
}

#[test]
fn after_a_failed_write_or_flush_nothing_is_written_or_acknowledged() {
    let block = [1; BLOCK_BYTES];
    for is_write in [true, false] {
        let (_dir, device) = device(8);
        device.write(BlockAddr(1), &block).unwrap();
        fails_once_at(&device, 0);
        let failed = if is_write { device.write(BlockAddr(2), &block) } else { device.flush() };
        assert!(failed.is_err() && device.write(BlockAddr(3), &block).is_err() && device.flush().is_err());
        let written =
            device.traffic.lock().unwrap().iter().any(|t| matches!(t, Traffic::Write(BlockAddr(3), _)));
        assert!(!written, "{is_write}");
        device.forget_loss();
        device.write(BlockAddr(3), &block).unwrap();
    }
}

#[test]
fn more_flushes_at_once_than_descriptions_all_end() {
    let (_dir, device) = device(8);
    std::thread::scope(|scope| {
        (0..20).for_each(|_| drop(scope.spawn(|| (0..20).for_each(|_| device.flush().unwrap()))));
    });
}

#[test]
fn a_closed_device_keeps_no_descriptor_of_its_image() {
    let (dir, device) = device(8);
    let path = dir.path().join("image");
    assert!(open_descriptors(&path) > 4);
    drop(device);
    assert_eq!(open_descriptors(&path), 0);
    let reader = Device::open(&path, Access::Read).unwrap();
    assert_eq!(open_descriptors(&path), 1, "a reader flushes nothing");
    drop(reader);
}

#[test]
fn sixteen_flushes_at_once_have_a_description_each() {
    let (dir, device) = device(8);
    let path = dir.path().join("image");
    // One of them is the device's own.
    assert_eq!((device.flushes.begin().file.is_none(), open_descriptors(&path)), (true, 16));
    let at_once: Vec<_> = (0..16).map(|_| device.flushes.begin()).collect();
    assert_eq!(at_once.iter().filter(|own| own.file.is_none()).count(), 1);
}

#[test]
fn a_file_that_was_cut_short_takes_no_flush() {
    let (dir, device) = device(8);
    let file = File::options().write(true).open(dir.path().join("image")).unwrap();
    for (bytes, is_whole) in [(8 * 4096, true), (9 * 4096, true), (8 * 4096 - 1, false), (4096, false)] {
        file.set_len(bytes).unwrap();
        assert_eq!(device.check_size().is_ok(), is_whole, "{bytes}");
        let flushed = device.flush();
        device.forget_loss();
        assert!(flushed.is_ok() == is_whole, "{bytes}: {flushed:?}");
    }
}

/// An image whose bytes say where they are.
fn numbered(blocks: u64) -> (tempfile::TempDir, Device, Vec<u8>) {
    let (dir, device) = device(blocks);
    let bytes: Vec<u8> = (0..blocks * 4096).map(|at| (at / 4096 * 16 + at % 13) as u8).collect();
    device.write(BlockAddr(0), &bytes).unwrap();
    (dir, device, bytes)
}

#[test]
fn a_view_reads_old_blocks_as_they_were() {
    let (dir, device, mut bytes) = numbered(8);
    let image = heddle_undo::Image { uuid: [0; 16], epochs: [0; 2], blocks: 8, repair: 1 };
    let mut undo = heddle_undo::Writer::create(&dir.path().join("undo"), image).unwrap();
    for block in [2_u8, 4, 5] {
        let old: [u8; BLOCK_BYTES] = std::array::from_fn(|at| block ^ 0xff ^ at as u8);
        undo.keep(block.into(), &old).unwrap();
        bytes[usize::from(block) * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&old);
    }
    let view = device.view(Some(undo.old())).unwrap();
    for (addr, skip, len) in
        [(2, 0, 4096), (1, 0, 3 * 4096), (1, 100, 5 * 4096), (2, 4000, 200), (5, 7, 5), (0, 1, 9)]
    {
        let mut found = vec![0; len];
        view.read(BlockAddr(addr), skip, &mut found).unwrap();
        assert!(
            found == bytes[addr as usize * BLOCK_BYTES + skip..][..len],
            "{len} bytes at {addr} + {skip}"
        );
    }
}

/// The faults that other tests ask for.
#[test]
fn reads_that_touch_an_unreadable_block_fail_and_no_others() {
    let (_dir, device, bytes) = numbered(8);
    device.faults.lock().unwrap().unreadable = [3, 5];
    let cases = [
        (0, 0, 3 * 4096, true),
        (0, 0, 3 * 4096 + 1, false),
        (2, 0, 4096, true),
        (2, 4000, 96, true),
        (2, 4000, 97, false),
        (3, 0, 1, false),
        (4, 0, 4096, false),
        (5, 0, 3 * 4096, true),
    ];
    for (addr, skip, len, is_read) in cases {
        let mut found = vec![0; len];
        let read = device.read(BlockAddr(addr), skip, &mut found);
        assert_eq!(read.is_ok(), is_read, "{len} bytes at {addr} + {skip}");
        assert!(!is_read || found == bytes[addr as usize * BLOCK_BYTES + skip..][..len]);
    }
}

#[test]
fn discarded_blocks_are_zeros_and_their_space_is_given_back() {
    let (dir, device, bytes) = numbered(8);
    let block = |addr: u32| *device.block(BlockAddr(addr)).unwrap();
    let held = || dir.path().join("image").metadata().unwrap().blocks() / 8;
    let is_whole = |addr: u32| block(addr)[..] == bytes[addr as usize * BLOCK_BYTES..][..BLOCK_BYTES];
    device.discard(BlockAddr(0), 8);
    assert!((0..8).all(is_whole) && held() == 8, "it is not asked for");
    device.set_discards(true);
    device.discard(BlockAddr(2), 1);
    device.discard(BlockAddr(5), 3);
    let whole: Vec<u32> = (0..8).filter(|addr| is_whole(*addr)).collect();
    assert_eq!((whole, held()), (vec![0, 1, 3, 4], 4));
    assert!([2, 5, 6, 7].into_iter().all(|addr| block(addr) == [0; BLOCK_BYTES]));
    assert!(device.check_size().is_ok(), "the file is as long as before");
    device.set_discards(false);
    device.discard(BlockAddr(0), 1);
    assert!(is_whole(0));
}

#[test]
fn the_first_change_waits_for_what_prepares_it() {
    let (_dir, device) = device(8);
    let written = || {
        let traffic = device.traffic.lock().unwrap();
        let addr = |one: &Traffic| match one {
            Traffic::Write(addr, _) => Some(addr.0),
            _ => None,
        };
        traffic.iter().filter_map(addr).collect::<Vec<_>>()
    };
    device.prepare_by(|_| Err(Error::NoSpace));
    assert_eq!(device.write(BlockAddr(1), &[1; BLOCK_BYTES]), Err(Error::NoSpace));
    device.set_discards(true);
    device.discard(BlockAddr(1), 1);
    assert!(written().is_empty() && device.traffic.lock().unwrap().is_empty());
    device.prepare_by(|device| device.write_unprepared(BlockAddr(7), &[7; BLOCK_BYTES]));
    for addr in [1, 2] {
        device.write(BlockAddr(addr), &[1; BLOCK_BYTES]).unwrap();
    }
    assert_eq!(written(), [7, 1, 2], "once");
}
