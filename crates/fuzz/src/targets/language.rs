//! The workload language of the crash rig.
//!
//! Promises    a text is read or refused with the line that is wrong; what was read, written out and read again, is the same.

use super::Target;
use heddle_crash::op::{Op, Workload};
use heddle_crash::{corpus, text};

pub struct Language;

const WORDS: &[&str] = &[
    "create ",
    "mkdir ",
    "symlink ",
    "link ",
    "unlink ",
    "rmdir ",
    "rename ",
    "exchange ",
    "write ",
    "append ",
    "truncate ",
    "fallocate ",
    "setxattr ",
    "removexattr ",
    "mode ",
    "owner ",
    "times ",
    "fsync ",
    "sync\n",
    "open ",
    "close ",
    "remount\n",
    "watch\n",
    "image ",
    "repeat ",
    "\n",
    " ",
    "/a",
    "/d/b",
    "{i}",
    "{i*4096}",
    "{n*255}",
    "\\x41",
    "@2 ",
    "punch",
    "keep",
    "zero",
    "collapse",
    "insert",
    "4096",
    "4K",
    "1M",
    "1G",
    "0",
    "0644",
    "#",
    "{",
    "}",
];

impl Target for Language {
    fn seeds(&self) -> Vec<Vec<u8>> {
        corpus::workloads().iter().map(|workload| short(workload).into_bytes()).collect()
    }

    fn words(&self) -> &[&str] {
        WORDS
    }

    fn run(&mut self, input: &[u8]) -> Result<u64, String> {
        let input = String::from_utf8_lossy(input);
        let first = match text::parse("fuzz", &input) {
            Ok(workload) => workload,
            // Numbers and quotations apart, the kinds of refusal.
            Err(refused) => return Ok(refused.text.chars().filter(char::is_ascii_alphabetic).count() as u64),
        };
        let written = first.to_string();
        let second =
            text::parse("fuzz", &written).map_err(|e| format!("what was written is refused: {e}"))?;
        let ops = |w: &Workload| -> Vec<(Op, u32)> {
            w.setup.iter().chain(&w.watched).map(|step| (step.op.clone(), step.thread)).collect()
        };
        let same = ops(&first) == ops(&second)
            && first.setup.len() == second.setup.len()
            && first.image_bytes == second.image_bytes;
        if same {
            Ok(1 << 32 | first.watched.len() as u64)
        } else {
            Err("what was written reads as something else".into())
        }
    }
}

/// Its first operations: the rest is more of the same.
fn short(workload: &Workload) -> String {
    workload.to_string().lines().take(30).map(|line| format!("{line}\n")).collect()
}
