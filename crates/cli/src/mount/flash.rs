//! An F2FS image, served for reading and writing; or for reading alone: then what is recovered is recovered in memory, and
//! nothing is written.
//!
//! No other process attaches to it.

use super::options::Options;
use super::{Args, ended, limits, metrics, node_log, say_ended, say_ready, shown_as, stop_if_told};
use crate::failure::usage;
use crate::last_words::LastWords;
use crate::look::counted::Counted;
use crate::output::talk;
use crate::size::Size;
use crate::variant::System;
use anyhow::{Context, Result, bail};
use heddle_f2fs::{F2fs, Variant};
use heddle_fuse::MountPoint;
use heddle_nvmfs::server::{Server, ServerOptions};
use signal_hook::iterator::Signals;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// What was changed is durable after this time, also if nobody asks for it; in Linux a minute.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(30);

/// Mounts it and serves it until it is unmounted.
pub fn serve(args: &Args, options: &Options, mut signals: Signals, place: MountPoint) -> Result<()> {
    let image = args.image.display();
    let variant = match options.variant {
        None => Variant::default(),
        Some(System::Flash(variant)) => variant,
        Some(System::Nvm(variant)) => {
            return Err(usage(format!(
                "{image} is an F2FS image, and {} works on no such: it can be mounted as {}",
                variant.name(),
                Variant::ALL.map(Variant::name).join(", ")
            )));
        }
    };
    options.refuse_what_is_not_for(&args.image, System::Flash(variant))?;
    if options.durability.is_some() && !variant.has_node_log() {
        return Err(usage(format!(
            "-o durability: {image} is an F2FS image, which keeps what an fsync has written over a power cut; the option is for images of \
             memory, and for the NVM of a node log"
        )));
    }
    limit_of_files(&args.image)?;
    super::wait_until_free(&args.image, options);
    if let Some(nvm) = &options.nvm {
        super::wait_until_free(nvm, options);
    }
    let own;
    let options = if !options.read_only && heddle_f2fs::is_write_protected(&args.image) {
        talk(&format!("{image}: is write-protected, and mounted read-only"));
        own = Options { read_only: true, ..options.clone() };
        &own
    } else {
        options
    };
    let fs = open(args, options, variant)?;
    fs.set_prompt(options.sync, options.dirsync);
    if let Some(discards) = options.discard {
        fs.set_discards(discards);
    }
    let fs = Arc::new(fs);
    let info = fs.info();
    talk(&format!("{image}: F2FS, checkpoint {}; inodes: {}", info.checkpoint_version, info.inodes));
    if info.fsynced_inodes > 0 {
        talk(&format!(
            "{image}: was not unmounted; of {} files what was fsynced after its last checkpoint, or epoch, is shown too",
            info.fsynced_inodes
        ));
    }
    for (nid, why) in fs.left_unended() {
        talk(&format!(
            "{image}: inode {nid}, which has no name, keeps its space: {why}. fsck.f2fs can take it away"
        ));
    }
    if options.read_only && info.is_logged {
        talk(&format!(
            "{image}: what was fsynced since may be in its node log alone, which is not shown: mount it with that, without ro"
        ));
    }
    let last_words = LastWords::of(&args.image);
    let counted = Arc::new(Counted::new(Arc::clone(&fs) as _));
    let door = look_on(args, options, &counted);
    let begun = stop_if_told(args, &mut signals).and_then(|()| {
        let reading = Arc::clone(&counted);
        let start = |at| metrics::start(move || reading.reading(), at, options.metrics_group);
        let answers = options.metrics.as_ref().map(start).transpose()?;
        let mounted = place.mount(counted, &shown_as(args, options, door.as_ref()))?;
        say_ready(args, options, &mounted, &mut signals)?;
        Ok((mounted, answers))
    });
    let (mounted, answers) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            fs.unmount().with_context(|| format!("{image}: the last checkpoint"))?;
            return Err(error);
        }
    };
    let (ends, end) = mpsc::channel::<()>();
    let writer = Arc::clone(&fs);
    let name = image.to_string();
    let keeper = std::thread::spawn(move || {
        let (mut failed, mut told) = (false, 0);
        while end.recv_timeout(CHECKPOINT_EVERY) == Err(RecvTimeoutError::Timeout) {
            // It stays, and every call that changes something says so too.
            if let Err(error) = writer.checkpoint_if_changed()
                && !std::mem::replace(&mut failed, true)
            {
                talk(&format!("{name}: {error}"));
            }
            let left = writer.left_uncleaned();
            for (segment, why) in left.iter().skip(std::mem::replace(&mut told, left.len())) {
                talk(&format!(
                    "{name}: segment {segment} is not cleaned: {why}; look at it with fsck.f2fs --dry-run"
                ));
            }
        }
    });
    let served = ended(mounted.wait());
    drop((door, answers));
    drop(ends);
    let _ = keeper.join();
    let written = fs.unmount().with_context(|| format!("{image}: the last checkpoint"));
    // While it has the image: who unmounts looks when that is free.
    if let Err(error) = &written {
        last_words.lost(error);
    }
    let ended = served.and(written);
    say_ended(args, &ended);
    ended
}

/// Lets other processes look on. A mount without that is a mount all the same.
fn look_on(args: &Args, options: &Options, counted: &Arc<Counted>) -> Option<Server> {
    let counted = Arc::clone(counted);
    let why = "it is an F2FS image, to which no process attaches. Use the mount";
    let how = ServerOptions { group: options.attach_group, ..ServerOptions::default() };
    Server::start_for_looking(move || counted.reading(), &args.image, why, &how)
        .map_err(|error| talk(&format!("heddle: nobody can look on at this mount: {error}")))
        .ok()
}

/// An image that this process may not write to its end cannot be served.
fn limit_of_files(image: &Path) -> Result<()> {
    let Some(max) = limits::file_bytes_max() else { return Ok(()) };
    let bytes = image.metadata().map_or(0, |meta| meta.len());
    if bytes > max {
        let (image, bytes, max) = (image.display(), Size(bytes), Size(max));
        bail!(
            "cannot mount {image}: it has {bytes}, and this process may write files of {max} at most. Raise that (ulimit -f)"
        );
    }
    Ok(())
}

fn open(args: &Args, options: &Options, variant: Variant) -> Result<F2fs> {
    let name = variant.name();
    let Some(nvm) = &options.nvm else {
        if variant.has_node_log() && !options.read_only {
            return Err(usage(format!(
                "{name} needs NVM for its node log: add --nvm FILE, and give the same at every mount"
            )));
        }
        if options.discard_nvm && !options.read_only {
            F2fs::forget_log(&args.image)?;
        }
        return Ok(if options.read_only {
            F2fs::open(&args.image)?
        } else {
            F2fs::open_as(&args.image, variant)?
        });
    };
    if !variant.has_node_log() {
        return Err(usage(format!("{name} has no node log: with --nvm mount as f2fs-nl or f2fs-integrated")));
    }
    if options.read_only {
        return Err(usage(
            "a node log is taken into the image when that is mounted for writing: leave ro away, or --nvm",
        ));
    }
    node_log::open(&args.image, variant, nvm, options)
}
