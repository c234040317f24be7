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
