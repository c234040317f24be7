//! Whole-engine tests.
use heddle_nvmfs::{MountOptions, Variant, Volume, format_region, mount};
use heddle_pmem::Region;
use heddle_vfs::*;

fn fresh(variant: Variant, mib: u64) -> Volume {
    let region = Region::anonymous(mib << 20).unwrap();
    format_region(&region, variant).unwrap();
    mount(region, &MountOptions { arena_bytes: 1 << 30, ..MountOptions::default() }).unwrap()
}

fn name(n: &str) -> Name<'_> {
    Name::new(n.as_bytes()).unwrap()
}

#[test]
fn what_was_written_is_read_back_after_a_remount() {
    for variant in Variant::ALL {
        let region = Region::anonymous(64 << 20).unwrap();
        let again = region.map_again().unwrap();
        format_region(&region, variant).unwrap();
        let options = MountOptions { arena_bytes: 1 << 30, ..MountOptions::default() };
        let cred = Cred::root();
        let data: Vec<u8> = (0..100_000u32).map(|i| (i * 7 + 1) as u8).collect();
        {
            let v = mount(region, &options).unwrap();
            let fs = v.fs();
            let d = fs.make(&cred, Ino::ROOT, name("dir"), NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] }).unwrap();
            let (_, h) = fs.create(&cred, d.ino, name("file"), 0o644, OpenFlags::READ_WRITE).unwrap();
            assert_eq!(fs.write(&h, 100, &data).unwrap(), data.len());
            for i in 0..2000u64 {
                fs.write(&h, (i % 20) * 4096, &[i as u8; 4096]).unwrap();
            }
            fs.write(&h, 100, &data).unwrap();
            let off = fs.append(&h, b"tail").unwrap();
            assert_eq!(off, 100_100);
            let mut buf = vec![0; 200_000];
            assert_eq!(fs.read(&h, 0, &mut buf).unwrap(), 100_104);
            assert_eq!(&buf[100..100_100], &data[..]);
            assert_eq!(&buf[..100], &[(1980 % 256) as u8; 100]);
            fs.rename(&cred, d.ino, name("file"), Ino::ROOT, name("moved"), RenameMode::Replace).unwrap();
            for i in 0..300 {
                fs.make(&cred, d.ino, name(&format!("f{i}")), NewNode { kind: FileKind::Regular, perm: 0o600, rdev: 0, target: &[] }).unwrap();
            }
            for i in 0..150 {
                fs.unlink(&cred, d.ino, name(&format!("f{i}"))).unwrap();
            }
            fs.release(h);
            v.abandon();
        }
        let v = mount(again, &options).unwrap_or_else(|e| panic!("{variant:?}: {e}"));
        let fs = v.fs();
        let a = fs.lookup(&cred, Ino::ROOT, name("moved")).unwrap();
        assert_eq!(a.size_bytes, 100_104);
        let h = fs.open(&cred, a.ino, OpenFlags::READ_WRITE).unwrap();
        let mut buf = vec![0; 200_000];
        assert_eq!(fs.read(&h, 0, &mut buf).unwrap(), 100_104);
        assert_eq!(&buf[100..100_100], &data[..], "{variant:?}");
        let d = fs.lookup(&cred, Ino::ROOT, name("dir")).unwrap();
        let dh = fs.open(&cred, d.ino, OpenFlags::READ).unwrap();
        let mut n = 0;
        fs.readdir(&dh, Cookie(0), &mut |_| { n += 1; true }).unwrap();
        assert_eq!(n, 150);
        fs.write(&h, 0, &data).unwrap();
        fs.release(h);
        fs.release(dh);
        v.unmount();
    }
}

#[test]
fn speed() {
    for variant in Variant::ALL {
        let v = fresh(variant, 256);
        let fs = v.fs();
        let cred = Cred::root();
        let (_, h) = fs.create(&cred, Ino::ROOT, name("f"), 0o644, OpenFlags::READ_WRITE).unwrap();
        let page = [7u8; 4096];
        for i in 0..4096u64 { fs.write(&h, i * 4096, &page).unwrap(); }
        for threads in [1u64, 2] {
            let run = |read: bool| {
                let t = std::time::Instant::now();
                std::thread::scope(|s| for w in 0..threads { let (fs, h) = (&fs, &h); s.spawn(move || {
                    let mut buf = [3u8; 4096];
                    for _ in 0..300_000 { if read { fs.read(h, w * (8 << 20), &mut buf).unwrap(); } else { fs.write(h, w * (8 << 20), &buf).unwrap(); } }
                }); });
                300_000.0 * threads as f64 / t.elapsed().as_secs_f64() / 1e6
            };
            println!("{} {threads}: write {:.2} M/s read {:.2} M/s", variant.name(), run(false), run(true));
        }
        fs.release(h);
        v.unmount();
    }
}
