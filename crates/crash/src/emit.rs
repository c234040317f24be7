//! Crash images with a manifest, so that another program can mount and check each of them.
//!
//! `DIR/00001.img` … are the images that the rig checked (one of each class that behaves alike), as sparse
//! files. `DIR/manifest.json` tells for each the operations that had returned and the one that was running.
//! The keys: docs/crash.md.

use crate::cut::choice_text;
use crate::op::Workload;
use crate::rig::{Judged, Observer};
use heddle_nvmfs::Variant;
use heddle_pmem::BLOCK_BYTES;
use heddle_vfs::Error;
use serde::Serialize;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The manifest's description of the run.
#[derive(Serialize)]
struct Manifest<'a> {
    output_version: u32,
    variant: &'static str,
    model: String,
    seed: u64,
    workload: &'a str,
    data: &'static str,
    setup: Vec<Operation>,
    operations: Vec<Operation>,
    images: &'a [Image],
}

#[derive(Serialize, Clone)]
struct Operation {
    number: usize,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<String>,
}

#[derive(Serialize)]
struct Image {
    file: String,
    /// Operations `1 ..= returned` had returned.
    returned: usize,
    /// Number of the operation that was running.
    running: Option<usize>,
    fence: u64,
    arrived: String,
    verdict: String,
}

const DATA: &str =
    "byte i of what operation n writes is ((n * 37 + i mod 251) mod 256) | 1; operations of set-up count";

/// Writes images to a directory.
pub struct Emitter {
    dir: PathBuf,
    images: Vec<Image>,
    results: Vec<Option<String>>,
    setup: usize,
    limit: usize,
    left_out: u64,
    failed: Option<io::Error>,
}

impl Emitter {
    /// Writes to `dir`, which is made if needed and must hold no manifest yet; at most `limit` images, and beyond
    /// that each one that fails.
    ///
    /// # Errors
    /// The directory cannot be made, or holds images of another run.
    pub fn new(dir: &Path, workload: &Workload, limit: usize) -> io::Result<Emitter> {
        std::fs::create_dir_all(dir)?;
        if dir.join("manifest.json").exists() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it holds the images of another run"));
        }
        Ok(Emitter {
            dir: dir.to_path_buf(),
            images: Vec::new(),
            results: vec![None; workload.watched.len()],
            setup: workload.setup.len(),
            limit,
            left_out: 0,
            failed: None,
        })
    }

    /// Writes the manifest. Returns how many images were written, and how many the limit left out.
    ///
    /// # Errors
    /// An image or the manifest could not be written.
    pub fn finish(
        mut self,
        workload: &Workload,
        variant: Variant,
        model: &str,
        seed: u64,
    ) -> io::Result<(usize, u64)> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let first = self.setup + 1;
        let operations = workload.watched.iter().zip(&self.results).enumerate().map(|(i, (step, result))| {
            Operation { number: first + i, text: step.to_string(), result: result.clone() }
        });
        let setup = workload.setup.iter().enumerate();
        let manifest = Manifest {
            output_version: 1,
            variant: variant.name(),
            model: model.to_string(),
            seed,
            workload: &workload.name,
            data: DATA,
            setup: setup
                .map(|(i, step)| Operation { number: i + 1, text: step.to_string(), result: None })
                .collect(),
            operations: operations.collect(),
            images: &self.images,
        };
        let text = serde_json::to_string_pretty(&manifest).map_err(io::Error::other)?;
        std::fs::write(self.dir.join("manifest.json"), text + "\n")?;
        Ok((self.images.len(), self.left_out))
    }

    fn write(&self, file: &str, image: &Judged<'_>) -> io::Result<()> {
        let out = File::create(self.dir.join(file))?;
        out.set_len(image.memory.len() as u64)?;
        for (block, bytes) in image.memory.chunks(BLOCK_BYTES).enumerate() {
            if bytes.iter().any(|b| *b != 0) {
                out.write_all_at(bytes, (block * BLOCK_BYTES) as u64)?;
            }
        }
        for (at, word) in image.words {
            out.write_all_at(&word.to_le_bytes(), at.0)?;
        }
        Ok(())
    }
}

impl Observer for Emitter {
    fn returned(&mut self, step: usize, result: &Result<(), Error>) {
        self.results[step] = Some(result.as_ref().map_or_else(ToString::to_string, |()| "ok".into()));
    }

    fn judged(&mut self, image: &Judged<'_>) {
        if self.failed.is_some() || (self.images.len() >= self.limit && image.failure.is_none()) {
            self.left_out += 1;
            return;
        }
        let file = format!("{:05}.img", self.images.len() + 1);
        if let Err(error) = self.write(&file, image) {
            self.failed = Some(error);
            return;
        }
        self.images.push(Image {
            file,
            returned: self.setup + image.returned,
            running: image.running.map(|step| self.setup + step + 1),
            fence: image.fence,
            arrived: choice_text(image.choice),
            verdict: image.failure.unwrap_or("ok").to_string(),
        });
    }
}
