//! An unmount whose process is killed, at whatever instant, is not taken for one that has ended in order.

mod common;

use common::{Place, Said, command, heddle, own_namespace};
use std::fs::{self, File};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const FILES: usize = 200;
/// Kills of one variant, at equal distances from the begin of an unmount to its usual end.
const KILLS: u32 = 16;
/// A loaded machine may take as long.
const LONG: Duration = Duration::from_secs(60);

struct Image {
    place: Place,
    how: Vec<String>,
}

impl Image {
    fn of(variant: &str) -> Image {
        let place = Place::with_image_of(variant, "64M");
        let mut how = vec!["--variant".to_owned(), variant.to_owned()];
        if ["f2fs-nl", "f2fs-integrated"].contains(&variant) {
            how.extend(["--nvm".to_owned(), place.text("nvm"), "-o".to_owned(), "nvm-size=8M".to_owned()]);
        }
        Image { place, how }
    }

    /// Its process is this one's child, so that it can be killed.
    #[track_caller]
    fn mount(&self) -> Child {
        let log = File::create(self.place.path("log")).unwrap();
        let (image, mnt) = (self.place.image(), self.place.mnt());
        let mut mount = command(&["mount", "--foreground"]);
        mount.args(&self.how).args([&image, &mnt]).stdout(Stdio::null()).stderr(log);
        let child = mount.spawn().unwrap();
        let began = Instant::now();
        while !fs::read_to_string(self.place.path("log")).unwrap().contains(": mounted at ") {
            assert!(began.elapsed() < LONG, "it does not mount");
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    }

    fn content(number: usize) -> Vec<u8> {
        number.to_string().repeat(1000).into_bytes()
    }

    fn fill(&self) {
        for number in 0..FILES {
            fs::write(self.place.path(&format!("mnt/f{number}")), Image::content(number)).unwrap();
        }
    }

    /// How many files are there after the next mount.
    fn files(&self) -> usize {
        let mut child = self.mount();
        let is_there = |number: &usize| {
            let found = fs::read(self.place.path(&format!("mnt/f{number}")));
            found.is_ok_and(|found| found == Image::content(*number))
        };
        let files = (0..FILES).filter(is_there).count();
        heddle(&["umount", &self.place.mnt()]).ok();
        assert!(child.wait().unwrap().success());
        files
    }
}

#[test]
fn umount_of_a_process_killed_meanwhile_says_0_if_all_is_there() {
    if !own_namespace() {
        return;
    }
    for variant in ["f2fs", "f2fs-rl", "f2fs-nl", "f2fs-integrated", "heddle", "nova"] {
        let image = Image::of(variant);
        let mut child = image.mount();
        image.fill();
        let began = Instant::now();
        heddle(&["umount", &image.place.mnt()]).ok();
        let usual = began.elapsed();
        assert!(child.wait().unwrap().success());
        let mut refused = 0;
        for kill in 0..KILLS {
            let image = Image::of(variant);
            let mut child = image.mount();
            image.fill();
            let umount = command(&["umount", &image.place.mnt()]).stderr(Stdio::piped()).spawn().unwrap();
            std::thread::sleep(usual * kill / KILLS);
            child.kill().unwrap();
            child.wait().unwrap();
            let said = Said::of(umount.wait_with_output().unwrap());
            let was_ok = said.code == 0;
            let files = image.files();
            assert!(
                !was_ok || files == FILES,
                "{variant}: it said 0, and {files} of {FILES} files are there"
            );
            assert!(was_ok || said.err.contains("process behind the mount"), "{variant}: {}", said.err);
            refused += u32::from(!was_ok);
        }
        assert!(refused > 0, "{variant}: no kill came in time");
    }
}

#[test]
fn umount_of_an_f2fs_mount_that_changed_nothing_says_0() {
    if !own_namespace() {
        return;
    }
    for variant in ["f2fs", "f2fs-nl"] {
        for option in ["rw", "ro"] {
            if (variant, option) == ("f2fs-nl", "ro") {
                continue;
            }
            let mut image = Image::of(variant);
            image.how.extend(["-o".to_owned(), option.to_owned()]);
            // The second mount finds an image that was unmounted.
            assert_eq!((image.files(), image.files()), (0, 0), "{variant}, {option}");
        }
    }
}
