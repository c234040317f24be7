//! What POSIX and Linux say, one rule a test, on the four F2FS systems and through mounts after crashes that follow a sync.

mod common;

use common::{Image, open_as};
use heddle_f2fs::Variant;
use heddle_vfs::FileSystem;
use heddle_vfs::testkit::posix::Mounts;

struct Mounted(Image, Variant);

impl Mounts for Mounted {
    fn on(&self, work: &dyn Fn(&dyn FileSystem)) {
        let fs = open_as(&self.0.path, self.1).unwrap();
        work(&fs);
        fs.sync().unwrap();
    }
}

fn on_each_system(rule: fn(&dyn Mounts)) {
    for variant in Variant::ALL {
        println!("{}", variant.name());
        rule(&Mounted(Image::made(64), variant));
    }
}

heddle_vfs::posix_rules!(on_each_system);
