use super::*;
use heddle_vfs::model::ModelFs;
use heddle_vfs::{Cred, Ino, Name, OpenFlags, RangeOp};

/// A file of the model with two pages of 3, noted.
struct Fixture {
    fs: ModelFs,
    handle: Handle,
    pages: FilePages,
}

impl Fixture {
    fn new() -> Fixture {
        let fs = ModelFs::new();
        let name = Name::new(b"file").unwrap();
        let (attr, handle) = fs.create(&Cred::root(), Ino::ROOT, name, 0o600, OpenFlags::READ_WRITE).unwrap();
        fs.write(&handle, 0, &[3; 2 * PAGE]).unwrap();
        let pages = FilePages::new(fs.open(&Cred::root(), attr.ino, OpenFlags::READ).unwrap());
        Fixture { fs, handle, pages }
    }

    /// What the kernel gets as a page.
    fn read_page(&self, page: u64) -> Vec<u8> {
        let mut bytes = vec![0; PAGE];
        self.pages.read(&self.fs, &self.handle, page * PAGE_BYTES, &mut bytes).unwrap();
        bytes
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> usize {
        let range = || Ok(offset..offset + bytes.len() as u64);
        let write = || self.fs.write(&self.handle, offset, bytes);
        let (done, captured) = self.pages.call_past_kernel_pages(&self.fs, range, write);
        assert_eq!(done, Ok(bytes.len()));
        captured
    }

    fn write_back(&self, page: u64, bytes: &[u8]) {
        let done = self.pages.write_back(&self.fs, &self.handle, page * PAGE_BYTES, bytes);
        assert_eq!(done, Ok(bytes.len()));
    }

    fn has(&self, offset: u64, wanted: &[u8]) {
        let mut bytes = vec![0; wanted.len()];
        assert_eq!(self.fs.read(&self.handle, offset, &mut bytes), Ok(wanted.len()));
        assert_eq!(bytes, wanted);
    }
}

#[test]
fn a_page_that_comes_back_brings_what_was_stored_and_nothing_else() {
    let file = Fixture::new();
    let mut kernels = file.read_page(0);
    file.write(0, &[1; 8]);
    kernels[100] = 7;
    kernels[200] = 8;
    file.write_back(0, &kernels);
    file.has(0, &[1, 1, 1, 1, 1, 1, 1, 1, 3]);
    file.has(100, &[7, 3]);
    file.has(200, &[8, 3]);
}

#[test]
fn a_page_written_back_twice_brings_each_time_the_new_stores() {
    let file = Fixture::new();
    let mut kernels = file.read_page(0);
    file.write(0, &[1; 8]);
    kernels[100] = 7;
    file.write_back(0, &kernels);
    file.write(100, &[2; 1]);
    kernels[200] = 8;
    file.write_back(0, &kernels);
    file.has(0, &[1; 8]);
    file.has(100, &[2]);
    file.has(200, &[8]);
    // The same value once more is a store too, when it differs from what the kernel's page held.
    kernels[0] = 3;
    kernels[1] = 4;
    file.write_back(0, &kernels);
    file.has(0, &[1, 4, 1]);
}

#[test]
fn a_page_read_again_or_never_missed_is_written_back_whole() {
    let file = Fixture::new();
    let mut kernels = file.read_page(1);
    kernels[0] = 9;
    file.write_back(1, &kernels);
    assert_eq!(file.write(PAGE_BYTES, &[1; 8]), 1);
    let mut kernels = file.read_page(1);
    assert!(file.pages.stale().is_empty(), "a page that is read again is not remembered");
    kernels[0] = 3;
    file.write_back(1, &kernels);
    file.has(PAGE_BYTES, &[3, 1]);
}

#[test]
fn pages_the_kernel_dropped_are_forgotten_unless_bypassed_since() {
    let file = Fixture::new();
    file.write(PAGE_BYTES - 4, &[1; 8]);
    let stale = file.pages.stale();
    assert_eq!(stale, [Stale { pages: 0..2, captured_by: 1 }]);
    file.read_page(1);
    file.write(PAGE_BYTES, &[2; 8]);
    file.pages.dropped(&stale[0]);
    assert_eq!(file.pages.stale(), [Stale { pages: 1..2, captured_by: 2 }]);
}

#[test]
fn a_partial_page_is_written_back_at_the_files_end() {
    let file = Fixture::new();
    let mut kernels = file.read_page(1);
    file.write(PAGE_BYTES + 10, &[1; 4]);
    kernels[20] = 7;
    file.write_back(1, &kernels[..50]);
    kernels[30] = 8;
    file.write_back(1, &kernels);
    file.has(PAGE_BYTES + 9, &[3, 1, 1, 1, 1, 3]);
    file.has(PAGE_BYTES + 20, &[7]);
    file.has(PAGE_BYTES + 30, &[8]);
}

#[test]
fn a_large_hole_stays_a_hole_whatever_comes_back_of_it() {
    let file = Fixture::new();
    file.fs.write(&file.handle, 0, &vec![3; 4 << 20]).unwrap();
    let (mut edge, mut inner) = (file.read_page(0), file.read_page(5));
    let range = 100..(3 << 20) + 100;
    let punch = || file.fs.fallocate(&file.handle, RangeOp::Punch, range.start, range.end - range.start);
    let (done, _) = file.pages.call_past_kernel_pages(&file.fs, || Ok(range.clone()), punch);
    done.unwrap();
    edge[5] = 7;
    inner[5] = 7;
    file.write_back(0, &edge);
    file.write_back(5, &inner);
    file.has(0, &[3, 3, 3, 3, 3, 7, 3]);
    file.has(99, &[3, 0]);
    file.has(5 * PAGE_BYTES, &[0; PAGE]);
    // Read again, it is as any other.
    let mut inner = file.read_page(5);
    inner[5] = 7;
    file.write_back(5, &inner);
    file.has(5 * PAGE_BYTES + 4, &[0, 7, 0]);
}
