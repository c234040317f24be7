//! Looking on: what a mounted file system has done since it was mounted, or is doing now.
//!
//! `stat` takes one reading, `top` one after the other and shows what came between two, `metrics` (of the mount) is asked by others.
//! Readings come from the daemon's socket; where they are counted: `heddle_nvmfs::counters`.

mod figures;
pub mod prometheus;
pub mod stat;
pub mod top;

use crate::image::mounted_image;
use anyhow::{Context, Result};
use heddle_nvmfs::counters::Counters;
use heddle_nvmfs::place::Place;
use heddle_nvmfs::{client, place};
use std::path::Path;

/// The socket of the file system that is mounted at (or above) a directory, or made from an image.
fn socket_of(path: &Path) -> Result<Place> {
    let meta = path.metadata().with_context(|| format!("cannot look at {}", path.display()))?;
    Ok(if meta.is_dir() { place::socket_for_mount(path)? } else { place::socket_for(path)? })
}

fn reading(socket: &Place) -> Result<Counters> {
    Ok(client::counters(socket.clone())?)
}

/// What the mount is made from, for a headline.
fn name_of(path: &Path) -> String {
    match mounted_image(path) {
        Some(image) => format!("{} at {}", image.display(), path.display()),
        None => path.display().to_string(),
    }
}

/// Name of a process, as the kernel tells it.
fn program(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name: String = name.trim_end().chars().filter(|c| !c.is_control()).collect();
    if name.is_empty() { "-".to_owned() } else { name }
}
