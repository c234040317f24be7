//! Loop devices over files.

use std::path::Path;
use std::process::Command;

/// A loop device, gone at the end.
pub struct Loop(pub String);

impl Loop {
    /// `None`, said loudly: there are none here.
    pub fn over(path: &Path) -> Option<Loop> {
        Loop::with(&["-f", "--show"], path)
    }

    /// One that takes no writes.
    pub fn protected_over(path: &Path) -> Option<Loop> {
        Loop::with(&["-r", "-f", "--show"], path)
    }

    fn with(options: &[&str], path: &Path) -> Option<Loop> {
        let said = Command::new("losetup").args(options).arg(path).output();
        let said = said.ok().filter(|said| said.status.success());
        if said.is_none() {
            eprintln!("SKIPPED, NOT TESTED: loop devices need root, and losetup");
        }
        said.map(|said| Loop(String::from_utf8(said.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}
